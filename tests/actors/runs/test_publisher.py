"""A run publishes an answer by plain calls: what finds no room is not told in another order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.run import Run
from motet.protocols import events
from motet.protocols.models import Retrying, TextPart, ThinkingPart


class Bus:
    """An outlet: durable events wait for room, others are lost."""

    def __init__(self) -> None:
        self.has_room = True
        self.told: list[events.AnyEvent] = []

    def put(self, run: Run, event: events.AnyEvent) -> bool:
        if self.has_room:
            self.told.append(event)
        return self.has_room or not events.is_durable(event)

    async def emit(self, run: Run, event: events.AnyEvent) -> None:
        self.has_room = True  # what has no room waits for some
        self.told.append(event)


def publisher_on(bus: Bus) -> RunPublisher:
    unchanged = SimpleNamespace(fixes=[])
    run = cast(Run, SimpleNamespace(carried=unchanged))  # the rest is only handed on
    return RunPublisher(run, bus)


def test_parts_are_told_as_they_come() -> None:
    bus = Bus()
    publisher = publisher_on(bus)
    for part in (ThinkingPart("hm"), TextPart("Hello"), TextPart(", you")):
        publisher.part(part)
    publisher.end()
    assert bus.told == [
        events.ThinkingDelta(0, 0, "hm"),
        events.TextDelta(0, 0, "Hello"),
        events.TextDelta(0, 5, ", you"),
    ]
    assert publisher.partial == ""


def test_a_withdrawal_that_found_no_room_is_told_before_what_follows_it() -> None:
    bus = Bus()
    publisher = publisher_on(bus)
    publisher.part(TextPart("One"))
    bus.has_room = False
    publisher.part(Retrying(1, 0.5, "cut"))
    publisher.part(TextPart("Two"))
    assert bus.told == [events.TextDelta(0, 0, "One")]
    bus.has_room = True
    publisher.part(TextPart(" and three"))
    assert bus.told[1:] == [
        events.RunRetrying(1, 500, "cut", 0, True),
        events.TextDelta(0, 3, " and three"),
    ]


async def test_what_is_emitted_waits_until_the_withdrawal_is_told() -> None:
    bus = Bus()
    publisher = publisher_on(bus)
    publisher.part(ThinkingPart("hm"))
    bus.has_room = False
    publisher.part(Retrying(1, 0.5, "cut"))
    await publisher.say("assistant", "a", "Two")
    assert bus.told[1:] == [
        events.RunRetrying(1, 500, "cut", 0, True),
        events.MessageAdded("assistant", "a", "Two", 0),
    ]
