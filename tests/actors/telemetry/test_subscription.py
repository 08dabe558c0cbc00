"""Reading a stream in this process: the past, then what happens, without gap or duplicate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.location import Location
from motet.actors.telemetry.subscription import Subscription, subscribe
from motet.protocols.events import EventRecord, TextDelta
from motet.protocols.storage import StorageError
from tests.actors.telemetry.builders import STREAM, Opened, delta, numbers, open_bus, text


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


async def read(events: Subscription, count: int) -> list[EventRecord]:
    """Records until ``count`` numbered ones are there."""
    seen: list[EventRecord] = []
    while len(numbers(seen)) < count:
        seen.append(await anext(events))
    return seen


async def test_a_subscriber_sees_what_happens_from_now_on(location: Location) -> None:
    async with open_bus(location) as opened:
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        async with subscribe(opened.journal, STREAM) as events:
            await opened.publish(delta(), text(2))
            seen = await read(events, 1)
            assert [each.event for each in seen] == [delta(), text(2)]
        assert STREAM not in opened.subscribers.by_stream


async def test_a_subscriber_may_begin_in_the_past(location: Location) -> None:
    async with open_bus(location) as opened:
        await opened.publish(*(text(n) for n in range(450)))
        await wait_all_tasks_blocked()
        async with subscribe(opened.journal, STREAM, after=3) as events:
            await opened.publish(text(450))
            assert numbers(await read(events, 448)) == list(range(4, 452))


@settings(max_examples=25)
@given(
    past=st.integers(0, 6),
    after=st.none() | st.integers(0, 6),
    capacity=st.integers(1, 6),
    script=st.lists(st.sampled_from(["text", "delta", "read", "rest"]), max_size=25),
)
def test_replay_and_live_join_without_gap_or_duplicate(
    past: int, after: int | None, capacity: int, script: list[str]
) -> None:
    """Law: whatever is published, read and awaited in between, a reader sees n+1, n+2, ..."""
    begin = None if after is None else min(after, past)

    async def scenario() -> None:
        with Location.memory() as location:
            async with open_bus(location) as opened:
                await opened.publish(*(text(n) for n in range(past)))
                await wait_all_tasks_blocked()
                async with subscribe(opened.journal, STREAM, begin, capacity) as events:
                    seen = await play(opened, events, script)
                total = past + script.count("text")
                first = past if begin is None else begin
                assert numbers(seen) == list(range(first + 1, total + 1))

    async def play(opened: Opened, events: Subscription, script: list[str]) -> list[EventRecord]:
        seen: list[EventRecord] = []
        for n, what in enumerate(script):
            match what:
                case "text":
                    await opened.publish(text(n))
                case "delta":
                    await opened.publish(delta(n))
                case "read":
                    with trio.move_on_after(0):
                        seen.append(await anext(events))
                case _:
                    await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        total = past + script.count("text")
        wanted = total - (past if begin is None else begin) - len(numbers(seen))
        return seen + await read(events, wanted)

    trio.run(scenario)


async def test_a_slow_subscriber_slows_nobody_and_misses_no_durable_event(
    location: Location,
) -> None:
    async with (
        open_bus(location) as opened,
        subscribe(opened.journal, STREAM, capacity=8) as slow,
        subscribe(opened.journal, STREAM) as fast,
    ):
        for n in range(1, 301):
            await opened.publish(delta(n * 2), delta(n * 2 + 5), text(n))
            assert numbers(await read(fast, 1)) == [n]
        assert fast.dropped == 0
        assert numbers(await read(slow, 300)) == list(range(1, 301))
        assert slow.dropped > 0


async def test_a_slow_subscriber_gets_a_thousand_deltas_as_one(location: Location) -> None:
    async with (
        open_bus(location) as opened,
        subscribe(opened.journal, STREAM, capacity=4) as events,
    ):
        for n in range(1_000):
            await opened.publish(delta(n, "x"))
        await wait_all_tasks_blocked()
        await opened.publish(text(1))
        seen = await read(events, 1)
    joined = "".join(each.event.text for each in seen if isinstance(each.event, TextDelta))
    assert joined == "x" * 1_000
    assert len(seen) < 10
    assert events.dropped == 0


async def test_a_cancelled_read_loses_nothing(location: Location) -> None:
    async with open_bus(location) as opened:
        await opened.publish(*(text(n) for n in range(5)))
        await wait_all_tasks_blocked()
        async with subscribe(opened.journal, STREAM, after=0) as events:
            for _ in range(3):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await anext(events)
            assert numbers(await read(events, 5)) == [1, 2, 3, 4, 5]


async def test_a_journal_that_cannot_be_read_raises_and_can_be_asked_again(
    location: Location,
) -> None:
    async with open_bus(location) as opened:
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        await opened.readers.aclose()
        async with subscribe(opened.journal, STREAM, after=0) as events:
            for _ in range(2):
                with pytest.raises(StorageError):
                    await anext(events)


async def test_unnumbered_events_of_a_failing_journal_are_seen_live(location: Location) -> None:
    def fail() -> None:
        raise StorageError("no")

    async with open_bus(location) as opened, subscribe(opened.journal, STREAM) as events:
        opened.before = fail
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        opened.before = lambda: None
        await opened.publish(text(2))
        seen = await read(events, 1)
    assert [each.seq for each in seen] == [None, None, 1]


async def test_iterating_is_fair_to_other_tasks(location: Location) -> None:
    """A reader with a full queue reaches a checkpoint for each record."""
    async with open_bus(location) as opened, subscribe(opened.journal, STREAM) as events:
        await opened.publish(*(text(n) for n in range(20)))
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:
            async for _ in events:
                pass
        assert scope.cancelled_caught
        assert "waiting=20" in repr(events)
