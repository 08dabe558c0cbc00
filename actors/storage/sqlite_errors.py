"""The errors of a host in its database, behind the actor that reports and lists them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import trio

from motet.actors.storage.readers import Readers
from motet.protocols.error_rows import (
    FORGET,
    RESOLVE,
    SAME,
    SELECT_BRIEF_ERROR,
    SELECT_OPEN,
    SELECT_TEXT,
    SELECT_WHOLE_ERROR,
    Query,
    error_of,
    group_of,
    groups_query,
    insert_statement,
    is_cut,
    list_query,
    next_cursor,
    part_statements,
    place_of,
    resolve_key,
)
from motet.protocols.errors import (
    ErrorPage,
    ErrorRecord,
    ErrorText,
    GroupErrors,
    GroupPage,
    ListErrors,
    StoredError,
)
from motet.protocols.storage import (
    Commit,
    ConstraintFailed,
    Row,
    SqlValue,
    Statement,
    StorageError,
)
from motet.protocols.texts import well_formed


class SqliteErrors:
    """The errors of a host in its database; see :class:`motet.protocols.errors.Errors`."""

    def __init__(self, commit: Commit, readers: Readers) -> None:
        self._commit = commit
        self._readers = readers

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        parts = part_statements(records)
        try:
            await self._commit((insert_statement(records), *parts))
            return set()
        except ConstraintFailed:
            pass  # an id is taken, by this error itself if a kill came before its answer
        ids = {record.id: record for record in records}
        same = Statement(SAME, (msgspec.json.encode([*ids]).decode(),))
        *_, found = await self._commit((insert_statement(records, again=True), *parts, same))
        stored = {str(id_) for id_, *rest in found if rest == _identity(ids[str(id_)])}
        return ids.keys() - stored

    async def get(self, error_id: str, *, brief: bool = False) -> StoredError | None:
        key = (well_formed(error_id),)
        try:
            found = await self._readers.point(SELECT_BRIEF_ERROR, key)
        except StorageError:
            found = await rows_of(self._readers, (SELECT_BRIEF_ERROR, key), 18)
        if not found or brief or not is_cut(found[0]):
            return error_of(found[0]) if found else None
        found = await rows_of(self._readers, (SELECT_WHOLE_ERROR, key), 18)
        # Decoding megabytes would block the loop.
        return await trio.to_thread.run_sync(error_of, found[0]) if found else None

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        query = SELECT_TEXT, (well_formed(error_id), offset + 1, limit)
        found = await rows_of(self._readers, query, 2)
        return ErrorText(str(found[0][0]), offset, int(found[0][1] or 0)) if found else None

    async def page(self, which: ListErrors, cursor: str | None) -> ErrorPage:
        query = list_query(which, place_of(cursor), grouped=True)
        rows = await rows_of(self._readers, query, 19)
        return ErrorPage(tuple(map(error_of, rows)), next_cursor(rows, which.limit, 1))

    async def groups(self, which: GroupErrors) -> GroupPage:
        rows = await rows_of(self._readers, groups_query(which, place_of(which.cursor)), 14)
        return GroupPage(tuple(map(group_of, rows)), next_cursor(rows, which.limit, 8))

    async def resolve(
        self, session_id: str, tool_name: str, now: float, later: Collection[str] = ()
    ) -> int:
        key = resolve_key(session_id, tool_name, [*later])
        if not await self._readers.point(f"{SELECT_OPEN} LIMIT 1", key):
            return 0
        (rows,) = await self._commit((Statement(f"{RESOLVE} RETURNING 1", (*key, now)),))
        return len(rows)

    async def forget(self, session_id: str) -> None:
        await self._commit((Statement(FORGET, (well_formed(session_id),)),))


def _identity(record: ErrorRecord) -> list[SqlValue]:
    return [record.timestamp, record.session_id, record.tool_name, record.short_summary]


async def rows_of(readers: Readers, query: Query, width: int) -> tuple[Row, ...]:
    """The rows of a query. Text that is no UTF-8, from another program, comes as bytes."""
    sql, params = query
    try:
        return await readers.read(sql, params)
    except StorageError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
    # All text as bytes, since SQLite cannot tell which of it is damaged.
    names = [f"c{n}" for n in range(width)]
    each = ", ".join(
        f"CASE typeof({n}) WHEN 'text' THEN CAST({n} AS BLOB) ELSE {n} END" for n in names
    )
    rows = await readers.read(
        f"WITH q ({', '.join(names)}) AS ({sql}) SELECT {each} FROM q", params
    )
    return tuple(tuple(map(_text, row)) for row in rows)


def _text(value: SqlValue) -> SqlValue:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
