"""Retention: an actor that deletes what is beyond the limits; deletions of sessions and users.

The limits and the statements are those of :mod:`motet.protocols.retention`. Invariants: it works
beside everything else: each slice is one transaction, behind which it rests for as long as that
took; a session or a room goes whole, and only if nobody has used it since; a failure is logged, and
tried again in an hour.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import ClassVar

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.hosting.tree import Parts
from motet.actors.rooms.administration import close
from motet.actors.rooms.publisher import room_stream
from motet.actors.sessions.router import Retire
from motet.protocols import retention, users
from motet.protocols.errors import ForgetErrors, NotFound
from motet.protocols.messages import Request
from motet.protocols.retention import Hands, Limits, aged
from motet.protocols.session_keys import HOST_USER
from motet.protocols.sessions import DeleteSession, Principal, SessionBusy, SessionInfo
from motet.protocols.storage import Row, Rows, Statement, Transaction
from motet.protocols.traces import FlushTraces
from motet.protocols.users import Delete, UserDeleted, UserHands
from motet.runtime import Actor, handles
from motet.runtime.describe import summarize
from motet.runtime.outside import steady_time, wall_time

FIRST, INTERVAL = 60.0, 3_600.0
"""Seconds from the start to the first look, and between two."""
SHORTEST = 1 / 4_096
"""The share of all limits at which a database that is still too large is left alone."""
_HOST = Principal(HOST_USER, "admin")

log = logger(__name__)


def lowest_time() -> float:
    """Rows have times by the wall clock: one that is put back must not make new rows old."""
    return min(steady_time(), wall_time())


class Prune(Request[int], frozen=True, tag="retention.prune"):
    """Delete what is beyond the limits now; answers how many rows and sessions."""


async def delete_session(parts: Parts, info: SessionInfo, unused_since: float | None = None) -> int:
    """Delete a session without runs, and everything stored of it; returns how many rows it had.

    ``unused_since``: leave what agents remember, and refuse if it was used since then. Raises
    ``NotFound``, and ``SessionBusy`` when an input arrived meanwhile: then nothing was deleted.
    """
    session = info.session
    await parts.router.ask(Retire(session, info.owner))
    await parts.journal.settle()
    await parts.stores.traces.ask(FlushTraces())  # or they would be written afterwards
    rows = 0
    # Shielded: once it is on disk, its readers have to be told.
    with trio.CancelScope(shield=True):
        request = DeleteSession(session, info.generation, unused_since)
        rows = await parts.stores.sessions.ask(request)
        parts.services.settings.forget(session, info.generation)
        parts.journal.access_changed(f"session:{session}", info.generation)
        await parts.stores.errors.ask(ForgetErrors(session))
    return rows


async def delete_user(
    parts: Parts, user: str, rooms: str | None, session: Delete, room: Delete
) -> UserDeleted:
    """See :func:`motet.protocols.users.delete_user`. ``session``, ``room``: delete one."""
    config, stores, read = parts.generations.config, parts.stores, Forgetting(parts).read
    named = {one.user for one in config.gateway.tokens}
    named.update(one for of in config.rooms.values() for one in of.people)

    async def withdraw(name: str, number: int) -> None:
        await parts.rooms.delete_message(name, number, principal=_HOST)

    @asynccontextmanager
    async def quiet(name: str) -> AsyncGenerator[None]:
        async with parts.room_table.changing:
            await close(parts.rooms, name, "a user is deleted")
            await parts.journal.settle()
            await stores.traces.ask(FlushTraces())  # or they would be written afterwards
            with ExitStack() as stack:
                for (key,) in await read(users.members(name)):
                    stack.enter_context(stores.contexts.changing(str(key)))
                yield
            parts.journal.access_changed(room_stream(name))

    await parts.room_table.reopened.wait()  # a room that is opened later tells what it has not yet
    ask, write, load = stores.rooms.ask, stores.transact, stores.tokens.load
    hands = UserHands(read, write, ask, load, session, room, withdraw, quiet)
    return await users.delete_user(hands, user, rooms, frozenset(named), wall_time())


@attrs.frozen
class Forgetting:
    """The deletions of whole sessions and rooms, for their age."""

    parts: Parts

    async def read(self, statement: Statement) -> tuple[Row, ...]:
        return await self.parts.readers.read(statement.sql, statement.params)

    async def session(self, session: str, since: float) -> bool:
        try:
            info = await self.parts.access.session(session, _HOST)
            await delete_session(self.parts, info, since)
        except (NotFound, SessionBusy):
            return False
        return True

    async def room(self, room: str, since: float) -> bool:
        parts = self.parts
        try:
            async with parts.rooms.deleting(room, _HOST) as remaining:
                # Nobody can speak in it any more; somebody may have, a moment ago.
                if not await parts.readers.read(retention.IDLE_ROOM, (room, since)):
                    raise SessionBusy(f"the room {room!r} is in use again")
                while found := await remaining():
                    await delete_session(parts, found[0])
        except (NotFound, SessionBusy):
            return False
        return True


class Retention(Actor[Prune]):
    """Prunes a minute after its start, and then every hour.

    Args:
        hands: its ways to the database, without the rests.
        clock: Unix seconds that a wall clock which is put forward does not change.
    """

    cleanup_budget: ClassVar[float] = 2.0

    def __init__(
        self, hands: Hands, limits: Limits, clock: Callable[[], float] = lowest_time
    ) -> None:
        self._hands = attrs.evolve(hands, write=self._slice)
        self._commit = hands.write
        self._limits = limits
        self._clock = clock
        self._begun: float = math.inf
        self._looked: float | None = None

    async def on_start(self) -> None:
        self._begun = self._clock()
        self.start_soon(self._run, name="retention")

    @handles(Prune)
    async def prune(self, _request: Prune) -> int:
        """A cancellation between two slices leaves the rest. Raises ``StorageError``."""
        now, factor = await self._age(), 1.0
        deleted = await retention.prune(self._hands, self._limits, now)
        while factor > SHORTEST and await self._is_too_large():
            factor /= 2
            deleted += await retention.prune(self._hands, self._limits.shortened(factor), now)
        if factor < 1:
            log.warning("retention_shortened", factor=factor, max_mb=self._limits.megabytes)
        await retention.give_back(self._hands.change)
        return deleted

    async def _age(self) -> float:
        now, before = self._clock(), self._looked
        ((last,),) = await self._hands.read(Statement(retention.AGED))
        given = None if last is None else float(last)
        now_aged = aged(now, given, now - (before or self._begun), first=before is None)
        await self._hands.change(Statement(retention.AGE, (now_aged,)))
        self._looked = now
        return now_aged

    async def _is_too_large(self) -> bool:
        ((used,),) = await self._hands.read(Statement(retention.USED))
        return float(used or 0) > self._limits.megabytes * retention.MEGABYTE

    async def _slice(self, transaction: Transaction) -> Rows:
        begun = trio.current_time()
        rows = await self._commit(transaction)
        await trio.sleep(trio.current_time() - begun)
        return rows

    async def _run(self) -> None:
        await trio.sleep(FIRST)
        while True:
            try:
                deleted = await self.prune(Prune())
            except Exception as error:
                log.warning("not_pruned", reason=summarize(error))
            else:
                if deleted:
                    log.info("pruned", count=deleted)
            await trio.sleep(INTERVAL)


async def start_retention(parts: Parts) -> None:
    """Start the retention of a host whose other parts are at work."""
    forgetting = Forgetting(parts)
    hands = Hands(forgetting.read, parts.stores.transact, forgetting.session, forgetting.room)
    limits = Limits.of(parts.generations.config)
    await parts.system.start(lambda: Retention(hands, limits), name="retention")
