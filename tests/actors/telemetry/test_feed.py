"""The intake of the bus: who waits for what, and who is not shown what was before."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.storage.location import Location
from motet.actors.telemetry.event_bus import PATIENCE
from motet.protocols.events import EventRecord
from tests.actors.telemetry.builders import STREAM, delta, open_bus, text


async def test_events_of_many_runs_share_a_commit_while_nobody_listens(
    autojump_clock: MockClock,
) -> None:
    with Location.memory() as location:
        async with open_bus(location) as opened:
            feed = opened.subscribers.feed
            assert feed is not None
            for n in range(5):
                assert feed.put(f"session:{n}", text(n), None)
                await wait_all_tasks_blocked()
            assert opened.transactions == 0
            began = trio.current_time()
            await trio.sleep(2 * PATIENCE)
            assert opened.transactions == 1
            assert trio.current_time() - began < 1


async def test_a_listener_waits_for_nobody(autojump_clock: MockClock) -> None:
    with Location.memory() as location:
        async with open_bus(location) as opened:
            seen = opened.listen()
            feed = opened.subscribers.feed
            assert feed is not None
            began = trio.current_time()
            assert feed.put(STREAM, text(1), None)
            await wait_all_tasks_blocked()
            assert [record.seq for record in seen] == [1]
            assert trio.current_time() == began


async def test_a_reader_sees_what_was_published_before_it_read() -> None:
    with Location.memory() as location:
        async with open_bus(location) as opened:
            feed = opened.subscribers.feed
            assert feed is not None
            assert feed.put(STREAM, text(1), None)
            assert [record.seq for record in await opened.journal.read(STREAM, 0)] == [1]


async def test_who_listens_later_is_not_shown_what_was_published_before() -> None:
    with Location.memory() as location:
        async with open_bus(location) as opened:
            feed = opened.subscribers.feed
            assert feed is not None
            assert feed.put(STREAM, text(1), None)
            assert feed.put(STREAM, delta(), None)  # nobody will see it
            seen = opened.listen()
            assert feed.put(STREAM, text(2), None)
            await opened.journal.settle()
            assert [record.seq for record in seen] == [2]


async def test_what_a_stream_is_forwarded_to_is_settled_as_well() -> None:
    """A room forwards the events of its members' sessions; a change of a message finds them all."""
    with Location.memory() as location:
        async with open_bus(location) as opened:
            feed = opened.subscribers.feed
            assert feed is not None

            def forward(record: EventRecord) -> None:
                assert feed.put("room:den", record.event, record.run_id)

            opened.subscribers.attach(STREAM, forward)
            assert feed.put(STREAM, text(1), None)
            await opened.journal.settle()
            assert not len(feed)
            assert [one.stream for one in await opened.journal.read("room:den", 0)] == ["room:den"]


async def test_a_feed_without_a_bus_makes_nobody_wait() -> None:
    with Location.memory() as location:
        async with open_bus(location) as opened:
            feed = opened.subscribers.feed
            assert feed is not None
            await opened.bus.stop()
            assert feed.closed
            await feed.room()
            await feed.settle()
