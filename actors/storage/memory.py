"""Store of memories: an actor over SQLite's full-text index.

Invariants: a memory belongs to the owner of its session, and only that owner's sessions find it
(G16); its secrets were redacted; of each owner the newest :data:`KEPT` are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from motet.actors.storage.tables import TableStore
from motet.protocols.chat import ChatMessage
from motet.protocols.memory import (
    FIND,
    INSERT,
    KEPT,
    TRIM,
    FindMemories,
    Memorable,
    Memorize,
    MemoryProtocol,
    Readership,
    Remembered,
    full_text_query,
    kept_text,
    listed,
    memorable,
    remembered,
    together,
)
from motet.protocols.storage import Statement, Transaction
from motet.protocols.texts import well_formed
from motet.runtime import Actor, ActorRef, handles


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
        return await self._read(remembered, FIND, params)

    @handles(Memorize, concurrent=16)
    async def memorize(self, request: Memorize) -> None:
        session, rest = well_formed(request.session), (self._clock(), listed(request.people))
        inserts = [
            Statement(INSERT, (session, item.source, text, *rest))
            for item in request.texts
            if (text := kept_text(item.text))
        ]
        if inserts:
            write = _Write((*inserts, Statement(TRIM, (session, KEPT))))
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


@attrs.define(eq=False)
class StoredMemory:
    """The memory actor as a :class:`motet.protocols.memory.Memory`.

    A run that is reminded of what others have said answers them, too.
    """

    store: ActorRef[MemoryProtocol]
    readers: Readership | None = None

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        return await self._found(FindMemories(query, session, limit, elsewhere=True))

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        await self._keep(memorable(rows), session)

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        return await self._found(FindMemories(query, session, limit))

    async def write(self, text: str, session: str) -> None:
        await self._keep((Memorable(text, "note"),), session)

    async def _keep(self, texts: tuple[Memorable, ...], session: str) -> None:
        people = self.readers.people(session) if self.readers is not None else ()
        await self.store.ask(Memorize(session, texts, people))

    async def _found(self, wanted: FindMemories) -> Sequence[Remembered]:
        found = await self.store.ask(wanted)
        people = together(one.people for one in found)
        if people and self.readers is not None:
            await self.readers.hear(wanted.session, people)
        return found
