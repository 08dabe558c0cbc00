"""Summaries of a session after its run: one at a time, after the memory flush."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.sessions.compaction import Flush, SessionSummariser, SummaryTask, ask_for_summary
from motet.actors.storage.location import Location
from motet.actors.transcript.window import Compacting, ContextWindow
from motet.protocols.chat import UserMessage
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.sessions import (
    FinishRun,
    LoadContext,
    ReadHistory,
    ResetSession,
    SessionContext,
)
from tests.actors.runs.histories import rows_of
from tests.actors.sessions.store_builders import Store, open_store

SOON = ContextWindow(compacting=Compacting(rows=8))


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


class Slow:
    """A model that answers when it is let go."""

    def __init__(self, text: str = "They talked about tea.", *, wait: bool = False) -> None:
        self.text = text
        self.requests: list[ModelRequest] = []
        self.go = trio.Event()
        if not wait:
            self.go.set()

    async def __call__(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        await self.go.wait()
        if not self.text:
            raise RuntimeError("no model")
        return ModelResponse(self.text)


async def talk(store: Store, run: str, letters: str) -> None:
    await store.accept(run)
    await store.ref.ask(FinishRun(run, "completed", rows_of(letters)))


async def shown(store: Store) -> SessionContext:
    return await store.ref.ask(LoadContext("s"))


def after(ask: Slow, flush: Flush | None = None, view: ContextWindow = SOON) -> SummaryTask:
    return SummaryTask("m", ask, view, flush=flush)


async def test_a_long_session_is_summarised_and_nothing_of_it_is_lost(location: Location) -> None:
    async with open_store(location) as store:
        await talk(store, "r1", "ua" * 10)
        model = Slow()
        assert await SessionSummariser("s", store.ref).after_run(after(model))
        now = await shown(store)
        assert now == SessionContext(15, model.text, rows_of("ua" * 10)[14:], generation="r1")
        assert len(await store.ref.ask(ReadHistory("s"))) == 20
        (request,) = model.requests
        assert (request.temperature, request.max_output_tokens) == (0.3, 1_024)


async def test_a_short_session_is_left_alone(location: Location) -> None:
    async with open_store(location) as store:
        await talk(store, "r1", "ua" * 4)
        model = Slow()
        assert not await SessionSummariser("s", store.ref).after_run(after(model))
        assert model.requests == []


async def test_a_session_that_fills_the_window_is_summarised_however_few_rows(
    location: Location,
) -> None:
    async with open_store(location) as store:
        await store.accept("r1")
        await store.ref.ask(FinishRun("r1", "completed", rows_of("ua" * 5, size=900)))
        assert await SessionSummariser("s", store.ref).after_run(
            after(Slow(), view=ContextWindow(window=3_000))
        )
        assert len((await shown(store)).rows) == 4


async def test_the_next_summary_gets_the_last_one_and_only_newer_rows(
    location: Location,
) -> None:
    async with open_store(location) as store:
        summariser, model = SessionSummariser("s", store.ref), Slow()
        await talk(store, "r1", "ua" * 10)
        await summariser.after_run(after(model))
        await talk(store, "r2", "ua" * 10)
        assert await summariser.after_run(after(model))
        text = model.requests[1].messages[0].text
        assert model.text in text
        assert "user: 14" in text
        assert "user: 12" not in text.partition("user: 14")[0]


async def test_a_session_makes_one_summary_at_a_time(location: Location) -> None:
    async with open_store(location) as store, trio.open_nursery() as nursery:
        await talk(store, "r1", "ua" * 10)
        summariser, model = SessionSummariser("s", store.ref), Slow(wait=True)
        nursery.start_soon(summariser.after_run, after(model))
        await wait_all_tasks_blocked()
        assert summariser.busy
        assert not await summariser.after_run(after(model))
        assert len(model.requests) == 1
        model.go.set()
    assert not summariser.busy


async def test_rows_that_arrive_meanwhile_stay_and_a_reset_meanwhile_wins(
    location: Location,
) -> None:
    async with open_store(location) as store:
        for reset in (False, True):
            await talk(store, f"long {reset}", "ua" * 10)
            before = await shown(store)
            model = Slow(wait=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(SessionSummariser("s", store.ref).after_run, after(model))
                await wait_all_tasks_blocked()
                await talk(store, f"late {reset}", "ua")
                if reset:
                    await store.ref.ask(ResetSession("s"))
                model.go.set()
            now = await shown(store)
            if reset:
                assert now == SessionContext()
            else:
                assert now.rows == (*before.rows[14:], *rows_of("ua"))


async def test_a_model_that_fails_leaves_a_summary_of_the_rows_themselves(
    location: Location,
) -> None:
    async with open_store(location) as store:
        await store.accept("r1")
        rows = (UserMessage("look at /etc/hosts for me"), *rows_of("a" + "ua" * 10))
        await store.ref.ask(FinishRun("r1", "completed", rows))
        assert await SessionSummariser("s", store.ref).after_run(after(Slow("")))
        assert "/etc/hosts" in (await shown(store)).summary


async def test_the_model_has_two_minutes_for_a_summary(
    location: Location, autojump_clock: MockClock
) -> None:
    async with open_store(location) as store:
        await talk(store, "r1", "ua" * 10)
        assert await SessionSummariser("s", store.ref).after_run(after(Slow(wait=True)))
        assert trio.current_time() == pytest.approx(120, abs=1)


async def test_a_flush_comes_first_and_once_in_a_cycle_also_in_the_first(
    location: Location,
) -> None:
    seen: list[int] = []

    async def flush(context: SessionContext) -> bool:
        seen.append(context.start_pos)
        return len(seen) > 1

    async with open_store(location) as store:
        summariser = SessionSummariser("s", store.ref)
        await talk(store, "r1", "ua" * 10)
        await store.database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON summaries BEGIN SELECT raise(ABORT, 'full'); END"
        )
        for _ in range(3):
            assert not await summariser.after_run(after(Slow(), flush))
        assert seen == [1, 1], "a failed flush is tried again, one that is done is not"
        await store.database.execute("DROP TRIGGER full")
        assert await summariser.after_run(after(Slow(), flush))
        await talk(store, "r2", "ua" * 10)
        assert await summariser.after_run(after(Slow(), flush))
        assert seen == [1, 1, 15]


async def test_one_long_turn_leaves_its_request_in_the_summary(location: Location) -> None:
    async with open_store(location) as store:
        await store.accept("r1")
        rows = (UserMessage("count the stars"), *rows_of("uctctctctctcta")[1:])
        await store.ref.ask(FinishRun("r1", "completed", rows))
        assert await SessionSummariser("s", store.ref).after_run(after(Slow()))
        assert (await shown(store)).summary.endswith("request: count the stars")


async def test_a_compaction_during_a_run_goes_on_without_the_model() -> None:
    rows = rows_of("u" + "ct" * 12, size=800)
    view = ContextWindow(window=4_000)
    plan = view.plan(view.prepare(rows), rows)
    assert plan is not None
    told = view.compacted(plan, await ask_for_summary(Slow(), plan.request("m")), rows, 0)
    assert told.summary == "They talked about tea."
    alone = view.compacted(plan, await ask_for_summary(Slow(""), plan.request("m")), rows, 0)
    assert "no model wrote it" in alone.summary
