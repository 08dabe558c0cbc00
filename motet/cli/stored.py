"""The contents of a state directory, read beside the host that may have it open.

Nothing here takes the host's lock, and all but :func:`writing` opens the database read-only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import apsw
import attrs
import trio

from motet.actors.storage.connection import storage_error
from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.storage.location import DATABASE_FILE, Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import QUARANTINED, quarantined
from motet.actors.storage.schema import VERSION, WRITTEN_BY
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.protocols.error_records import stored_record
from motet.protocols.errors import ErrorRecord, NotFound, StoredError
from motet.protocols.recovery import Quarantined
from motet.protocols.retention import RunStatement
from motet.protocols.storage import (
    ExpectationFailed,
    Row,
    Rows,
    Statement,
    StorageError,
    Transaction,
)
from motet.runtime.spill import spilled

RUNS_BY_STATUS = (
    "SELECT status, count(*) FROM (SELECT status FROM runs WHERE open IS NULL"
    " UNION ALL SELECT status FROM runs WHERE open = 1) GROUP BY status"
)
_OF_OLDER = "SELECT status, count(*) FROM runs GROUP BY status"


def database_file(state: Path) -> Path:
    return state / DATABASE_FILE


@asynccontextmanager
async def reading(state: Path) -> AsyncGenerator[Readers]:
    """Readers of the database in a state directory. Raises ``NotFound`` when there is none."""
    file = database_file(state)
    if not file.is_file():
        raise NotFound(f"there is nothing stored in {state} yet: no host has used it")
    readers = Readers(
        Location(state, f"the database {file}", str(file), 0, _nothing), connections=1
    )
    try:
        yield readers
    finally:
        await readers.aclose()  # Awaits while being cancelled: connections have to be closed.


@asynccontextmanager
async def writing(state: Path) -> AsyncGenerator[RunStatement]:
    """A function that runs statements, each in its own transaction, also beside a running host.

    Raises ``NotFound`` if there is no database, ``StorageError`` for another version.
    """
    file = database_file(state)
    async with reading(state) as readers:
        ((version,),) = await readers.read("PRAGMA user_version")
    if version != VERSION:
        raise StorageError(
            f"the database {file} is of version {version}, this motet writes {VERSION}: "
            "start a host of the newer one on it first"
        )
    location = Location(state, f"the database {file}", str(file), 0, _nothing)
    connection = await location.run(location.connect)

    async def run(statement: Statement) -> tuple[Row, ...]:
        try:
            return await location.run(lambda: connection.run(statement.sql, statement.params))
        except apsw.Error as error:
            raise storage_error(error, location.name) from error

    try:
        yield run
    finally:
        await location.run(connection.close)  # Awaits while being cancelled: it has to be closed.


@asynccontextmanager
async def writing_together(
    state: Path,
) -> AsyncGenerator[Callable[[Transaction], Awaitable[Rows]]]:
    """As :func:`writing`, for transactions of several statements."""
    async with writing(state) as run:

        async def transact(statements: Transaction) -> Rows:
            await run(Statement("BEGIN IMMEDIATE"))
            try:
                rows: list[tuple[Row, ...]] = []
                for index, statement in enumerate(statements):
                    rows.append(await run(statement))
                    if statement.expect is not None and len(rows[-1]) != statement.expect:
                        raise ExpectationFailed(index, statement.expect, len(rows[-1]))
            except BaseException:
                with trio.CancelScope(shield=True):
                    await run(Statement("ROLLBACK"))
                raise
            with trio.CancelScope(shield=True):
                await run(Statement("COMMIT"))
            return tuple(rows)

        yield transact


async def errors_in(readers: Readers) -> SqliteErrors:
    """The stored errors, for reading. Raises ``StorageError`` for another version."""
    ((version,),) = await readers.read("PRAGMA user_version")
    if version != VERSION:
        raise StorageError(
            f"the database is of version {version}, this motet reads errors of {VERSION}: "
            "start a host of the newer one on it first"
        )
    return SqliteErrors(_refused, readers)


async def _refused(_transaction: Transaction) -> Rows:
    raise StorageError("these errors are only read")


async def stored_error(readers: Readers, error_id: str) -> StoredError:
    """One stored error. Raises ``NotFound``."""
    errors = await errors_in(readers)
    if (found := await errors.get(error_id)) is not None:
        return found
    if (record := waiting_errors(readers.folder).get(error_id)) is not None:
        return stored_record(record)
    if (found := await errors.get(error_id)) is not None:  # stored between these two looks
        return found
    raise NotFound(f"no stored error {error_id!r}; `motet errors` lists them")


def waiting_errors(state: Path | None) -> dict[str, ErrorRecord]:
    """Errors in the spill file, which the database does not have yet, by their ids."""
    try:
        return {} if state is None else spilled(state / SPILL_FILE, ErrorRecord)
    except OSError as error:
        raise StorageError(f"the spill file of {state} cannot be read: {error.strerror}") from None


@attrs.frozen
class Overview:
    """A database in figures: bytes of the file and of its write-ahead log, free bytes of the disk.

    ``runs`` counts them by status, ``quarantined`` are sessions, ``motet`` is the version of the
    motet that has opened it last; empty: of an older one.
    """

    size: int
    version: int
    runs: dict[str, int]
    quarantined: tuple[Quarantined, ...] = ()
    log: int = 0
    room: int = 0
    motet: str = ""


async def overview(readers: Readers, file: Path) -> Overview:
    """Raises ``StorageError`` for a database that cannot be read."""
    ((version,),) = await readers.read("PRAGMA user_version")
    by_status = RUNS_BY_STATUS if version == VERSION else _OF_OLDER
    runs = await readers.read(by_status) if version else ()
    counts = {str(status): int(count or 0) for status, count in runs}
    aside = await readers.read(QUARANTINED) if version == VERSION else ()
    written = await readers.read(WRITTEN_BY) if version == VERSION else ()
    size, found = file.stat().st_size, tuple(map(quarantined, aside))
    log = file.with_name(f"{file.name}-wal")
    logged = log.stat().st_size if log.exists() else 0
    room = shutil.disk_usage(file.parent).free
    return Overview(
        size, int(version or 0), counts, found, logged, room, *(str(one) for one, _ in written)
    )


def deleted_files(state: Path, owner: int | None) -> tuple[str, ...]:
    """Names of files of the directory's database that its host holds open though they are gone.

    Of deleted ones those that they had, of a moved database the one that it has now. Linux only.
    The program of the host may have other databases: one of them is none that was moved.
    """
    database = database_file(state.resolve())
    deleted, elsewhere, is_there = set[str](), set[str](), False
    for link in Path(f"/proc/{owner}/fd").glob("*") if owner else ():
        with suppress(OSError):
            name, mark, _ = os.readlink(link).partition(" (deleted)")
            if mark and name.startswith(str(database)):
                deleted.add(name)
            elif name == str(database):
                is_there = True
            elif name.endswith(f"/{database.name}"):
                elsewhere.add(name)
    return tuple(sorted(deleted or (() if is_there else elsewhere)))


def _nothing() -> None:
    """There is no lock to give back."""
