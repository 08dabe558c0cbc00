"""Journals of event-sourced actors: the protocol, and one in memory.

A journal has streams of numbered events. The writer says after which number it writes, and the
journal compares it with the newest one in the transaction that stores the events. So two
incarnations of one identity, in one process or in two, never both write (they may both live, where
a supervisor in another process started the second). The number is kept beside the events, not
taken from the newest row: that may have been deleted behind a snapshot.

This file knows of no database: the kernel has none. ``motet/sqlite_journal.py`` has the journal on
SQLite; a class with these four methods is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from motet.protocols.domain_events import JournalConflict, StoredEvent

__all__ = ["Journal", "MemoryJournal"]


class Journal(Protocol):
    """Where event-sourced actors store their events. Used by many actors at once.

    An error of any method ends the incarnation that called it, and the next one reads what is
    stored. So an error may also mean that nobody knows whether the write was stored.
    """

    async def append(self, stream: str, after: int, events: Sequence[StoredEvent], /) -> None:
        """Store ``events``, numbered from ``after + 1``, all or none; returns after the commit.

        Raises JournalConflict unless ``after`` is the newest number of the stream, 0 for a new one.
        Cancelled: the outcome may be unknown, and the caller reads what is stored.
        """
        ...

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        """The events with a number greater than ``after``, in order, at most ``limit``."""
        ...

    async def snapshot(self, stream: str, /) -> StoredEvent | None:
        """The newest snapshot of the stream."""
        ...

    async def keep(self, stream: str, snapshot: StoredEvent, forget: int, /) -> None:
        """Store a snapshot in place of an older one, and delete the events up to ``forget``.

        Both or neither. Does nothing if a newer snapshot is stored.
        """
        ...


class _Stream:
    def __init__(self) -> None:
        self.head = 0
        self.events: dict[int, StoredEvent] = {}
        self.snapshot: StoredEvent | None = None


class MemoryJournal:
    """A journal that ends with its object: for tests, and for state that may be lost.

    Every method is a checkpoint, and does its work in one step after it.
    """

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    async def append(self, stream: str, after: int, events: Sequence[StoredEvent], /) -> None:
        """See :class:`Journal`. Cancelled: nothing was stored."""
        await trio.lowlevel.checkpoint()
        found = self._streams.get(stream)
        if (0 if found is None else found.head) != after:
            raise JournalConflict(stream, after)
        if found is None:
            found = self._streams[stream] = _Stream()
        for event in events:
            found.events[event.number] = event
        found.head = after + len(events)

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        """See :class:`Journal`."""
        await trio.lowlevel.checkpoint()
        found = self._streams.get(stream)
        if found is None:
            return ()
        numbers = range(after + 1, found.head + 1)
        kept = (found.events[number] for number in numbers if number in found.events)
        return [event for event, _ in zip(kept, range(limit), strict=False)]

    async def snapshot(self, stream: str, /) -> StoredEvent | None:
        """See :class:`Journal`."""
        await trio.lowlevel.checkpoint()
        found = self._streams.get(stream)
        return None if found is None else found.snapshot

    async def keep(self, stream: str, snapshot: StoredEvent, forget: int, /) -> None:
        """See :class:`Journal`."""
        await trio.lowlevel.checkpoint()
        found = self._streams[stream]
        if found.snapshot is not None and found.snapshot.number >= snapshot.number:
            return
        found.snapshot = snapshot
        for number in [number for number in found.events if number <= forget]:
            del found.events[number]

    def __repr__(self) -> str:
        return f"<MemoryJournal of {len(self._streams)} streams>"
