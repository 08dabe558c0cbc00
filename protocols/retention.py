"""The bounds of the tables of a host's database, and the SQL that deletes the rest. Pure.

Every table has an entry in :data:`BOUNDS`: nothing grows for ever. :func:`prune` walks the
streams, sessions and rooms by their names, a page of reads at a time, and deletes in transactions
of at most :data:`BATCH` rows each, so that no writer waits long behind one. An index by time would
be cheaper for the walk, but each event and each row would pay for it.

Invariants: what an unfinished run, a pending approval or an open escalation needs stays, however
old it is: an open run keeps the events, rows and runs of its session. A run that has started
others stays until their sessions are gone, so that a deletion still finds them. Rows of a
transcript go only where no model is shown them, whole turns at a time, and never the last one: the
next row is numbered by it. Of a room stay the newest event of each kind and the newest
:data:`ROOM_KEEPS` messages, from which the next host derives what it has not told yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs

from motet.protocols.config import HostConfig
from motet.protocols.error_records import Keep
from motet.protocols.error_rows import BATCH as ERRORS_AT_ONCE
from motet.protocols.error_rows import DELETE_ROWS, SIZE, delete_batch, oldest_query
from motet.protocols.errors import ListErrors
from motet.protocols.sessions import RESEND
from motet.protocols.storage import LEAST_NUMBER, Row, Rows, SqlValue, Statement, Transaction

BATCH: Final = 500
"""Rows of one table that a transaction deletes, at most."""
PAGE: Final = 500
"""Streams, sessions or rooms that are looked at in one read."""
ROOM_KEEPS: Final = 1_000
"""Messages of a room, and of a thread, that stay whatever their age."""
DIGESTS: Final = 100_000
"""Deleted streams whose last number is remembered for each; for all others there is one number."""
DAY: Final = 86_400.0
HOUR: Final = 3_600.0
MEGABYTE: Final = 1_000_000
PAGES_AT_ONCE: Final = 1_000
"""Free pages that are given back in one transaction."""

_BY_SESSION = "goes with its session (`retention.sessions_days`)"
_BY_ROOM = "goes with its room (`retention.rooms_days`)"
_BY_RUN = "goes with its run (`retention.runs_days`)"
_BY_ERROR = "follows `agent_errors`"
_BY_PEOPLE = "people and configurations make its rows"
_BY_MEMORY = "follows `memories`"
BOUNDS: Final = {
    "sessions": "`retention.sessions_days` after its last use",
    "runs": "`retention.runs_days`",
    "messages": "`retention.messages_days`, once no model is shown them",
    "summaries": "as the messages that they stand for",
    "steps": _BY_RUN,
    "approvals": _BY_RUN,
    "escalations": _BY_RUN,
    "idempotency": "24 hours; of resent inputs as the runs that were sent again",
    "events": "`retention.events_days`",
    "streams": f"{_BY_SESSION} or room; of deleted ones the last {DIGESTS:,} numbers",
    "results": "256 MB",
    "memories": "10,000 for each owner",
    "memories_text": _BY_MEMORY,
    "memories_text_data": _BY_MEMORY,
    "memories_text_idx": _BY_MEMORY,
    "memories_text_docsize": _BY_MEMORY,
    "memories_text_config": "one row",
    "agent_errors": "`errors.keep_days`, `errors.keep_mb`",
    "error_records": _BY_ERROR,
    "error_groups": _BY_ERROR,
    "error_parts": _BY_ERROR,
    "error_tail": "one row",
    "error_sequels": "until they are carried out",
    "traces": "`tracing.keep_days`",
    "spans": "as the traces",
    "team_tasks": "500 for each board",
    "team_task_needs": "as the tasks",
    "rooms": "`retention.rooms_days` after its last message",
    "room_messages": f"`retention.messages_days`, but for the newest {ROOM_KEEPS:,} of a room",
    "room_people": _BY_ROOM,
    "room_reads": _BY_ROOM,
    "room_invites": "until they expire or are spent",
    "room_costs": "three days; of rounds the last 1,000",
    "room_summaries": "`retention.messages_days`",
    "resumptions": _BY_SESSION,
    "conversations": _BY_SESSION,
    "tokens": f"{_BY_PEOPLE}; `retention.runs_days` after they expired or were revoked",
    "approval_grants": "one for each agent, tool, user and asker",
    "agents": _BY_PEOPLE,
    "upkeep": "one row",
    "sqlite_sequence": "one row for each table that numbers its rows",
}
"""The bound of each table."""


@attrs.frozen(kw_only=True)
class Limits:
    """Days for which things are kept (``inf``: for ever), and megabytes of the whole database.

    ``errors``: the limits of ``[errors]``.
    """

    events: float
    messages: float
    runs: float
    sessions: float
    rooms: float
    traces: float
    errors: Keep
    megabytes: float

    @classmethod
    def of(cls, config: HostConfig) -> Limits:
        kept, errors = config.retention, config.errors
        return cls(
            events=kept.events_days,
            messages=kept.messages_days,
            runs=kept.runs_days,
            sessions=kept.sessions_days,
            rooms=kept.rooms_days,
            traces=config.tracing.keep_days,
            errors=Keep(errors.keep_days, errors.keep_mb),
            megabytes=kept.max_mb,
        )

    def shortened(self, factor: float) -> Limits:
        """Limits for a database that is too large: the same share of each, at least an hour of
        events, traces and errors, and two days of what people have said.
        """
        short = [max(HOUR / DAY, one * factor) for one in (self.events, self.traces)]
        said = (self.messages, self.runs, self.sessions, self.rooms)
        messages, runs, sessions, rooms = (min(one, max(2.0, one * factor)) for one in said)
        days = self.errors.days
        return attrs.evolve(
            self,
            events=min(self.events, short[0]),
            traces=min(self.traces, short[1]),
            messages=messages,
            runs=runs,
            sessions=sessions,
            rooms=rooms,
            errors=attrs.evolve(
                self.errors, days=None if days is None else max(HOUR / DAY, days * factor)
            ),
        )


RunStatement: TypeAlias = Callable[[Statement], Awaitable[tuple[Row, ...]]]
"""Runs one statement in a transaction of its own, and returns its rows."""
Forget: TypeAlias = Callable[[str, float], Awaitable[bool]]
"""Deletes a session or a room, unless it was used since that time; false if it stays."""


@attrs.frozen
class Hands:
    """The ways to the database, and to deletions that more than the database knows of.

    ``write`` runs a transaction of a slice, and lets others write before the next one.
    """

    read: RunStatement
    write: Callable[[Transaction], Awaitable[Rows]]
    session: Forget
    room: Forget

    async def change(self, statement: Statement) -> tuple[Row, ...]:
        return (await self.write((statement,)))[0]


# Sessions: rows that no model is shown, ended runs, whole sessions

_OPEN_RUN = "SELECT 1 FROM runs WHERE runs.session = {0} AND open = 1"
_UNDECIDED = (
    "SELECT 1 FROM escalations WHERE escalations.session = {0} AND decision IS NULL"
    " UNION ALL SELECT 1 FROM approvals WHERE approvals.session = {0} AND state = 'pending'"
)
_NEEDED = f"EXISTS ({_OPEN_RUN}) OR EXISTS ({_UNDECIDED})"
_SESSIONS = f"""
SELECT session, listed = 1 AND updated < ?2 AND owner NOT GLOB 'room:*'
        AND NOT ({_NEEDED.format("s.session")}),
    coalesce((SELECT ts FROM messages WHERE messages.session = s.session AND pos < start_pos
        ORDER BY pos LIMIT 1) < ?3, 0),
    coalesce((SELECT created FROM runs WHERE runs.session = s.session
        ORDER BY created LIMIT 1) < ?4, 0)
FROM sessions AS s WHERE session > ?1 ORDER BY session LIMIT {PAGE}"""
UNUSED: Final = f"""
SELECT 1 FROM sessions WHERE session = ?1 AND updated < ?2
    AND NOT ({_NEEDED.format("sessions.session")})"""
"""Whether a session may go for its age."""

# The row from which on the transcript stays: one of a person, since before it all calls have their
# results. One behind the slice if a single turn is longer than that.
_FROM = f"""(
    SELECT coalesce(max(pos) FILTER (WHERE pos <= first + {BATCH}), min(pos)) FROM messages,
        (SELECT min(pos) AS first FROM messages WHERE session = ?1)
    WHERE session = ?1 AND role = 'user' AND ts < ?2 AND pos > first
        AND pos <= (SELECT start_pos FROM sessions WHERE session = ?1))"""
_ROWS = (
    f"DELETE FROM messages WHERE session = ?1 AND pos < {_FROM}"
    f" AND NOT EXISTS ({_OPEN_RUN.format('?1')}) RETURNING 1",
    "DELETE FROM summaries WHERE session = ?1"
    " AND start_pos < (SELECT start_pos FROM sessions WHERE session = ?1)"
    " AND start_pos <= (SELECT min(pos) FROM messages WHERE session = ?1) AND ?2 IS NOT NULL",
)
_OLD_RUNS = f"""
SELECT run_id FROM runs WHERE session = ?1 AND created < ?2 AND updated < ?2
    AND open IS NULL AND ending IS NULL AND status NOT IN ('queued', 'running', 'waiting')
    AND NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.session = ?1 AND r.open = 1)
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE parent = runs.run_id)
    AND NOT EXISTS (SELECT 1 FROM rooms WHERE above = runs.run_id)
    AND NOT EXISTS (SELECT 1 FROM approvals WHERE run_id = runs.run_id AND state = 'pending')
    AND NOT EXISTS (SELECT 1 FROM escalations WHERE run_id = runs.run_id AND decision IS NULL)
ORDER BY created LIMIT {BATCH}"""
_RUNS = (
    f"DELETE FROM approvals WHERE run_id IN ({_OLD_RUNS})",
    f"DELETE FROM escalations WHERE run_id IN ({_OLD_RUNS})",
    f"DELETE FROM steps WHERE run_id IN ({_OLD_RUNS})",
    f"DELETE FROM runs WHERE run_id IN ({_OLD_RUNS}) RETURNING 1",
)

# Streams

_STREAMS = f"""
SELECT stream, coalesce((SELECT ts FROM events WHERE events.stream = streams.stream
    ORDER BY seq LIMIT 1) < ?2, 0)
FROM streams WHERE stream > ?1 ORDER BY stream LIMIT {PAGE}"""
_LAST_OF_KINDS = "SELECT max(seq) FROM events WHERE stream = ?1 GROUP BY event"
_FIRST_EVENT = """(
    SELECT seq FROM events WHERE stream = ?1 AND seq NOT IN (SELECT value FROM json_each(?3))
    ORDER BY seq LIMIT 1)"""
_SESSION_OF = "CAST(substr(CAST(?1 AS BLOB), 9) AS TEXT)"
_EVENTS = f"""
DELETE FROM events WHERE stream = ?1 AND seq < (
    SELECT coalesce((SELECT seq FROM events WHERE stream = ?1 AND seq >= first
        AND seq < first + {BATCH} AND ts >= ?2 ORDER BY seq LIMIT 1), first + {BATCH})
    FROM (SELECT {_FIRST_EVENT} AS first))
    AND seq NOT IN (SELECT value FROM json_each(?3))
    AND NOT (?1 GLOB 'session:*' AND EXISTS ({_OPEN_RUN.format(_SESSION_OF)}))
RETURNING 1"""
_IS_DIGEST = "length(stream) = 64 AND instr(stream, ':') = 0"
_DIGESTS = f"SELECT count(*) FROM streams WHERE {_IS_DIGEST}"
# Those of the lowest numbers, so that the one number that stands for them is low as well.
_LOWEST = f"SELECT stream, head FROM streams WHERE {_IS_DIGEST} ORDER BY head, stream LIMIT ?1"
_FORGET_DIGESTS = (
    f"INSERT INTO streams (stream, head) VALUES ('{LEAST_NUMBER}', ?2)"
    " ON CONFLICT (stream) DO UPDATE SET head = max(head, excluded.head)",
    "DELETE FROM streams WHERE stream IN (SELECT value FROM json_each(?1)) AND ?2 IS NOT NULL",
)

# Rooms

_IDLE = f"""updated < ?2 AND NOT EXISTS (
        SELECT 1 FROM rooms AS thread WHERE thread.name > r.name || '/'
        AND thread.name < r.name || '0' AND thread.updated >= ?2)
    AND NOT EXISTS (SELECT 1 FROM sessions AS s WHERE owner = 'room:' || r.name AND listed = 1
        AND (updated >= ?2 OR {_NEEDED.format("s.session")}))"""
IDLE_ROOM: Final = f"SELECT 1 FROM rooms AS r WHERE name = ?1 AND {_IDLE}"
"""Whether a room may go for its age."""
_ROOMS = f"""
SELECT name, instr(name, '/') = 0 AND {_IDLE},
    coalesce((SELECT at FROM room_messages WHERE room = name ORDER BY seq LIMIT 1) < ?3, 0)
FROM rooms AS r WHERE name > ?1 ORDER BY name LIMIT {PAGE}"""
_NO_ROOT = "NOT EXISTS (SELECT 1 FROM rooms WHERE name = said.room || '/' || said.seq)"
_SAID = f"""
DELETE FROM room_messages WHERE room = ?1 AND seq IN (
    SELECT seq FROM room_messages AS said, (
        SELECT seq AS first FROM room_messages AS said WHERE room = ?1 AND {_NO_ROOT}
        ORDER BY seq LIMIT 1)
    WHERE room = ?1 AND seq >= first AND seq < first + {BATCH} AND at < ?2 AND {_NO_ROOT}
        AND seq <= (SELECT max(seq) FROM room_messages WHERE room = ?1) - {ROOM_KEEPS}
        AND seq <= (SELECT coalesce(json_extract(state, '$.heard'), 0) FROM rooms WHERE name = ?1))
RETURNING 1"""
_OF_ROOM = (
    "DELETE FROM room_costs WHERE room = ?1 AND hour > 0 AND hour < ?3",
    "DELETE FROM room_costs WHERE room > ?1 || '#' AND room < ?1 || '$'"
    " AND CAST(substr(CAST(room AS BLOB), 2 + octet_length(?1)) AS INTEGER) < ("
    "SELECT coalesce(json_extract(state, '$.floor.round'), 0) FROM rooms WHERE name = ?1) - 1000"
    " AND ?3 IS NOT NULL",
    "DELETE FROM room_summaries WHERE room = ?1 AND at < ?2 AND ?3 IS NOT NULL",
)
_HAS_OLD = """
SELECT EXISTS (SELECT 1 FROM room_costs WHERE (room = ?1 AND hour < ?3)
    OR (room > ?1 || '#' AND room < ?1 || '$'))
OR EXISTS (SELECT 1 FROM room_summaries WHERE room = ?1 AND at < ?2)"""

# Traces

_PAST = f"""
SELECT run_id FROM traces WHERE started < ?1 AND ended IS NOT NULL
ORDER BY started LIMIT {BATCH}"""
_TRACES = (
    f"DELETE FROM spans WHERE run_id IN ({_PAST})",
    f"DELETE FROM traces WHERE run_id IN ({_PAST}) RETURNING 1",
)

# Small tables, each in one statement

_SMALL = (
    "DELETE FROM tokens WHERE revoked < ?1 OR expires < ?1",
    "DELETE FROM room_invites WHERE expires < ?1 OR uses <= 0",
    f"DELETE FROM idempotency WHERE ts < ?1 AND method = '{RESEND}' AND NOT EXISTS ("
    "SELECT 1 FROM runs WHERE run_id = substr(key, 8))",
)

USED: Final = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""
"""Bytes of the database that have data."""


AGED: Final = "SELECT aged FROM upkeep"
AGE: Final = "UPDATE upkeep SET aged = max(coalesce(aged, 0), ?)"


def aged(now: float, last: float | None, elapsed: float, *, first: bool) -> float:
    """The time by which things are old; ``last``: that of the look before, ``elapsed`` seconds ago.

    It follows the clock at no more than twice its pace, and by a day at the first look of a host:
    so a clock that was put forward between two hosts makes nothing old at once. A host that was
    away for long deletes later for it.
    """
    return now if last is None else min(now, last + 2 * elapsed + (DAY if first else 0.0))


async def prune(hands: Hands, limits: Limits, now: float) -> int:
    """Delete what is beyond the limits, in slices; returns the number of rows and sessions.

    ``now``: Unix seconds. Cancelled, or if a statement fails, it leaves the rest.
    """
    deleted = await _prune_sessions(hands, limits, now)
    deleted += await _prune_rooms(hands, limits, now)
    deleted += await _prune_streams(hands, now - limits.events * DAY)
    deleted += await _repeat(hands, _TRACES, (now - limits.traces * DAY,))
    deleted += await prune_errors(hands.read, hands.change, limits.errors, now)
    past = now - limits.runs * DAY
    await hands.write(tuple(Statement(sql, (past,)) for sql in _SMALL))
    return deleted


async def _prune_sessions(hands: Hands, limits: Limits, now: float) -> int:
    days = limits.sessions, limits.messages, limits.runs
    sessions, messages, runs = (now - one * DAY for one in days)
    deleted, last = 0, ""
    while True:
        params = last, sessions, messages, runs
        page = await hands.read(Statement(_SESSIONS, params))
        for session, idle, has_rows, has_runs in page:
            if idle and await hands.session(str(session), sessions):
                deleted += 1
                continue
            if has_rows:
                deleted += await _repeat(hands, _ROWS, (session, messages), counted=0, full=1)
            if has_runs:
                deleted += await _repeat(hands, _RUNS, (session, runs))
        if len(page) < PAGE:
            return deleted
        last = str(page[-1][0])


async def _prune_rooms(hands: Hands, limits: Limits, now: float) -> int:
    rooms, messages = now - limits.rooms * DAY, now - limits.messages * DAY
    hour = int(now / HOUR) - 72
    deleted, last = 0, ""
    while True:
        page = await hands.read(Statement(_ROOMS, (last, rooms, messages)))
        for name, idle, has_said in page:
            if idle and await hands.room(str(name), rooms):
                deleted += 1
                continue
            if has_said:
                deleted += await _repeat(hands, (_SAID,), (name, messages), full=1)
            params = (name, messages, hour)
            if (await hands.read(Statement(_HAS_OLD, params)))[0][0]:
                await hands.write(tuple(Statement(sql, params) for sql in _OF_ROOM))
        if len(page) < PAGE:
            return deleted
        last = str(page[-1][0])


async def _prune_streams(hands: Hands, before: float) -> int:
    deleted, last = 0, ""
    while True:
        page = await hands.read(Statement(_STREAMS, (last, before)))
        for stream, is_old in page:
            if is_old:
                kept: tuple[Row, ...] = ()
                if not str(stream).startswith("session:"):
                    kept = await hands.read(Statement(_LAST_OF_KINDS, (stream,)))
                numbers = f"[{','.join(str(seq) for (seq,) in kept)}]"
                deleted += await _repeat(hands, (_EVENTS,), (stream, before, numbers), full=1)
        if len(page) < PAGE:
            break
        last = str(page[-1][0])
    ((digests,),) = await hands.read(Statement(_DIGESTS))
    excess = max(0, int(digests or 0) - DIGESTS)
    going = await hands.read(Statement(_LOWEST, (excess,)))
    for first in range(0, len(going), BATCH):
        some = going[first : first + BATCH]
        names = ",".join(f'"{stream}"' for stream, _ in some)
        params = f"[{names}]", some[-1][1]
        await hands.write(tuple(Statement(sql, params) for sql in _FORGET_DIGESTS))
    return deleted


async def _repeat(
    hands: Hands,
    statements: tuple[str, ...],
    params: tuple[SqlValue, ...],
    *,
    counted: int = -1,
    full: int = BATCH,
) -> int:
    """Run a slice until it deletes fewer than ``full`` rows; returns how many all have deleted.

    ``counted``: the statement that returns a row for each.
    """
    deleted = 0
    while True:
        rows = await hands.write(tuple(Statement(sql, params) for sql in statements))
        deleted += len(rows[counted])
        if len(rows[counted]) < full:
            return deleted


# Errors


async def prune_matching(write: RunStatement, request: ListErrors) -> int:
    """Delete all matching errors, in batches; returns their number. A cancel leaves the rest."""
    deleted = 0
    while True:
        gone = len(await write(delete_batch(request)))
        deleted += gone
        if gone < ERRORS_AT_ONCE:
            return deleted


async def prune_errors(read: RunStatement, write: RunStatement, keep: Keep, now: float) -> int:
    """Delete the errors beyond the limits, the oldest first; returns their number."""
    deleted = 0
    if keep.days is not None:
        deleted += await prune_matching(write, ListErrors(end=now - keep.days * DAY))
    if keep.megabytes is not None:
        ((size,),) = await read(Statement(SIZE))
        excess = float(size or 0) - keep.megabytes * MEGABYTE
        while excess > 0:
            going: list[int] = []
            for seq, taken in await read(Statement(*oldest_query())):
                if excess <= 0:
                    break
                going.append(int(seq or 0))
                excess -= float(taken or 0)
            if not going:
                break
            deleted += len(await write(Statement(DELETE_ROWS, (str(going),))))
    return deleted


async def give_back(write: RunStatement) -> None:
    """Shrink the file of the database by its free pages, a batch in each transaction."""
    before = -1
    while True:
        ((free,),) = await write(Statement("PRAGMA freelist_count"))
        if free in (0, before):  # a database that cannot shrink
            return
        before = int(free or 0)
        await write(Statement(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})"))
