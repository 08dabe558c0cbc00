"""What a room lets its stream know: what is said in it, and what its speakers are doing.

Invariant: what the room itself says is never lost while there is an event bus; what is passed
on of a speaker's run is also in that run's own stream.
"""

from __future__ import annotations

from collections.abc import Callable

from motet.actors.events.fanout import Fanout
from motet.protocols import events
from motet.protocols.events import AnyEvent, EventRecord
from motet.protocols.host import Journal

PASSED_ON = (
    events.TextDelta,
    events.ThinkingDelta,
    events.Activity,
    events.ToolCall,
    events.ToolResult,
    events.RunRetrying,
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

    def __init__(self, room: str, fanout: Fanout, journal: Journal) -> None:
        self.stream = room_stream(room)
        self._fanout = fanout
        self._journal = journal

    async def say(self, event: AnyEvent, run_id: str | None = None) -> None:
        """Publish; waits for room in the feed. A host without a bus says nothing."""
        while (feed := self._fanout.feed) is not None and not feed.closed:
            if feed.put(self.stream, event, run_id):
                return
            await feed.room()

    async def last_told(self) -> int | None:
        """Number of the last message that the stream tells of; None: there is none lately."""
        head = (await self._journal.head(self.stream)).head
        lately = await self._journal.read(self.stream, max(0, head - _LATELY), _LATELY)
        told = [one.event.i for one in lately if isinstance(one.event, events.MessageAdded)]
        return told[-1] if told else None

    def listen_to(self, session: str) -> Callable[[], None]:
        """Pass on what a speaker does, until what is returned is called."""
        return self._fanout.attach(f"session:{session}", self._pass_on)

    def _pass_on(self, record: EventRecord) -> None:
        feed = self._fanout.feed
        if isinstance(record.event, PASSED_ON) and feed is not None:
            feed.put(self.stream, record.event, record.run_id)
