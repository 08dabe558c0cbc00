"""The event bus: journals durable events, then delivers every event to its subscribers.

A publisher calls :class:`Publisher`, which puts the event into a bounded queue; the bus, an actor,
takes all that has arrived, commits the durable ones together and delivers. A run publishes a dozen
events in a turn and waits for none of them: a message for each would cost two turns of the
scheduler. The queue and the subscribers outlive a restart of the bus.

Invariants: within a stream, events are delivered in order of arrival; durable ones have numbers
that are contiguous, never reused, and survive a restart; a durable event is delivered only after it
is on disk, and is never dropped while the bus lives; a journal that fails costs an event its
number, never the event; a subscriber never slows a run or another subscriber. Source: seed 001
(event class), gateway specification sections 1 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Never, TypeAlias

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.storage.events import (
    OF_SESSION,
    QUOTING,
    Proof,
    append_events,
    numbered_records,
    proof_of,
    proofs,
    storable,
    without_secrets,
)
from motet.actors.storage.writer import StorageHealth
from motet.protocols.events import AnyEvent, EventRecord, Warned
from motet.protocols.redaction.redact import redact
from motet.protocols.storage import (
    Commit,
    DatabaseLocked,
    ExpectationFailed,
    Rows,
    StorageUnavailable,
    Transaction,
)
from motet.runtime import Actor
from motet.runtime.describe import summarize
from motet.runtime.exceptions import serialize_error
from motet.runtime.outside import foreign_code, foreign_text, wall_time

Sink: TypeAlias = Callable[[EventRecord], None]

log = logger(__name__)

_EVERY_STREAM = "*"  # no stream's name, which all have a colon
BROKEN = 100
"""Errors of sinks that wait to be stored."""


@attrs.define(eq=False)
class _Listener:
    stream: str
    sink: Sink
    attached: bool = True
    skip: int = 0
    """Durable records that were published before it was attached, and are not yet delivered."""


@attrs.define(eq=False)
class Subscribers:
    """The sinks of each stream, four counters, and the queue of the bus (``feed``).

    Sinks of a stream are called in the order of attachment, never after they were detached. A sink
    that raises is detached and counted, so that its failure reaches neither a run nor the bus.

    Attributes:
        capacity: records that may wait for the bus.
        delivered: calls of sinks that returned.
        dropped: ephemeral events that a full bus threw away, and all while there was none.
        unjournalled: durable events that were delivered without a number, since the journal failed.
        broken_sinks: sinks that raised.
        broken: their latest errors, until the bus has them stored.
        by_stream: the sinks of each stream that has any.
    """

    clock: Callable[[], float] = wall_time
    capacity: int = 10_000
    delivered: int = attrs.field(default=0, init=False)
    dropped: int = attrs.field(default=0, init=False)
    unjournalled: int = attrs.field(default=0, init=False)
    broken_sinks: int = attrs.field(default=0, init=False)
    broken: deque[tuple[EventRecord, Exception]] = attrs.field(
        factory=partial(deque[tuple[EventRecord, Exception]], maxlen=BROKEN), init=False
    )
    feed: PublishQueue = attrs.field(init=False, repr=False)
    by_stream: dict[str, tuple[_Listener, ...]] = attrs.field(
        factory=dict[str, tuple[_Listener, ...]], init=False
    )

    def __attrs_post_init__(self) -> None:
        self.feed = PublishQueue(self, self.clock, self.capacity)

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of the stream from now on; returns how to detach it.

        The sink must not block. Detaching twice does no harm.
        """
        listener = _Listener(stream, sink)
        listener.skip = self.feed.pending(stream)
        self.by_stream[stream] = (*self.by_stream.get(stream, ()), listener)
        return lambda: self._detach(listener)

    def attach_everywhere(self, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of every stream; see :meth:`attach`."""
        return self.attach(_EVERY_STREAM, sink)

    @property
    def has_any(self) -> bool:
        """Whether any stream has a sink."""
        return bool(self.by_stream)

    def deliver(self, record: EventRecord) -> None:
        """Give a record to the stream's sinks. Raises nothing."""
        listeners = self.by_stream.get(record.stream, ())
        for listener in (*listeners, *self.by_stream.get(_EVERY_STREAM, ())):
            if not listener.attached:  # by a sink called before it
                continue
            if listener.skip and _is_journalled(record):
                listener.skip -= 1
                continue
            try:
                with foreign_code:
                    listener.sink(record)
            except Exception as error:
                self.broken_sinks += 1
                self.broken.append((record, error))
                self._detach(listener)
                told: object = "<an error without a text>"
                with suppress(Exception), foreign_text:
                    told = redact(serialize_error(error))
                log.error("event_sink_detached", stream=record.stream, error=told)
            else:
                self.delivered += 1

    def _detach(self, listener: _Listener) -> None:
        listener.attached = False
        left = tuple(other for other in self.by_stream.get(listener.stream, ()) if other.attached)
        if left:
            self.by_stream[listener.stream] = left
        else:
            self.by_stream.pop(listener.stream, None)


class RecordQueue:
    """A bounded queue of records in order of arrival. Pure: callers do the waiting.

    It holds at most ``capacity`` records and never drops a durable one; when it is full, ephemeral
    ones go first. ``dropped`` counts those.
    """

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
        """Whether a durable record has to wait, because no record may be dropped for it."""
        return len(self._records) >= self.capacity and not self._ephemeral

    def put(self, record: EventRecord) -> bool:
        """Take a record, or drop an ephemeral one. False for a durable one when :attr:`full`."""
        durable = record.event.durable and not record.live
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
        """Empty the queue; the oldest record first."""
        taken = list(self._records)
        self._records.clear()
        self._ephemeral = 0
        return taken

    def _drop_ephemeral(self) -> None:
        self.dropped += self._ephemeral
        self._ephemeral = 0
        self._records = deque(r for r in self._records if _is_journalled(r))


class PublishQueue:
    """Published events on their way to the bus, taken by a plain call.

    An ephemeral event is kept only if its stream has a sink.

    Attributes:
        closed: the bus has ended, and nothing is accepted.
        late: records that were delivered without a number, and go into the journal when it works.
        batch: the records that the bus is processing; it removes those it has delivered.
    """

    def __init__(self, subscribers: Subscribers, clock: Callable[[], float], capacity: int) -> None:
        self.closed = True
        self.batch: list[EventRecord] = []
        self.late: list[tuple[EventRecord, str]] = []
        self._on_time = trio.Event()
        self._subscribers = subscribers
        self._clock = clock
        self._queue = RecordQueue(capacity)
        self._arrived = trio.Event()
        self._has_news = False  # since the last `take`; without a call for each record
        self._pressed = trio.Event()
        self._moved = trio.Event()

    def __len__(self) -> int:
        return len(self.batch) + len(self._queue)

    def put(
        self,
        stream: str,
        event: AnyEvent,
        run_id: str | None,
        owner: str | None = None,
        *,
        live: bool = False,
    ) -> bool:
        """Take an event; False if it is durable and has to wait for :meth:`room`."""
        if self.closed:
            self._subscribers.dropped += 1
            return True
        if stream in self._subscribers.by_stream:
            self._pressed.set()
        elif live or not event.durable:
            return True  # nobody will ever see it
        queue, dropped = self._queue, self._queue.dropped
        if type(event) in QUOTING:
            event = without_secrets(event)
        record = EventRecord(stream, event, self._clock(), None, run_id, owner, live)
        if not queue.put(record):
            return False
        self._subscribers.dropped += queue.dropped - dropped
        if not self._has_news:
            self._has_news = True
            self._arrived.set()
        return True

    async def room(self) -> None:
        """Wait until the bus has taken or delivered records, or has ended."""
        self._pressed.set()
        if self.closed:
            await trio.lowlevel.checkpoint()
        else:
            await self._moved.wait()

    async def settle(self) -> None:
        """Wait until every event put so far is delivered, also forwarded, or the bus has ended."""
        for _ in range(2):
            last = self._queue.last or (self.batch[-1] if self.batch else None)
            while not self.closed and last is not None and self._holds(last):
                await self.room()

    async def journalled(self) -> None:
        """Wait until no event is late, or the bus has ended; as long as the storage is away."""
        await self.settle()
        while self.late and not self.closed:
            await self._on_time.wait()

    def pending(self, stream: str) -> int:
        """The number of undelivered durable records of a stream."""
        found = [one for one in self.batch if one.stream == stream]
        found += [one for one in self._queue if one.stream == stream]
        return len(found) - sum([not _is_journalled(one) for one in found])

    def _holds(self, record: EventRecord) -> bool:
        return any(one is record for records in (self.batch, self._queue) for one in records)

    # For the bus

    def caught_up(self) -> None:
        """All late records are in the journal."""
        self.late = []
        on_time, self._on_time = self._on_time, trio.Event()
        on_time.set()

    def nudge(self) -> None:
        """Have the bus look after late records."""
        self._arrived.set()
        self._pressed.set()

    async def collect(self, seconds: float) -> None:
        """Wait for a first record, then ``seconds`` for more, unless a publisher or sink waits."""
        if not self.batch:
            await self._arrived.wait()
        if not self._pressed.is_set():
            with trio.move_on_after(seconds):
                await self._pressed.wait()

    def take(self) -> None:
        """Move all queued records into the batch."""
        self._arrived, self._pressed, self._has_news = trio.Event(), trio.Event(), False
        self.batch += self._queue.take()
        self.moved()

    def moved(self) -> None:
        """Wake the tasks in :meth:`room`."""
        self._moved.set()
        self._moved = trio.Event()


class Publisher:
    """Publishes events on streams. Failures are silent: a host works without a bus.

    ``owner``: of an event in the stream of a session, the user of its run, see ``EventRecord``.
    """

    def __init__(self, subscribers: Subscribers) -> None:
        self.subscribers = subscribers

    def put(
        self, stream: str, event: AnyEvent, run_id: str | None = None, owner: str | None = None
    ) -> bool:
        """Publish without waiting; False if the event is durable and there is no room yet."""
        return self.subscribers.feed.put(stream, event, run_id, owner)

    async def emit(
        self, stream: str, event: AnyEvent, run_id: str | None = None, owner: str | None = None
    ) -> None:
        """Publish; wait for room when the event is durable. A checkpoint only then."""
        while not self.put(stream, event, run_id, owner):
            await self.subscribers.feed.room()

    def show(self, stream: str, event: AnyEvent, run_id: str, owner: str) -> None:
        """Publish an event to those who listen now, and to no journal."""
        if not self.subscribers.feed.closed:
            self.subscribers.feed.put(stream, event, run_id, owner, live=True)

    async def settle(self) -> None:
        """Wait until all that was published is delivered, or the bus has ended."""
        await self.subscribers.feed.settle()


LATE = 10_000
"""Late records that are kept; older ones stay without a number."""
PATIENCE = 0.02
"""Seconds that events wait for others, to share a commit, while nobody listens."""


class EventBus(Actor[Never]):
    """Journals and delivers the queued events, in a task of its own.

    ``transact`` runs a transaction and returns after its COMMIT, as ``Writer.submit``. ``keep``
    stores the error of a sink, with the record that it got; raises nothing.

    It is told nothing: events come through the feed, see :class:`Publisher`. Counters are kept in
    ``subscribers``. A stop delivers the queue.
    """

    cleanup_budget: ClassVar[float] = 5.0

    def __init__(
        self,
        transact: Commit,
        subscribers: Subscribers,
        health: StorageHealth | None = None,
        keep: Callable[[EventRecord, Exception], Awaitable[None]] | None = None,
    ) -> None:
        self._transact = transact
        self._keep = keep
        self._health = health or StorageHealth()
        self._subscribers = subscribers
        self._feed = subscribers.feed
        self._warned: set[str] = set()

    async def on_start(self) -> None:
        self._feed.closed = False
        self.start_soon(self._run, name="event bus")
        self.start_soon(self._catch_up, name="late events")

    async def on_stop(self) -> None:
        """Deliver the rest: the task that usually does has ended."""
        await self._drain()
        if self._feed.late:
            await self._process()
        self._feed.moved()

    async def _run(self) -> None:
        try:
            while True:
                await self._feed.collect(PATIENCE)
                await self._round()
                while self._keep is not None and self._subscribers.broken:
                    self.start_soon(self._keep, *self._subscribers.broken.popleft())
        finally:
            self._feed.closed = True
            self._feed.moved()

    async def _catch_up(self) -> None:
        """Store late events when the storage works again, even if nobody publishes another one."""
        while True:
            await self._health.failing()
            await self._health.working()
            self._feed.nudge()

    async def _drain(self) -> None:
        """Process the whole queue. A cancelled batch stays for the next call."""
        while len(self._feed):
            await self._round()

    async def _round(self) -> None:
        if not self._feed.batch:
            self._feed.take()
        await self._process()
        self._feed.moved()

    async def _process(self) -> None:
        """Journal and deliver the batch; ephemeral events ahead of all durable ones at once."""
        batch = self._feed.batch
        kept = [record.event.durable and not record.live for record in batch]
        first = kept.index(True) if True in kept else len(kept)
        self._deliver(batch[:first])
        del kept[:first]
        durable = [storable(one) for one, is_kept in zip(batch, kept, strict=True) if is_kept]
        if not durable and not self._feed.late:
            return
        journalled = iter(await self._journalled(durable))
        found = [
            next(journalled) if is_kept else one for one, is_kept in zip(batch, kept, strict=True)
        ]
        self._deliver(found)

    def _deliver(self, records: Sequence[EventRecord | None]) -> None:
        """Deliver the head of the batch, without a checkpoint, so that it happens exactly once."""
        del self._feed.batch[: len(records)]
        for record in records if self._subscribers.has_any else ():
            if record is not None:
                self._subscribers.deliver(record)

    async def _journalled(
        self, durable: list[tuple[EventRecord, str]]
    ) -> Sequence[EventRecord | None]:
        """The records with their numbers, or without them when the journal fails.

        None for a record of a session that was deleted before it could be stored: the name may be
        another user's now (G16).
        """
        records, problem = [record for record, _ in durable], self._health.problem
        kept, refused = [*self._feed.late, *durable], set[Proof]()
        if problem is not None:
            self._postpone(kept, durable, problem)
            return records
        while kept:
            try:
                answer = await self._written(append_events(kept).statements)
                break
            except Exception as error:
                proof = _refused(kept, error)
                if proof is None:
                    self._postpone(kept, durable, error)
                    return [one if proof_of(one) not in refused else None for one in records]
                refused.add(proof)
                kept = [one for one in kept if proof_of(one[0]) not in refused]
        else:
            answer = ()
        self._feed.caught_up()
        if self._warned:
            self._warned.difference_update(record.stream for record in records)
        if not self._subscribers.has_any:
            return records
        numbers = dict(zip(map(id, kept), numbered_records(kept, answer), strict=True))
        return [numbers.get(id(one)) for one in durable]

    def _postpone(
        self,
        kept: list[tuple[EventRecord, str]],
        new: list[tuple[EventRecord, str]],
        error: Exception,
    ) -> None:
        """Keep what the storage has not taken; what fails for another reason would fail again."""
        self._feed.late = kept[-LATE:] if isinstance(error, StorageUnavailable) else []
        self._warn([record for record, _ in new], error)

    async def _written(self, transaction: Transaction) -> Rows:
        try:
            return await self._transact(transaction)
        except DatabaseLocked:
            return await self._transact(transaction)

    def _warn(self, records: list[EventRecord], error: Exception) -> None:
        """Warn on each stream that numbers are missing: once, until the journal works again."""
        reason = summarize(error)
        self._subscribers.unjournalled += len(records)
        log.error("events_not_journalled", count=len(records), reason=reason)
        message = f"events are not being recorded now, a later reader may miss them: {reason}"
        for stream in dict.fromkeys(record.stream for record in records):
            if stream not in self._warned:
                self._warned.add(stream)
                warning = Warned("events", message)
                self._subscribers.deliver(EventRecord(stream, warning, self._subscribers.clock()))


def _is_journalled(record: EventRecord) -> bool:
    return record.event.durable and not record.live


def _refused(kept: Sequence[tuple[EventRecord, str]], error: Exception) -> Proof | None:
    """The proof that did not hold, so that the transaction failed; None: it failed otherwise."""
    known = proofs(kept)
    if not isinstance(error, ExpectationFailed) or error.sql != OF_SESSION:
        return None
    first = len(append_events(kept).statements) - len(known)  # they are the last statements
    return known[error.index - first]
