"""Stored errors as rows of the table ``agent_errors``: its statements, and back again. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import msgspec

from motet.actors.errors.text import well_formed
from motet.protocols.errors import ErrorType, ListErrors, StoredError
from motet.protocols.storage import Row, SqlValue, Statement

COLUMNS = "id, timestamp, session_id, tool_name, raw_error, short_summary, kind"
SELECT = f"SELECT {COLUMNS} FROM agent_errors WHERE id = ?"
SMALL = 65_536
"""Bytes of an error that :data:`SELECT_SMALL` finds."""
SELECT_SMALL = f"{SELECT} AND octet_length(raw_error) <= {SMALL}"


def insert(errors: list[tuple[StoredError, str]]) -> Statement:
    """One statement for all of them, each with its raw error as JSON; returns the ids it wrote.

    An error whose id is taken is not written. A group is padded to a power of two with errors
    that it holds already, so that SQLite compiles nine statements and not one per size.
    """
    size = 1 << (len(errors) - 1).bit_length()
    padded = errors + errors[:1] * (size - len(errors))
    params = [value for error, raw in padded for value in _row(error, raw)]
    return Statement(_insert(size), tuple(params))


@lru_cache
def _insert(size: int) -> str:
    values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * size)
    return (
        f"INSERT INTO agent_errors ({COLUMNS}) VALUES {values}"
        " ON CONFLICT (id) DO NOTHING RETURNING id"
    )


def _row(error: StoredError, raw: str) -> Row:
    return (
        *(error.id, error.timestamp, error.session_id, error.tool_name),
        *(raw, error.short_summary, error.kind),
    )


def where(request: ListErrors) -> tuple[str, list[SqlValue]]:
    """The condition of a list, empty or after ``WHERE``, and its parameters."""
    filters: tuple[tuple[str, SqlValue], ...] = (
        ("session_id = ?", request.session_id),
        ("tool_name = ?", request.tool_name),
        ("timestamp >= ?", request.start),
        ("timestamp <= ?", request.end),
        # The plus keeps SQLite from looking for an index: the others are narrower.
        ("+kind = ?", request.kind),
        ("session_id IN (SELECT session FROM sessions WHERE owner = ?)", request.owner),
    )
    used = [(sql, value) for sql, value in filters if value is not None]
    params: list[SqlValue] = [well_formed(v) if isinstance(v, str) else v for _, v in used]
    return (f" WHERE {' AND '.join(sql for sql, _ in used)}" if used else "", params)


def list_query(request: ListErrors) -> tuple[str, list[SqlValue]]:
    """The query of a list: newest first, later stored before earlier at the same time."""
    condition, params = where(request)
    limit = request.limit if request.limit > 0 else -1
    # SQLite would choose by the number of conditions, which is no measure of how many rows fit.
    table = f"agent_errors INDEXED BY {_index(request)}"
    sql = f"SELECT {COLUMNS} FROM {table}{condition} ORDER BY timestamp DESC, seq DESC LIMIT ?"
    return sql, [*params, limit]


def _index(request: ListErrors) -> str:
    names = ("session", request.session_id), ("tool", request.tool_name)
    used = [name for name, value in names if value is not None]
    return "_".join(["agent_errors", *(used or ["timestamp"])])


def stored(row: Row) -> StoredError:
    """The error that a row of :data:`COLUMNS` holds."""
    identity, timestamp, session, tool, raw, summary, kind = row
    return StoredError(
        id=str(identity),
        timestamp=float(timestamp or 0),
        session_id=str(session),
        tool_name=str(tool),
        raw_error=msgspec.json.decode(str(raw), type=dict[str, object]),
        short_summary=str(summary),
        kind=cast("ErrorType", kind),  # a column that only the error store writes
    )
