"""The actor that keeps whole errors, so that a model need only see their summaries.

Invariants: an answered :class:`StoreError` is on disk; its id and time are the store's own; what
is stored was redacted first. A store that was begun is finished even when its asker is
cancelled, so that a caller can stop waiting at once: then there is a row whose id nobody knows,
never an id without a row. Source: seed 000 and the errors specification, section 2.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import ClassVar, TypeAlias, cast

import attrs
import msgspec
import trio

from motet.actors.errors.ids import new_id
from motet.actors.errors.raw import plain
from motet.actors.errors.redact import redact, redact_text
from motet.actors.errors.summary import summarize
from motet.actors.errors.text import well_formed
from motet.actors.storage.errors import DatabaseClosed, DatabaseLocked, StorageError
from motet.actors.storage.readers import Readers
from motet.protocols.chat import JsonObject
from motet.protocols.errors import GetError, ListErrors, StoredError, StoreError
from motet.protocols.storage import Row, SqlValue, Statement, Transact
from motet.runtime import Actor, ActorRef, MailboxSpec, handles

ErrorProtocol: TypeAlias = StoreError | GetError | ListErrors

ID_ATTEMPTS = 8
UNDER_WAY_LIMIT = 1_024
_COLUMNS = "id, timestamp, session_id, tool_name, raw_error, short_summary"
_INSERT = (
    f"INSERT INTO agent_errors ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO NOTHING RETURNING seq"
)
_SELECT = f"SELECT {_COLUMNS} FROM agent_errors WHERE id = ?"


class StoreBusy(StorageError):
    """Too many errors wait to be written: the database has come to a halt, or nearly."""


@attrs.define(eq=False)
class _Write:
    """A store under way and its one outcome."""

    request: StoreError
    ended: trio.Event = attrs.field(factory=trio.Event)
    outcome: StoredError | Exception = attrs.field(
        factory=lambda: DatabaseClosed("the error store stopped before it had an answer")
    )


class ErrorStore(Actor[ErrorProtocol]):
    """Stores, gets and lists errors; many requests at once, writes through ``database``.

    Args:
        clock: Unix seconds.
        hex_source: ``hex_source(n)`` gives ``2 * n`` hex digits nobody can guess.
        keep_raw: store without redaction.

    Requests raise ``StorageError``; a locked database is retried once.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=1024, overflow="wait")

    def __init__(
        self,
        database: ActorRef[Transact],
        readers: Readers,
        clock: Callable[[], float] = time.time,
        hex_source: Callable[[int], str] = secrets.token_hex,
        *,
        keep_raw: bool = False,
    ) -> None:
        self._database = database
        self._readers = readers
        self._clock = clock
        self._hex = hex_source
        self._keep_raw = keep_raw
        self._under_way = 0

    @handles(StoreError, concurrent=256)
    async def store_error(self, request: StoreError) -> StoredError:
        if self._under_way >= UNDER_WAY_LIMIT:
            raise StoreBusy(f"{self._under_way} errors wait to be written: is the disk stuck?")
        write = _Write(request)
        self._under_way += 1
        self.start_soon(self._finish, write)
        await write.ended.wait()
        if isinstance(write.outcome, Exception):
            raise write.outcome
        return write.outcome

    @handles(GetError, concurrent=64)
    async def get_error(self, request: GetError) -> StoredError | None:
        rows = await self._readers.read(_SELECT, (well_formed(request.id),))
        found = _stored(rows[0]) if rows else None
        if found is None or request.session_id is None:
            return found
        return found if found.session_id == well_formed(request.session_id) else None

    @handles(ListErrors, concurrent=16)
    async def list_errors(self, request: ListErrors) -> tuple[StoredError, ...]:
        sql, params = list_query(request)
        return tuple(_stored(row) for row in await self._readers.read(sql, params))

    async def _finish(self, write: _Write) -> None:
        """A task of the actor, not of the request: it outlives a cancelled asker."""
        try:
            write.outcome = await self._write(self._prepared(write.request))
        except Exception as error:
            write.outcome = error
        finally:
            self._under_way -= 1
            write.ended.set()

    def _prepared(self, request: StoreError) -> StoredError:
        """The row to write, still without an id."""
        raw = cast("JsonObject", plain(request.raw_error))
        summary = request.short_summary
        if not self._keep_raw:
            raw, summary = cast("JsonObject", redact(raw)), redact_text(summary)
        return StoredError(
            id="",
            timestamp=round(self._clock(), 6),
            session_id=well_formed(request.session_id),
            tool_name=well_formed(request.tool_name),
            raw_error=raw,
            short_summary=summarize(summary),
        )

    async def _write(self, error: StoredError) -> StoredError:
        raw = msgspec.json.encode(error.raw_error).decode()
        for _ in range(ID_ATTEMPTS):
            made = new_id(error.timestamp, self._hex)
            row = (
                *(made, error.timestamp, error.session_id, error.tool_name),
                *(raw, error.short_summary),
            )
            if await self._insert(row):
                return msgspec.structs.replace(error, id=made)
        raise StorageError(
            f"no free error id in {ID_ATTEMPTS} attempts: is the source of randomness working?"
        )

    async def _insert(self, row: Row) -> bool:
        """Whether the row was written; False: another has its id."""
        transaction = Transact((Statement(_INSERT, row),))
        try:
            (rows,) = await self._database.ask(transaction)
        except DatabaseLocked:
            (rows,) = await self._database.ask(transaction)
        return bool(rows)


def list_query(request: ListErrors) -> tuple[str, list[SqlValue]]:
    """The query of a list: newest first, later stored before earlier at the same time."""
    filters: tuple[tuple[str, SqlValue], ...] = (
        ("session_id = ?", request.session_id),
        ("tool_name = ?", request.tool_name),
        ("timestamp >= ?", request.start),
        ("timestamp <= ?", request.end),
    )
    used = [(sql, value) for sql, value in filters if value is not None]
    where = f" WHERE {' AND '.join(sql for sql, _ in used)}" if used else ""
    params = [well_formed(v) if isinstance(v, str) else v for _, v in used]
    limit = request.limit if request.limit > 0 else -1
    sql = f"SELECT {_COLUMNS} FROM agent_errors{where} ORDER BY timestamp DESC, seq DESC LIMIT ?"
    return sql, [*params, limit]


def _stored(row: Row) -> StoredError:
    identity, timestamp, session, tool, raw, summary = row
    return StoredError(
        id=str(identity),
        timestamp=float(timestamp or 0),
        session_id=str(session),
        tool_name=str(tool),
        raw_error=msgspec.json.decode(str(raw), type=dict[str, object]),
        short_summary=str(summary),
    )
