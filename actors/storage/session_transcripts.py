"""Sessions, their transcripts and their summaries: statements and handlers.

Invariants: rows of ``messages`` are only added, each at the next position of its session. The
start pointer of a session only moves forward, and at least one row stands behind a summary. A
model is shown the rows from the pointer on, and the summary that ends there; so a reset leaves
older summaries on disk and out of sight. A deleted session goes whole, with those of its
sub-agents, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.idempotency import CLAIM_KEY, claim_key, first_use
from motet.actors.storage.run_access import ContextCache
from motet.actors.storage.tables import (
    AT_ONCE,
    Query,
    TableStore,
    clamped,
    decode_message,
    role_of,
    rows_of,
    storable,
    stored_form,
    struct,
)
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import NotFound
from motet.protocols.retention import UNUSED
from motet.protocols.room_tables import BY_PEOPLE, OF_SESSION, ROOMS_BELOW, SESSIONS_BELOW, deletion
from motet.protocols.sessions import (
    Accepted,
    DeleteSession,
    GetSession,
    HistoryRow,
    InjectRows,
    IsRelated,
    ListSessions,
    LoadContext,
    LoadTranscript,
    MarkFlushed,
    ReadHistory,
    ResetSession,
    SessionBusy,
    SessionContext,
    SessionInfo,
    StoreSummary,
)
from motet.protocols.storage import (
    ExpectationFailed,
    Row,
    Statement,
    StorageError,
)
from motet.runtime import handles

HISTORY_LIMIT = 200

# Sessions

# When it was used last, with its open runs: see ``OPEN_RUNS`` in ``host_tables``.
_USED = """
max(updated, coalesce((
    SELECT max(iif(status IN ('queued', 'running', 'waiting', 'steered'), created, updated))
    FROM runs INDEXED BY runs_open WHERE runs.session = sessions.session AND open = 1), 0))"""
_SESSIONS = f"""
SELECT session, agent, owner, created, {_USED} AS used,
       (SELECT coalesce(max(pos), 0) FROM messages WHERE messages.session = sessions.session),
       EXISTS (SELECT 1 FROM escalations
               WHERE escalations.session = sessions.session AND decision IS NULL),
       generation
FROM sessions"""
_AT_WORK = "SELECT session FROM runs WHERE open = 1"
SESSION = f"{_SESSIONS} WHERE session = ?"

TOUCH_SESSION = "UPDATE sessions SET updated = max(updated, ?2) WHERE session = ?1"

_RESET_SESSION = """
UPDATE sessions
SET updated = max(updated, ?2),
    start_pos = 1 + coalesce((SELECT max(pos) FROM messages WHERE session = ?1), 0)
WHERE session = ?1 AND generation = coalesce(?3, generation)
RETURNING 1"""

# Transcripts

# A summary names the start pointer that it has moved; a reset leaves no summary.
TRANSCRIPT = """
WITH RECURSIVE starts (at) AS (
    SELECT start_pos FROM sessions WHERE session = ?1
    UNION SELECT from_pos FROM summaries JOIN starts ON session = ?1 AND start_pos = at
)
SELECT pos, run_id, ts, body FROM messages
WHERE session = ?1 AND pos >= (SELECT min(at) FROM starts)
ORDER BY pos"""

HISTORY = """
SELECT pos, run_id, ts, body FROM messages
WHERE session = ?1 AND pos < ?2 AND (?4 IS NULL OR EXISTS (
    SELECT 1 FROM sessions WHERE session = ?1 AND generation = ?4))
ORDER BY pos DESC LIMIT ?3"""

PAGE = """
SELECT pos, run_id, ts, body FROM messages
WHERE session = ? AND pos > ? ORDER BY pos LIMIT ?"""

INJECT = "chat.inject"
"""The method of the keys of injected rows."""

_INJECT_ROW = """
INSERT INTO messages (session, pos, run_id, ts, role, body)
SELECT session,
       1 + coalesce((SELECT max(pos) FROM messages WHERE messages.session = ?1), 0),
       ?2, ?3, ?4, ?5
FROM sessions WHERE session = ?1 AND generation = coalesce(?6, generation)
RETURNING 1"""

# Summaries

CONTEXT = """
SELECT messages.pos, run_id, ts, body,
       CASE WHEN pos = start_pos THEN
           (SELECT text FROM summaries
            WHERE summaries.session = ?1 AND summaries.start_pos = sessions.start_pos)
       END,
       flushed IS start_pos, generation
FROM sessions JOIN messages ON messages.session = ?1 AND pos >= start_pos
WHERE sessions.session = ?1
ORDER BY pos"""

_MOVE_START = """
UPDATE sessions SET start_pos = ?3
WHERE session = ?1 AND start_pos = ?2 AND ?3 > ?2 AND generation = coalesce(?4, generation)
  AND EXISTS (SELECT 1 FROM messages WHERE session = ?1 AND pos >= ?3)
RETURNING 1"""

_ADD_SUMMARY = """
INSERT INTO summaries (session, start_pos, from_pos, created, text) VALUES (?, ?, ?, ?, ?)"""

_MARK_FLUSHED = """
UPDATE sessions SET flushed = ?2
WHERE session = ?1 AND start_pos = ?2 AND generation = coalesce(?3, generation) RETURNING 1"""

# Deletion

_THIS = """
SELECT 1 WHERE ?2 IS NULL
    OR EXISTS (SELECT 1 FROM sessions WHERE session = ?1 AND generation = ?2)"""
_BUSY = "SELECT 1 FROM runs WHERE session = ? AND status IN ('queued', 'running', 'waiting')"
_COUNT_ROWS = "SELECT count(*) FROM messages WHERE session = ?"

# From both sessions up to their callers: whether one is above the other.
_RELATED = """
WITH RECURSIVE above (below, session) AS (
    SELECT ?1, ?1 UNION SELECT ?2, ?2 UNION
    SELECT below, runs.session FROM above JOIN sessions USING (session)
    JOIN runs ON runs.run_id = sessions.parent
)
SELECT 1 FROM above WHERE below <> session AND session IN (?1, ?2) AND (
    SELECT count(DISTINCT owner) FROM sessions WHERE session IN (?1, ?2)) = 1"""


def history_query(
    session: str, before: int | None, limit: int, generation: str | None = None
) -> Query:
    """The newest rows before a position, newest first."""
    end = before if before is not None else 2**62
    return HISTORY, (session, end, clamped(limit, HISTORY_LIMIT), generation)


def history_row(row: Row) -> HistoryRow:
    pos, run_id, ts, body = row
    try:
        fields = {"pos": pos, "run_id": run_id, "ts": ts, "row": decode_message(body)}
        return msgspec.convert(fields, HistoryRow)
    except msgspec.MsgspecError as error:
        raise StorageError(f"row {pos!r} of run {run_id!r} cannot be read: {error}") from error


def context(found: Sequence[Row]) -> SessionContext:
    """The rows of :data:`CONTEXT`. A session without visible rows has no visible summary."""
    if not found:
        return SessionContext()
    return SessionContext(
        start_pos=history_row(found[0][:4]).pos,
        summary=str(found[0][4] or ""),
        rows=tuple(history_row(row[:4]).row for row in found),
        flushed=bool(found[0][5]),
        generation=str(found[0][6]),
    )


def sessions_query(request: ListSessions) -> Query:
    """One page, with all sessions of its last time stamp: the cursor would skip the others."""
    wanted = "" if request.children else " AND parent IS NULL"
    wanted += "" if request.owner is None else " AND owner = ?1"
    until = "" if request.cursor is None else " < ?2"
    rest = f"listed = 1 AND session NOT IN ({_AT_WORK}){wanted}"
    rest += until and f" AND updated{until}"
    work = f"session IN ({_AT_WORK}){wanted}" + (until and f" AND {_USED}{until}")
    newest = f"SELECT updated AS used FROM sessions WHERE {rest} ORDER BY updated DESC LIMIT ?3"
    last = f"""coalesce((
        SELECT * FROM ({newest}) UNION ALL SELECT {_USED} FROM sessions WHERE {work}
        ORDER BY used DESC LIMIT 1 OFFSET ?3 - 1), -1)"""
    sql = f"""{_SESSIONS} WHERE {rest} AND updated >= {last}
        UNION ALL {_SESSIONS} WHERE {work} AND {_USED} >= {last}
        ORDER BY used DESC, created DESC, session DESC"""
    return sql, (request.owner, request.cursor, clamped(request.limit))


def session_info(row: Row) -> SessionInfo:
    return struct(row, SessionInfo, strict=False)


class TranscriptTables(TableStore):
    """Handles sessions, transcripts and summaries for :class:`SessionStore`, which sets fields."""

    _contexts: ContextCache
    _errors: ErrorSpool | None

    @handles(ListSessions, concurrent=AT_ONCE)
    async def list_sessions(self, request: ListSessions) -> tuple[SessionInfo, ...]:
        return await self._read(session_info, *sessions_query(request))

    @handles(GetSession, concurrent=AT_ONCE)
    async def get_session(self, request: GetSession) -> SessionInfo | None:
        return await self._read_one(session_info, SESSION, (request.session,))

    @handles(IsRelated, concurrent=AT_ONCE)
    async def is_related(self, request: IsRelated) -> bool:
        return bool(await self._readers.read(_RELATED, (request.session, request.other)))

    @handles(ResetSession, concurrent=AT_ONCE)
    async def reset(self, request: ResetSession) -> None:
        """Raises ``NotFound``."""
        params = (request.session, self._clock(), request.generation)
        statement = Statement(_RESET_SESSION, params, expect=1)
        with self._contexts.changing(request.session):
            if not await self._succeeds((statement,)):
                raise NotFound(f"no session {request.session!r}")

    @handles(DeleteSession)
    async def delete(self, request: DeleteSession) -> int:
        found = await self._readers.read(SESSIONS_BELOW, (request.session,))
        rooms = await self._readers.read(ROOMS_BELOW, (request.session,))
        sessions = (*(str(child) for (child,) in found), request.session)
        now, errors, since = self._clock(), self._errors, request.unused_since
        unused = [Statement(UNUSED, (one, since), expect=1) for one in sessions]
        wanted = OF_SESSION if since is not None else (*BY_PEOPLE, *OF_SESSION)
        statements = (
            Statement(_THIS, (request.session, request.generation), expect=1),
            *(unused if since is not None else ()),
            Statement(_BUSY, (request.session,), expect=0),
            Statement(_COUNT_ROWS, (request.session,)),
            *(one for (room,) in rooms for one in deletion(str(room))),
            *(Statement(sql, (session,)) for session in sessions for sql in wanted),
            *(one for told in sessions if errors for one in errors.sequels(told, None, now)),
        )
        try:
            with self._contexts.changing(request.session):
                answer = await self._write(statements)
        except ExpectationFailed as failed:
            if failed.sql == _THIS:
                raise NotFound(f"no session {request.session!r}") from None
            raise SessionBusy(
                f"session {request.session!r} has an input that is not answered yet: "
                "stop it, then delete it"
            ) from None
        ((count,),) = rows_of(_COUNT_ROWS, statements, answer)
        return int(count or 0)

    @handles(LoadTranscript, concurrent=AT_ONCE)
    async def load(self, request: LoadTranscript) -> tuple[ChatMessage, ...]:
        found = await self._read(history_row, TRANSCRIPT, (request.session,))
        return tuple(one.row for one in found)

    @handles(ReadHistory, concurrent=AT_ONCE)
    async def read_history(self, request: ReadHistory) -> tuple[HistoryRow, ...]:
        newest_first = history_query(
            request.session, request.before, request.limit, request.generation
        )
        return (await self._read(history_row, *newest_first))[::-1]

    @handles(InjectRows, concurrent=AT_ONCE)
    async def inject(self, request: InjectRows) -> Accepted:
        session, key = request.session, request.key
        stored = [stored_form(row) for row in request.rows]
        while True:
            now = self._clock()
            statements = (
                *claim_key(request.user, INJECT, key, request.body_hash, request.id),
                *(
                    Statement(
                        _INJECT_ROW,
                        (session, request.id, now, role_of(row), body, request.generation),
                        expect=1,
                    )
                    for body, row in stored
                ),
                Statement(TOUCH_SESSION, (session, now)),
            )
            try:
                with self._contexts.changing(session) as change:
                    await self._write(statements)
                    change.add([row for _, row in stored], sum(len(body) for body, _ in stored))
                    return Accepted(request.id)
            except ExpectationFailed as failed:
                if failed.sql != CLAIM_KEY:
                    raise NotFound(f"no session {session!r}") from None
            first = await first_use(self._readers, request.user, INJECT, key, request.body_hash)
            if first is not None:
                return Accepted(first, duplicate=True)

    @handles(LoadContext, concurrent=AT_ONCE)
    async def load_context(self, request: LoadContext) -> SessionContext:
        corrected = self._contexts.corrected(request.session)
        known = self._contexts.get(request.session)
        if known is not None:
            return replace(known, corrected=corrected) if corrected else known
        token = self._contexts.begin_read(request.session)
        found = await self._readers.read(CONTEXT, (request.session,))
        loaded = replace(context(found), corrected=corrected)
        size = sum(len(str(row[3])) for row in found)
        self._contexts.end_read(request.session, token, loaded if found else None, size)
        return loaded

    @handles(StoreSummary, concurrent=AT_ONCE)
    async def store_summary(self, request: StoreSummary) -> bool:
        """False when the start pointer has moved since, or rows were changed: it comes too late."""
        session, old, new = request.session, request.start_pos, request.next_pos
        text = storable(request.text)
        statements = (
            Statement(_MOVE_START, (session, old, new, request.generation), expect=1),
            Statement(_ADD_SUMMARY, (session, new, old, self._clock(), text)),
        )
        if request.corrected not in (None, self._contexts.corrected(session)):
            return False
        with self._contexts.changing(session):
            return await self._succeeds(statements)

    @handles(MarkFlushed, concurrent=AT_ONCE)
    async def mark_flushed(self, request: MarkFlushed) -> bool:
        """False when the start pointer has moved since: another cycle has begun."""
        statement = Statement(
            _MARK_FLUSHED, (request.session, request.start_pos, request.generation), expect=1
        )
        with self._contexts.changing(request.session):
            return await self._succeeds((statement,))
