"""A pool of read-only connections beside the writer, each used by one query at a time.

Invariants: a query sees every transaction that was answered before it began, and nothing
uncommitted; a cancelled query stops within a fraction of a millisecond, and its connection is free
at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import attrs
import trio

from motet.actors.storage.connection import Connection, storage_error
from motet.actors.storage.location import Location
from motet.protocols.storage import DatabaseClosed, DatabaseLocked, Row, SqlValue

_STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's virtual machine between two looks at the interrupt flag."""


@attrs.define(eq=False)
class _Reader:
    """A connection, opened with its first query, whose query can be interrupted.

    ``sqlite3_interrupt`` would miss a query that is about to begin; a flag does not.
    """

    location: Location
    interrupted: bool = False
    connection: Connection | None = None

    def query(self, sql: str, params: Sequence[SqlValue]) -> tuple[Row, ...]:
        if self.connection is None:
            self.connection = self.location.connect(read_only=True)
            self.connection.set_progress_handler(lambda: self.interrupted, _STEPS_BETWEEN_LOOKS)
        return self.connection.run(sql, params)

    def interrupt(self) -> None:
        self.interrupted = True

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class Readers:
    """Runs ``connections`` queries at once; more wait. Any task may use it.

    ``folder``: of the database; None for one in memory.
    """

    def __init__(self, location: Location, connections: int = 2) -> None:
        self._location = location
        self.folder = location.path
        self._readers = [_Reader(location) for _ in range(connections)]
        self._idle = list(self._readers)
        self._slots = trio.Semaphore(connections)
        self._closed = False
        self._pointer: Connection | None = None

    async def read(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        """All rows of one statement.

        Cancellation interrupts the query. Raises ``DatabaseClosed`` during and after
        :meth:`aclose`, else a ``StorageError``.
        """
        async with self._slots:
            self._refuse_if_closed()
            reader = self._idle.pop()
            reader.interrupted = False
            try:
                return await self._location.run(lambda: reader.query(sql, params), reader.interrupt)
            except Exception as error:
                self._refuse_if_closed()
                raise storage_error(error, self._location.name) from error
            finally:
                self._idle.append(reader)

    async def point(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        """The few small rows that a statement finds by a key, read on Trio's own thread.

        Only for statements that touch a handful of pages: these take some 10 us, and a thread
        costs 60 before it begins. Where a lock would have to be waited for, a thread reads. Raises
        as :meth:`read`; a read that has begun is not interrupted.
        """
        await trio.lowlevel.checkpoint()
        self._refuse_if_closed()
        try:
            if self._pointer is None:
                self._pointer = self._location.connect(read_only=True)
                self._pointer.set_busy_timeout(0)
            return self._pointer.run(sql, params)
        except (apsw.BusyError, DatabaseLocked):
            return await self.read(sql, params)
        except Exception as error:
            raise storage_error(error, self._location.name) from error

    async def aclose(self) -> None:
        """Interrupt the running queries, wait for their ends, close. Not cancellable."""
        self._closed = True
        if self._pointer is not None:
            self._pointer.close()
        with trio.CancelScope(shield=True):
            for reader in self._readers:
                reader.interrupt()
            for _ in self._readers:
                await self._slots.acquire()
            # Only after that: closing a connection in use by another thread would block for ever.
            for reader in self._readers:
                await self._location.run(reader.close)
            for _ in self._readers:
                self._slots.release()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise DatabaseClosed(f"{self._location.name} is closed: its host has stopped")
