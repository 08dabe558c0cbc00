"""The tables of a host's database, as the steps that have made them.

A step that was released is never edited: databases have taken it. :data:`MIGRATIONS` has the order
of all.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256

from motet.protocols import (
    error_tables,
    memory,
    room_changes,
    room_costs,
    room_newcomers,
    room_tables,
)

FIRST = """
CREATE TABLE sessions (
    session TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    start_pos INTEGER NOT NULL DEFAULT 1    -- the first row that a model is shown
);
CREATE INDEX sessions_updated ON sessions (updated);
CREATE INDEX sessions_owner ON sessions (owner, updated);

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions,
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    status TEXT NOT NULL,
    text TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    usage TEXT NOT NULL DEFAULT '{}',
    detail TEXT NOT NULL DEFAULT ''
);
CREATE INDEX runs_session ON runs (session, created);
CREATE INDEX runs_user ON runs (user, created);
CREATE INDEX runs_status ON runs (status);

CREATE TABLE messages (
    session TEXT NOT NULL REFERENCES sessions,
    pos INTEGER NOT NULL,                   -- from 1, without gaps
    run_id TEXT NOT NULL,
    ts REAL NOT NULL,
    role TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, pos)
);

CREATE TABLE idempotency (
    user TEXT NOT NULL,
    method TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    run_id TEXT NOT NULL,
    ts REAL NOT NULL,
    PRIMARY KEY (user, method, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_ts ON idempotency (ts);

CREATE TABLE steps (                        -- the journal of unfinished runs
    run_id TEXT NOT NULL REFERENCES runs,
    step INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, step)
);

CREATE TABLE streams (
    stream TEXT PRIMARY KEY,
    head INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
    stream TEXT NOT NULL,
    seq INTEGER NOT NULL,
    ts REAL NOT NULL,
    event TEXT NOT NULL,
    run_id TEXT,
    data TEXT NOT NULL,
    PRIMARY KEY (stream, seq)
) WITHOUT ROWID;

CREATE TABLE agent_errors (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    timestamp REAL NOT NULL,
    session_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    raw_error TEXT NOT NULL,
    short_summary TEXT NOT NULL
);
CREATE INDEX agent_errors_session ON agent_errors (session_id, timestamp);
CREATE INDEX agent_errors_tool ON agent_errors (tool_name, timestamp);
CREATE INDEX agent_errors_session_tool ON agent_errors (session_id, tool_name, timestamp);
CREATE INDEX agent_errors_timestamp ON agent_errors (timestamp);

CREATE TABLE tokens (
    hash TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    revoked REAL
) WITHOUT ROWID;
"""

RESULTS = """
CREATE TABLE results (                      -- large and binary tool results, read back in pages
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    tool TEXT NOT NULL,
    kind TEXT NOT NULL,
    size INTEGER NOT NULL,                  -- bytes of the content
    sha256 TEXT NOT NULL,                   -- of the content
    packing TEXT NOT NULL,
    held INTEGER NOT NULL,                  -- bytes of data
    created REAL NOT NULL,
    used REAL NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    data TEXT NOT NULL
);
"""

MEMORIES = """
ALTER TABLE agent_errors ADD COLUMN kind TEXT NOT NULL DEFAULT 'unknown';

CREATE TABLE memories (                     -- what agents remember, by the owner of the session
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    source TEXT NOT NULL,                   -- user, assistant: heard in a turn; note: written down
    text TEXT NOT NULL,
    created REAL NOT NULL
);
CREATE INDEX memories_owner ON memories (owner, seq);
CREATE VIRTUAL TABLE memories_text USING fts5 (
    text, content = 'memories', content_rowid = 'seq',
    tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER memories_added AFTER INSERT ON memories BEGIN
    INSERT INTO memories_text (rowid, text) VALUES (new.seq, new.text);
END;
CREATE TRIGGER memories_removed AFTER DELETE ON memories BEGIN
    INSERT INTO memories_text (memories_text, rowid, text) VALUES ('delete', old.seq, old.text);
END;
"""

ESCALATIONS = """
CREATE TABLE escalations (                  -- runs that wait for a person's decision, or had one
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions,
    run_id TEXT NOT NULL REFERENCES runs,
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    tool TEXT NOT NULL,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    decision TEXT,                          -- NULL: open
    note TEXT NOT NULL DEFAULT '',
    resolved_by TEXT,
    resolved REAL,
    next_run TEXT
);
CREATE INDEX escalations_created ON escalations (created);
CREATE INDEX escalations_open ON escalations (session) WHERE decision IS NULL;
"""

# Else the words of a deleted memory would stay in the index until its segments happen to be merged.
FORGETTING = "INSERT INTO memories_text (memories_text, rank) VALUES ('secure-delete', 1);"

TRACES = """
CREATE TABLE traces (                       -- one for each run, and for model calls beside runs
    run_id TEXT PRIMARY KEY,
    trace_id TEXT NOT NULL,
    parent TEXT,                            -- the span of another run that called this one
    session TEXT NOT NULL,
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    status TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,                             -- NULL: it goes on, or the host ended first
    seen REAL NOT NULL,                     -- when this row was last written
    usage TEXT NOT NULL,
    errors INTEGER NOT NULL,
    spans INTEGER NOT NULL,
    left_out INTEGER NOT NULL
);
CREATE INDEX traces_started ON traces (started);
CREATE INDEX traces_session ON traces (session, started);
CREATE INDEX traces_user ON traces (user, started);
CREATE INDEX traces_open ON traces (run_id) WHERE ended IS NULL;
CREATE INDEX traces_called ON traces (trace_id) WHERE parent IS NOT NULL;

CREATE TABLE spans (
    run_id TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    body TEXT NOT NULL,                     -- all of it; status and ended are newer in the row
    PRIMARY KEY (run_id, id)
) WITHOUT ROWID;
"""

# Those that a host looks at when it starts: the status of their runs may be a later one.
UNSETTLED_TRACES = """
DROP INDEX traces_open;
CREATE INDEX traces_open ON traces (run_id)
WHERE ended IS NULL OR status IN ('waiting', 'interrupted');
"""

SUMMARIES = """
CREATE TABLE summaries (                    -- each stands for all rows before its start_pos
    session TEXT NOT NULL REFERENCES sessions,
    start_pos INTEGER NOT NULL,
    from_pos INTEGER NOT NULL,              -- the start pointer before it
    created REAL NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (session, start_pos)
);
ALTER TABLE sessions ADD COLUMN flushed INTEGER;    -- the start_pos whose rows are in memory files
"""

AGENTS = """
CREATE TABLE agents (                       -- agents that a host finds by name beside its own
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL
) WITHOUT ROWID;
"""

TEAMS = """
ALTER TABLE sessions ADD COLUMN parent TEXT;            -- the run that started this one's
ALTER TABLE sessions ADD COLUMN beside INTEGER NOT NULL DEFAULT 0;  -- and did not wait for it
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE team_tasks (                   -- the board of a team for one of its users
    team TEXT NOT NULL,
    user TEXT NOT NULL,
    number INTEGER NOT NULL,
    title TEXT NOT NULL,
    details TEXT NOT NULL,
    state TEXT NOT NULL,                    -- a claim is void when its run has ended
    made_by TEXT NOT NULL,
    agent TEXT,
    run_id TEXT,
    result TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    updated REAL NOT NULL,
    PRIMARY KEY (team, user, number)
) WITHOUT ROWID;

CREATE TABLE team_task_needs (
    team TEXT NOT NULL,
    user TEXT NOT NULL,
    number INTEGER NOT NULL,
    needs INTEGER NOT NULL,
    PRIMARY KEY (team, user, number, needs)
) WITHOUT ROWID;
"""

APPROVALS = """
CREATE TABLE approvals (                    -- calls that wait for a person, or did
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions,
    run_id TEXT NOT NULL REFERENCES runs,
    call_id TEXT NOT NULL,
    step INTEGER NOT NULL,                  -- the place of the call's result in the run's journal
    agent TEXT NOT NULL,
    user TEXT NOT NULL,
    tool TEXT NOT NULL,
    args TEXT NOT NULL,                     -- canonical JSON
    args_hash TEXT NOT NULL,
    reason TEXT NOT NULL,
    asked_by TEXT NOT NULL,                 -- a JSON array
    created REAL NOT NULL,
    expires REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    decision TEXT,
    note TEXT NOT NULL DEFAULT '',
    resolved_by TEXT,
    resolved REAL,
    used REAL                               -- when the tool was begun for it
);
CREATE INDEX approvals_created ON approvals (created);
CREATE INDEX approvals_run ON approvals (run_id);
CREATE INDEX approvals_session ON approvals (session);
CREATE INDEX approvals_pending ON approvals (expires) WHERE state = 'pending';

CREATE TABLE approval_grants (              -- who asks no more, for what and whom
    id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    user TEXT NOT NULL,
    asker TEXT NOT NULL,
    by TEXT NOT NULL,
    created REAL NOT NULL,
    approval TEXT NOT NULL,
    UNIQUE (agent, tool, user, asker)
) WITHOUT ROWID;
"""

ROOMS = """
CREATE TABLE rooms (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    state TEXT NOT NULL,                    -- where its round stands, as JSON
    created REAL NOT NULL,
    updated REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE room_messages (
    room TEXT NOT NULL,
    seq INTEGER NOT NULL,                   -- from 1, without gaps
    round INTEGER NOT NULL,
    author TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (room, seq)
) WITHOUT ROWID;
"""

TOKENS = """
ALTER TABLE tokens ADD COLUMN expires REAL;             -- NULL: never
ALTER TABLE tokens ADD COLUMN impersonate INTEGER NOT NULL DEFAULT 0;   -- a bridge's
"""

QUEUES = """
ALTER TABLE sessions ADD COLUMN queue_mode TEXT;  -- NULL: the default of its kind
"""

RECOVERY = """
ALTER TABLE runs ADD COLUMN given TEXT;    -- how it can be taken up again; NULL: it cannot

CREATE TABLE resumptions (
    session TEXT PRIMARY KEY,
    tries INTEGER NOT NULL,                 -- hosts in a row that died while they took it up
    since REAL                              -- quarantined since then; NULL: it is not
) WITHOUT ROWID;
"""

ROOM_PEOPLE = """
ALTER TABLE rooms ADD COLUMN people TEXT NOT NULL DEFAULT '[]';  -- users who may see it, as JSON
ALTER TABLE rooms ADD COLUMN plan TEXT;                          -- NULL: not made by a person
"""

GATEWAY = """
ALTER TABLE idempotency ADD COLUMN answer TEXT;     -- as JSON; NULL: it was an input
CREATE INDEX idempotency_answers ON idempotency (ts) WHERE answer IS NOT NULL;

CREATE TABLE conversations (                -- of clients that send all that was said each time
    state TEXT PRIMARY KEY,                 -- a digest of it
    session TEXT NOT NULL UNIQUE
) WITHOUT ROWID;
"""

MODELS = """
ALTER TABLE sessions ADD COLUMN model TEXT;  -- NULL: that of its agent
"""

# Before, each stored agent had the mode "shared", whether it was chosen or not.
WORKSPACES = """
UPDATE agents SET body = json_set(body, '$.profile.workspace', 'auto')
WHERE json_valid(body) AND json_extract(body, '$.profile.workspace') = 'shared';
"""

PROPOSED = """
ALTER TABLE approvals ADD COLUMN proposed TEXT;  -- the model's arguments, if a hook changed them
"""

GENERATIONS = """
ALTER TABLE sessions ADD COLUMN generation TEXT NOT NULL DEFAULT '';  -- the run that made it
"""

ESCALATION_HISTORY = """
ALTER TABLE escalations ADD COLUMN sender TEXT NOT NULL DEFAULT '';      -- the input's author
ALTER TABLE escalations ADD COLUMN history TEXT NOT NULL DEFAULT '[]';   -- failed calls, as JSON
"""

ROOM_RIGHTS = """
ALTER TABLE room_messages ADD COLUMN asked_by TEXT NOT NULL DEFAULT '[]';  -- principals, as JSON
ALTER TABLE approvals ADD COLUMN people TEXT NOT NULL DEFAULT '[]';     -- who asked, in a room
"""

RUN_EVENTS = """
ALTER TABLE runs ADD COLUMN after INTEGER;  -- its session's last event before it; NULL: unknown
"""

# Inputs and ends of runs write these tables, so that every page counts. A run is open from its
# input until its end is published, and a session is listed once an end of a run of it was: the
# indexes of lists leave out the others, for which the queries look by themselves. These sort by
# ``+rowid``: for ``rowid`` SQLite would read the whole table in its order.
OPEN_RUNS = """
ALTER TABLE runs ADD COLUMN open INTEGER;   -- 1 from its input until its end is published
ALTER TABLE runs ADD COLUMN ending TEXT;    -- the event of its end, until it is published
UPDATE runs SET open = 1, ending = (SELECT body FROM steps AS kept
                                    WHERE kept.run_id = runs.run_id AND kept.step = -1)
WHERE status IN ('queued', 'running', 'waiting')
    OR run_id IN (SELECT run_id FROM steps WHERE step = -1);
DELETE FROM steps WHERE step = -1;
DROP INDEX runs_status;
DROP INDEX runs_user;
CREATE INDEX runs_open ON runs (session) WHERE open IS NOT NULL;
CREATE INDEX runs_user ON runs (user, created) WHERE open IS NULL;
CREATE INDEX runs_status ON runs (status) WHERE open IS NULL;

CREATE TABLE old_sessions AS SELECT * FROM sessions;
DROP TABLE sessions;
CREATE TABLE sessions (
    session TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,                  -- without its open runs
    start_pos INTEGER NOT NULL DEFAULT 1,   -- the first row that a model is shown
    flushed INTEGER,                        -- the start_pos whose rows are in memory files
    parent TEXT,                            -- the run that started this one's
    beside INTEGER NOT NULL DEFAULT 0,      -- and did not wait for it
    queue_mode TEXT,                        -- NULL: the default of its kind
    model TEXT,                             -- NULL: that of its agent
    generation TEXT NOT NULL DEFAULT '',    -- the run that made it
    listed INTEGER DEFAULT 1                -- NULL: it has an open run, and is no room's
) WITHOUT ROWID;
INSERT INTO sessions
    SELECT session, agent, owner, created, updated, start_pos, flushed, parent, beside, queue_mode,
           model, generation, 1
    FROM old_sessions;
DROP TABLE old_sessions;
CREATE INDEX sessions_updated ON sessions (updated) WHERE listed IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner, updated) WHERE listed IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;
"""

ROOM_ROLES = """
CREATE TABLE room_people (                  -- users of rooms, and patterns of users
    room TEXT NOT NULL,
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    joined INTEGER NOT NULL,                -- the room's last message when they came
    since REAL NOT NULL,
    muted REAL NOT NULL DEFAULT 0,          -- until when they may not speak
    banned INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (room, user)
) WITHOUT ROWID;
CREATE INDEX room_people_user ON room_people (user, room);
INSERT OR IGNORE INTO room_people (room, user, role, joined, since)
    SELECT rooms.name, one.value, 'member', 0, rooms.created
    FROM rooms, json_each(iif(json_valid(rooms.people), rooms.people, '[]')) AS one
    WHERE one.type = 'text';
ALTER TABLE rooms DROP COLUMN people;
ALTER TABLE rooms ADD COLUMN terms TEXT NOT NULL DEFAULT '{}';      -- title, slow mode, ...
CREATE INDEX rooms_owner ON rooms (owner, name);

CREATE TABLE room_invites (
    hash TEXT PRIMARY KEY,                  -- of the token in the link
    room TEXT NOT NULL,
    role TEXT NOT NULL,
    by TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,                           -- NULL: never
    uses INTEGER                            -- left; NULL: any number
) WITHOUT ROWID;
CREATE INDEX room_invites_room ON room_invites (room);
"""

# What deletions before this step have left. Sessions by bytes: a text ends at its first NUL for
# ``substr``. A stream that still has events is somebody's.
FORGOTTEN_STREAMS = """
CREATE TEMP TABLE forgotten AS
    SELECT stream, head FROM streams
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.stream = streams.stream)
    AND ((stream GLOB 'session:*' AND NOT EXISTS (
            SELECT 1 FROM sessions WHERE session = CAST(substr(CAST(stream AS BLOB), 9) AS TEXT)))
        OR (stream GLOB 'room:*' AND NOT EXISTS (
            SELECT 1 FROM rooms WHERE name = substr(stream, 6))));
INSERT INTO streams (stream, head) SELECT stream_digest(stream), head FROM forgotten WHERE true
    ON CONFLICT (stream) DO UPDATE SET head = max(head, excluded.head);
DELETE FROM streams WHERE stream IN (SELECT stream FROM forgotten);
DROP TABLE forgotten;
"""

# Retention deletes runs and sessions; for each, SQLite looks for escalations that refer to it.
RETENTION = """
CREATE INDEX escalations_session ON escalations (session);
CREATE INDEX escalations_run ON escalations (run_id);
CREATE TABLE upkeep (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    motet TEXT NOT NULL,                    -- version of the motet that has opened it last
    steps TEXT NOT NULL,                    -- a digest of the steps that the database has taken
    aged REAL                               -- the time by which retention looked last
);
"""

MIGRATIONS: tuple[str, ...] = (
    FIRST,
    RESULTS,
    MEMORIES,
    ESCALATIONS,
    FORGETTING,
    TRACES,
    SUMMARIES,
    AGENTS,
    TEAMS,
    APPROVALS,
    ROOMS,
    TOKENS,
    QUEUES,
    RECOVERY,
    ROOM_PEOPLE,
    GATEWAY,
    MODELS,
    GENERATIONS,
    WORKSPACES,
    PROPOSED,
    ESCALATION_HISTORY,
    error_tables.TABLES,
    ROOM_RIGHTS,
    error_tables.INDEXES,
    error_tables.SEQUELS,
    RUN_EVENTS,
    error_tables.INDEXED_LATER,
    room_changes.STEP,
    ROOM_ROLES,
    error_tables.PARTS,
    room_changes.REPLIES,
    room_costs.TRIGGERS,
    room_newcomers.STEP,
    room_costs.NO_TRIGGERS,
    room_tables.STEP,
    UNSETTLED_TRACES,
    error_tables.LONGER_TAIL,
    OPEN_RUNS,
    error_tables.WAITING_GROUPS,
    error_tables.SLICED_TAIL,
    FORGOTTEN_STREAMS,
    RETENTION,
    memory.PEOPLE,
)

WRITTEN_BY = "SELECT motet, steps FROM upkeep"
SIGNED = "SELECT 1 FROM sqlite_schema WHERE name = 'upkeep'"
SIGN = """
INSERT INTO upkeep (one, motet, steps, aged) VALUES (1, ?1, ?2, ?3) ON CONFLICT (one)
DO UPDATE SET motet = ?1, steps = ?2, aged = coalesce(aged, ?3)"""


@cache
def digest(steps: tuple[str, ...]) -> str:
    """A name for these steps, whatever their number: two builds may have others of one number."""
    return sha256("\0".join(steps).encode()).hexdigest()[:16]
