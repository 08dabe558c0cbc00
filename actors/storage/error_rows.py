"""Rows of stored errors: the statements that write, list, group and delete them, and their codec.

``agent_errors`` is the record; ``error_records`` and ``error_groups`` are derived from it by
triggers (see the schema). Invariants: every list walks indexes in its order, newest first, and
sorts nothing; a row that cannot be read becomes an error that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from motet.actors.storage.tables import Query
from motet.protocols.error_records import SMALL, stored_error
from motet.protocols.errors import ErrorRecord, ListErrors, StoredError
from motet.protocols.storage import Row, SqlValue, Statement
from motet.protocols.texts import well_formed

COLUMNS: Final = (
    "id, timestamp, session_id, tool_name, raw_error, short_summary, kind, arguments,"
    " run_id, call_id, agent, user, fingerprint"
)
"""Of ``agent_errors``, as :func:`insert_statement` writes them."""
_WIDTH: Final = len(COLUMNS.split(", "))
_FIELDS: Final = (*COLUMNS.split(", "), "resolved")
_FIGURES: Final = ("count", "first_seen", "last_seen")

_SELECTED: Final = (
    "SELECT r.id, r.timestamp, r.session, r.tool, {raw}, r.summary, r.kind, {args},"
    " r.run_id, r.call_id, r.agent, r.user, r.fingerprint, r.resolved, r.bytes{group}"
)
_GROUP: Final = ", g.count, g.first, g.last"
_JOIN_GROUP: Final = (
    " LEFT JOIN error_groups g"
    " ON g.owner = r.owner AND g.agent = r.agent AND g.fingerprint = r.fingerprint"
)
_BY_ID: Final = " FROM agent_errors a JOIN error_records r ON r.seq = a.seq{join} WHERE a.id = ?"
_WHOLE: Final = _SELECTED.format(raw="a.raw_error", args="a.arguments", group="")
_WHOLE_GROUPED: Final = _SELECTED.format(raw="a.raw_error", args="a.arguments", group=_GROUP)
SELECT_ERROR: Final = _WHOLE + _BY_ID.format(join="")
SELECT_SMALL_ERROR: Final = f"{SELECT_ERROR} AND r.bytes <= {SMALL}"
SELECT_GROUPED_ERROR: Final = _WHOLE_GROUPED + _BY_ID.format(join=_JOIN_GROUP)
_IN_LIST: Final = {
    column: f"CASE WHEN r.bytes <= {SMALL} THEN a.{source} END"
    for column, source in (("raw", "raw_error"), ("args", "arguments"))
}
_LISTED: Final = _SELECTED.format(**_IN_LIST, group="")


# Writing


def insert_statement(records: Sequence[ErrorRecord]) -> Statement:
    """One statement for all of them; returns the ids it wrote.

    An error whose id is taken is not written. A group is padded to a power of two with copies of
    its first error, so that SQLite compiles nine statements instead of one for each size.
    """
    size = 1 << (len(records) - 1).bit_length()
    padded = [*records, *[records[0]] * (size - len(records))]
    params = [value for record in padded for value in _row(record)]
    return Statement(_insert(size), tuple(params))


@lru_cache
def _insert(size: int) -> str:
    one = f"({', '.join('?' * _WIDTH)})"
    return (
        f"INSERT INTO agent_errors ({COLUMNS}) VALUES {', '.join([one] * size)}"
        " ON CONFLICT (id) DO NOTHING RETURNING id"
    )


def _row(record: ErrorRecord) -> Row:
    return (
        *(record.id, record.timestamp, record.session_id, record.tool_name),
        *(record.raw_error, record.short_summary, record.kind, record.arguments or None),
        *(record.run_id, record.call_id, record.agent, record.user, record.fingerprint),
    )


# Lists

_KINDS: Final = ("unknown", "timeout", "auth", "validation", "not_found", "rate_limit")
"""In the order of their facets, which are twice their places here; one more where resolved."""


def _facets(kind: str | None, resolved: bool | None) -> tuple[int, ...]:
    places = range(len(_KINDS)) if kind is None else (_KINDS.index(kind) if kind in _KINDS else 0,)
    ends = (0, 1) if resolved is None else (int(resolved),)
    return tuple(2 * place + end for place in places for end in ends)


def conditions(request: ListErrors, after: tuple[float, int] | None = None) -> dict[str, SqlValue]:
    """The conditions of a list that have a value, each a template of SQL for its parameter."""
    given: dict[str, SqlValue] = {
        "r.session = {}": request.session_id,
        "r.tool = {}": request.tool_name,
        "r.timestamp >= {}": request.start,
        "r.timestamp <= {}": request.end if after is None else _earlier(request.end, after[0]),
        "r.kind = {}": request.kind,
        "r.owner = {}": request.owner,
        "r.agent = {}": request.agent,
        "r.run_id = {}": request.run_id,
        "r.fingerprint = {}": request.fingerprint,
    }
    return {
        sql: well_formed(value) if isinstance(value, str) else value
        for sql, value in given.items()
        if value is not None
    }


def _earlier(end: float | None, moment: float) -> float:
    return moment if end is None else min(end, moment)


def errors_condition(request: ListErrors) -> Query:
    """The condition on ``error_records r``, empty or after ``WHERE``, and its parameters."""
    given = conditions(request)
    clauses = [sql.format("?") for sql in given]
    if request.resolved is not None:
        clauses.append(f"r.resolved IS {'NOT ' if request.resolved else ''}NULL")
    return (f" WHERE {' AND '.join(clauses)}" if clauses else ""), tuple(given.values())


def list_query(
    request: ListErrors, after: tuple[float, int] | None = None, *, grouped: bool = False
) -> Query:
    """The query of a list: newest first, later stored before earlier at the same time.

    ``after``: only errors that follow this time and sequence number. ``grouped``: each with the
    figures of its group and its sequence number. The rows of each facet come from an index in
    order, and SQLite merges them; so a rare kind among a million errors is found at once.
    """
    given = conditions(request, after)
    params: list[SqlValue] = list(given.values())
    clauses = [sql.format(f"?{n + 1}") for n, sql in enumerate(given)]
    if after is not None:
        # The bound on the time above lets the index begin there.
        time, seq = len(params) + 1, len(params) + 2
        clauses.append(f"(r.timestamp, r.seq) < (?{time}, ?{seq})")
        params += after
    index = _index(request)
    if index == "agent_errors_run":
        # A run has few errors: they are filtered one by one.
        if request.resolved is not None:
            clauses.append(f"r.resolved IS {'NOT ' if request.resolved else ''}NULL")
        branches = [" AND ".join(clauses)]
    else:
        facets = _facets(request.kind, request.resolved)
        branches = [" AND ".join([f"r.facet = {facet}", *clauses]) for facet in facets]
    each = f"SELECT r.timestamp, r.seq FROM error_records r INDEXED BY {index} WHERE "
    merged = " UNION ALL ".join(each + branch for branch in branches)
    params.append(request.limit if request.limit > 0 else -1)
    page = f"{merged} ORDER BY 1 DESC, 2 DESC LIMIT ?{len(params)}"
    columns = _SELECTED.format(**_IN_LIST, group=f"{_GROUP}, r.seq") if grouped else _LISTED
    # CROSS JOIN keeps the order of the page.
    sql = (
        f"{columns} FROM ({page}) p CROSS JOIN error_records r ON r.seq = p.seq"
        f" CROSS JOIN agent_errors a ON a.seq = p.seq{_JOIN_GROUP if grouped else ''}"
    )
    return sql, tuple(params)


def _index(request: ListErrors) -> str:
    """The index with the fewest rows for a filter, as a rule."""
    if request.run_id is not None:
        return "agent_errors_run"
    if request.fingerprint is not None:
        return "agent_errors_fingerprint"
    by = "session" if request.session_id is not None else "owner" if request.owner else ""
    for name, value in (("tool", request.tool_name), ("agent", request.agent)):
        if value is not None and (by != "session" or name == "tool"):
            return "_".join(filter(None, ("agent_errors", by, name)))
    return f"agent_errors_{by or 'timestamp'}"


# Reading a row


def error_of(row: Row) -> StoredError:
    """A row of a list or of :data:`SELECT_ERROR` as an error; a bad row says so."""
    columns = dict(zip(_FIELDS, row[:14], strict=True))
    if len(row) > 15 and row[15] is not None:
        columns |= zip(_FIGURES, row[15:18], strict=True)
    return stored_error(columns, row[14])
