"""Listeners of streams."""

from __future__ import annotations

from collections.abc import Callable

from motet.actors.telemetry.event_bus import Fanout
from motet.protocols.events import EventRecord
from tests.actors.telemetry.builders import STREAM, record, text


def test_sinks_see_their_stream_in_order_from_their_attachment_on() -> None:
    fanout = Fanout()
    early: list[EventRecord] = []
    late: list[EventRecord] = []
    fanout.attach(STREAM, early.append)
    fanout.deliver(record(text(1), 1))
    fanout.attach(STREAM, late.append)
    fanout.deliver(record(text(2), 2))
    fanout.deliver(record(text(3), 1, stream="room:dev"))
    assert [r.seq for r in early] == [1, 2]
    assert [r.seq for r in late] == [2]
    assert fanout.delivered == 3


def test_a_stream_nobody_listens_to_is_silent() -> None:
    fanout = Fanout()
    fanout.deliver(record(text(1), 1))
    assert (fanout.delivered, fanout.broken_sinks, fanout.listeners(STREAM)) == (0, 0, 0)


def test_detaching_twice_does_no_harm_and_leaves_others() -> None:
    fanout = Fanout()
    seen: list[EventRecord] = []
    detach = fanout.attach(STREAM, seen.append)
    fanout.attach(STREAM, seen.append)
    detach()
    detach()
    fanout.deliver(record(text(1), 1))
    assert len(seen) == fanout.listeners(STREAM) == 1


def test_a_sink_that_raises_is_detached_and_counted_and_others_go_on() -> None:
    fanout = Fanout()
    seen: list[EventRecord] = []

    def broken(record: EventRecord) -> None:
        raise RuntimeError(f"cannot take {record}")

    fanout.attach(STREAM, broken)
    fanout.attach(STREAM, seen.append)
    fanout.deliver(record(text(1), 1))
    fanout.deliver(record(text(2), 2))
    assert len(seen) == 2
    assert (fanout.broken_sinks, fanout.listeners(STREAM)) == (1, 1)


def test_a_sink_may_detach_another_while_a_record_is_delivered() -> None:
    fanout = Fanout()
    seen: list[EventRecord] = []
    detach: list[Callable[[], None]] = []

    def jealous(_: EventRecord) -> None:
        detach[0]()

    fanout.attach(STREAM, jealous)
    detach.append(fanout.attach(STREAM, seen.append))
    fanout.deliver(record(text(1), 1))
    assert seen == []
