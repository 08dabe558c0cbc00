"""The only writing connection of a place: what waits for it is committed all at once.

Invariants: a transaction that was answered is on disk (synchronous=FULL, answered after COMMIT);
one whose asker was told of a cancellation or an error left no trace. The actor ``Database`` opens
and closes it, and is how most reach it; the stores of sessions and errors and the event bus submit
what they have without an ask, since a message to and fro is a fifth of what a commit takes beside
the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import apsw

from motet.actors.storage.connection import Connection
from motet.actors.storage.errors import DatabaseClosed, StorageError, storage_error
from motet.actors.storage.group_commit import CommitStatistics, GroupCommit
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.actors.storage.transactions import Rows, Transaction, commit_group
from motet.actors.storage.worker import Jobs


class Writer:
    """Usable from any task between :meth:`open` and :meth:`aclose`; may be opened again."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._jobs: Jobs | None = None
        self._connection: Connection | None = None
        self._group = GroupCommit[Transaction, Rows](self._commit)

    async def open(self) -> None:
        """Bring the database to the newest version. Raises ``StorageError``."""
        jobs = self._location.jobs()
        try:
            self._connection = await jobs.run(self._connect)
        except BaseException:
            jobs.end()
            raise
        self._jobs = jobs

    async def aclose(self) -> None:
        """End what is under way and fold the log into the database. Is not cancelled half-way."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            await jobs.run(self._close)
            jobs.end()

    async def submit(self, transaction: Transaction) -> Rows:
        """Run a transaction. Raises a ``StorageError``, of the class that says what to do.

        Cancellation: withdraws what waits; of what has begun, the outcome is delivered.
        """
        return await self._group.submit(transaction)

    def statistics(self) -> CommitStatistics:
        return self._group.statistics()

    async def _commit(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        jobs = self._jobs
        return self._closed(group) if jobs is None else await jobs.run(partial(self._work, group))

    # In the thread

    def _connect(self) -> Connection:
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

    def _work(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        connection = self._connection
        if connection is None:
            return self._closed(group)
        return commit_group(connection, group, self._location.name)

    def _closed(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        name = self._location.name
        return [DatabaseClosed(f"{name} is closed: its host has stopped") for _ in group]

    def _close(self) -> None:
        """Checkpoint if no reader is in the way: what was answered is on disk anyway."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        except apsw.Error:
            # The log stays beside the database and is read at the next start.
            pass
        finally:
            connection.close()
