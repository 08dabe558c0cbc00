"""Who listens to which stream, and what became of the events nobody could be given.

A plain object that the host makes once and gives to bus and journal: it stays when the bus is
restarted. Invariants: sinks of a stream are called in the order of attachment, never after they
were detached, and one that raises is detached and counted (it never reaches a run or the bus).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias

import attrs
import trio

from motet.actors.errors.describe import serialize_error, summarize
from motet.actors.errors.log import logger
from motet.actors.errors.redact import redact
from motet.actors.storage.events import append, numbered, storable, without_secrets
from motet.protocols.events import AnyEvent, EventRecord, Publish, Warned
from motet.protocols.storage import Commit, DatabaseLocked, Rows, Transaction
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.outside import wall_time

Sink: TypeAlias = Callable[[EventRecord], None]

log = logger(__name__)

_EVERY_STREAM = "*"  # no stream's name, which all have a colon


@attrs.define(eq=False)
class _Listener:
    stream: str
    sink: Sink
    attached: bool = True
    skip: int = 0
    """Durable records that were published before it was attached, and are still to be stored."""


@attrs.define(eq=False)
class Fanout:
    """The listeners, four counters, and the way to the bus (``feed``) once there is one.

    Attributes:
        delivered: calls of sinks that returned.
        dropped: ephemeral events that a full bus threw away.
        unjournalled: durable events that were delivered without a number, since the journal failed.
        broken_sinks: sinks that raised.
    """

    delivered: int = attrs.field(default=0, init=False)
    dropped: int = attrs.field(default=0, init=False)
    unjournalled: int = attrs.field(default=0, init=False)
    broken_sinks: int = attrs.field(default=0, init=False)
    feed: EventFeed | None = attrs.field(default=None, init=False, repr=False)
    _listeners: dict[str, tuple[_Listener, ...]] = attrs.field(
        factory=dict[str, tuple[_Listener, ...]], init=False
    )

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of the stream from now on; returns the way to detach.

        The sink must not block. Detaching twice does no harm.
        """
        listener = _Listener(stream, sink)
        if self.feed is not None:
            listener.skip = self.feed.pending(stream)
        self._listeners[stream] = (*self._listeners.get(stream, ()), listener)
        return lambda: self._detach(listener)

    def attach_everywhere(self, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of every stream; see :meth:`attach`."""
        return self.attach(_EVERY_STREAM, sink)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to anything."""
        return bool(self._listeners)

    def listeners(self, stream: str) -> int:
        return len(self._listeners.get(stream, ()))

    def deliver(self, record: EventRecord) -> None:
        """Give a record to the stream's sinks. Raises nothing."""
        listeners = self._listeners.get(record.stream, ())
        for listener in (*listeners, *self._listeners.get(_EVERY_STREAM, ())):
            if not listener.attached:  # by a sink called before it
                continue
            if listener.skip and record.event.durable:
                listener.skip -= 1
                continue
            try:
                listener.sink(record)
            except Exception as error:
                self.broken_sinks += 1
                self._detach(listener)
                log.error(
                    "event_sink_detached",
                    stream=record.stream,
                    error=redact(serialize_error(error)),
                )
            else:
                self.delivered += 1

    def _detach(self, listener: _Listener) -> None:
        listener.attached = False
        left = tuple(other for other in self._listeners.get(listener.stream, ()) if other.attached)
        if left:
            self._listeners[listener.stream] = left
        else:
            self._listeners.pop(listener.stream, None)


# What waits in the bus: bounded, in order of arrival, ephemeral events the first to go.
#
# Invariants: at most ``capacity`` records; durable ones are never thrown away; the order of what
# stays is the order of arrival. Pure: the bus does the waiting.


class EventQueue:
    """``dropped`` counts the ephemeral records that found no room or had to make some."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, capacity
        self.capacity = capacity
        self.dropped = 0
        self._records: deque[EventRecord] = deque()
        self._ephemeral = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[EventRecord]:
        return iter(self._records)

    @property
    def last(self) -> EventRecord | None:
        """The newest record."""
        return self._records[-1] if self._records else None

    @property
    def full(self) -> bool:
        """Whether a durable record has to wait: nothing here may be dropped for it."""
        return len(self._records) >= self.capacity and not self._ephemeral

    def put(self, record: EventRecord) -> bool:
        """Take a record, or drop an ephemeral one. False for a durable one when :attr:`full`."""
        durable = record.event.durable
        if len(self._records) >= self.capacity:
            if not durable:
                self.dropped += 1
                return True
            if self.full:
                return False
            self._drop_ephemeral()
        self._records.append(record)
        self._ephemeral += not durable
        return True

    def take(self) -> list[EventRecord]:
        """All that waits, oldest first; leaves the queue empty."""
        taken = list(self._records)
        self._records.clear()
        self._ephemeral = 0
        return taken

    def _drop_ephemeral(self) -> None:
        self.dropped += self._ephemeral
        self._ephemeral = 0
        self._records = deque(r for r in self._records if r.event.durable)


# What was published and is on its way through the bus: bounded, taken by a plain call.
#
# A run says dozens of things in a turn and waits for none of them, so they cost no message each:
# who publishes puts them here, and the bus takes all that has come together. The feed stays when
# the bus is restarted. Invariants: the order is that of arrival; a durable event is never thrown
# away while the bus lives, who publishes it waits for room; an ephemeral one is kept only if
# somebody listens.


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


class Publisher:
    """Publishes events on streams. Failures are silent: a host runs as well without a bus.

    ``dropped``: events that there was no event bus for.
    """

    def __init__(self, fanout: Fanout) -> None:
        self.fanout = fanout
        self.dropped = 0

    def put(self, stream: str, event: AnyEvent, run_id: str | None = None) -> bool:
        """Publish without waiting; False if the event is durable and there is no room yet."""
        feed = self.fanout.feed
        if feed is None or feed.closed:
            self.dropped += 1
            return True
        return feed.put(stream, event, run_id)

    async def emit(self, stream: str, event: AnyEvent, run_id: str | None = None) -> None:
        """Publish; wait for room when the event is durable. A checkpoint only then."""
        while not self.put(stream, event, run_id):
            assert self.fanout.feed is not None
            await self.fanout.feed.room()

    async def settle(self) -> None:
        """Wait until all that was published is delivered, or the bus has ended."""
        if self.fanout.feed is not None:
            await self.fanout.feed.settle()


# The event bus: journals what must last, then gives every event to whoever listens.
#
# Invariants: per stream, events are delivered in the order of arrival, durable ones with numbers
# that are contiguous, never reused and survive a restart; nothing is delivered before it is on
# disk; a journal that fails costs the number of an event, never the event; a sink never slows a
# run or another sink. Source: seed 001 (event class), gateway specification sections 1 and 4.


CAPACITY = 10_000
PATIENCE = 0.02
"""Seconds for which events may wait for others, to share a commit, while nobody listens."""

log_of_bus = logger(__name__)


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
        transact: Commit,
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
        log_of_bus.error("events_not_journalled", count=len(records), reason=reason)
        message = f"events are not being recorded, a later reader will miss them: {reason}"
        for stream in dict.fromkeys(record.stream for record in records):
            if stream not in self._warned:
                self._warned.add(stream)
                warning = Warned("events", message)
                self._fanout.deliver(EventRecord(stream, warning, self._clock()))
