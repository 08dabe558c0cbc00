"""The bus on a real database: order, numbers, and what happens when the journal fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.location import Location
from motet.protocols.events import EventRecord, MessageAdded, TextDelta, Warned
from motet.protocols.host import StreamHead
from motet.protocols.storage import DatabaseLocked, DiskFull
from tests.actors.telemetry.builders import STREAM, delta, numbers, open_bus, text


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


async def test_events_arrive_in_order_durable_ones_numbered(location: Location) -> None:
    async with open_bus(location) as opened:
        seen = opened.listen()
        other = opened.listen("room:dev")
        for n in range(1, 6):
            await opened.publish(delta(n), text(n))
            await opened.publish(text(n), stream="room:dev")
        await wait_all_tasks_blocked()
        assert [each.event for each in seen] == [
            e for n in range(1, 6) for e in (delta(n), text(n))
        ]
        assert numbers(seen) == numbers(other) == [1, 2, 3, 4, 5]
        assert {each.run_id for each in seen} == {"run_1"}
        assert await opened.journal.read(STREAM, 0) == tuple(e for e in seen if e.seq)


async def test_events_of_one_wake_share_a_transaction(location: Location) -> None:
    async with open_bus(location) as opened:
        seen = opened.listen()
        await opened.publish(*(text(n) for n in range(500)))
        await wait_all_tasks_blocked()
        assert numbers(seen) == list(range(1, 501))
        assert opened.transactions < 10


async def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        for life in range(3):
            async with open_bus(location) as opened:
                await opened.publish(text(life), text(life))
                await opened.publish(text(life), stream="other")
        async with open_bus(location) as opened:
            read = await opened.journal.read(STREAM, 0)
            assert numbers(list(read)) == [1, 2, 3, 4, 5, 6]
            assert await opened.journal.head(STREAM) == StreamHead(6, 1)
            assert await opened.journal.head("other") == StreamHead(3, 1)
            assert await opened.journal.head("nothing yet") == StreamHead(0, 1)


async def test_a_stopped_bus_has_delivered_all_it_took(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        await stop_while_the_disk_works(location)


async def stop_while_the_disk_works(location: Location) -> None:
    async with open_bus(location) as opened:
        seen = opened.listen()
        await opened.publish(*(text(n) for n in range(50)), delta())
        await opened.bus.stop()
        assert len(seen) == 51
        assert numbers(seen) == list(range(1, 51))


async def test_no_subscriber_is_silent(location: Location) -> None:
    async with open_bus(location) as opened:
        await opened.publish(delta(), text(1))
        await wait_all_tasks_blocked()
        assert opened.subscribers.delivered == opened.subscribers.unjournalled == 0
        assert await opened.journal.head(STREAM) == StreamHead(1, 1)


async def test_a_broken_sink_disturbs_neither_bus_nor_others(location: Location) -> None:
    def broken(record: EventRecord) -> None:
        raise RuntimeError(f"cannot take {record}")

    async with open_bus(location) as opened:
        opened.journal.attach(STREAM, broken)
        seen = opened.listen()
        await opened.publish(text(1), text(2))
        await wait_all_tasks_blocked()
        assert numbers(seen) == [1, 2]
        assert opened.subscribers.broken_sinks == 1


async def test_events_of_a_failing_journal_go_out_at_once_and_are_stored_later(
    location: Location,
) -> None:
    def full() -> None:
        raise DiskFull("no room")

    async with open_bus(location) as opened:
        seen = opened.listen()
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        opened.before = full
        for n in (2, 3):
            await opened.publish(delta(n), text(n))
            await wait_all_tasks_blocked()
        opened.before = lambda: None
        await opened.publish(text(4), text(5))
        await wait_all_tasks_blocked()
        assert opened.subscribers.unjournalled == 2
        stored = await opened.journal.read(STREAM, 0)
    texts = [e.event.text for e in seen if isinstance(e.event, MessageAdded)]
    warnings = [e.event for e in seen if isinstance(e.event, Warned)]
    assert texts == [f"text {n}" for n in range(1, 6)]
    assert [w.source for w in warnings] == ["events"]
    assert "no room" in warnings[0].message
    assert numbers(seen) == [1, 4, 5]  # a reader that misses 2 and 3 finds them in the journal
    assert [e.event.text for e in stored if isinstance(e.event, MessageAdded)] == texts
    assert [e.seq for e in stored] == [1, 2, 3, 4, 5]


async def test_each_failure_after_a_success_is_said_again(location: Location) -> None:
    def full() -> None:
        raise DiskFull("no room")

    async with open_bus(location) as opened:
        seen = opened.listen()
        for before in (full, lambda: None, full):
            opened.before = before
            await opened.publish(text(0))
            await wait_all_tasks_blocked()
        opened.before = lambda: None
    assert sum(isinstance(each.event, Warned) for each in seen) == 2


async def test_a_locked_database_is_retried_once(location: Location) -> None:
    failures = [DatabaseLocked("another program writes")]

    def locked_once() -> None:
        if failures:
            raise failures.pop()

    async with open_bus(location) as opened:
        seen = opened.listen()
        opened.before = locked_once
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        assert numbers(seen) == [1]
        assert opened.subscribers.unjournalled == 0


async def test_a_dead_database_does_not_silence_the_bus(location: Location) -> None:
    async with open_bus(location) as opened:
        seen = opened.listen()
        await opened.stop_database()
        await opened.publish(text(1))
        await wait_all_tasks_blocked()
        assert [type(each.event) for each in seen] == [Warned, MessageAdded]


async def test_a_full_bus_drops_ephemeral_events_and_durable_ones_wait(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_bus(location, capacity=4) as opened:
            seen = opened.listen()
            async with trio.open_nursery() as nursery:
                for n in range(200):
                    nursery.start_soon(opened.publish, delta(n), text(n))
            await opened.bus.stop()
            deltas = sum(isinstance(each.event, TextDelta) for each in seen)
            assert numbers(seen) == list(range(1, 201))
            assert opened.subscribers.dropped == 200 - deltas


async def test_text_that_utf8_cannot_hold_is_delivered_and_stored(location: Location) -> None:
    async with open_bus(location) as opened:
        seen = opened.listen()
        await opened.publish(MessageAdded("user", "alice", "bad \ud800"))
        await wait_all_tasks_blocked()
        assert [each.event for each in seen] == [MessageAdded("user", "alice", "bad \ufffd")]
        assert await opened.journal.read(STREAM, 0) == tuple(seen)
