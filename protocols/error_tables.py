"""Tables of stored errors, as steps of the migrations. A step never changes once it is released.

``agent_errors`` is the record of an error. ``error_records`` and ``error_groups`` are derived by
triggers, so that no writer can forget them: the first has all that lists need without the raw
error, the second counts equal errors. Only ``resolved`` has its home in ``error_records``, since
an update of the record would write the whole raw error again. ``facet`` encodes kind and
resolved: all indexes end with it and the time, and a list merges the facets that it asks for.

An error enters the indexes together with some others: to enter each of them alone would write two
dozen pages, each for some bytes. The newest errors are the tail: lists look at all of them. A host
indexes it, slice by slice, when it has :data:`TAIL` errors and no more come; at :data:`BURST`, the
trigger that stores an error indexes a slice of it in the same transaction: so a list stays fast,
and a crowd of errors pays for the indexes when it is over. ``error_tail`` has the last error before
the tail.
"""

from __future__ import annotations

from typing import Final

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.fingerprints import fingerprint

_FACET = """
    facet INTEGER GENERATED ALWAYS AS (CASE kind
        WHEN 'timeout' THEN 2 WHEN 'auth' THEN 4 WHEN 'validation' THEN 6
        WHEN 'not_found' THEN 8 WHEN 'rate_limit' THEN 10 ELSE 0 END + ({resolved})) VIRTUAL"""

IS_TIME: Final = (
    "typeof({0}timestamp) IN ('real', 'integer') AND {0}timestamp BETWEEN -1e11 AND 1e12"
)
_TIME = f"CASE WHEN {IS_TIME} THEN {{0}}timestamp ELSE 0 END"
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


# The next step: indexes of the errors before the tail, for every set of owner, agent, and tool or
# fingerprint. Two filters that are common alone may be rare together, as an agent and a fingerprint
# are, and a walk through one of them would pass all errors. So a list reads few more rows than it
# shows. A fingerprint has one tool, as a rule: of three filters, only whether it has that tool is
# looked up. A session has one owner, and nearly always one agent: these are in its index.
_INDEXED: Final = {
    "timestamp": "",
    "owner": "owner",
    "agent": "agent",
    "tool": "tool",
    "fingerprint": "fingerprint",
    "owner_agent": "owner, agent",
    "owner_tool": "owner, tool",
    "owner_fingerprint": "owner, fingerprint",
    "tool_agent": "tool, agent",
    "fingerprint_agent": "fingerprint, agent",
    "fingerprint_tool": "fingerprint, tool",
    "owner_tool_agent": "owner, tool, agent",
    "owner_fingerprint_agent": "owner, fingerprint, agent",
    "session": "session",
    "session_tool": "session, tool",
    "session_fingerprint": "session, fingerprint",
}
_REPLACED: Final = (
    *("timestamp", "owner", "agent", "tool", "fingerprint", "owner_agent", "owner_tool"),
    *("owner_fingerprint", "tool_agent", "session", "session_tool", "run"),
)


def _index(name: str, columns: str) -> str:
    first = f"{columns}, " if columns else ""
    others = ", seq, owner, agent" if name.startswith("session") else ""
    return (
        f"CREATE INDEX agent_errors_{name} ON error_records"
        f" ({first}facet, timestamp{others}) WHERE indexed = 1;"
    )


_SEQ = "(SELECT seq FROM error_tail)"
_STORED = _DERIVED.replace("bytes)", "bytes, indexed)").replace(
    "octet_length(new.raw_error))", f"octet_length(new.raw_error), new.seq <= {_SEQ})"
)
_COUNT = """INSERT INTO error_groups
        (owner, agent, fingerprint, tool, kind, count, open, first, last, newest)
    VALUES (new.owner, new.agent, new.fingerprint, new.tool, new.kind, 1, new.resolved IS NULL,
        new.timestamp, new.timestamp, new.seq)
    ON CONFLICT (owner, agent, fingerprint) DO UPDATE SET count = count + 1,
        open = open + excluded.open, first = min(first, excluded.first),
        last = max(last, excluded.last), newest = max(newest, excluded.newest);"""
TAIL, BURST = 128, 6_144
"""Errors that are not indexed yet, at most: in quiet, and while more come."""
SLICE: Final = 1_024
"""Errors that are indexed in one transaction: others wait for it some 15 ms."""
_LAST: Final = "(SELECT max(seq) FROM agent_errors)"
INDEX_TAIL: Final = (
    f"UPDATE error_tail SET seq = min(seq + {SLICE}, {_LAST}) WHERE seq + {TAIL} <= {_LAST}"
    " RETURNING seq"
)
"""Index the first slice of the tail, by the trigger on its table. No row: the tail is short."""


def _shown(group: str) -> str:
    return f"UPDATE error_groups SET shown = last, shown_facet = facet WHERE {group};"


INDEXED_LATER: Final = f"""
{" ".join(f"DROP INDEX agent_errors_{name};" for name in _REPLACED)}
{" ".join(f"DROP INDEX error_groups_{name};" for name in ("last", "owner", "tool", "agent"))}
{" ".join(f"DROP TRIGGER error_{n};" for n in ("stored", "changed", "counted", "uncounted"))}
DROP TRIGGER error_resolved;

ALTER TABLE error_records ADD COLUMN indexed INTEGER NOT NULL DEFAULT 1;    -- 0: of the tail
-- The time and facet by which a group is listed; without a facet, only by its errors of the tail.
ALTER TABLE error_groups ADD COLUMN shown REAL;
ALTER TABLE error_groups ADD COLUMN shown_facet INTEGER;
{_shown("1")}
CREATE TABLE error_tail (seq INTEGER NOT NULL);         -- the last error before the tail
INSERT INTO error_tail SELECT coalesce(max(seq), 0) FROM agent_errors;

{chr(10).join(_index(*one) for one in _INDEXED.items())}
CREATE INDEX agent_errors_run ON error_records (run_id, timestamp) WHERE indexed = 1;
CREATE INDEX error_groups_last ON error_groups (shown_facet, shown)
    WHERE shown_facet IS NOT NULL;
CREATE INDEX error_groups_owner ON error_groups (owner, shown_facet, shown, id, tool, agent)
    WHERE shown_facet IS NOT NULL;
CREATE INDEX error_groups_tool ON error_groups (tool, shown_facet, shown, id, agent)
    WHERE shown_facet IS NOT NULL;
CREATE INDEX error_groups_agent ON error_groups (agent, shown_facet, shown)
    WHERE shown_facet IS NOT NULL;

CREATE TRIGGER error_stored AFTER INSERT ON agent_errors BEGIN
    {_STORED}
END;
CREATE TRIGGER error_tail_full AFTER INSERT ON agent_errors WHEN new.seq >= {_SEQ} + {TAIL} BEGIN
    UPDATE error_tail SET seq = new.seq;
END;
CREATE TRIGGER error_indexed AFTER UPDATE ON error_tail BEGIN
    UPDATE error_groups SET shown = last, shown_facet = facet WHERE id IN (
        SELECT g.id FROM (SELECT DISTINCT owner, agent, fingerprint FROM error_records
            WHERE seq > old.seq) r CROSS JOIN error_groups g
            ON g.owner = r.owner AND g.agent = r.agent AND g.fingerprint = r.fingerprint);
    UPDATE error_records SET indexed = 1 WHERE seq > old.seq AND indexed = 0;
END;
CREATE TRIGGER error_changed AFTER UPDATE OF id, timestamp, session_id, tool_name, short_summary,
        kind, raw_error, run_id, call_id, agent, user, fingerprint ON agent_errors BEGIN
    DELETE FROM error_records WHERE seq = old.seq;
    {_STORED}
END;
CREATE TRIGGER error_counted AFTER INSERT ON error_records WHEN new.indexed = 0 BEGIN
    {_COUNT}
END;
CREATE TRIGGER error_counted_late AFTER INSERT ON error_records WHEN new.indexed = 1 BEGIN
    {_COUNT}
    {_shown(_SAME.replace("old.", "new."))}
END;
CREATE TRIGGER error_uncounted AFTER DELETE ON error_records BEGIN
    UPDATE error_groups SET count = count - 1, open = open - (old.resolved IS NULL) WHERE {_SAME};
    DELETE FROM error_groups WHERE {_SAME} AND count = 0;
    UPDATE error_groups SET (newest, last) = (SELECT max(seq), max(timestamp) FROM (
        SELECT seq, timestamp FROM error_records WHERE indexed = 1 AND {_SAME} UNION ALL
        SELECT seq, timestamp FROM error_records WHERE seq > {_SEQ} AND indexed = 0 AND {_SAME}))
        WHERE {_SAME} AND newest = old.seq;
    {_shown(_SAME)}
END;
CREATE TRIGGER error_resolved AFTER UPDATE OF resolved ON error_records BEGIN
    UPDATE error_groups SET open = open + (new.resolved IS NULL) - (old.resolved IS NULL)
    WHERE {_SAME};
    {_shown(_SAME)}
END;
"""


# A raw error of megabytes has its text in parts, since a row is copied as a whole
# several times on its way into a database, and is read as a whole for each page of it.
PARTS: Final = """
CREATE TABLE error_parts (
    seq INTEGER NOT NULL,                   -- of the error
    part INTEGER NOT NULL,
    text TEXT NOT NULL,                     -- of the JSON of the raw error
    PRIMARY KEY (seq, part)
);
CREATE TRIGGER error_part_stored AFTER INSERT ON error_parts BEGIN
    UPDATE error_records SET bytes = iif(new.part, bytes, 0) + octet_length(new.text)
    WHERE seq = new.seq;
END;
CREATE TRIGGER error_parts_deleted AFTER DELETE ON agent_errors BEGIN
    DELETE FROM error_parts WHERE seq = old.seq;
END;
"""


# At 128 errors, a crowd wrote nearly all pages of all indexes again and again.
LONGER_TAIL: Final = f"""
DROP TRIGGER error_tail_full;
CREATE TRIGGER error_tail_full AFTER INSERT ON agent_errors WHEN new.seq >= {_SEQ} + 1024 BEGIN
    UPDATE error_tail SET seq = new.seq;
END;
"""


# The next step: the groups that have errors of the tail, by their own times. To find them by those
# errors took 2 of the 3 ms of a list of groups, where a thousand errors are in the tail.
_COUNT_WAITING = (
    _COUNT.replace("newest)\n", "newest, waits)\n")
    .replace("new.seq)\n", "new.seq, 1)\n")
    .replace("excluded.newest);", "excluded.newest), waits = 1;")
)
WAITING_GROUPS: Final = f"""
ALTER TABLE error_groups ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;   -- 1: until it is indexed
UPDATE error_groups SET waits = 1 WHERE newest > {_SEQ};
CREATE INDEX error_groups_waiting ON error_groups (last, id, facet, owner, agent, tool)
    WHERE waits = 1;
DROP TRIGGER error_counted;
DROP TRIGGER error_indexed;
CREATE TRIGGER error_counted AFTER INSERT ON error_records WHEN new.indexed = 0 BEGIN
    {_COUNT_WAITING}
END;
CREATE TRIGGER error_indexed AFTER UPDATE ON error_tail BEGIN
    UPDATE error_groups SET shown = last, shown_facet = facet, waits = 0 WHERE waits = 1;
    UPDATE error_records SET indexed = 1 WHERE seq > old.seq AND indexed = 0;
END;
"""


# The last step: the tail grows longer in a crowd, and is indexed slice by slice. A crowd of errors
# that all differ paid half of its time for the indexes. A list looks at 6,000 rows in 0.25 ms.
SLICED_TAIL: Final = f"""
DROP TRIGGER error_tail_full;
DROP TRIGGER error_indexed;
CREATE TRIGGER error_tail_full AFTER INSERT ON agent_errors WHEN new.seq >= {_SEQ} + {BURST} BEGIN
    UPDATE error_tail SET seq = seq + {SLICE};
END;
CREATE TRIGGER error_indexed AFTER UPDATE ON error_tail BEGIN
    UPDATE error_groups SET shown = last, shown_facet = facet, waits = 0
        WHERE waits = 1 AND newest <= new.seq;
    UPDATE error_records SET indexed = 1 WHERE seq > old.seq AND seq <= new.seq AND indexed = 0;
END;
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


SEQUELS: Final = """
CREATE TABLE error_sequels (
    seq INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    tool TEXT,                              -- it has succeeded; NULL: the session was deleted
    at REAL NOT NULL,                       -- of the cause: later errors are not meant
    later TEXT NOT NULL DEFAULT '[]'        -- nor are these, as JSON
);
"""
