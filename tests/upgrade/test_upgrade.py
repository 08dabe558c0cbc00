"""A state directory that an older version wrote opens, and everything in it goes on.

The folder was written by commit 40e7163 (version 0.1), which was killed with ``kill -9``:
:mod:`tests.upgrade.story` says how another one is made. That of a room with budgets is of commit
9b0bb8c, in whose schema (32) triggers kept the sums of what rooms have spent.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest
import trio

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.protocols.chat import UserMessage
from motet.protocols.room_costs import FIND, costs_of
from motet.protocols.room_limits import DAY, ROOM, Costs, Spent, hour_of
from motet.protocols.sessions import HistoryRow
from motet.runtime.outside import Outside, replaced, wall_time
from tests.upgrade.story import ADMIN, ALICE, BEN, BIG, BUDGETS, CONFIG, keeper, room, spender

STATE = Path(__file__).with_name("state-0.1.tar.gz")


COSTS = Path(__file__).with_name("state-room-costs.tar.gz")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The state directory, a minute after it was written: a day later its approval has expired."""
    state = tmp_path / "state"
    with tarfile.open(getattr(request, "param", STATE)) as archive:
        archive.extractall(state, filter="data")
        written = max(member.mtime for member in archive)
    since = time.time() - (written + 60)
    with replaced(Outside(wall_time=lambda: time.time() - since)):
        yield state


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[motet.Host]:
    agent = keeper(lambda: None, folder / "marks")
    async with motet.open_host(folder, config=CONFIG, agents=[agent]) as host:
        yield host


def said(rows: tuple[HistoryRow, ...]) -> list[str]:
    return [row.row.text for row in rows if isinstance(row.row, UserMessage)]


async def test_what_was_said_and_stored_is_read(folder: Path) -> None:
    async with opened(folder) as host:
        rows = await host.history("user:alice", principal=ALICE)
        assert said(rows) == ["good morning", "call report", "call broken"]
        (error,) = await host.errors(principal=ADMIN)
        stored = await host.error(error.id, principal=ADMIN)
        assert "the shelf is empty" in str(stored.raw_error)
        (stored_agent,) = await host.stored_agents()
        # It was written as "shared", which was the default then.
        assert (stored_agent.name, stored_agent.profile.workspace) == ("stored", "auto")
        assert [token.label for token in await host.tokens()] == ["phone"]
        assert len(await host.traces(principal=ADMIN)) >= 1


async def test_a_resend_from_before_is_still_a_duplicate(folder: Path) -> None:
    async with opened(folder) as host:
        again = await host.submit(
            "good morning",
            agent="keeper",
            session="user:alice",
            principal=ALICE,
            key="good morning",
        )
        assert again.status == "duplicate"
        assert len(said(await host.history("user:alice", principal=ALICE))) == 3


async def test_an_approval_that_was_open_is_answered_and_its_call_runs_once(folder: Path) -> None:
    async with opened(folder) as host:
        (asked,) = await host.approvals(state="pending", principal=ADMIN)
        await host.approve(asked.id, "allow-once", by="ann", principal=ADMIN)
        run = await host.wait_run(asked.run_id, principal=BEN)
        assert run.status == "completed"
        assert (folder / "marks").read_text() == "restarted\n"


async def test_inputs_that_were_queued_run_in_their_order(folder: Path) -> None:
    async with opened(folder) as host:
        with trio.fail_after(20):
            for run in await host.runs(session="user:eve"):
                await host.wait_run(run.run_id)
        rows = said(await host.history("user:eve"))
        assert rows == ["call hang", "first behind", "second behind"]


async def test_a_conversation_and_a_room_go_on(folder: Path) -> None:
    async with opened(folder) as host:
        result = await host.run("keeper", "and now?", session="user:alice", principal=ALICE)
        assert result.output == "heard: and now?"
        talk = await host.open_room(room())
        before = await talk.history()
        assert [message.author for message in before] == ["alice", "planner", "coder"]
        await talk.post("once more", user="alice")
        await talk.wait()
        assert len(await talk.history()) == len(before) + 3
        assert len(BIG) > 50_000


@pytest.mark.parametrize("folder", [COSTS], indirect=True)
async def test_what_a_room_has_spent_counts_on_and_no_run_pays_for_triggers(folder: Path) -> None:
    """The killed turn was suspended by no one: its tokens stay, and are counted once."""
    hangs = trio.Event()
    async with motet.open_host(folder, config=CONFIG, agents=[spender(hangs.set)]) as host:
        (name,) = {one.name for one in await host.rooms.list(principal=ALICE)}
        found = await spent(folder, name)
        assert found.day["alice"] == found.day[ROOM] == Spent(2, 1059)
        talk = await host.open_room(name)
        for _ in range(2):
            await talk.post("@spender good night", user="alice")
            await talk.wait()
        runs = await host.runs(principal=ADMIN)
        found = await spent(folder, name)
        assert found.day["alice"].turns == BUDGETS.person_day.turns == len(runs)
        assert found.day[ROOM] == found.day["alice"]
        assert found.day[ROOM].tokens == sum(run.usage.total_tokens for run in runs)
    with Location.directory(folder) as location, closing(location.connect()) as database:
        triggers = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'runs'"
        assert not database.run(triggers)


async def spent(folder: Path, room: str) -> Costs:
    with closing(Connection(str(folder / "motet.db"), apsw.SQLITE_OPEN_READONLY)) as database:
        hour = hour_of(wall_time())
        return costs_of(database.run(FIND, (room, hour, hour - DAY)))


def test_every_public_name_of_before_is_still_there() -> None:
    """``public_names.txt`` is ``motet.__all__`` of 40e7163; a new name is added to it."""
    kept = Path(__file__).with_name("public_names.txt").read_text("utf-8").split()
    assert sorted(motet.__all__) == kept
    assert all(hasattr(motet, name) for name in kept)
