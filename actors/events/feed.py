"""What was published and is on its way through the bus: bounded, taken by a plain call.

A run says dozens of things in a turn and waits for none of them, so they cost no message each: who
publishes puts them here, and the bus takes all that has come together. The feed stays when the bus
is restarted. Invariants: the order is that of arrival; a durable event is never thrown away while
the bus lives, who publishes it waits for room; an ephemeral one is kept only if somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from motet.actors.events.fanout import Fanout
from motet.actors.events.queue import EventQueue
from motet.actors.events.rows import without_secrets
from motet.protocols.events import AnyEvent, EventRecord


class EventFeed:
    """Attributes:

    closed: no bus takes anything, and nothing is accepted.
    batch: what the bus has in hand; it removes from it what it has delivered.
    """

    def __init__(self, fanout: Fanout, clock: Callable[[], float], capacity: int) -> None:
        self.closed = True
        self.batch: list[EventRecord] = []
        self._fanout = fanout
        self._clock = clock
        self._queue = EventQueue(capacity)
        self._arrived = trio.Event()
        self._pressed = trio.Event()
        self._moved = trio.Event()

    def __len__(self) -> int:
        return len(self.batch) + len(self._queue)

    def put(self, stream: str, event: AnyEvent, run_id: str | None) -> bool:
        """Take an event; False if it is durable and has to wait for :meth:`room`."""
        if self._fanout.listeners(stream):
            self._pressed.set()
        elif not event.durable:
            return True  # nobody will ever see it
        queue, dropped = self._queue, self._queue.dropped
        record = EventRecord(stream, without_secrets(event), self._clock(), run_id=run_id)
        if not queue.put(record):
            return False
        self._fanout.dropped += queue.dropped - dropped
        self._arrived.set()
        return True

    async def room(self) -> None:
        """Wait until the bus has taken or delivered something, or has ended."""
        self._pressed.set()
        if self.closed:
            await trio.lowlevel.checkpoint()
        else:
            await self._moved.wait()

    async def settle(self) -> None:
        """Wait until all that was put is delivered, or the bus has ended."""
        last = self._queue.last or (self.batch[-1] if self.batch else None)
        while not self.closed and last is not None and self._holds(last):
            await self.room()

    def pending(self, stream: str) -> int:
        """How many durable records of a stream are on their way."""
        return sum(
            record.stream == stream and record.event.durable
            for records in (self.batch, self._queue)
            for record in records
        )

    def _holds(self, record: EventRecord) -> bool:
        return any(one is record for records in (self.batch, self._queue) for one in records)

    # For the bus

    async def collect(self, seconds: float) -> None:
        """Wait for a first record, then at most so long for more, unless somebody waits."""
        if not self.batch:
            await self._arrived.wait()
        if not self._pressed.is_set():
            with trio.move_on_after(seconds):
                await self._pressed.wait()

    def take(self) -> None:
        """Take all that waits in hand."""
        self._arrived, self._pressed = trio.Event(), trio.Event()
        self.batch += self._queue.take()
        self.moved()

    def moved(self) -> None:
        """Wake those who wait for it."""
        self._moved.set()
        self._moved = trio.Event()
