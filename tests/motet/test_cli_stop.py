"""``motet stop`` against a real server that does all at once that can be stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from motet.cli.running import talking
from motet.client import Client
from motet.protocols.gateway import RunsList
from motet.protocols.sessions import FINAL
from tests.motet.command import PATIENCE, motet, started

CONFIG = """
state = "../st"
workspace = "."
[approvals]
hold = {hold}
[tools.shell]
mode = "unsafe"
[agents.helper]
model = "demo"
tools = ["group:fs", "group:shell"]
[[policy]]
tool = "write_file"
effect = "ask"
[rooms.dev]
members = ["helper"]
speakers = ["round_robin"]
[gateway]
listen = "127.0.0.1:0"
"""


async def all_at_work(here: Path) -> None:
    """A tool that runs, a follow-up behind it, a call that a person is asked for, and a room."""
    async with talking(here.parent / "st") as client:
        await client.send("busy", "run echo $$ > busy; sleep 600", agent="helper")
        await client.send("busy", "write later.txt: no", mode="followup")
        await client.send("asks", "write a.txt: x", agent="helper")
        await client.post("dev", "run echo $$ > room; sleep 600")
        await until(lambda: all((here / name).exists() for name in ("busy", "room")))
        with trio.fail_after(PATIENCE):
            while not await pending(client):
                await trio.sleep(0.02)


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not true():
            await trio.sleep(0.02)


async def pending(client: Client) -> list[object]:
    found = await client.call("approvals.list", state="pending")
    return msgspec.convert(found, dict[str, list[object]])["approvals"]


async def what_is_left(here: Path) -> tuple[set[str], dict[str, str], list[object]]:
    """The runs that go on, the statuses of all by their texts, and the approvals that wait."""
    async with talking(here.parent / "st") as client:
        runs = msgspec.convert(await client.call("runs.list", limit=50), RunsList).runs
        going = {run.run_id for run in runs if run.status not in FINAL}
        return going, {run.text: run.status for run in runs}, await pending(client)


@pytest.mark.slow
@pytest.mark.parametrize("hold", [0, 3600], ids=["suspended", "waiting"])
def test_a_stop_of_everything_leaves_nothing_at_work(here: Path, hold: int) -> None:
    (here / "motet.toml").write_text(CONFIG.format(hold=hold))
    with started("serve", cwd=here) as server:
        server.expect("motet serves ")
        trio.run(all_at_work, here)
        programs = [int((here / name).read_text()) for name in ("busy", "room")]
        told = motet("stop", "--all", cwd=here)
        assert told.code == 0, told.err + told.out
        assert "stopped" in told.out
        assert "will not be answered" in told.out
        going, statuses, asked = trio.run(what_is_left, here)
        assert (going, asked) == (set(), [])
        assert statuses.pop("write later.txt: no") == "dropped"
        assert set(statuses.values()) == {"cancelled"}
        assert len(statuses) == 3
        for program in programs:
            assert has_ended(program)
        assert motet("stop", "--all", cwd=here).out == "nothing was going on\n"
    assert not (here / "later.txt").exists()
    assert not (here / "a.txt").exists()


def has_ended(process: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
