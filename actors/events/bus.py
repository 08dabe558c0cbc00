"""The event bus: journals what must last, then gives every event to whoever listens.

Invariants: per stream, events are delivered in the order of arrival, durable ones with numbers
that are contiguous, never reused and survive a restart; nothing is delivered before it is on
disk; a journal that fails costs the number of an event, never the event; a sink never slows a
run or another sink. Source: seed 001 (event class), gateway specification sections 1 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import trio

from motet.actors.errors.summary import summarize
from motet.actors.events.fanout import Fanout
from motet.actors.events.queue import EventQueue
from motet.actors.events.rows import append, numbered, storable, without_secrets
from motet.actors.log import logger
from motet.actors.storage.errors import DatabaseLocked
from motet.protocols.events import EventRecord, Publish, Warned, is_durable
from motet.protocols.storage import Row, Transact
from motet.runtime import Actor, ActorRef, MailboxSpec, handles

CAPACITY = 10_000

log = logger(__name__)


class EventBus(Actor[Publish]):
    """Takes :class:`Publish`; a task of the actor journals and delivers what has come together.

    Ephemeral events are dropped when more than ``capacity`` events wait; for durable ones the
    teller waits. Counters are kept in ``fanout``. A stop delivers all that was taken; what the
    mailbox still holds then becomes dead letters, so stop those who publish first.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=1024, overflow="wait")
    cleanup_budget: ClassVar[float] = 5.0

    def __init__(
        self,
        database: ActorRef[Transact],
        fanout: Fanout,
        clock: Callable[[], float] = time.time,
        capacity: int = CAPACITY,
    ) -> None:
        self._database = database
        self._fanout = fanout
        self._clock = clock
        self._queue = EventQueue(capacity)
        self._batch: list[EventRecord] = []
        self._arrived = trio.Event()
        self._taken = trio.Event()
        self._warned: set[str] = set()

    async def on_start(self) -> None:
        self.start_soon(self._run, name="event bus")

    async def on_stop(self) -> None:
        """Deliver what is left; the task that does it has ended."""
        await self._drain()

    @handles(Publish)
    async def publish(self, message: Publish) -> None:
        """Queue an event. A durable one waits for room, and with it all that come after it."""
        event = without_secrets(message.event)
        record = EventRecord(message.stream, event, self._clock(), run_id=message.run_id)
        while self._queue.full and is_durable(message.event):
            await self._taken.wait()
        dropped = self._queue.dropped
        self._queue.put(record)
        self._fanout.dropped += self._queue.dropped - dropped
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            await self._drain()

    async def _drain(self) -> None:
        """Process all that waits. What a cancellation interrupts stays for the next call."""
        while self._batch or len(self._queue):
            if not self._batch:
                self._batch = self._queue.take()
                self._taken.set()
                self._taken = trio.Event()
            self._deliver_ephemeral()
            await self._process()

    def _deliver_ephemeral(self) -> None:
        """What stands before the first durable event needs no disk."""
        first = (n for n, record in enumerate(self._batch) if is_durable(record.event))
        ready = next(first, len(self._batch))
        self._deliver(self._batch[:ready])

    async def _process(self) -> None:
        batch = self._batch
        durable = [storable(record) for record in batch if is_durable(record.event)]
        if not durable:
            return
        journalled = iter(await self._journalled(durable))
        self._deliver([next(journalled) if is_durable(r.event) else r for r in batch])

    def _deliver(self, records: list[EventRecord]) -> None:
        """Fan out what stands first in the batch, without a checkpoint: it happens once."""
        del self._batch[: len(records)]
        for record in records:
            self._fanout.deliver(record)

    async def _journalled(self, durable: list[tuple[EventRecord, str]]) -> list[EventRecord]:
        """The records with their numbers; without, when the journal fails."""
        try:
            records = numbered(durable, await self._transact(append(durable)))
        except Exception as error:
            records = [record for record, _ in durable]
            self._warn(records, error)
        else:
            self._warned.difference_update(record.stream for record in records)
        return records

    async def _transact(self, transaction: Transact) -> Sequence[Sequence[Row]]:
        try:
            return await self._database.ask(transaction)
        except DatabaseLocked:
            return await self._database.ask(transaction)

    def _warn(self, records: list[EventRecord], error: Exception) -> None:
        """Say on each stream, once until the journal works again, that numbers are missing."""
        reason = summarize(error)
        self._fanout.unjournalled += len(records)
        log.error("events_not_journalled", count=len(records), reason=reason)
        message = f"events are not being recorded, a later reader will miss them: {reason}"
        for stream in dict.fromkeys(record.stream for record in records):
            if stream not in self._warned:
                self._warned.add(stream)
                warning = Warned("events", message)
                self._fanout.deliver(EventRecord(stream, warning, self._clock()))
