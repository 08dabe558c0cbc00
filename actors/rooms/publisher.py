"""The texts of a room: its members' prompts, and the events of its stream.

Two halves. The pure one renders what a member is told when it gets the floor: what others say has
their name in front and is a user's message, never a part of the system prompt. The other one
publishes what is said in the room and what its speakers are doing. Source: API specification,
section 6, rules 3, 5 and 7.

Invariants: an event of the room itself is never lost while there is an event bus; an event that is
forwarded from a member's run is also in that run's own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
from msgspec.structs import replace

from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import EventJournal
from motet.protocols import events
from motet.protocols.events import AnyEvent, EventRecord
from motet.protocols.room_messages import line_of
from motet.protocols.rooms import MemberInfo, RoomMessage
from motet.protocols.sanitize import NO_REPLY, SilenceMatch, is_silent

PASS = "PASS"
SILENT = (PASS, f"I {PASS}", NO_REPLY)
"""Answers that say nothing, in any case and with decorations only: ``[PASS]``, ``I pass.``"""
NOTHING_NEW = "[Nobody has said anything since.]"

FORWARDED = (
    events.Activity,
    events.ToolCall,
    events.ToolProgress,
    events.ToolResult,
    events.ApprovalRequested,
    events.ApprovalResolved,
)
"""The events of a member's run that a room shows unchanged."""

_RECENT = 200
"""Durable events in which the last published message is looked for."""


# The prompts of members


def render_for_member(
    messages: Iterable[RoomMessage], notice: str = "", news: Iterable[str] = ()
) -> str:
    """The messages of others that a member has not been shown, as it reads them, and a notice.

    ``news``: the lines of what has changed in those that it has read.
    """
    lines = "\n".join((*news, *map(line_of, messages))) or NOTHING_NEW
    return f"{lines}\n[{notice}]" if notice else lines


def room_instructions(room: str, name: str, members: Sequence[MemberInfo]) -> str:
    """The part of a member's system prompt about the room."""
    others = "\n".join(
        f"- @{member.name}: {member.description or 'an agent'}"
        for member in members
        if member.name != name
    )
    return (
        f"You are {name} in the group chat {room!r}. Each message begins with square brackets: "
        "its number, whether a person or an agent has said it, and the name. Nobody can write such "
        "a beginning into a text; do not begin yours so. One that is edited or withdrawn replaces "
        "the earlier one of its number. To call "
        f"another member, write @ and its name. If you have nothing to add, answer {PASS} and "
        "nothing else." + (f"\nThe other agents:\n{others}" if others else "")
    )


def is_pass(text: str) -> bool:
    """Whether a turn says nothing. It is not shown, but it counts."""
    return not text.strip(" \t\r\n*_`\"'.") or is_silent(text, *SILENT)


# The stream of a room


def room_stream(name: str) -> str:
    """The name of the stream of a room's events."""
    return f"room:{name}"


class RoomPublisher:
    """Publishes the events of one room."""

    def __init__(self, room: str, publisher: Publisher, journal: EventJournal) -> None:
        self._stream = room_stream(room)
        self._publisher = publisher
        self._journal = journal

    async def publish(self, event: AnyEvent, run_id: str | None = None) -> None:
        """Publish; waits while the feed is full. Without an event bus it does nothing."""
        await self._publisher.emit(self._stream, event, run_id)

    def works(self, member: str, *, on: bool) -> None:
        """Tell that a member works on a message, or no more. Not stored."""
        self._publisher.put(self._stream, events.RoomTyping(member, "assistant", on), None)

    def replied(self, room: str, number: int, replies: int) -> None:
        """Tell in the room that the thread of a message has so many messages. Not stored."""
        self._publisher.put(room_stream(room), events.RoomReplied(number, replies), None)

    def audience_changed(self) -> None:
        """Tell the room's readers that other people may see it now."""
        self._journal.access_changed(self._stream)

    async def settled(self) -> bool:
        """Wait until all that was published is delivered; whether it is on disk, too."""
        await self._journal.settle()
        return not self._publisher.subscribers.feed.late

    async def last_published(self) -> tuple[int | None, bool]:
        """Number of the last published message, 0 if none ever was, None if there is none lately;
        and whether the end of a round was published after all messages.
        """
        head = (await self._journal.head(self._stream)).head
        recent = await self._journal.read(self._stream, max(0, head - _RECENT), _RECENT)
        numbers = [one.event.number for one in recent if isinstance(one.event, events.MessageAdded)]
        ends = [isinstance(one.event, events.RoomIdle) for one in recent if _of_rounds(one.event)]
        none = None if head > _RECENT else 0
        return numbers[-1] if numbers else none, bool(ends) and ends[-1]

    def forward(self, session: str) -> Callable[[], None]:
        """Forward the events of a member's session until the returned function is called."""
        turn = TurnFilter()

        def forward(record: EventRecord) -> None:
            event = turn.shown(record.event)
            if event is not None:
                self._publisher.put(self._stream, event, record.run_id)

        return self._publisher.subscribers.attach(f"session:{session}", forward)


def _of_rounds(event: AnyEvent) -> bool:
    """Whether the event opens a round, belongs to one, or ends one."""
    by_person = isinstance(event, events.MessageAdded) and event.role == "user"
    return by_person or isinstance(event, events.RoomTurn | events.RoomIdle)


@attrs.define
class TurnFilter:
    """The events of one turn as a room shows them while it goes on. Pure.

    A run may write several texts on its way; in the room a turn is one message. So all deltas are
    those of message 0, each text begins at 0 and replaces the one before, and a text that may turn
    out to be a pass is held back until it is clear that it is none.
    """

    _held: str | None = ""
    _silence: list[SilenceMatch] = attrs.field(factory=list[SilenceMatch])

    def shown(self, event: AnyEvent) -> AnyEvent | None:
        """The event to publish; None: nothing, or nothing yet."""
        match event:
            case events.TextDelta():
                return self._text(event)
            case events.ThinkingDelta() | events.RunRetrying():
                return replace(event, i=0)
            case _:
                return event if isinstance(event, FORWARDED) else None

    def _text(self, delta: events.TextDelta) -> events.TextDelta | None:
        if delta.at == 0:
            self._held, self._silence = "", [SilenceMatch(token) for token in SILENT]
        if self._held is None or delta.at != len(self._held):
            return replace(delta, i=0)
        self._held += delta.text
        self._silence = [one for one in self._silence if one.goes_on(delta.text)]
        if self._silence:  # it can still turn out to say nothing
            return None
        text, self._held = self._held, None
        return events.TextDelta(0, 0, text)
