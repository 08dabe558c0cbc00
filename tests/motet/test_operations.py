"""The claims of docs/operations.md on a server: unit, plans, backup, upgrade, metrics."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.storage.schema import MIGRATIONS, VERSION
from motet.cli.operation_commands import ConfigLook
from motet.protocols.config_changes import PLANS
from motet.protocols.host import HostStatus
from motet.protocols.meters import Figures, Meters
from motet.protocols.metrics import GatewayCounts, exposition
from motet.runtime import StartFailed
from tests.motet.command import ROOT

PAGE = (ROOT / "docs/operations.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
EVERYTHING_FREE = HostStatus("boot", "0", 0.0, 0.0, 0, 0, 0, 0, 0)


def blocks(language: str) -> list[str]:
    return [found[2] for found in BLOCK.finditer(PAGE) if found[1] == language]


def test_the_plans_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (restart|drain|hot) \|$", PAGE, re.M)
    assert dict(rows) == dict(PLANS)
    assert ConfigLook.RELOAD in ConfigLook


def test_the_metrics_are_there() -> None:
    told = exposition(
        EVERYTHING_FREE, Figures(Meters()), GatewayCounts(0, 0, 0, 0, 0, 0, {}), 1.0, 1
    )
    named = re.findall(r"^\| `((?:motet|process)_\w+)` \|", PAGE, re.M)
    assert len(named) >= 4
    assert not [name for name in named if f"# TYPE {name} " not in told]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_one(tmp_path: Path) -> None:
    unit, opened = blocks("ini")
    (tmp_path / "motet.socket").write_text(opened)
    here = unit.replace("/srv/motet/.venv/bin/motet", sys.executable)
    here = here.replace("/srv/motet", str(tmp_path)).replace("User=motet", "User=root")
    file = tmp_path / "motet.service"
    file.write_text(here)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    about = [line for line in ran.stderr.splitlines() if file.name in line]
    assert (ran.returncode, about) == (0, [])


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no sqlite3 here")
async def test_a_backup_of_a_busy_host_is_restored(tmp_path: Path) -> None:
    """Given a host at work, when its database is saved as the page says, then the copy opens, and
    has what was answered before.
    """
    save, restore, _ = blocks("sh")
    state = tmp_path / "state"
    agent = motet.Agent("a", model="demo")
    async with (
        motet.open_host(state, agents=[agent], workspace=tmp_path / "w") as host,
        trio.open_nursery() as nursery,
    ):
        await host.run("a", "wait 0.01", session="before")
        for number in range(5):
            nursery.start_soon(host.run, agent, f"wait 0.0{number}")
        assert await shell(save, tmp_path) == "ok\n"
    await shell(restore, tmp_path)
    async with motet.open_host(state, agents=[agent], workspace=tmp_path / "w") as host:
        assert [row.run_id for row in await host.history("before")]


async def shell(script: str, folder: Path) -> str:
    ran = await trio.run_process(["sh", "-ec", script], cwd=folder, capture_stdout=True)
    return ran.stdout.decode()


def version_of(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


async def test_an_older_database_is_upgraded_and_keeps_its_records(tmp_path: Path) -> None:
    """Given the database of an older motet with a session in it, when a host opens it, then it has
    the newest version and the session.
    """
    state = tmp_path / "state"
    state.mkdir()
    old = sqlite3.connect(state / "motet.db")
    for step in MIGRATIONS[:1]:
        old.executescript(step)
    old.executescript(
        "PRAGMA user_version = 1;"
        "INSERT INTO sessions (session, agent, owner, created, updated)"
        " VALUES ('old', 'a', 'local', 1.0, 1.0)"
    )
    old.close()
    agent = motet.Agent("a", model="demo")
    async with motet.open_host(state, agents=[agent], workspace=tmp_path / "w") as host:
        assert [one.session for one in await host.sessions()] == ["old"]
    new = sqlite3.connect(state / "motet.db")
    assert version_of(new) == VERSION
    new.close()


async def test_a_newer_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    newer = sqlite3.connect(state / "motet.db")
    newer.executescript(f"CREATE TABLE later (x); PRAGMA user_version = {VERSION + 1}")
    newer.close()
    with pytest.raises((motet.StorageError, StartFailed)) as failure:
        async with motet.open_host(state, workspace=tmp_path / "w"):
            pass
    assert "newer" in f"{failure.value} {failure.value.__cause__}"
    left = sqlite3.connect(state / "motet.db")
    assert version_of(left) == VERSION + 1
    left.close()
