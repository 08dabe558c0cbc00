"""The actor that owns the only writer of the database: it commits what waits, all at once.

The invariants are those of ``Writer``, which it opens and closes; Trio never waits for SQLite.
"""

from __future__ import annotations

from typing import ClassVar

from motet.actors.storage.group_commit import CommitStatistics
from motet.actors.storage.location import Location
from motet.actors.storage.transactions import Rows
from motet.actors.storage.writer import Writer
from motet.protocols.storage import Transact
from motet.runtime import Actor, handles

GROUP_LIMIT = 256
"""Transactions in one commit, at most; more wait in the mailbox."""


class Database(Actor[Transact]):
    """Runs :class:`Transact`. The place is the caller's to close, after this has stopped.

    A failed start is a ``StorageError``; so is a failed transaction, of the class that says what
    to do. A database that another program holds is waited for, twice the busy timeout (4 s).
    ``writer``: of that place, for those who submit to it beside this actor.
    """

    cleanup_budget: ClassVar[float] = 10.0

    def __init__(self, location: Location, writer: Writer | None = None) -> None:
        self._writer = writer or Writer(location)

    async def on_start(self) -> None:
        await self._writer.open()

    async def on_stop(self) -> None:
        """All handlers have ended. The log is folded into the database."""
        await self._writer.aclose()

    @handles(Transact, concurrent=GROUP_LIMIT)
    async def transact(self, message: Transact) -> Rows:
        return await self._writer.submit(message.statements)

    def statistics(self) -> CommitStatistics:
        return self._writer.statistics()
