"""One client in one stream: held, live, lost; and all streams of a connection."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.gateway.hub import Hub, Published
from motet.actors.gateway.outbox import Outbox
from motet.actors.gateway.streams import BUFFERED, Streams, Subscription
from motet.protocols.events import EventRecord, MessageAdded, TextDelta
from motet.protocols.gateway import Limits
from motet.protocols.sessions import LOCAL
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of, stuck_client


def durable(seq: int) -> Published:
    return Published(EventRecord("session:a", MessageAdded("user", "a", "x"), 1.0, seq))


def ephemeral() -> Published:
    return Published(EventRecord("session:a", TextDelta(0, 0, "x"), 1.0))


def live(last: int) -> Subscription:
    subscription = Subscription("session:a", verified=True)
    subscription.begin(last, last)
    assert subscription.splice() == []
    assert subscription.phase == "live"
    return subscription


def test_a_live_one_passes_the_next_number_once() -> None:
    subscription = live(3)
    assert subscription.take(durable(4))
    assert not subscription.take(durable(4))
    assert not subscription.take(durable(2))
    assert subscription.take(ephemeral())
    assert (subscription.last, subscription.phase) == (4, "live")


def test_a_missing_number_holds_it_until_that_was_replayed() -> None:
    subscription = live(3)
    assert not subscription.take(durable(5))
    assert (subscription.phase, subscription.splice()) == ("held", [])
    assert not subscription.replayed(5)
    assert subscription.replayed(4)
    assert [event.record.seq for event in subscription.splice()] == [5]
    assert subscription.phase == "live"


def test_what_is_kept_aside_is_bounded_and_what_fell_out_is_replayed() -> None:
    subscription = Subscription("session:a")
    for seq in range(1, BUFFERED + 11):
        assert not subscription.take(durable(seq))
    assert subscription.splice() == []
    assert all(subscription.replayed(seq) for seq in range(1, 11))
    assert len(subscription.splice()) == BUFFERED
    assert subscription.phase == "live"


def test_ephemerals_before_a_replayed_event_are_dropped() -> None:
    subscription = Subscription("session:a")
    subscription.take(ephemeral())
    subscription.take(durable(1))
    subscription.take(ephemeral())
    assert subscription.replayed(1)
    assert len(subscription.splice()) == 1


def test_a_lost_subscription_passes_and_buffers_nothing() -> None:
    subscription = live(0)
    subscription.lose()
    assert not subscription.take(durable(1))
    assert (subscription.splice(), subscription.head) == ([], 1)


async def test_queued_events_are_dropped_when_their_subscription_ends() -> None:
    host, outbox = FakeHost(), Outbox()
    await host.api.submit("hi", session="a")
    streams = Streams(host.api, Hub(host.events.api), outbox, lambda: None, Limits(), LOCAL)
    _, start = await streams.subscribe("session:a", None)
    start()
    host.say("a", MessageAdded("user", "a", "x"))
    await wait_all_tasks_blocked()
    assert len(outbox) == 1
    _, start = await streams.subscribe("session:a", 1)
    assert len(outbox) == 0
    streams.close()
    assert (len(streams), host.events.sinks["session:a"]) == (0, [])


async def test_the_next_page_is_read_when_the_one_before_was_written() -> None:
    host = FakeHost()
    await host.api.submit("hi", session="a")
    for _ in range(2000):
        host.say("a", MessageAdded("user", "a", "x"))
    context = context_of(host)
    async with trio.open_nursery() as nursery:
        stuck = await stuck_client(nursery, context, "session:a", after=0)
        await wait_all_tasks_blocked()
        assert [call.method for call in host.events.calls].count("read") == 1
        async with connected(context, resume={"session:a": 0}) as other:
            for _ in range(2001):
                await other.event()
        await stuck.aclose()
        nursery.cancel_scope.cancel()
