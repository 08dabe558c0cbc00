"""Store of memories: an actor over SQLite's full-text index.

Invariants: a memory belongs to the owner of its session, and only that owner's sessions find it
(G16); its secrets were redacted; of each owner the newest :data:`KEPT` are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import attrs
import trio

from motet.actors.storage.tables import TableStore
from motet.protocols.chat import ChatMessage
from motet.protocols.memory import (
    FindMemories,
    Memorable,
    Memorize,
    MemoryProtocol,
    Remembered,
    Source,
    full_text_query,
    memorable,
)
from motet.protocols.redaction.redact import redacted_head
from motet.protocols.storage import Row, Statement, Transaction
from motet.protocols.texts import shorten, well_formed
from motet.runtime import Actor, ActorRef, handles

KEPT = 10_000
TEXT_LIMIT = 4_000
"""Code points of one memory."""

_OWNER = "(SELECT owner FROM sessions WHERE session = ?1)"
_INSERT = (
    "INSERT INTO memories (owner, session, source, text, created)"
    " SELECT owner, session, ?2, ?3, ?4 FROM sessions WHERE session = ?1"
)
_TRIM = (
    f"DELETE FROM memories WHERE owner = {_OWNER} AND seq <= (SELECT seq FROM memories"
    f" WHERE owner = {_OWNER} ORDER BY seq DESC LIMIT 1 OFFSET {KEPT})"
)
_FIND = (
    "WITH found AS MATERIALIZED ("
    "SELECT m.text, m.source, m.created, m.seq, memories_text.rank AS rank"
    " FROM memories_text JOIN memories m ON m.seq = memories_text.rowid"
    f" WHERE memories_text MATCH ?2 AND m.owner = {_OWNER}"
    " AND (?4 = 0 OR m.session <> ?1 OR m.source = 'note'))"
    " SELECT text, source, max(created) FROM found"
    " GROUP BY text ORDER BY min(rank), max(seq) DESC LIMIT ?3"
)


@attrs.define(eq=False)
class _Write:
    """A running transaction, and its error."""

    transaction: Transaction
    problem: Exception | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)


class MemoryStore(TableStore, Actor[MemoryProtocol]):
    """Handles the requests of ``motet.protocols.memory``.

    Unlike in other stores, a write goes on without a cancelled asker.
    """

    @handles(FindMemories, concurrent=16)
    async def find(self, request: FindMemories) -> tuple[Remembered, ...]:
        wanted = full_text_query(request.query)
        if not wanted or request.limit <= 0:
            return ()
        params = (well_formed(request.session), wanted, request.limit, int(request.elsewhere))
        return await self._read(_remembered, _FIND, params)

    @handles(Memorize, concurrent=16)
    async def memorize(self, request: Memorize) -> None:
        session, now = well_formed(request.session), self._clock()
        inserts = [
            Statement(_INSERT, (session, item.source, text, now))
            for item in request.texts
            if (text := _kept_text(item.text))
        ]
        if inserts:
            write = _Write((*inserts, Statement(_TRIM, (session,))))
            # A task of the actor, not of the request, which then ends at once even while the
            # database is locked.
            self.start_soon(self._finish, write, name="write")
            await write.ended.wait()
            if write.problem is not None:
                raise write.problem

    async def _finish(self, write: _Write) -> None:
        try:
            await self._write(write.transaction)
        except Exception as error:
            write.problem = error
        finally:
            write.ended.set()


@attrs.frozen
class StoredMemory:
    """The memory actor as a :class:`motet.protocols.memory.Memory`."""

    store: ActorRef[MemoryProtocol]

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        return await self.store.ask(FindMemories(query, session, limit, elsewhere=True))

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        await self.store.ask(Memorize(session, memorable(rows)))

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        return await self.store.ask(FindMemories(query, session, limit))

    async def write(self, text: str, session: str) -> None:
        await self.store.ask(Memorize(session, (Memorable(text, "note"),)))


def _kept_text(text: str) -> str:
    head, left_out = redacted_head(well_formed(text).replace("\0", "").strip())
    return shorten(head + "..." * bool(left_out), TEXT_LIMIT)


def _remembered(row: Row) -> Remembered:
    text, source, created = row
    # A column that only this module writes.
    return Remembered(str(text), cast("Source", source), float(created or 0))
