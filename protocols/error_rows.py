"""Rows of stored errors: their tables, their codec, the statements that write and list them.

``agent_errors`` is the record; ``error_records`` and ``error_groups`` are derived from it by
triggers. Invariants: every list walks indexes in its order, newest first, and
sorts nothing; a row that cannot be read becomes an error that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from motet.protocols.chat import JsonObject
from motet.protocols.error_records import SMALL, readable, stored_error
from motet.protocols.errors import (
    ErrorGroup,
    ErrorRecord,
    GroupErrors,
    InputValidation,
    ListErrors,
    StoredError,
)
from motet.protocols.fingerprints import fingerprint
from motet.protocols.storage import Row, SqlValue, Statement
from motet.protocols.texts import well_formed

Query: TypeAlias = tuple[str, Row]
"""A statement and its parameters."""
_Order: TypeAlias = Literal["ASC", "DESC"]

COLUMNS: Final = (
    "id, timestamp, session_id, tool_name, raw_error, short_summary, kind, arguments,"
    " run_id, call_id, agent, user, fingerprint"
)
"""Of ``agent_errors``, as :func:`insert_statement` writes them."""
_WIDTH: Final = len(COLUMNS.split(", "))
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


def _selected(*, listed: bool) -> str:
    """The columns of an error; of a list, without what is too large for one."""
    whole = f"CASE WHEN r.bytes <= {SMALL} THEN a.{{}} END" if listed else "a.{}"
    raw, arguments = whole.format("raw_error"), whole.format("arguments")
    return (
        f"r.id, r.timestamp, r.session, r.tool, {raw}, r.summary, r.kind, {arguments}, r.run_id,"
        " r.call_id, r.agent, r.user, r.fingerprint, r.resolved, r.bytes"
    )


_LISTED: Final = _selected(listed=True)
_BY_ID: Final = "FROM agent_errors a JOIN error_records r ON r.seq = a.seq{} WHERE a.id = ?"
SELECT_ERROR: Final = f"SELECT {_selected(listed=False)} {_BY_ID.format('')}"
SELECT_WHOLE_ERROR: Final = f"SELECT {_selected(listed=False)}{_GROUP} {_BY_ID.format(_JOIN_GROUP)}"
SELECT_BRIEF_ERROR: Final = f"SELECT {_LISTED}{_GROUP} {_BY_ID.format(_JOIN_GROUP)}"
SELECT_TEXT: Final = (
    "SELECT substr(raw_error, ?2, ?3), length(raw_error) FROM agent_errors WHERE id = ?1"
)
SELECT_OPEN: Final = (
    "SELECT seq FROM error_records r INDEXED BY agent_errors_session_tool WHERE session = ?1"
    f" AND tool = ?2 AND facet IN ({', '.join(str(2 * n) for n in range(6))})"
    " AND id NOT IN (SELECT value FROM json_each(?3)) AND NOT EXISTS (SELECT 1 FROM runs"
    " WHERE runs.run_id = r.run_id AND status IN ('queued', 'running'))"
)
"""Errors that a success of their tool resolves: not of runs that go on, which come after it."""
RESOLVE: Final = f"UPDATE error_records SET resolved = ?4 WHERE seq IN ({SELECT_OPEN})"
FORGET: Final = (
    "DELETE FROM agent_errors WHERE seq IN (SELECT seq FROM error_records WHERE session = ?)"
)

# Sequels: facts about errors that wait to be stored. They are written in the transaction of their
# cause, so that a crash separates neither, and end when the errors were stored or dropped.
SEQUELS: Final = """
CREATE TABLE error_sequels (
    seq INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    tool TEXT,                              -- it has succeeded; NULL: the session was deleted
    at REAL NOT NULL,                       -- of the cause: later errors are not meant
    later TEXT NOT NULL DEFAULT '[]'        -- nor are these, as JSON
);
"""
ADD_SEQUEL: Final = "INSERT INTO error_sequels (session, tool, at, later) VALUES (?, ?, ?, ?)"
DELETIONS: Final = "SELECT seq, session, at FROM error_sequels WHERE tool IS NULL ORDER BY seq"
SUCCESSES: Final = (
    "SELECT seq, session, tool, at, later FROM error_sequels WHERE tool IS NOT NULL ORDER BY seq"
)
END_SEQUEL: Final = "DELETE FROM error_sequels WHERE seq = ?"
RUNS_OF: Final = (
    "SELECT run_id FROM sessions LEFT JOIN runs USING (session) WHERE sessions.session = ?"
)


# Tables: a step of the migrations, which never changes once it is released.
#
# ``agent_errors`` is the record of an error. ``error_records`` and ``error_groups`` are derived by
# triggers, so that no writer can forget them: the first has all that lists need without the raw
# error, the second counts equal errors. Only ``resolved`` has its home in ``error_records``, since
# an update of the record would write the whole raw error again. ``facet`` encodes kind and
# resolved: all indexes end with it and the time, and a list merges the facets that it asks for.
_FACET = """
    facet INTEGER GENERATED ALWAYS AS (CASE kind
        WHEN 'timeout' THEN 2 WHEN 'auth' THEN 4 WHEN 'validation' THEN 6
        WHEN 'not_found' THEN 8 WHEN 'rate_limit' THEN 10 ELSE 0 END + ({resolved})) VIRTUAL"""

_TIME = (
    "CASE WHEN typeof({0}timestamp) IN ('real', 'integer')"
    " AND {0}timestamp BETWEEN -1e11 AND 1e12 THEN {0}timestamp ELSE 0 END"
)
_RECORD = (
    "INSERT INTO error_records (seq, id, timestamp, owner, session, tool, summary, kind, run_id,"
    " call_id, agent, user, fingerprint, bytes)"
)
_DERIVED = f"""{_RECORD} VALUES (new.seq, new.id, {_TIME.format("new.")},
        coalesce((SELECT owner FROM sessions WHERE session = new.session_id), new.user),
        new.session_id, new.tool_name, new.short_summary, new.kind, new.run_id, new.call_id,
        coalesce(nullif(new.agent, ''), (SELECT agent FROM runs WHERE run_id = new.run_id), ''),
        coalesce(nullif(new.user, ''), (SELECT user FROM runs WHERE run_id = new.run_id), ''),
        coalesce(nullif(new.fingerprint, ''), new.id),
        octet_length(new.raw_error));"""
_SAME = "owner = old.owner AND agent = old.agent AND fingerprint = old.fingerprint"

TABLES: Final = f"""
ALTER TABLE agent_errors ADD COLUMN arguments TEXT;     -- of the call, as JSON; NULL: none known
ALTER TABLE agent_errors ADD COLUMN run_id TEXT NOT NULL DEFAULT '';
ALTER TABLE agent_errors ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
ALTER TABLE agent_errors ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE agent_errors ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE agent_errors ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
DROP INDEX agent_errors_session;
DROP INDEX agent_errors_tool;
DROP INDEX agent_errors_session_tool;
DROP INDEX agent_errors_timestamp;

CREATE TABLE error_records (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    timestamp REAL NOT NULL,
    owner TEXT NOT NULL,                    -- of the session; without one, the user
    session TEXT NOT NULL,
    tool TEXT NOT NULL,
    summary TEXT NOT NULL,
    kind TEXT NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    bytes INTEGER NOT NULL,                 -- of the raw error
    resolved REAL,                          -- when the tool succeeded again; NULL: not yet
    {_FACET.format(resolved="resolved IS NOT NULL")}
);
CREATE TABLE error_groups (
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    agent TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    tool TEXT NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    open INTEGER NOT NULL,                  -- of these, not resolved
    first REAL NOT NULL,                    -- times, also of errors that retention has deleted
    last REAL NOT NULL,
    newest INTEGER NOT NULL,                -- the row to show
    {_FACET.format(resolved="open = 0")},
    UNIQUE (owner, agent, fingerprint)
);
{_RECORD}
    SELECT seq, id, {_TIME.format("")}, coalesce(sessions.owner, ''), session_id, tool_name,
        short_summary, kind, '', '', coalesce(sessions.agent, ''), '',
        error_fingerprint(CAST(tool_name AS BLOB), CAST(kind AS BLOB), CAST(short_summary AS BLOB),
            CASE WHEN octet_length(raw_error) <= 65536 THEN CAST(raw_error AS BLOB) END),
        octet_length(raw_error)
    FROM agent_errors LEFT JOIN sessions ON session = session_id ORDER BY seq;
INSERT INTO error_groups (owner, agent, fingerprint, tool, kind, count, open, first, last, newest)
    SELECT owner, agent, fingerprint, tool, kind, count(*), count(*), min(timestamp),
        max(timestamp), max(seq)
    FROM error_records GROUP BY owner, agent, fingerprint;

CREATE INDEX agent_errors_timestamp ON error_records (facet, timestamp);
CREATE INDEX agent_errors_owner ON error_records (owner, facet, timestamp);
CREATE INDEX agent_errors_owner_tool ON error_records (owner, tool, facet, timestamp);
CREATE INDEX agent_errors_owner_agent ON error_records (owner, agent, facet, timestamp);
CREATE INDEX agent_errors_session ON error_records (session, facet, timestamp);
CREATE INDEX agent_errors_session_tool ON error_records (session, tool, facet, timestamp);
CREATE INDEX agent_errors_tool ON error_records (tool, facet, timestamp);
CREATE INDEX agent_errors_agent ON error_records (agent, facet, timestamp);
CREATE INDEX agent_errors_fingerprint ON error_records (fingerprint, facet, timestamp);
CREATE INDEX agent_errors_run ON error_records (run_id, timestamp);
CREATE INDEX error_groups_last ON error_groups (facet, last);
CREATE INDEX error_groups_owner ON error_groups (owner, facet, last);

CREATE TRIGGER error_stored AFTER INSERT ON agent_errors BEGIN
    {_DERIVED}
END;
CREATE TRIGGER error_changed AFTER UPDATE OF id, timestamp, session_id, tool_name, short_summary,
        kind, raw_error, run_id, call_id, agent, user, fingerprint ON agent_errors BEGIN
    DELETE FROM error_records WHERE seq = old.seq;
    {_DERIVED}
END;
CREATE TRIGGER error_deleted AFTER DELETE ON agent_errors BEGIN
    DELETE FROM error_records WHERE seq = old.seq;
END;
CREATE TRIGGER error_counted AFTER INSERT ON error_records BEGIN
    INSERT INTO error_groups
        (owner, agent, fingerprint, tool, kind, count, open, first, last, newest)
    VALUES (new.owner, new.agent, new.fingerprint, new.tool, new.kind, 1, new.resolved IS NULL,
        new.timestamp, new.timestamp, new.seq)
    ON CONFLICT (owner, agent, fingerprint) DO UPDATE SET count = count + 1,
        open = open + excluded.open, first = min(first, excluded.first),
        last = max(last, excluded.last), newest = max(newest, excluded.newest);
END;
CREATE TRIGGER error_uncounted AFTER DELETE ON error_records BEGIN
    UPDATE error_groups SET count = count - 1, open = open - (old.resolved IS NULL) WHERE {_SAME};
    DELETE FROM error_groups WHERE {_SAME} AND count = 0;
    UPDATE error_groups SET (newest, last) = (SELECT max(+seq), max(+timestamp)
        FROM error_records WHERE {_SAME}) WHERE {_SAME} AND newest = old.seq;
END;
CREATE TRIGGER error_resolved AFTER UPDATE OF resolved ON error_records BEGIN
    UPDATE error_groups SET open = open + (new.resolved IS NULL) - (old.resolved IS NULL)
    WHERE {_SAME};
END;
"""

# The next step: a list by any filters walks an index that begins with the rarest pair of them, and
# finds the others in it. Two that are common alone may be rare together: an owner who met a
# fingerprint three times, an agent that has used a tool once. An index for each of the 32 sets of
# filters would double the cost of a store.
INDEXES: Final = """
DROP INDEX agent_errors_session;
DROP INDEX agent_errors_session_tool;
DROP INDEX agent_errors_owner_tool;
DROP INDEX agent_errors_fingerprint;
DROP INDEX error_groups_owner;
CREATE INDEX agent_errors_session
    ON error_records (session, facet, timestamp, seq, owner, agent, fingerprint);
CREATE INDEX agent_errors_session_tool
    ON error_records (session, tool, facet, timestamp, seq, owner, agent, fingerprint);
CREATE INDEX agent_errors_owner_tool ON error_records (owner, tool, facet, timestamp, seq, agent);
CREATE INDEX agent_errors_tool_agent ON error_records (tool, agent, facet, timestamp);
CREATE INDEX agent_errors_fingerprint
    ON error_records (fingerprint, facet, timestamp, seq, tool, agent);
CREATE INDEX agent_errors_owner_fingerprint
    ON error_records (owner, fingerprint, facet, timestamp, seq, tool, agent);
CREATE INDEX error_groups_owner ON error_groups (owner, facet, last, id, tool, agent);
CREATE INDEX error_groups_tool ON error_groups (tool, facet, last, id, agent);
CREATE INDEX error_groups_agent ON error_groups (agent, facet, last);
"""


def old_fingerprint(*columns: object) -> str:
    """The fingerprint of an error that an older motet has stored, whatever its columns hold."""
    tool, kind, summary, raw = (
        one.decode("utf-8", "replace") if isinstance(one, bytes) else "" for one in columns
    )
    try:
        error: JsonObject = msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        error = {"message": summary}
    return fingerprint(tool, kind, error)


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


def resolve_key(session: str, tool: str, later: Sequence[str]) -> tuple[str, str, str]:
    """The parameters of :data:`SELECT_OPEN`."""
    return well_formed(session), well_formed(tool), msgspec.json.encode(later).decode()


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


def conditions(request: ListErrors) -> dict[str, SqlValue]:
    """The conditions of a list that have a value, each a template of SQL for its parameter."""
    return _present(
        {
            "r.session = {}": request.session_id,
            "r.tool = {}": request.tool_name,
            "r.timestamp >= {}": request.start,
            "r.timestamp <= {}": request.end,
            "r.kind = {}": request.kind,
            "r.owner = {}": request.owner,
            "r.agent = {}": request.agent,
            "r.run_id = {}": request.run_id,
            "r.fingerprint = {}": request.fingerprint,
        }
    )


def _present(given: Mapping[str, SqlValue]) -> dict[str, SqlValue]:
    return {
        sql: well_formed(value) if isinstance(value, str) else value
        for sql, value in given.items()
        if value is not None
    }


def errors_condition(request: ListErrors) -> Query:
    """The condition on ``error_records r``, empty or after ``WHERE``, and its parameters."""
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
    index = _index(request)
    if index == "agent_errors_run":
        ends = {None: "", False: "r.resolved IS NULL", True: "r.resolved IS NOT NULL"}
        branches = [ends[request.resolved]]
    else:
        branches = [f"r.facet = {one}" for one in _facets(request.kind, request.resolved)]
    source, given = f"error_records r INDEXED BY {index}", conditions(request)
    return _merged(source, "r.timestamp", "r.seq", branches, given, after, limit, order)


def groups_query(request: GroupErrors, after: Place | None) -> Query:
    """The query of a page of groups, the last seen first."""
    given = _present(
        {
            "g.owner = {}": request.owner,
            "g.agent = {}": request.agent,
            "g.tool = {}": request.tool_name,
            "g.kind = {}": request.kind,
            "g.last >= {}": request.start,
        }
    )
    branches = [f"g.facet = {one}" for one in _facets(request.kind, request.resolved)]
    of = {"owner": request.owner, "tool": request.tool_name, "agent": request.agent}
    name = next((name for name, value in of.items() if value is not None), "last")
    source = f"error_groups g INDEXED BY error_groups_{name}"
    page, params = _merged(source, "g.last", "g.id", branches, given, after, request.limit)
    sql = (
        f"SELECT {_GROUP_COLUMNS} FROM ({page}) p CROSS JOIN error_groups g ON g.id = p.key"
        " LEFT JOIN error_records r ON r.seq = g.newest"
    )
    return sql, params


def _merged(
    source: str,
    time: str,
    key: str,
    branches: Sequence[str],
    given: Mapping[str, SqlValue],
    after: Place | None,
    limit: int,
    order: _Order = "DESC",
) -> Query:
    """Times and keys of the first rows. Each branch comes from an index in order, and SQLite merges
    them: so a rare kind among a million errors is found at once. CROSS JOINs keep the order.
    """
    params: list[SqlValue] = [limit, *given.values()]
    clauses = [sql.format(f"?{n + 2}") for n, sql in enumerate(given)]
    if after is not None:
        first = len(params) + 1
        # The first clause lets the index begin there.
        clauses += [f"{time} <= ?{first}", f"({time}, {key}) < (?{first}, ?{first + 1})"]
        params += after
    each = [" AND ".join(filter(None, [branch, *clauses])) for branch in branches]
    found = (f"SELECT {time} AS time, {key} AS key FROM {source} WHERE {one}" for one in each)
    sql = f"{' UNION ALL '.join(found)} ORDER BY 1 {order}, 2 {order} LIMIT ?1"
    return sql, tuple(params)


def _index(request: ListErrors) -> str:
    """The index of the two filters that leave the fewest rows, as a rule; it has the others."""
    if request.run_id is not None:
        return "agent_errors_run"
    filters = {
        "session": request.session_id,
        "owner": request.owner,
        "fingerprint": request.fingerprint,
        "tool": request.tool_name,
        "agent": request.agent,
    }
    given = [name for name, value in filters.items() if value is not None]
    if "session" in given:
        given = [name for name in given if name in ("session", "tool")]
    elif "fingerprint" in given:
        given = [name for name in given if name in ("owner", "fingerprint")]
    return "_".join(("agent_errors", *given[:2])) if given else "agent_errors_timestamp"


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
    return cursor_of((float(rows[-1][time] or 0), int(rows[-1][-1] or 0)))


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
    return f"SELECT count(*) FROM error_records r{condition}", params
