"""A state that each past schema's code has written opens, goes on and is finished.

:mod:`tests.upgrade.states` says what is in ``states.tar.xz`` and how another one is made.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.schema import VERSION
from motet.protocols.chat import UserMessage
from motet.protocols.sessions import Principal
from motet.runtime.outside import Outside, replaced
from motet.testing import FunctionModel, say
from tests.upgrade.states import SAID, keeper

HERE = Path(__file__).parent
STATES = HERE / "states.tar.xz"
TOLD = json.loads((HERE / "states.json").read_text("utf-8"))
NEVER = {3, 7}
"""Schemas of no commit: two steps came at once."""
OFTEN = {"13"}
"""Those of every test run, the first in which a call waited for a person and a room was there among
them; the others are ``extended``."""
ALICE, ADMIN = Principal("alice"), Principal("root", "admin")
CONFIG = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.05))


@pytest.fixture
def folder(number: str, tmp_path: Path) -> Iterator[Path]:
    """The state, a minute after it was written: a day later its approval has expired."""
    state = tmp_path / "state"
    state.mkdir()
    with tarfile.open(STATES) as archive:
        packed = archive.extractfile(f"{number}.db")
        assert packed is not None
        (state / "motet.db").write_bytes(packed.read())
    since = time.time() - (TOLD[number]["written"] + 60)
    with replaced(Outside(wall_time=lambda: time.time() - since)):
        yield state


def version(state: Path) -> int:
    with closing(Connection(str(state / "motet.db"), apsw.SQLITE_OPEN_READONLY)) as database:
        return int(str(database.run("PRAGMA user_version")[0][0]))


def test_there_is_a_state_of_every_past_schema() -> None:
    assert {int(number) for number in TOLD} == set(range(1, VERSION)) - NEVER


@pytest.mark.parametrize(
    "number",
    [pytest.param(one, marks=() if one in OFTEN else pytest.mark.extended) for one in sorted(TOLD)],
)
async def test_a_state_of_a_past_schema_goes_on(folder: Path, number: str) -> None:
    told = TOLD[number]
    assert version(folder) == int(number)
    agent = keeper(folder, FunctionModel(lambda _: say("heard"), name="quick"))
    async with motet.open_host(folder, config=CONFIG, agents=[agent]) as host:
        # What was said and stored
        rows = await host.history("user:alice", principal=ALICE)
        assert [row.row.text for row in rows if isinstance(row.row, UserMessage)] == SAID
        (error,) = [one for one in await host.errors(principal=ADMIN) if one.tool_name]
        whole = await host.error(error.id, principal=ADMIN)
        assert "shelf is empty" in str(whole.raw_error)
        again = await host.run(
            agent, SAID[0], session="user:alice", principal=ALICE, key=SAID[0], check=False
        )
        assert again.run_id == rows[0].run_id, "a resend is a duplicate"
        # A call that waits for a person
        waiting = await host.approvals(state="pending", principal=ADMIN)
        assert len(waiting) == told.get("waits", 0)
        for one in waiting:
            await host.approve(one.id, "allow-once", principal=ADMIN)
            assert (await host.wait_run(one.run_id)).status == "completed"
            assert (folder / "marks").read_text() == "restarted\n"
        # Inputs: resumed, or told as interrupted by a motet that did not store enough of them
        with trio.fail_after(60):
            for run in await host.runs(session="eve"):
                ended = await host.wait_run(run.run_id)
                assert ended.status in ("completed", "interrupted"), ended
                if ended.status == "interrupted":
                    sent = await host.resend(run.run_id)
                    assert (await host.wait_run(sent.run_id)).status == "completed"
        # Everything goes on
        done = await host.run(agent, "hello", session="user:alice", principal=ALICE)
        assert done.output
        if "room" in told:
            room = await host.open_room(motet.Room("den", members=[agent]))
            before = await room.history()
            assert [one.author for one in before] == told["room"]
            await room.post("@keeper hello", user="alice")
            await room.wait()
            assert len(await room.history()) > len(before) + 1
    assert version(folder) == VERSION
