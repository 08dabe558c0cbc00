"""The stream of a room: what is said in it, and what its speakers are doing.

Invariants: an event of the room itself is never lost while there is an event bus; an event that is
forwarded from a member's run is also in that run's own stream. Source: API specification, section
6, rules 5 and 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from motet.actors.runs.run import Run
from motet.actors.runs.table import RunEvents
from motet.actors.sessions.children import PUBLISH_BUDGET, TASK_PREVIEW
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import EventJournal
from motet.protocols import events
from motet.protocols.events import AnyEvent, EventRecord
from motet.protocols.room_turns import TurnFilter
from motet.protocols.storage import StorageUnavailable

_RECENT = 200
"""Durable events in which the last published message is looked for."""


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

    def tell(self, event: AnyEvent) -> None:
        """Publish without waiting: an event that is of no use later."""
        self._publisher.put(self._stream, event, None)

    def works(self, member: str, *, on: bool) -> None:
        """Tell that a member works on a message, or no more. Not stored."""
        self._publisher.put(self._stream, events.RoomTyping(member, "assistant", on), None)

    def replied(self, room: str, number: int, replies: int) -> None:
        """Tell in the room that the thread of a message has so many messages. Not stored."""
        self._publisher.put(room_stream(room), events.RoomReplied(number, replies), None)

    def audience_changed(self) -> None:
        """Tell the room's readers that other people may see it now."""
        self._journal.access_changed(self._stream)

    async def settled(self, within: float = 0.0) -> bool:
        """Wait until all that was published is delivered; whether it is on disk, too.

        ``within``: after so many seconds, raises ``StorageUnavailable`` if it is not.
        """
        await self._journal.settle()
        feed = self._publisher.subscribers.feed
        if feed.late and within:
            feed.nudge()
            with trio.move_on_after(within):
                await feed.journalled()
            if feed.late:
                raise StorageUnavailable("earlier events are not stored yet: try again")
        return not feed.late

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

    async def has_told(self, turn: events.RoomTurn) -> bool:
        """Whether the event of a turn is there; its round is the last one."""
        until = (await self._journal.head(self._stream)).head
        while until > 0:
            first = max(0, until - _RECENT)
            page = await self._journal.read(self._stream, first, until - first)
            for event in (one.event for one in reversed(page)):
                if isinstance(event, events.RoomTurn) and event.turn >= turn.turn:
                    if (event.turn, event.speaker) == (turn.turn, turn.speaker):
                        return True
                elif isinstance(event, events.RoomTurn | events.RoomIdle):
                    return False
            until = first
        return False

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


def show_above(
    told: RunEvents, above: tuple[Run, str] | None, run: Run
) -> Callable[[], Awaitable[None]]:
    """Have the stream of the run above a room show a turn, as it shows a sub-agent. Never waits.

    The returned function shows its end; it awaits while being cancelled, with a deadline.
    """
    if above is None:
        return trio.lowlevel.checkpoint_if_cancelled

    def begun() -> events.ChildStarted:
        text = run.input.text[:TASK_PREVIEW]
        return events.ChildStarted(run.id, run.session, run.agent.name, text)

    late = not told.put(above[0], begun())

    async def end() -> None:
        result = run.result or run.ends_as("cancelled", "the host is closing")
        with trio.move_on_after(PUBLISH_BUDGET, shield=True):
            if late:
                await told.emit(above[0], begun())  # its messages may be others now
            ended = events.ChildEnded(run.id, run.agent.name, result.status, result.usage)
            await told.emit(above[0], ended)

    return end
