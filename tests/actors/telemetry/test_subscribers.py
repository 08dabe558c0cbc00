"""Listeners of streams."""

from __future__ import annotations

from collections.abc import Callable

from motet.actors.telemetry.event_bus import Subscribers
from motet.protocols.events import EventRecord
from tests.actors.telemetry.builders import STREAM, record, text


def sinks(subscribers: Subscribers) -> int:
    return len(subscribers.by_stream.get(STREAM, ()))


def test_sinks_see_their_stream_in_order_from_their_attachment_on() -> None:
    subscribers = Subscribers()
    early: list[EventRecord] = []
    late: list[EventRecord] = []
    subscribers.attach(STREAM, early.append)
    subscribers.deliver(record(text(1), 1))
    subscribers.attach(STREAM, late.append)
    subscribers.deliver(record(text(2), 2))
    subscribers.deliver(record(text(3), 1, stream="room:dev"))
    assert [r.seq for r in early] == [1, 2]
    assert [r.seq for r in late] == [2]
    assert subscribers.delivered == 3


def test_a_stream_nobody_listens_to_is_silent() -> None:
    subscribers = Subscribers()
    subscribers.deliver(record(text(1), 1))
    assert (
        subscribers.delivered,
        subscribers.broken_sinks,
        sinks(subscribers),
    ) == (
        0,
        0,
        0,
    )


def test_detaching_twice_does_no_harm_and_leaves_others() -> None:
    subscribers = Subscribers()
    seen: list[EventRecord] = []
    detach = subscribers.attach(STREAM, seen.append)
    subscribers.attach(STREAM, seen.append)
    detach()
    detach()
    subscribers.deliver(record(text(1), 1))
    assert len(seen) == sinks(subscribers) == 1


def test_a_sink_that_raises_is_detached_and_counted_and_others_go_on() -> None:
    subscribers = Subscribers()
    seen: list[EventRecord] = []

    def broken(record: EventRecord) -> None:
        raise RuntimeError(f"cannot take {record}")

    subscribers.attach(STREAM, broken)
    subscribers.attach(STREAM, seen.append)
    subscribers.deliver(record(text(1), 1))
    subscribers.deliver(record(text(2), 2))
    assert len(seen) == 2
    assert (subscribers.broken_sinks, sinks(subscribers)) == (1, 1)


class Unheard(str):
    def __len__(self) -> int:
        raise SystemExit

    __iter__ = isascii = encode = __len__  # type: ignore[assignment]


class Evasive(Exception):
    def __str__(self) -> str:
        return Unheard("nothing")


def test_a_sink_whose_error_raises_when_it_is_read_is_detached_as_any_other() -> None:
    subscribers = Subscribers()

    def broken(_: EventRecord) -> None:
        raise Evasive

    subscribers.attach(STREAM, broken)
    subscribers.deliver(record(text(1), 1))
    assert (subscribers.broken_sinks, sinks(subscribers)) == (1, 0)


def test_a_sink_may_detach_another_while_a_record_is_delivered() -> None:
    subscribers = Subscribers()
    seen: list[EventRecord] = []
    detach: list[Callable[[], None]] = []

    def jealous(_: EventRecord) -> None:
        detach[0]()

    subscribers.attach(STREAM, jealous)
    detach.append(subscribers.attach(STREAM, seen.append))
    subscribers.deliver(record(text(1), 1))
    assert seen == []
