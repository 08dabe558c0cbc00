"""A transcript is only ever added to: compactions and resets move what is shown, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.storage.location import Location
from motet.protocols.chat import ChatMessage
from motet.protocols.sessions import (
    DeleteSession,
    LoadContext,
    MarkFlushed,
    ReadHistory,
    ResetSession,
    SessionContext,
    StoreSummary,
)
from tests.actors.sessions.store_builders import ROWS, Store, open_store

NEVER = """
CREATE TRIGGER never_{what} BEFORE {what} ON messages BEGIN
    SELECT raise(ABORT, 'a row of a transcript was touched: {what}');
END"""


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    with Location.directory(tmp_path) as location:
        yield location


async def context(store: Store, session: str = "s") -> SessionContext:
    return replace(await store.ref.ask(LoadContext(session)), generation="")


async def guard(store: Store) -> None:
    """From here on a row of a transcript that is changed or removed is an error."""
    await store.database.execute(NEVER.format(what="UPDATE"))
    await store.database.execute(NEVER.format(what="DELETE"))


async def test_a_summary_takes_the_place_of_the_rows_before_it(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        await store.complete("r2")
        assert await context(store) == SessionContext(1, "", ROWS + ROWS)

        assert await store.ref.ask(StoreSummary("s", 1, 5, "they said hi"))

        assert await context(store) == SessionContext(5, "they said hi", ROWS)
        assert await store.transcript() == ROWS + ROWS
        history = await store.ref.ask(ReadHistory("s"))
        assert tuple(item.row for item in history) == ROWS + ROWS


async def test_the_rows_behind_all_summaries_are_there_up_to_the_last_reset(
    location: Location,
) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        await store.complete("r2")
        assert await store.ref.ask(StoreSummary("s", 1, 5, "before the reset"))
        await store.ref.ask(ResetSession("s"))
        for run in ("r3", "r4", "r5"):
            await store.complete(run)
        assert await store.ref.ask(StoreSummary("s", 9, 13, "one"))
        assert await store.ref.ask(StoreSummary("s", 13, 17, "two"))
        assert (await context(store)).rows == ROWS
        assert await store.transcript() == ROWS * 3


async def test_rows_that_arrive_during_a_summary_are_kept(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        seen = await context(store)
        await store.complete("r2")
        assert await store.ref.ask(StoreSummary("s", seen.start_pos, 4, "hi"))
        assert (await context(store)).rows == (*ROWS[3:], *ROWS)


async def test_a_reset_during_a_summary_wins(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        await store.ref.ask(ResetSession("s"))
        assert not await store.ref.ask(StoreSummary("s", 1, 3, "too late"))
        assert await context(store) == SessionContext()
        await store.complete("r2")
        assert await context(store) == SessionContext(5, "", ROWS)


async def test_of_two_summaries_of_the_same_rows_one_is_stored(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        answers: list[bool] = []

        async def summarise(next_pos: int) -> None:
            answers.append(await store.ref.ask(StoreSummary("s", 1, next_pos, f"to {next_pos}")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(summarise, 3)
            nursery.start_soon(summarise, 4)
        assert sorted(answers) == [False, True]
        now = await context(store)
        assert now.summary == f"to {now.start_pos}"


async def test_a_reset_takes_the_summary_out_of_sight_and_leaves_it_on_disk(
    location: Location,
) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        await store.ref.ask(StoreSummary("s", 1, 3, "secret plans"))
        await store.ref.ask(ResetSession("s"))
        await store.complete("r2")
        assert (await context(store)).summary == ""
        stored = await store.database.execute("SELECT start_pos, from_pos, text FROM summaries")
        assert stored == ((3, 1, "secret plans"),)


async def test_a_pointer_never_goes_back_nor_past_the_last_row(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        for start, to in ((1, 1), (1, 0), (1, 5), (2, 4), (99, 100)):
            assert not await store.ref.ask(StoreSummary("s", start, to, "no"))
        assert not await store.ref.ask(StoreSummary("unknown", 1, 2, "no"))
        assert await context(store) == SessionContext(1, "", ROWS)


async def test_a_flush_is_done_once_in_each_cycle(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        assert not (await context(store)).flushed
        assert await store.ref.ask(MarkFlushed("s", 1))
        assert (await context(store)).flushed
        await store.ref.ask(StoreSummary("s", 1, 3, "hi"))
        assert not (await context(store)).flushed
        assert not await store.ref.ask(MarkFlushed("s", 1))
        assert not (await context(store)).flushed


async def test_a_session_that_is_deleted_leaves_no_summary(location: Location) -> None:
    async with open_store(location) as store:
        await store.complete("r1")
        await store.ref.ask(StoreSummary("s", 1, 3, "hi"))
        await store.ref.ask(DeleteSession("s"))
        assert await store.database.execute("SELECT * FROM summaries") == ()


Step: TypeAlias = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["finish", "finish", "compact", "reset", "flush"]), st.integers(0, 6))
    | st.tuples(st.just("together"), st.integers(0, 6)),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_a_transcript_is_only_added_to(steps: list[Step]) -> None:
    """Law: whatever finishes, compacts and resets, also at once, no stored row is changed or
    removed; the pointer never goes back; what is shown is the end of what is stored, and a summary
    is shown only where it ends."""

    async def world() -> None:
        with Location.memory() as location:
            async with open_store(location) as store:
                await guard(store)
                model = Model(store)
                for step in steps:
                    await model.take(step)
                    await model.check()

    trio.run(world)


class Model:
    """The same session in memory. ``summaries`` by the position at which they end."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rows: list[ChatMessage] = []
        self.start = 1
        self.summaries: dict[int, str] = {}
        self.runs = 0

    async def take(self, step: Step) -> None:
        what, size = step
        match what:
            case "finish":
                await self.finish()
            case "compact":
                await self.compact(size)
            case "flush":
                await self.store.ref.ask(MarkFlushed("s", self.start))
            case "reset" if self.runs:
                await self.store.ref.ask(ResetSession("s"))
                self.start = len(self.rows) + 1
            case "together" if self.runs:
                await self.together(size)
            case _:
                pass

    async def finish(self) -> None:
        self.runs += 1
        self.rows += ROWS
        await self.store.complete(f"r{self.runs}")

    async def compact(self, size: int) -> None:
        to = self.start + size
        text = f"summary of {self.start} to {to}"
        stored = await self.store.ref.ask(StoreSummary("s", self.start, to, text))
        assert stored == (self.start < to <= len(self.rows))
        self.moved(stored, to, text)

    async def together(self, size: int) -> None:
        """A run ends and a reset comes while a summary of what was there is on its way."""
        start, to = self.start, self.start + size
        text = f"summary of {start} to {to}"
        stored: list[bool] = []

        async def compact() -> None:
            stored.append(await self.store.ref.ask(StoreSummary("s", start, to, text)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            nursery.start_soon(self.finish)
            if size % 2:
                nursery.start_soon(self.store.ref.ask, ResetSession("s"))
        now = await context(self.store)
        self.moved(stored[0], to, text)
        assert now.start_pos >= start or not now.rows
        shown = now.start_pos if now.rows else len(self.rows) + 1
        assert shown >= self.start
        self.start = shown

    def moved(self, stored: bool, to: int, text: str) -> None:
        if stored:
            self.start = to
            self.summaries[to] = text

    async def check(self) -> None:
        history = await self.store.ref.ask(ReadHistory("s", None, 200))
        assert [item.row for item in history] == self.rows
        now = await context(self.store)
        assert list(now.rows) == self.rows[self.start - 1 :]
        if now.rows:
            assert now.start_pos == self.start
            assert now.summary == self.summaries.get(self.start, "")
