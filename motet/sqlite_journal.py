"""The journal of event-sourced actors in one SQLite file.

    async with open_journal("accounts.db") as journal, open_system() as system:
        accounts = await system.registry.kind("account", lambda key: Account(journal, key))

It is the writer of the host's database with other tables: group commit across actors, answered
after COMMIT with ``synchronous=FULL``, errors that say what to do (``motet.protocols.storage``),
files that are deleted under it noticed. It is here and not in the kernel, which imports no
database, and not among the packages of the agent host, which does not use it.

Several processes may have the file open: SQLite lets one write at a time, and the number of the
newest event is compared in the transaction that stores the next.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final, cast

import trio

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import CommitStatistics, Writer
from motet.protocols.domain_events import JournalConflict, StoredEvent
from motet.protocols.storage import (
    ConstraintFailed,
    ExpectationFailed,
    Row,
    SchemaTooNew,
    Statement,
    StorageError,
)
from motet.runtime.loops import refuse_in_asyncio
from motet.runtime.scopes import only_in_a_block

__all__ = ["SqliteJournal", "open_journal"]

APPLICATION: Final = 0x6D6F744A  # "motJ": SQLite's mark of the program that a file belongs to
VERSION: Final = 1

# Events name their stream by a number: its name, repeated in each row, would be half of the file.
TABLES: Final = """
CREATE TABLE streams (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, head INTEGER NOT NULL
);
CREATE TABLE events (
    stream INTEGER NOT NULL REFERENCES streams (id), number INTEGER NOT NULL,
    tag TEXT NOT NULL, version INTEGER NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (stream, number)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    stream INTEGER PRIMARY KEY REFERENCES streams (id), number INTEGER NOT NULL,
    tag TEXT NOT NULL, version INTEGER NOT NULL, data TEXT NOT NULL
);
"""

_OF_STREAM: Final = "(SELECT id FROM streams WHERE name = ?)"
_BEGIN: Final = "INSERT INTO streams (name, head) VALUES (?, ?)"
_ADVANCE: Final = "UPDATE streams SET head = ? WHERE name = ? AND head = ?"
_APPEND: Final = (
    "INSERT INTO events (stream, number, tag, version, data)"
    " SELECT id, ?, ?, ?, ? FROM streams WHERE name = ?"
)
_READ: Final = (
    f"SELECT number, tag, version, data FROM events WHERE stream = {_OF_STREAM}"
    " AND number > ? ORDER BY number LIMIT ?"
)
_SNAPSHOT: Final = f"SELECT number, tag, version, data FROM snapshots WHERE stream = {_OF_STREAM}"
_KEEP: Final = (
    "INSERT INTO snapshots (stream, number, tag, version, data)"
    " SELECT id, ?, ?, ?, ? FROM streams WHERE name = ?"
    " ON CONFLICT (stream) DO UPDATE SET number = excluded.number, tag = excluded.tag,"
    " version = excluded.version, data = excluded.data WHERE excluded.number > number"
)
# Never beyond the snapshot that is stored, whichever that is.
_FORGET: Final = (
    "DELETE FROM events WHERE stream = (SELECT stream FROM snapshots"
    f" WHERE stream = {_OF_STREAM} AND number = ?) AND number <= ?"
)


class SqliteJournal:
    """A journal (:class:`motet.runtime.Journal`); made by :func:`open_journal`.

    Raises a ``StorageError``, whose class says what to do: ``DiskFull``, ``DatabaseLocked``.
    """

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def append(self, stream: str, after: int, events: Sequence[StoredEvent], /) -> None:
        """See :class:`motet.runtime.Journal`.

        Writes of many actors share a commit. Cancelled: nothing was stored; a write that is being
        committed is finished, and its outcome delivered.
        """
        head = after + len(events)
        rows = tuple((one.number, one.tag, one.version, one.data, stream) for one in events)
        # Each changes one row, or the whole transaction is undone.
        claim = (
            Statement(_ADVANCE, (head, stream, after), changes=1)
            if after
            else Statement(_BEGIN, (stream, head))
        )
        try:
            await self._writer.submit((claim, Statement(_APPEND, each=rows)))
        except (ConstraintFailed, ExpectationFailed) as error:
            raise JournalConflict(stream, after) from error

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        """See :class:`motet.runtime.Journal`. Waits for no writer."""
        return [_stored(row) for row in await self._readers.read(_READ, (stream, after, limit))]

    async def snapshot(self, stream: str, /) -> StoredEvent | None:
        """See :class:`motet.runtime.Journal`. Waits for no writer."""
        rows = await self._readers.read(_SNAPSHOT, (stream,))
        return _stored(rows[0]) if rows else None

    async def keep(self, stream: str, snapshot: StoredEvent, forget: int, /) -> None:
        """See :class:`motet.runtime.Journal`."""
        values = (snapshot.number, snapshot.tag, snapshot.version, snapshot.data, stream)
        forgetting = (Statement(_FORGET, (stream, snapshot.number, forget)),) if forget else ()
        await self._writer.submit((Statement(_KEEP, values), *forgetting))

    async def streams(self, prefix: str = "") -> list[str]:
        """The names of the streams that begin with ``prefix``, in their order."""
        # Not LIKE, whose wild cards a name may contain.
        sql = "SELECT name FROM streams WHERE substr(name, 1, ?) = ? ORDER BY name"
        rows = await self._readers.read(sql, (len(prefix), prefix))
        return [cast(str, name) for (name,) in rows]

    def statistics(self) -> CommitStatistics:
        """The commits since the journal was opened, and the writes that shared them."""
        return self._writer.statistics()


@only_in_a_block
async def open_journal(file: str | Path) -> AsyncGenerator[SqliteJournal]:
    """Open the journal in ``file``, made if it is missing; its folder must exist.

    Open it around the system whose actors use it, so that it is closed after them: after that,
    its methods raise ``DatabaseClosed``. Raises ``StorageError`` for a file that cannot be opened
    or belongs to something else, and ``SchemaTooNew``.
    """
    refuse_in_asyncio("open_journal()", "open it beside its system, which runs on Trio")
    path = Path(file).absolute()
    location = Location(path.parent, f"the journal {path}", str(path), 0, _nothing)
    writer, readers = Writer(location, _prepare), Readers(location)
    await writer.open()
    try:
        yield SqliteJournal(writer, readers)
    finally:
        with trio.CancelScope(shield=True):  # each ends with its running query or commit
            await readers.aclose()
            await writer.aclose()


def _prepare(connection: Connection) -> None:
    """Make the tables, once; in one transaction, since another process may do the same now."""
    connection.run("BEGIN IMMEDIATE")
    try:
        ((application,),) = connection.run("PRAGMA application_id")
        ((version,),) = connection.run("PRAGMA user_version")
        ((tables,),) = connection.run("SELECT count(*) FROM sqlite_schema")
        if application != APPLICATION and tables:
            raise StorageError("the file is a database of something else: choose another one")
        if int(version or 0) > VERSION:
            raise SchemaTooNew("the journal was written by a newer motet: use that one")
        if not tables:
            connection.run(TABLES)
            connection.run(f"PRAGMA application_id = {APPLICATION}")
            connection.run(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.run("ROLLBACK")
        raise
    connection.run("COMMIT")


def _stored(row: Row) -> StoredEvent:
    number, tag, version, data = row
    return StoredEvent(cast(int, number), cast(str, tag), cast(int, version), cast(str, data))


def _nothing() -> None:
    """No lock is held on the folder: several processes may open the file."""
