"""The event bus: journals what must last, then gives every event to whoever listens.

Invariants: per stream, events are delivered in the order of arrival, durable ones with numbers
that are contiguous, never reused and survive a restart; nothing is delivered before it is on
disk; a journal that fails costs the number of an event, never the event; a sink never slows a
run or another sink. Source: seed 001 (event class), gateway specification sections 1 and 4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from motet.actors.errors.summary import summarize
from motet.actors.events.fanout import Fanout
from motet.actors.events.feed import EventFeed
from motet.actors.events.rows import append, numbered, storable
from motet.actors.log import logger
from motet.actors.storage.errors import DatabaseLocked
from motet.actors.storage.transactions import Rows, Transaction
from motet.protocols.events import EventRecord, Publish, Warned
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.outside import wall_time

CAPACITY = 10_000
PATIENCE = 0.02
"""Seconds for which events may wait for others, to share a commit, while nobody listens."""

log = logger(__name__)


class EventBus(Actor[Publish]):
    """Journals and delivers what has come together in the feed, in a task of its own.

    ``transact`` runs a transaction and returns after its COMMIT, as ``Writer.submit``.

    Those who have no feed at hand tell it :class:`Publish`. Ephemeral events are dropped when more
    than ``capacity`` events wait; for durable ones the teller waits. Counters are kept in
    ``fanout``. A stop delivers all that was taken; what the mailbox still holds then becomes dead
    letters, so stop those who publish first.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=1024, overflow="wait")
    cleanup_budget: ClassVar[float] = 5.0

    def __init__(
        self,
        transact: Callable[[Transaction], Awaitable[Rows]],
        fanout: Fanout,
        clock: Callable[[], float] = wall_time,
        capacity: int = CAPACITY,
    ) -> None:
        self._transact = transact
        self._fanout = fanout
        self._clock = clock
        self._feed = fanout.feed = fanout.feed or EventFeed(fanout, clock, capacity)
        self._warned: set[str] = set()

    async def on_start(self) -> None:
        self._feed.closed = False
        self.start_soon(self._run, name="event bus")

    async def on_stop(self) -> None:
        """Deliver what is left; the task that does it has ended."""
        await self._drain()
        self._feed.moved()

    @handles(Publish)
    async def publish(self, message: Publish) -> None:
        """Queue an event. A durable one waits for room, and with it all that come after it."""
        while not self._feed.put(message.stream, message.event, message.run_id):
            await self._feed.room()

    async def _run(self) -> None:
        try:
            while True:
                await self._feed.collect(PATIENCE)
                await self._round()
        finally:
            self._feed.closed = True
            self._feed.moved()

    async def _drain(self) -> None:
        """Process all that waits. What a cancellation interrupts stays for the next call."""
        while len(self._feed):
            await self._round()

    async def _round(self) -> None:
        if not self._feed.batch:
            self._feed.take()
        self._deliver_ephemeral()
        await self._process()
        self._feed.moved()

    def _deliver_ephemeral(self) -> None:
        """What stands before the first durable event needs no disk."""
        batch = self._feed.batch
        first = (n for n, record in enumerate(batch) if record.event.durable)
        self._deliver(batch[: next(first, len(batch))])

    async def _process(self) -> None:
        batch = self._feed.batch
        durable = [storable(record) for record in batch if record.event.durable]
        if not durable:
            return
        journalled = iter(await self._journalled(durable))
        self._deliver([next(journalled) if record.event.durable else record for record in batch])

    def _deliver(self, records: list[EventRecord]) -> None:
        """Fan out what stands first in the batch, without a checkpoint: it happens once."""
        del self._feed.batch[: len(records)]
        for record in records if self._fanout.is_heard else ():
            self._fanout.deliver(record)

    async def _journalled(self, durable: list[tuple[EventRecord, str]]) -> list[EventRecord]:
        """The records with their numbers; without, when the journal fails."""
        records = [record for record, _ in durable]
        try:
            answer = await self._written(append(durable).statements)
        except Exception as error:
            self._warn(records, error)
            return records
        if self._warned:
            self._warned.difference_update(record.stream for record in records)
        return numbered(durable, answer) if self._fanout.is_heard else records

    async def _written(self, transaction: Transaction) -> Rows:
        try:
            return await self._transact(transaction)
        except DatabaseLocked:
            return await self._transact(transaction)

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
