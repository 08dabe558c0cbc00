"""The only writer of the database: an actor that commits what waits, all at once.

One connection, used by one thread at a time, so Trio never waits for SQLite. Invariants: an
answered transaction is on disk (synchronous=FULL, answered after COMMIT); a transaction whose
asker was told of a cancellation or an error left no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import apsw

from motet.actors.storage.connection import Connection
from motet.actors.storage.errors import DatabaseClosed, StorageError, storage_error
from motet.actors.storage.group_commit import CommitStatistics, GroupCommit
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.actors.storage.transactions import Rows, Transaction, commit_group
from motet.protocols.storage import Transact
from motet.runtime import Actor, handles

GROUP_LIMIT = 256
"""Transactions in one commit, at most; more wait in the mailbox."""


class Database(Actor[Transact]):
    """Runs :class:`Transact`. The place is the caller's to close, after this has stopped.

    A failed start is a ``StorageError``; so is a failed transaction, of the class that says what
    to do. A database that another program holds is waited for, twice the busy timeout (4 s).
    """

    cleanup_budget: ClassVar[float] = 10.0

    def __init__(self, location: Location) -> None:
        self._location = location
        self._connection: Connection | None = None
        self._group = GroupCommit[Transaction, Rows](self._commit)

    async def on_start(self) -> None:
        self._connection = await self._location.run(self._open)

    async def on_stop(self) -> None:
        """All handlers have ended: nothing is under way. The log is folded into the database."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._location.run(lambda: _close(connection))

    @handles(Transact, concurrent=GROUP_LIMIT)
    async def transact(self, message: Transact) -> Rows:
        return await self._group.submit(message.statements)

    def statistics(self) -> CommitStatistics:
        return self._group.statistics()

    def _open(self) -> Connection:
        connection = self._location.connect()
        try:
            migrate(connection)
        except apsw.Error as error:
            connection.close()
            raise storage_error(error, self._location.name) from error
        except StorageError:
            connection.close()
            raise
        return connection

    async def _commit(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        connection = self._connection
        name = self._location.name
        if connection is None:
            return [DatabaseClosed(f"{name} is closed: its host has stopped") for _ in group]
        return await self._location.run(lambda: commit_group(connection, group, name))


def _close(connection: Connection) -> None:
    """Checkpoint if no reader is in the way, and close: what was answered is on disk anyway."""
    try:
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.Error:
        # The log stays beside the database and is read at the next start.
        pass
    finally:
        connection.close()
