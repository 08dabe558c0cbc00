"""Rows of stored errors: their codec, and the statements that write and list them.

The tables are those of :mod:`motet.protocols.error_tables`. Invariants: every list walks indexes
in its order, newest first, and sorts nothing but the tail, the few errors that no index has yet; a
row that cannot be read becomes an error that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, cast, overload

import msgspec
from msgspec.structs import replace

from motet.protocols.error_records import SMALL, readable, stored_error
from motet.protocols.error_tables import IS_TIME
from motet.protocols.errors import (
    ErrorGroup,
    ErrorRecord,
    GroupErrors,
    InputValidation,
    ListErrors,
    StoredError,
)
from motet.protocols.storage import Row, SqlValue, Statement
from motet.protocols.texts import well_formed

Query: TypeAlias = tuple[str, Row]
"""A statement and its parameters."""
_Order: TypeAlias = Literal["ASC", "DESC"]
_TOOL: Final = "r.tool = {}"
_FINGERPRINT: Final = "r.fingerprint = {}"
_OF_TOOL: Final = (
    "r.fingerprint = (SELECT fingerprint FROM error_records INDEXED BY"
    " agent_errors_fingerprint_tool WHERE indexed = 1 AND fingerprint = {0} AND tool = {1} LIMIT 1)"
)
"""In place of the fingerprint: else a walk would pass all errors of one that the tool never has."""

COLUMNS: Final = (
    "id, timestamp, session_id, tool_name, raw_error, short_summary, kind, arguments,"
    " run_id, call_id, agent, user, fingerprint"
)
"""Of ``agent_errors``, as :func:`insert_statement` writes them."""
_FIELDS: Final = (*COLUMNS.split(", "), "resolved")
_FIGURES: Final = ("count", "first_seen", "last_seen")

_GROUP: Final = ", g.count, g.first, g.last"
_JOIN_GROUP: Final = (
    " LEFT JOIN error_groups g"
    " ON g.owner = r.owner AND g.agent = r.agent AND g.fingerprint = r.fingerprint"
)
_GROUP_COLUMNS: Final = (
    "g.fingerprint, g.owner, g.agent, g.tool, g.kind, g.count, g.open, g.first, g.last,"
    " coalesce(r.id, ''), coalesce(r.summary, ''), coalesce(r.session, ''), coalesce(r.run_id, ''),"
    " g.id"
)


PART: Final = 262_144
"""Characters of a part of a raw error. One that has more is in ``error_parts``."""
_PARTS: Final = (
    "(SELECT group_concat(text, '') FROM"
    " (SELECT text FROM error_parts WHERE seq = a.seq{} ORDER BY part))"
)


def _selected(*, listed: bool) -> str:
    """The columns of an error; of a list, without what is too large for one."""
    whole = f"CASE WHEN r.bytes <= {SMALL} THEN a.{{}} END" if listed else "a.{}"
    raw, arguments = whole.format("raw_error"), whole.format("arguments")
    raw = raw if listed else f"coalesce({_PARTS.format('')}, a.raw_error)"
    # In `error_records`, a time that is none is 0: its row has to say so.
    time = f"CASE WHEN {IS_TIME.format('a.')} THEN r.timestamp ELSE 'no time' END"
    return (
        f"r.id, {time}, r.session, r.tool, {raw}, r.summary, r.kind, {arguments}, r.run_id,"
        " r.call_id, r.agent, r.user, r.fingerprint, r.resolved, r.bytes"
    )


_LISTED: Final = _selected(listed=True)
_BY_ID: Final = "FROM agent_errors a JOIN error_records r ON r.seq = a.seq{} WHERE a.id = ?"
SELECT_ERROR: Final = f"SELECT {_selected(listed=False)} {_BY_ID.format('')}"
SELECT_WHOLE_ERROR: Final = f"SELECT {_selected(listed=False)}{_GROUP} {_BY_ID.format(_JOIN_GROUP)}"
SELECT_BRIEF_ERROR: Final = f"SELECT {_LISTED}{_GROUP} {_BY_ID.format(_JOIN_GROUP)}"
_FIRST_PART, _LAST_PART = f"(?2 - 1) / {PART}", f"(?2 + ?3 - 2) / {PART}"
SELECT_TEXT: Final = (
    "SELECT CASE WHEN size IS NULL THEN substr(a.raw_error, ?2, ?3) ELSE coalesce(substr("
    f"{_PARTS.format(f' AND part BETWEEN {_FIRST_PART} AND {_LAST_PART}')},"
    f" (?2 - 1) % {PART} + 1, ?3), '') END, coalesce(size, length(a.raw_error))"
    f" FROM (SELECT seq, raw_error, (SELECT part * {PART} + length(text) FROM error_parts p"
    " WHERE p.seq = e.seq ORDER BY part DESC LIMIT 1) AS size"
    " FROM agent_errors e WHERE id = ?1) a"
)
"""So many characters from the one with a number, and the number of all."""
_TAIL: Final = "seq > (SELECT seq FROM error_tail) AND indexed = 0"
"""The condition of errors that no index has yet."""
OF_SESSION: Final = (
    "SELECT seq FROM error_records WHERE indexed = 1 AND session = ?1"
    f" UNION ALL SELECT seq FROM error_records WHERE {_TAIL} AND session = ?1"
)
SELECT_OPEN: Final = (
    "SELECT seq FROM (SELECT seq, id, run_id FROM error_records"
    " INDEXED BY agent_errors_session_tool WHERE indexed = 1 AND session = ?1 AND tool = ?2"
    f" AND facet IN ({', '.join(str(2 * n) for n in range(6))}) UNION ALL"
    f" SELECT seq, id, run_id FROM error_records WHERE {_TAIL} AND session = ?1 AND tool = ?2"
    " AND resolved IS NULL) r"
    " WHERE id NOT IN (SELECT value FROM json_each(?3)) AND NOT EXISTS (SELECT 1 FROM runs"
    " WHERE runs.run_id = r.run_id AND status IN ('queued', 'running'))"
)
"""Errors that a success of their tool resolves: not of runs that go on, which come after it."""
RESOLVE: Final = f"UPDATE error_records SET resolved = ?4 WHERE seq IN ({SELECT_OPEN})"
SAME: Final = (
    "SELECT id, timestamp, session_id, tool_name, short_summary FROM agent_errors"
    " WHERE id IN (SELECT value FROM json_each(?))"
)
"""Errors by their ids, and that by which it is known that they are the same."""
FORGET: Final = f"DELETE FROM agent_errors WHERE seq IN ({OF_SESSION})"

# Sequels: facts about errors that wait to be stored. They are written in the transaction of their
# cause, so that a crash separates neither, and end when the errors were stored or dropped.
ADD_SEQUEL: Final = "INSERT INTO error_sequels (session, tool, at, later) VALUES (?, ?, ?, ?)"
DELETIONS: Final = "SELECT seq, session, at FROM error_sequels WHERE tool IS NULL ORDER BY seq"
SUCCESSES: Final = (
    "SELECT seq, session, tool, at, later FROM error_sequels WHERE tool IS NOT NULL ORDER BY seq"
)
END_SEQUEL: Final = "DELETE FROM error_sequels WHERE seq = ?"
RUNS_OF: Final = (
    "SELECT run_id FROM sessions LEFT JOIN runs USING (session) WHERE sessions.session = ?"
)


# Writing


def insert_statement(records: Sequence[ErrorRecord], *, again: bool = False) -> Statement:
    """Writes all of them, row by row: rows of one statement take half as long again.

    An error whose id is taken fails the transaction; ``again``: it is not written then. Large raw
    errors are left to :func:`part_statements`.
    """
    end = " ON CONFLICT (id) DO NOTHING" if again else ""
    return Statement(_INSERT + end, each=tuple(map(_row, records)))


_INSERT: Final = (
    f"INSERT INTO agent_errors ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(', ')))})"
)


class _Parts(Sequence[Row]):
    """Parameters for the parts of a raw error, each of which is made when it is written."""

    def __init__(self, record: ErrorRecord) -> None:
        self._text = record.raw_error
        self._of = record.id, record.timestamp, record.session_id

    def __len__(self) -> int:
        return -(-len(self._text) // PART)

    @overload
    def __getitem__(self, part: int) -> Row: ...
    @overload
    def __getitem__(self, part: slice) -> list[Row]: ...
    def __getitem__(self, part: int | slice) -> Row | list[Row]:
        if isinstance(part, slice):
            return [self[one] for one in range(len(self))[part]]
        at = range(len(self))[part] * PART
        return (at // PART, self._text[at : at + PART], *self._of)


def part_statements(records: Sequence[ErrorRecord]) -> tuple[Statement, ...]:
    """For the transaction of :func:`insert_statement`: the texts of large raw errors."""
    large = (one for one in records if len(one.raw_error) > PART)
    # No tuple, which would hold all of it once more; it is sent in no message.
    each = (cast("tuple[Row, ...]", _Parts(one)) for one in large)
    return tuple(Statement(_INSERT_PART, each=one) for one in each)


_INSERT_PART: Final = (
    "INSERT INTO error_parts (seq, part, text) SELECT seq, ?, ? FROM agent_errors"
    " WHERE id = ? AND timestamp = ? AND session_id = ? ON CONFLICT DO NOTHING"
)
"""The rest of its identity is asked for, since another error may have its id."""


def resolve_key(session: str, tool: str, later: Sequence[str]) -> tuple[str, str, str]:
    """The parameters of :data:`SELECT_OPEN`."""
    return well_formed(session), well_formed(tool), msgspec.json.encode(later).decode()


def _row(record: ErrorRecord) -> Row:
    raw = record.raw_error
    raw = f'{{"omitted_bytes":{len(raw)}}}' if len(raw) > PART else raw
    return (
        *(record.id, record.timestamp, record.session_id, record.tool_name),
        *(raw, record.short_summary, record.kind, record.arguments or None),
        *(record.run_id, record.call_id, record.agent, record.user, record.fingerprint),
    )


# Lists

_KINDS: Final = ("unknown", "timeout", "auth", "validation", "not_found", "rate_limit")
"""In the order of their facets, which are twice their places here; one more where resolved."""


def _facets(kind: str | None, resolved: bool | None) -> tuple[int, ...]:
    places = range(len(_KINDS)) if kind is None else (_KINDS.index(kind) if kind in _KINDS else 0,)
    ends = (0, 1) if resolved is None else (int(resolved),)
    return tuple(2 * place + end for place in places for end in ends)


def conditions(request: ListErrors) -> dict[str, SqlValue]:
    """The conditions of a list that have a value, each a template of SQL for its parameter."""
    return _present(
        {
            "r.session = {}": request.session_id,
            _TOOL: request.tool_name,
            "r.timestamp >= {}": request.start,
            "r.timestamp <= {}": request.end,
            "r.kind = {}": request.kind,
            "r.owner = {}": request.owner,
            "r.agent = {}": request.agent,
            "r.run_id = {}": request.run_id,
            _FINGERPRINT: request.fingerprint,
        }
    )


def _present(given: Mapping[str, SqlValue]) -> dict[str, SqlValue]:
    return {
        sql: well_formed(value) if isinstance(value, str) else value
        for sql, value in given.items()
        if value is not None
    }


EVERY_RECORD: Final = (
    "(SELECT * FROM error_records WHERE indexed = 1"
    f" UNION ALL SELECT * FROM error_records NOT INDEXED WHERE {_TAIL})"
)
"""In place of ``error_records``, so that a condition may use an index."""


def errors_condition(request: ListErrors) -> Query:
    """The condition on :data:`EVERY_RECORD` as ``r``, empty or after ``WHERE``, and parameters."""
    given = conditions(request)
    clauses = [sql.format("?") for sql in given]
    if request.resolved is not None:
        clauses.append(f"r.resolved IS {'NOT ' if request.resolved else ''}NULL")
    return (f" WHERE {' AND '.join(clauses)}" if clauses else ""), tuple(given.values())


def list_query(request: ListErrors, after: Place | None = None, *, grouped: bool = False) -> Query:
    """The query of a list: newest first, later stored before earlier at the same time.

    ``after``: only errors that follow this one. ``grouped``: each with the figures of its group,
    and its place. A run has few errors: they are filtered one by one.
    """
    if after is not None and request.end is not None:  # SQLite seeks by one bound only
        if request.end < after[0]:
            after = None
        else:
            request = replace(request, end=None)
    page, params = _places(request, after, request.limit if request.limit > 0 else -1)
    columns = f"{_LISTED}{_GROUP}, r.seq" if grouped else _LISTED
    sql = (
        f"SELECT {columns} FROM ({page}) p CROSS JOIN error_records r ON r.seq = p.key"
        f" CROSS JOIN agent_errors a ON a.seq = p.key{_JOIN_GROUP if grouped else ''}"
    )
    return sql, params


def _places(request: ListErrors, after: Place | None, limit: int, order: _Order = "DESC") -> Query:
    """Times and keys of the errors that match."""
    index, facets = _index(request), _facets(request.kind, request.resolved)
    if index == "agent_errors_run":
        branches = [_any_of("r.facet", facets)]
    else:
        branches = [f"r.facet = {one}" for one in facets]
    walk = _Source(f"error_records r INDEXED BY {index}", "r.timestamp", "r.seq", "r.indexed = 1")
    # Its kind is among the conditions: a look at each facet would take as long as all else.
    ends = {None: "", True: " AND r.resolved IS NOT NULL", False: " AND r.resolved IS NULL"}
    tail = _Source(
        "error_records r NOT INDEXED",
        *("r.timestamp", "r.seq"),
        f"r.{_TAIL}{ends[request.resolved]}",
        in_order=False,
    )
    return _merged(walk, branches, tail, conditions(request), after, limit, order)


def groups_query(request: GroupErrors, after: Place | None) -> Query:
    """The query of a page of groups, the last seen first."""
    given = _present(
        {
            "g.owner = {}": request.owner,
            "g.agent = {}": request.agent,
            "g.tool = {}": request.tool_name,
            "g.kind = {}": request.kind,
            "{time} >= {}": request.start,
        }
    )
    facets = _facets(request.kind, request.resolved)
    of = {"owner": request.owner, "tool": request.tool_name, "agent": request.agent}
    name = next((name for name, value in of.items() if value is not None), "last")
    walk = _Source(
        f"error_groups g INDEXED BY error_groups_{name}", "g.shown", "g.id", "g.waits = 0"
    )
    # A group that has an error in the tail has an index of its own: its place in others is too low.
    tail = _Source(
        "error_groups g INDEXED BY error_groups_waiting",
        *("g.last", "g.id", f"g.waits = 1 AND {_any_of('g.facet', facets)}"),
    )
    branches = [f"g.shown_facet = {one}" for one in facets]
    page, params = _merged(walk, branches, tail, given, after, request.limit)
    sql = (
        f"SELECT {_GROUP_COLUMNS} FROM ({page}) p CROSS JOIN error_groups g ON g.id = p.key"
        " LEFT JOIN error_records r ON r.seq = g.newest"
    )
    return sql, params


class _Source(NamedTuple):
    """Rows that are walked, or looked at one by one, in the order of ``time`` and ``key``.

    ``in_order``: an index has them so; else they come in the order of keys.
    """

    sql: str
    time: str
    key: str
    condition: str
    in_order: bool = True


def _any_of(column: str, values: Sequence[int]) -> str:
    return f"{column} IN ({', '.join(map(str, values))})"


def _merged(
    walk: _Source,
    branches: Sequence[str],
    tail: _Source,
    given: Mapping[str, SqlValue],
    after: Place | None,
    limit: int,
    order: _Order = "DESC",
) -> Query:
    """Times and keys of the first rows. Each branch comes from an index in order, and SQLite merges
    them with the sorted tail: so a rare kind among a million errors is found at once. CROSS JOINs
    keep the order.
    """
    places = {sql: f"?{n}" for n, sql in enumerate(given, start=2)}
    params: list[SqlValue] = [limit, *given.values(), *(after or ())]

    def matching(source: _Source, *branch: str) -> str:
        clauses = [*branch, *(sql.format(n, time=source.time) for sql, n in places.items())]
        if branch and (tool := places.get(_TOOL)) and (group := places.get(_FINGERPRINT)):
            clauses[clauses.index(_FINGERPRINT.format(group))] = _OF_TOOL.format(group, tool)
        if after is not None:
            time, first = source.time, len(places) + 2
            # The first clause lets the index begin there.
            clauses.append(f"{time} <= ?{first}")
            clauses.append(f"({time}, {source.key}) < (?{first}, ?{first + 1})")
        return (
            f"SELECT {source.time} AS time, {source.key} AS key FROM {source.sql}"
            f" WHERE {' AND '.join([*clauses, source.condition])}"
        )

    last = matching(tail)
    if not tail.in_order:
        # With a limit of its own, SQLite keeps so many rows in order, and not all; the first by
        # their keys are nearly always the first of all, so that the others are dropped at once.
        near = f"SELECT * FROM ({last} ORDER BY 2 {order} LIMIT -1)"
        last = f"SELECT * FROM ({near} ORDER BY 1 {order}, 2 {order} LIMIT ?1)"
    found = [*(matching(walk, branch) for branch in branches), last]
    return f"{' UNION ALL '.join(found)} ORDER BY 1 {order}, 2 {order} LIMIT ?1", tuple(params)


def _index(request: ListErrors) -> str:
    """The index of all filters but those that are looked at row by row."""
    if request.run_id is not None:
        return "agent_errors_run"
    filters = {
        "session": request.session_id,
        "owner": request.owner if request.session_id is None else None,
        "fingerprint": request.fingerprint,
        "tool": request.tool_name if request.fingerprint is None else None,
        "agent": request.agent if request.session_id is None else None,
    }
    given = [name for name, value in filters.items() if value is not None]
    if given == ["fingerprint"] and request.tool_name is not None:
        given.append("tool")
    return "_".join(("agent_errors", *(given or ["timestamp"])))


# Reading a row


def error_of(row: Row) -> StoredError:
    """A row of a list or of :data:`SELECT_ERROR` as an error; a bad row says so."""
    fields, (at, *figures) = row[:14], row[14:18]
    columns: dict[str, object] = dict(zip(_FIELDS, fields, strict=True))
    if figures and figures[0] is not None:
        columns |= zip(_FIGURES, figures, strict=True)
    return stored_error(columns, at)


def is_cut(row: Row) -> bool:
    """Whether the raw error was too large for this row."""
    return row[4] is None and isinstance(row[14], int) and row[14] > SMALL


def group_of(row: Row) -> ErrorGroup:
    return readable(dict(zip(ErrorGroup.__struct_fields__[:13], row[:13], strict=True)), ErrorGroup)


# Cursors

Place: TypeAlias = tuple[float, int]
"""The time and the key of the last row of a page."""


def cursor_of(place: Place) -> str:
    return f"{place[0]!r}:{place[1]}"


def next_cursor(rows: Sequence[Row], limit: int, time: int) -> str | None:
    """The cursor after a full page, whose rows have the time in this column and the key last."""
    if not rows or len(rows) != limit:
        return None
    at = rows[-1][time]
    return cursor_of((float(at) if isinstance(at, int | float) else 0.0, int(rows[-1][-1] or 0)))


def place_of(cursor: str | None) -> Place | None:
    """Raises ``InputValidation``."""
    if cursor is None:
        return None
    time, _, key = cursor.partition(":")
    try:
        place = float(time), int(key)
    except ValueError:
        place = math.nan, 0
    if not (math.isfinite(place[0]) and abs(place[1]) < 2**63):
        raise InputValidation(f"`cursor` {cursor!r:.60} is not one of a page before")
    return place


# Deleting

BATCH: Final = 1_000
"""Rows that one transaction deletes, at most."""
_SIZE = "bytes + octet_length(summary) + 400"
"""Bytes of a row and of its index entries, approximately."""
SIZE: Final = f"SELECT coalesce(sum({_SIZE}), 0) FROM error_records"
DELETE_ROWS = "DELETE FROM agent_errors WHERE seq IN (SELECT value FROM json_each(?)) RETURNING 1"


def oldest_query() -> Query:
    """The query of a batch of the oldest errors: their places and the bytes they take."""
    page, params = _places(ListErrors(), None, BATCH, "ASC")
    return f"SELECT seq, {_SIZE} FROM ({page}) p CROSS JOIN error_records ON seq = key", params


def delete_batch(request: ListErrors) -> Statement:
    """Delete up to a batch of the errors that match, the oldest first; a row for each."""
    page, params = _places(request, None, BATCH, "ASC")
    return Statement(
        f"DELETE FROM agent_errors WHERE seq IN (SELECT key FROM ({page})) RETURNING 1", params
    )


def count_query(request: ListErrors) -> Query:
    """The query that counts the errors that match."""
    condition, params = errors_condition(request)
    return f"SELECT count(*) FROM {EVERY_RECORD} r{condition}", params
