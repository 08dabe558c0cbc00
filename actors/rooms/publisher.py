"""What a member of a room is told when it gets the floor: pure text.

Invariant: what others say has their name in front and is a user's message, never a part of the
system prompt. Source: API specification, section 6, rules 3, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from msgspec.structs import replace

from motet.actors.telemetry.event_bus import Publisher
from motet.actors.transcript.history import with_author
from motet.protocols import events
from motet.protocols.events import AnyEvent, EventRecord
from motet.protocols.host import Journal
from motet.protocols.rooms import MemberInfo, RoomMessage

PASS = "PASS"
NOTHING_NEW = "[Nobody has said anything since.]"


def told(
    messages: Sequence[RoomMessage], *, name: str, agents: int, people: range, most: int
) -> str:
    """What others have said, at most the ``most`` last messages.

    Of agents all behind message ``agents``, of people those whose numbers are in ``people``.
    """
    new = [
        one
        for one in messages
        if (one.seq in people if one.kind == "person" else one.seq > agents and one.author != name)
    ]
    return "\n".join(map(line_of, new[-most:])) or NOTHING_NEW


def line_of(message: RoomMessage) -> str:
    """What somebody said, as a member reads it."""
    return with_author(message.author, message.text)


def manners(room: str, name: str, members: Sequence[MemberInfo]) -> str:
    """What a member's system prompt says of the room."""
    others = "\n".join(
        f"- @{member.name}: {member.description or 'an agent'}"
        for member in members
        if member.name != name
    )
    return (
        f"You are {name} in the group chat {room!r}. Each line that begins with a name in square "
        "brackets was said by that member, a person or an agent; do not begin yours so. To call "
        f"another member, write @ and its name. If you have nothing to add, answer {PASS} and "
        "nothing else." + (f"\nThe other agents:\n{others}" if others else "")
    )


def is_pass(text: str) -> bool:
    """Whether a turn says nothing: it is not shown, and counts."""
    return _plain(text) in ("", PASS)


def may_be_pass(beginning: str) -> bool:
    """Whether a turn that begins so can still turn out to say nothing."""
    return PASS.startswith(_plain(beginning))


def _plain(text: str) -> str:
    return text.strip().strip("*_`\"'.").upper()


def without_name(text: str, name: str) -> str:
    """What was said, without its speaker's own name in front: models copy what they see."""
    front = f"[{name}]"
    stripped = text.strip()
    return stripped[len(front) :].lstrip(" :") if stripped.startswith(front) else stripped


# What a room lets its stream know: what is said in it, and what its speakers are doing.
#
# Invariants: what the room itself says is never lost while there is an event bus; what is passed
# on of a speaker's run is also in that run's own stream. Whatever a run says on its way, in the
# room it says one thing: its deltas are those of message 0, each text from ``at`` 0 on in place
# of the one before, and what may turn out to be a pass is held back until it is none.


PASSED_ON = (
    events.Activity,
    events.ToolCall,
    events.ToolProgress,
    events.ToolResult,
    events.ApprovalRequested,
    events.ApprovalResolved,
)

_LATELY = 200
"""Durable events."""


def room_stream(name: str) -> str:
    """The stream of a room's events."""
    return f"room:{name}"


class RoomVoice:
    """The way of one room to the event bus."""

    def __init__(self, room: str, publisher: Publisher, journal: Journal) -> None:
        self.stream = room_stream(room)
        self._publisher = publisher
        self._journal = journal

    async def say(self, event: AnyEvent, run_id: str | None = None) -> None:
        """Publish; waits for room in the feed. A host without a bus says nothing."""
        await self._publisher.emit(self.stream, event, run_id)

    async def last_told(self) -> tuple[int | None, bool]:
        """Number of the last message that the stream tells of, None: there is none lately; and
        whether it tells last that a round was over.
        """
        head = (await self._journal.head(self.stream)).head
        lately = await self._journal.read(self.stream, max(0, head - _LATELY), _LATELY)
        told = [one.event.number for one in lately if isinstance(one.event, events.MessageAdded)]
        ends = [isinstance(one.event, events.RoomIdle) for one in lately if _of_rounds(one.event)]
        return told[-1] if told else None, bool(ends) and ends[-1]

    def listen_to(self, session: str) -> Callable[[], None]:
        """Pass on what a speaker does, until what is returned is called."""
        turn = Speech()

        def pass_on(record: EventRecord) -> None:
            event = turn.heard(record.event)
            if event is not None:
                self._publisher.put(self.stream, event, record.run_id)

        return self._publisher.fanout.attach(f"session:{session}", pass_on)


def _of_rounds(event: AnyEvent) -> bool:
    """Whether a round is opened, goes on or ends by it."""
    by_person = isinstance(event, events.MessageAdded) and event.role == "user"
    return by_person or isinstance(event, events.RoomTurn | events.RoomIdle)


@attrs.define
class Speech:
    """What a room hears of one turn while it goes on. Pure."""

    _held: str | None = ""

    def heard(self, event: AnyEvent) -> AnyEvent | None:
        """The event as the room is told of it; None: not at all, or later."""
        match event:
            case events.TextDelta():
                return self._text(event)
            case events.ThinkingDelta() | events.RunRetrying():
                return replace(event, i=0)
            case _:
                return event if isinstance(event, PASSED_ON) else None

    def _text(self, delta: events.TextDelta) -> events.TextDelta | None:
        if delta.at == 0:
            self._held = ""
        if self._held is None or delta.at != len(self._held):
            return replace(delta, i=0)
        self._held += delta.text
        if may_be_pass(self._held):
            return None
        text, self._held = self._held, None
        return events.TextDelta(0, 0, text)
