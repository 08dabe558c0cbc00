"""Cache of recently used session contexts, so that a turn can skip the database read.

Only the session store writes sessions, and it announces each change here. Invariants: a cached
context equals the one on disk; a session has none while it is being changed, and a read that
overlaps a change is not cached; the cache holds at most :data:`ROOM` characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import attrs
from msgspec.structs import replace

from motet.actors.transcript.history import EMPTY_SCAN, TranscriptScan
from motet.protocols.chat import ChatMessage
from motet.protocols.sessions import SessionContext

ROOM = 8_000_000
"""Characters of stored rows, about as many bytes."""


@attrs.define
class _Cached:
    context: SessionContext
    size: int
    scan: TranscriptScan = EMPTY_SCAN


@attrs.define(eq=False)
class Change:
    """A block that writes to a session. Call :meth:`add` if it only adds rows, after the commit.

    Made by :meth:`ContextCache.changing`, and entered at once.
    """

    _contexts: ContextCache
    session: str
    _before: _Cached | None
    after: _Cached | None = None
    spoilt: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.after = None
        self._contexts.end_change(self)

    def add(self, rows: Sequence[ChatMessage], size: int) -> None:
        """These rows were added behind the others: the cached context grows instead of ending."""
        if self._before is not None:
            context = self._before.context
            grown = replace(context, rows=(*context.rows, *rows))
            self.after = _Cached(grown, self._before.size + size, self._before.scan)


class ContextCache:
    """A plain object with LRU eviction."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._size = 0
        self._known: dict[str, _Cached] = {}
        self._changing: dict[str, list[Change]] = {}
        self._reading: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, session: str) -> SessionContext | None:
        known = self._known.pop(session, None)
        if known is None:
            return None
        self._known[session] = known
        return known.context

    def scan(self, session: str) -> TranscriptScan:
        """The scan of the cached rows. It is cached with them, and extended when rows are added."""
        known = self._known.get(session)
        if known is None:
            return EMPTY_SCAN
        known.scan = known.scan.extended_to(known.context.rows)
        return known.scan

    def begin_read(self, session: str) -> object:
        """A read of the session begins. Its result may be cached, unless a change overlaps it."""
        token = object()
        if session not in self._changing:
            self._reading[session] = token
        return token

    def end_read(
        self, session: str, token: object, found: SessionContext | None, size: int
    ) -> None:
        """The read has ended. ``found`` None: there is nothing to cache."""
        if self._reading.get(session) is token:
            del self._reading[session]
            if found is not None:
                self._put(session, _Cached(found, size))

    def changing(self, session: str) -> Change:
        """A block that writes to a session."""
        change = Change(self, session, self._take(session))
        self._reading.pop(session, None)
        self._changing.setdefault(session, []).append(change)
        return change

    def end_change(self, change: Change) -> None:
        """The block of a change has ended; for :class:`Change` only."""
        session = change.session
        others = self._changing[session]
        others.remove(change)
        for other in others:  # its context lacks the rows of this change
            other.spoilt = True
        if not others:
            del self._changing[session]
            if change.after is not None and not change.spoilt:
                self._put(session, change.after)

    def _take(self, session: str) -> _Cached | None:
        known = self._known.pop(session, None)
        if known is not None:
            self._size -= known.size
        return known

    def _put(self, session: str, known: _Cached) -> None:
        self._take(session)
        self._known[session] = known
        self._size += known.size
        while self._size > self._room:
            self._take(next(iter(self._known)))
