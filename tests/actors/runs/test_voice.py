"""A voice tells of an answer by plain calls: what finds no room is not told in another order."""

from __future__ import annotations

from typing import cast

from motet.actors.runs.publisher import Voice
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.protocols import events
from motet.protocols.models import Retrying, TextPart, ThinkingPart


class Bus:
    """What a voice knows of :class:`Services`: durable events wait for room, others are lost."""

    def __init__(self) -> None:
        self.has_room = True
        self.told: list[events.AnyEvent] = []

    def tell(self, run: Run, event: events.AnyEvent) -> bool:
        if self.has_room:
            self.told.append(event)
        return self.has_room or not events.is_durable(event)

    async def emit(self, run: Run, event: events.AnyEvent) -> None:
        self.has_room = True  # what has no room waits for some
        self.told.append(event)


def voice_on(bus: Bus) -> Voice:
    run = cast(Run, object())  # it is only handed on
    return Voice(run, cast(Services, bus))


def test_parts_are_told_as_they_come() -> None:
    bus = Bus()
    voice = voice_on(bus)
    for part in (ThinkingPart("hm"), TextPart("Hello"), TextPart(", you")):
        voice.part(part)
    voice.end()
    assert bus.told == [
        events.ThinkingDelta(0, 0, "hm"),
        events.TextDelta(0, 0, "Hello"),
        events.TextDelta(0, 5, ", you"),
    ]
    assert voice.partial == ""


def test_a_withdrawal_that_found_no_room_is_told_before_what_follows_it() -> None:
    bus = Bus()
    voice = voice_on(bus)
    voice.part(TextPart("One"))
    bus.has_room = False
    voice.part(Retrying(1, 0.5, "cut"))
    voice.part(TextPart("Two"))
    assert bus.told == [events.TextDelta(0, 0, "One")]
    bus.has_room = True
    voice.part(TextPart(" and three"))
    assert bus.told[1:] == [
        events.RunRetrying(1, 500, "cut", 0, True),
        events.TextDelta(0, 3, " and three"),
    ]


async def test_what_is_emitted_waits_until_the_withdrawal_is_told() -> None:
    bus = Bus()
    voice = voice_on(bus)
    voice.part(ThinkingPart("hm"))
    bus.has_room = False
    voice.part(Retrying(1, 0.5, "cut"))
    await voice.say("assistant", "a", "Two")
    assert bus.told[1:] == [
        events.RunRetrying(1, 500, "cut", 0, True),
        events.MessageAdded("assistant", "a", "Two", 0),
    ]
