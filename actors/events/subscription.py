"""A reader of one stream in this process: the past first if it likes, then what happens.

Invariants: a reader sees every numbered event after the one it began with exactly once, in
order, however slow it is; it never makes the bus or another reader wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

import trio

from motet.actors.events.backlog import Backlog
from motet.protocols.events import EventRecord
from motet.protocols.host import Journal

CAPACITY = 1_024
_PAGE = 200


class Subscription:
    """Iterate the records; one task at a time. Made by :func:`subscribe`, and never ends itself.

    A cancelled ``anext`` loses nothing: the next one goes on where it stopped.
    """

    def __init__(self, journal: Journal, stream: str, after: int | None, capacity: int) -> None:
        self._journal = journal
        self._stream = stream
        self._backlog = Backlog(capacity, after)
        self._offered = trio.Event()

    @property
    def dropped(self) -> int:
        """Ephemeral records, and ones the journal failed to number, that were not seen."""
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
        """The sink: called by the bus."""
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
