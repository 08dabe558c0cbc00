"""``motet doctor --repair``: a damaged database is replaced by what can be read of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.storage.connection import Connection
from motet.cli import main
from motet.cli.repair import repair
from motet.protocols.storage import StateInUse
from motet.runtime import StartFailed

SESSIONS = tuple(f"s{number}" for number in range(6))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a host with some sessions, several pages for each table."""
    state = tmp_path_factory.mktemp("stored") / "st"

    async def talk() -> None:
        async with host_of(state) as host:
            for session in SESSIONS * 2:
                await host.run("a", f"{session} " * 500, session=session)

    trio.run(talk)
    return state


@pytest.fixture
def state(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "st"))


@asynccontextmanager
async def host_of(state: Path) -> AsyncGenerator[Host]:
    agent = motet.Agent("a", model=mt.FunctionModel(lambda _: mt.say("word " * 300)))
    async with motet.open_host(state, agents=[agent], workspace=state.parent / "w") as host:
        yield host


def pages_of(state: Path, table: str) -> list[int]:
    """The leaves of a table, in order."""
    with closing(Connection(str(state / "motet.db"))) as database:
        which = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path"
        return [int(page or 0) for (page,) in database.run(which, (table,))]


def zeros_at(state: Path, *pages: int) -> None:
    with (state / "motet.db").open("rb+") as opened:
        for page in pages:
            opened.seek((page - 1) * 4096)
            opened.write(bytes(4096))


def cut(state: Path) -> None:
    """Half of what was stored is gone; the tables of an empty database come first."""
    pages = pages_of(state, "messages")
    os.truncate(state / "motet.db", pages[len(pages) // 2] * 4096)


def holes(state: Path) -> None:
    """Two in the rows of one table, so that there are rows between them."""
    pages = pages_of(state, "messages")
    zeros_at(state, pages[2], pages[-3])


def lost_names(state: Path) -> None:
    zeros_at(state, pages_of(state, "sqlite_schema")[1])


@pytest.mark.parametrize(("damage", "least"), [(cut, 5), (holes, 18), (lost_names, 24)])
async def test_a_damaged_state_is_refused_then_repaired_then_served(
    state: Path, damage: Callable[[Path], None], least: int
) -> None:
    """Given a damaged database, then no host serves it; when it was repaired, then a host has
    the rows that could be read, goes on with a session, and gives no number of an event again."""
    damage(state)
    before = (state / "motet.db").read_bytes()
    with pytest.raises((motet.StorageError, StartFailed)):
        async with host_of(state):
            pass
    assert repair(state) == 0
    assert (state / "motet.db.damaged-1").read_bytes() == before
    async with host_of(state) as host:
        rows = [row for session in SESSIONS for row in await host.history(session)]
        assert least <= len(rows) <= 24
        assert (await host.run("a", "hello", session="s1")).status == "completed"
    assert repair(state) == 0


def test_a_sound_database_and_one_in_use_are_left_alone(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--repair", "--state", str(state)])
    assert (ended.value.code, "nothing to repair" in capsys.readouterr().out) == (0, True)

    async def meanwhile() -> None:
        async with host_of(state):
            with pytest.raises(StateInUse):
                repair(state)

    trio.run(meanwhile)
    assert not [*state.glob("*damaged*")]


def test_a_repair_that_was_cut_off_before_its_last_step_is_finished_by_the_next(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an end between the empty file and the new database, then no host starts on it."""
    holes(state)
    rename = Path.rename

    def cut_off(self: Path, target: str | Path) -> Path:
        if self.name.endswith(".repaired"):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", cut_off)
        with pytest.raises(KeyboardInterrupt):
            repair(state)

    async def start() -> int:
        async with host_of(state) as host:
            return len(await host.sessions())

    with pytest.raises(motet.StorageError, match="empty file"):
        trio.run(start)
    assert repair(state) == 0
    assert trio.run(start) == len(SESSIONS)


def test_the_whole_database_is_read_at_any_size_with_full(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motet.cli.doctor.CHECKED", 1_000)
    holes(state)
    for extra, told in (((), "not checked"), (("--full",), "the database is damaged")):
        with pytest.raises(SystemExit):
            main(["doctor", "--state", str(state), *extra])
        assert told in capsys.readouterr().out
