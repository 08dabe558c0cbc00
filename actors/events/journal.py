"""Events of the past and of now: what a gateway or a command line reads them through."""

from __future__ import annotations

from collections.abc import Callable

import trio

from motet.actors.errors.text import well_formed
from motet.actors.events.fanout import Fanout, Sink
from motet.actors.events.rows import READ, READ_HEAD, READ_INPUT, record_of
from motet.actors.storage.readers import Readers
from motet.protocols.events import EventRecord
from motet.protocols.host import StreamHead

PAGE_LIMIT = 1_000
PATIENCE = 1.0
"""Seconds that whoever asks for a number waits for a journal that is stuck."""


class EventJournal:
    """A :class:`motet.protocols.host.Journal` over the bus's tables.

    What was delivered to a sink was on disk before, and what was published before a reading is
    read: whoever attaches first and reads then misses nothing. Reading raises ``StorageError``;
    cancelling it has no effect on others.
    """

    def __init__(self, readers: Readers, fanout: Fanout) -> None:
        self._readers = readers
        self._fanout = fanout

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        return self._fanout.attach(stream, sink)

    async def settle(self) -> None:
        """Wait until what was published is stored."""
        if self._fanout.feed is not None:
            await self._fanout.feed.settle()

    async def read(self, stream: str, after: int, limit: int = 200) -> tuple[EventRecord, ...]:
        """At most ``limit`` durable events with ``seq > after``, oldest first."""
        await self.settle()
        size = min(max(limit, 0), PAGE_LIMIT)
        rows = await self._readers.read(READ, (well_formed(stream), after, size))
        return tuple(record_of(row) for row in rows)

    async def input(self, stream: str, run_id: str) -> int | None:
        """The number of the event by which an input was accepted.

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
        ((head, oldest),) = await self._readers.read(READ_HEAD, (well_formed(stream),))
        newest = int(head or 0)
        return StreamHead(newest, newest + 1 if oldest is None else int(oldest))
