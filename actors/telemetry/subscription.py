"""Subscriptions to a stream in this process: a replay from the journal, then live events.

:class:`Backlog` is the pure part, a bounded buffer for one slow reader; :class:`Subscription` reads
and waits; :class:`EventJournal` reads the stored events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Self

import msgspec
import trio

from motet.actors.storage.events import READ_EVENTS, READ_HEAD, READ_INPUT, record_of
from motet.actors.storage.readers import Readers
from motet.actors.telemetry.event_bus import Sink, Subscribers
from motet.protocols.events import EventRecord, TextDelta, ThinkingDelta
from motet.protocols.host import Journal, StreamHead
from motet.protocols.texts import well_formed


class Backlog:
    """The unread records of one subscriber: bounded, and without loss of numbered events.

    It holds at most ``capacity`` records; numbered ones come out in order, each once. When it is
    full, deltas of one message are merged, then ephemeral records are dropped, then all records
    are given up and :attr:`behind` asks for a replay from the journal. Pure.

    Attributes:

    last: number of the newest record taken, None before the first one is known.
    behind: numbered records after ``last`` are missing here; the journal has them.
    dropped: records that will never be seen: ephemeral ones, and ones without a number.
    """

    def __init__(self, capacity: int, after: int | None) -> None:
        assert capacity > 0, capacity
        self.capacity = capacity
        self.last = after
        self.behind = after is not None
        self.dropped = 0
        self._replayed: deque[EventRecord] = deque()
        self._live: deque[EventRecord] = deque()

    def __len__(self) -> int:
        return len(self._replayed) + len(self._live)

    @property
    def ready(self) -> bool:
        """Whether the reader has work: a record to take, or the journal to read."""
        return bool(self._replayed or self._live or self.behind)

    def offer(self, record: EventRecord) -> None:
        """Add a live record. Constant time on average; never raises."""
        if self.last is None and record.seq is not None:
            self.last = record.seq - 1
        if len(self._live) >= self.capacity:
            if self._live and (both := merged(self._live[-1], record)):
                self._live[-1] = both
                return
            self._make_room()
        self._live.append(record)

    def take(self) -> EventRecord | None:
        """The next record; None when there is none, or the journal must be read first."""
        if self._replayed:
            return self._advance(self._replayed.popleft())
        while self._live and not self.behind:
            record = self._live.popleft()
            if record.seq is None:
                return record
            if self.last is None or record.seq > self.last:
                return self._advance(record)
        return None

    def replay(self, records: Iterable[EventRecord], *, more: bool) -> None:
        """Add the journal's records after ``last``; ``more``: the journal may have further ones.

        The caller sets :attr:`behind` to False *before* it reads: an overflow during the
        reading sets it again, and then what was read is not all there is.
        """
        self._replayed.extend(records)
        self.behind = self.behind or more
        newest = self._replayed[-1].seq if self._replayed else self.last
        if not self.behind and newest is not None:
            self._forget_until(newest)

    def _forget_until(self, newest: int) -> None:
        """Drop live records that the replay contains, with the deltas of its messages."""
        overtaken = 0
        for n, record in enumerate(self._live, 1):
            if record.seq is not None and record.seq <= newest:
                overtaken = n
        for _ in range(overtaken):
            self.dropped += self._live.popleft().seq is None

    def _advance(self, record: EventRecord) -> EventRecord:
        self.last = record.seq
        return record

    def _make_room(self) -> None:
        """Free at least a quarter, so that the cost is spread over many offers."""
        enough = self.capacity * 3 // 4
        self._live = deque(merge(self._live))
        if len(self._live) <= enough:
            return
        lasting = deque(r for r in self._live if r.event.durable)
        self.dropped += len(self._live) - len(lasting)
        self._live = lasting
        if len(lasting) > enough:
            self.dropped += sum(record.seq is None for record in lasting)
            self.behind = self.behind or any(r.seq is not None for r in lasting)
            self._live = deque()


def merge(records: Iterable[EventRecord]) -> list[EventRecord]:
    """The records, with adjacent deltas of one message merged."""
    made: list[EventRecord] = []
    for record in records:
        both = merged(made[-1], record) if made else None
        if both is None:
            made.append(record)
        else:
            made[-1] = both
    return made


def merged(first: EventRecord, second: EventRecord) -> EventRecord | None:
    """The sum of two adjacent deltas of one message; None for any other pair."""
    a, b = first.event, second.event
    if not isinstance(a, TextDelta | ThinkingDelta) or type(a) is not type(b):
        return None
    assert isinstance(b, TextDelta | ThinkingDelta)
    same = first.run_id == second.run_id and first.stream == second.stream and a.i == b.i
    if not same or a.at + len(a.text) != b.at:
        return None
    return msgspec.structs.replace(first, event=msgspec.structs.replace(a, text=a.text + b.text))


CAPACITY = 1_024
_PAGE = 200


class Subscription:
    """An endless iterator of records for one task, made by :func:`subscribe`.

    A cancelled ``anext`` loses nothing: the next one goes on where it stopped.
    """

    def __init__(self, journal: Journal, stream: str, after: int | None, capacity: int) -> None:
        self._journal = journal
        self._stream = stream
        self._backlog = Backlog(capacity, after)
        self._offered = trio.Event()

    @property
    def dropped(self) -> int:
        """The number of dropped records: ephemeral ones, and durable ones without a number."""
        return self._backlog.dropped

    def __repr__(self) -> str:
        return f"<Subscription {self._stream} waiting={len(self._backlog)} dropped={self.dropped}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord:
        """The next record. Raises ``StorageError`` when the journal cannot be read."""
        await trio.lowlevel.checkpoint()
        while True:
            if (record := self._backlog.take()) is not None:
                return record
            if self._backlog.behind:
                await self._catch_up()
            elif not self._backlog.ready:
                self._offered = trio.Event()
                await self._offered.wait()

    def offer(self, record: EventRecord) -> None:
        """Add a live record; the bus calls it."""
        self._backlog.offer(record)
        self._offered.set()

    async def _catch_up(self) -> None:
        backlog = self._backlog
        backlog.behind = False
        try:
            page = await self._journal.read(self._stream, backlog.last or 0, _PAGE)
        except BaseException:  # to be read again; the error goes on
            backlog.behind = True
            raise
        backlog.replay(page, more=len(page) == _PAGE)


@asynccontextmanager
async def subscribe(
    journal: Journal, stream: str, after: int | None = None, capacity: int = CAPACITY
) -> AsyncGenerator[Subscription]:
    """Read a stream: ``async with subscribe(...) as events: async for record in events: ...``.

    ``after=n`` begins with event ``n + 1`` (0: with the first); None with what happens from now
    on. At most ``capacity`` records are kept for a slow reader: then deltas are merged or dropped
    (counted), and numbered events come from the journal.
    """
    subscription = Subscription(journal, stream, after, capacity)
    detach = journal.attach(stream, subscription.offer)
    try:
        yield subscription
    finally:
        detach()


PAGE_LIMIT = 1_000
PATIENCE = 1.0
"""Seconds that :meth:`EventJournal.input` waits for a stuck journal."""


class EventJournal:
    """A :class:`motet.protocols.host.Journal` over the bus's tables.

    What was delivered to a sink was on disk before, and what was published before a reading is
    read: whoever attaches first and reads then misses nothing. Reading raises ``StorageError``;
    cancelling it has no effect on others.
    """

    def __init__(self, readers: Readers, subscribers: Subscribers) -> None:
        self._readers = readers
        self._subscribers = subscribers
        self._access: dict[str, dict[object, Callable[[str], None]]] = {}

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        return self._subscribers.attach(stream, sink)

    async def settle(self) -> None:
        """Wait until all events published so far are stored."""
        await self._subscribers.feed.settle()

    async def journalled(self) -> None:
        """Wait until all events published so far are stored, also while the storage is away."""
        await self._subscribers.feed.journalled()

    async def read(self, stream: str, after: int, limit: int = 200) -> tuple[EventRecord, ...]:
        """At most ``limit`` durable events with ``seq > after``, oldest first."""
        await self.settle()
        size = min(max(limit, 0), PAGE_LIMIT)
        rows = await self._readers.read(READ_EVENTS, (well_formed(stream), after, size))
        return tuple(record_of(row) for row in rows)

    async def input(self, stream: str, run_id: str) -> int | None:
        """The number of the event that acknowledged an input.

        None: it is far behind the newest, or the journal cannot be written now.
        """
        with trio.move_on_after(PATIENCE):
            await self.settle()
            ((seq,),) = await self._readers.read(READ_INPUT, (well_formed(stream), run_id))
            return None if seq is None else int(seq)
        return None

    async def head(self, stream: str) -> StreamHead:
        """The newest number, 0 at first, and the oldest still there, else the next to come."""
        await self.settle()
        found = await self._readers.read(READ_HEAD, (well_formed(stream),))
        ((head, oldest, owner, generation),) = found
        newest = int(head or 0)
        first = newest + 1 if oldest is None else int(oldest)
        return StreamHead(
            newest, first, None if owner is None else str(owner), str(generation or "")
        )

    def watch_access(self, stream: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """See :class:`motet.protocols.host.Journal`. Ending it twice does no harm."""
        place = object()
        self._access.setdefault(stream, {})[place] = changed

        def end() -> None:
            watching = self._access.get(stream, {})
            if watching.pop(place, None) is not None and not watching:
                del self._access[stream]

        return end

    def access_changed(self, stream: str, generation: str = "", below: str = "") -> None:
        """Tell the watchers of the stream; ``below``: and of those whose names begin so."""
        streams = [one for one in self._access if below and one.startswith(below)]
        for one in (stream, *streams):
            for changed in tuple(self._access.get(one, {}).values()):
                changed(generation)
