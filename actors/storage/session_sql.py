"""Escalations as the session store writes and reads them: pure functions, statements and rows.

Invariant: an escalation is on record with the end of its run or not at all, and is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from motet.actors.storage import session_rows as rows
from motet.actors.storage.approval_states import transition
from motet.actors.storage.events import END_STEP, text_of
from motet.actors.storage.session_rows import (
    LIST_LIMIT,
    Query,
    clamped,
    encode,
    history_row,
    matching,
    role,
)
from motet.protocols.chat import ChatMessage
from motet.protocols.escalations import (
    AnswerEscalation,
    EscalationInfo,
    ListEscalations,
    NewEscalation,
    escalation_id,
)
from motet.protocols.events import InputEnd, InputSteered
from motet.protocols.models import Usage
from motet.protocols.queueing import MODES, JoinInputs, QueueMode, SetQueueMode
from motet.protocols.sessions import (
    RESEND,
    EnterRun,
    FinishRun,
    InjectRows,
    MarkFlushed,
    NewInput,
    SessionContext,
    StoreSummary,
)
from motet.protocols.storage import Row, SqlValue, Statement, storable

ADD = """
INSERT INTO escalations (id, session, run_id, agent, user, tool, reason, created)
SELECT ?2, session, run_id, agent, user, ?3, ?4, ?5 FROM runs WHERE run_id = ?1"""

ANSWER = """
UPDATE escalations SET decision = ?2, note = ?3, resolved_by = ?4, resolved = ?5, next_run = ?6
WHERE id = ?1 AND decision IS NULL
RETURNING 1"""

_SELECT = """
SELECT id, session, run_id, agent, user, tool, reason, created,
       CASE WHEN decision IS NULL THEN 'open' ELSE 'resolved' END AS state,
       decision, note, resolved_by, resolved, next_run
FROM escalations"""
ONE = f"{_SELECT} WHERE id = ?"


def add(run_id: str, new: NewEscalation, now: float) -> Statement:
    """To be run in the transaction that ends the run."""
    return Statement(ADD, (run_id, escalation_id(run_id), new.tool, new.reason, now))


def answer(request: AnswerEscalation, now: float) -> tuple[Statement, ...]:
    """Fails when the escalation is unknown or has an answer."""
    given = (request.id, request.decision, request.note, request.by, now, request.next_run)
    return (Statement(ANSWER, given, expect=1),)


def search(request: ListEscalations) -> Query:
    open_only = "(decision IS NULL) = ?"
    state = None if request.state is None else int(request.state == "open")
    where, params = matching(
        ("user = ?", request.user), ("session = ?", request.session), (open_only, state)
    )
    sql = f"{_SELECT}{where} ORDER BY created DESC, rowid DESC LIMIT ?"
    return sql, (*params, clamped(request.limit, LIST_LIMIT))


def info(row: Row) -> EscalationInfo:
    fields = dict(zip(EscalationInfo.__struct_fields__, row, strict=True))
    return msgspec.convert(fields, EscalationInfo)


# Deleting a session: every table that knows of it, in one transaction. Pure.
#
# It is the one exception to "rows are only added": a session goes whole, with those of its
# sub-agents, or not at all.


BUSY = "SELECT 1 FROM runs WHERE session = ? AND status IN ('queued', 'running', 'waiting')"
ROWS = "SELECT count(*) FROM messages WHERE session = ?"

# What points to a row goes before it.
DELETIONS = (
    "DELETE FROM steps WHERE run_id IN (SELECT run_id FROM runs WHERE session = ?)",
    "DELETE FROM idempotency WHERE run_id IN (SELECT run_id FROM runs WHERE session = ?)",
    "DELETE FROM escalations WHERE session = ?",
    "DELETE FROM approvals WHERE session = ?",
    "DELETE FROM messages WHERE session = ?",
    "DELETE FROM summaries WHERE session = ?",
    "DELETE FROM runs WHERE session = ?",
    "DELETE FROM events WHERE stream = 'session:' || ?",
    "DELETE FROM agent_errors WHERE session_id = ?",
    "DELETE FROM results WHERE session = ?",
    "DELETE FROM spans WHERE run_id IN (SELECT run_id FROM traces WHERE session = ?)",
    "DELETE FROM traces WHERE session = ?",
    "DELETE FROM memories WHERE session = ?",
    "DELETE FROM resumptions WHERE session = ?",
    "DELETE FROM conversations WHERE session = ?",
    # What a command answered may quote any session of its user.
    "DELETE FROM idempotency WHERE answer IS NOT NULL"
    " AND user = (SELECT owner FROM sessions WHERE session = ?)",
    "DELETE FROM sessions WHERE session = ?",
)


# Those of runs that its runs have started, and so on.
BELOW = """
WITH RECURSIVE below (session) AS (
    SELECT ?1 UNION
    SELECT sessions.session FROM below JOIN runs USING (session)
    JOIN sessions ON sessions.parent = runs.run_id
)
SELECT session FROM below WHERE session <> ?1"""


def delete(session: str, below: Sequence[str] = ()) -> tuple[Statement, ...]:
    """The transaction; its first statement fails while a run is unfinished.

    ``below``: the sessions of its sub-agents, as :data:`BELOW` finds them.
    """
    return (
        Statement(BUSY, (session,), expect=0),
        Statement(ROWS, (session,)),
        *(Statement(sql, (one,)) for one in (*below, session) for sql in DELETIONS),
    )


def deleted(rows: tuple[tuple[Row, ...], ...]) -> int:
    """How many rows of the transcript there were, from what the transaction returned."""
    return int(rows[1][0][0] or 0)


# Compaction as the store knows it: a start pointer that moves forward, and the summary before it.
#
# Pure: requests to statements, rows to structs. Invariants: rows of ``messages`` are not touched; a
# summary is shown only while the start pointer stands where it ends, so that a reset leaves it on
# disk and out of sight; the pointer never goes back, and at least one row stands behind a summary.


CONTEXT = """
SELECT messages.pos, run_id, ts, body,
       CASE WHEN pos = start_pos THEN
           (SELECT text FROM summaries
            WHERE summaries.session = ?1 AND summaries.start_pos = sessions.start_pos)
       END,
       flushed IS start_pos
FROM sessions JOIN messages ON messages.session = ?1 AND pos >= start_pos
WHERE sessions.session = ?1
ORDER BY pos"""

MOVE_START = """
UPDATE sessions SET start_pos = ?3
WHERE session = ?1 AND start_pos = ?2 AND ?3 > ?2
  AND EXISTS (SELECT 1 FROM messages WHERE session = ?1 AND pos >= ?3)
RETURNING 1"""

ADD_SUMMARY = """
INSERT INTO summaries (session, start_pos, from_pos, created, text) VALUES (?, ?, ?, ?, ?)"""

MARK_FLUSHED = "UPDATE sessions SET flushed = ?2 WHERE session = ?1 AND start_pos = ?2 RETURNING 1"


def store(request: StoreSummary, text: str, now: float) -> tuple[Statement, ...]:
    """The first statement fails when the summary comes too late."""
    move = (request.session, request.start_pos, request.next_pos)
    add = (request.session, request.next_pos, request.start_pos, now, text)
    return Statement(MOVE_START, move, expect=1), Statement(ADD_SUMMARY, add)


def mark_flushed(request: MarkFlushed) -> tuple[Statement, ...]:
    """It fails when another cycle has begun."""
    return (Statement(MARK_FLUSHED, (request.session, request.start_pos), expect=1),)


def context(found: Sequence[Row]) -> SessionContext:
    """What :data:`CONTEXT` has read. A session without rows to show has no summary to show."""
    if not found:
        return SessionContext()
    return SessionContext(
        start_pos=history_row(found[0][:4]).pos,
        summary=str(found[0][4] or ""),
        rows=tuple(history_row(row[:4]).row for row in found),
        flushed=bool(found[0][5]),
    )


# What the session store writes, as transactions: pure functions from a request to statements.
#
# There is no branching inside a transaction. What must hold is said by the number of rows that a
# statement returns or changes, and the whole is rolled back when it does not. Invariants: a key,
# its session and its run are stored together or not at all; rows of ``messages`` are only added,
# at the next position of their session; a run that has ended is never changed.


add_escalation = add
KEY_LIFE = 24 * 3600.0
"""Seconds for which a resend with the same idempotency key is recognised."""

SET_MODEL = "UPDATE sessions SET model = ?2 WHERE session = ?1 RETURNING 1"

FORGET_KEYS = f"DELETE FROM idempotency WHERE ts <= ? AND method <> '{RESEND}'"

CLAIM_KEY = """
INSERT INTO idempotency (user, method, key, body_hash, run_id, ts) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""

CLAIM_SESSION = """
INSERT INTO sessions (session, agent, owner, created, updated, parent, beside)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)
ON CONFLICT (session) DO UPDATE
SET agent = excluded.agent, updated = max(updated, excluded.updated)
WHERE owner = excluded.owner"""

HAS_ROWS = "SELECT 1 FROM messages WHERE session = ? LIMIT 1"

ADD_RUN = """
INSERT INTO runs (run_id, session, agent, user, status, text, created, updated, given)
VALUES (?1, ?2, ?3, ?4, 'queued', ?5, ?6, ?6, nullif(?7, ''))"""

BEGIN_RUN = "UPDATE runs SET status = 'running', updated = ? WHERE run_id = ? AND status = 'queued'"

# A row that comes late, after its run has ended, would outlive the run: it is not added.
ADD_STEP = """
INSERT INTO steps (run_id, step, body)
SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body"""

SPENT = "UPDATE runs SET usage = ? WHERE run_id = ?"

# For a list of three SQLite would build a table to look into.
END_RUN = """
UPDATE runs SET status = ?2, usage = ?3, detail = ?4, updated = ?5
WHERE run_id = ?1 AND (status = 'queued' OR status = 'running' OR status = 'waiting')"""

ADD_MESSAGE = """
INSERT INTO messages (session, pos, run_id, ts, role, body)
VALUES (?1, 1 + coalesce((SELECT max(pos) FROM messages WHERE session = ?1), 0), ?2, ?3, ?4, ?5)"""

CLEAR_STEPS = "DELETE FROM steps WHERE run_id = ?"

# The event of the run's end, until it stands in the journal of events (``events/rows.py``).
ADD_END = "INSERT INTO steps (run_id, step, body) VALUES (?, ?, ?)"

WITHDRAW_APPROVALS = transition("withdraw", "resolved = ?2", "run_id = ?1")

TOUCH_SESSION = "UPDATE sessions SET updated = max(updated, ?2) WHERE session = ?1"

HAND_OVER = """
UPDATE runs SET agent = ?2 WHERE run_id = ?1 AND status IN ('queued', 'running')"""

HAND_SESSION_OVER = """
UPDATE sessions SET agent = ?2
WHERE session = (SELECT session FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running'))"""

RESET_SESSION = """
UPDATE sessions
SET updated = max(updated, ?2),
    start_pos = 1 + coalesce((SELECT max(pos) FROM messages WHERE session = ?1), 0)
WHERE session = ?1
RETURNING 1"""


def accept(new: NewInput, now: float) -> tuple[Statement, ...]:
    """Store an input; :data:`CLAIM_KEY` or :data:`CLAIM_SESSION` fails for one it cannot have."""
    whose = (new.session, new.agent, new.user, now, new.parent, int(new.beside))
    text = storable(new.text)
    given = (new.run_id, new.session, new.agent, new.user, text, now, new.given)
    stored = (
        Statement(CLAIM_SESSION, whose, changes=1),
        Statement(HAS_ROWS, (new.session,)),
        Statement(ADD_RUN, given),
    )
    if new.key is None:
        return stored
    claim = (new.user, new.method, new.key, new.body_hash, new.run_id, now)
    forget = Statement(FORGET_KEYS, (now - KEY_LIFE,))
    return forget, Statement(CLAIM_KEY, claim, changes=1), *stored


def is_fresh(answer: Sequence[Sequence[Row]]) -> bool:
    """Whether the session of an accepted input has no rows; from what :func:`accept` returned."""
    return not answer[-2]


def hand_over(run_id: str, agent: str) -> tuple[Statement, ...]:
    return (Statement(HAND_OVER, (run_id, agent)), Statement(HAND_SESSION_OVER, (run_id, agent)))


def begin(run_id: str, now: float) -> Statement:
    return Statement(BEGIN_RUN, (now, run_id))


def record(run_id: str, step: int, row: ChatMessage, *, must: bool = False) -> Statement:
    """Journal one row. ``must``: it is an error when the run is unknown or has ended."""
    return Statement(ADD_STEP, (run_id, step, encode(row)), changes=1 if must else None)


def spent(run_id: str, usage: Usage) -> Statement:
    """What a run that goes on has used, for whoever takes it up."""
    return Statement(SPENT, (msgspec.json.encode(usage).decode(), run_id))


def enter(request: EnterRun, now: float) -> tuple[Statement, ...]:
    """Inputs enter a run; a statement fails when it, or one of them, has ended before."""
    usage, detail = msgspec.json.encode(Usage()).decode(), f"it has entered {request.run_id}"
    steps = enumerate(request.rows, request.step)
    return (
        *(record(request.run_id, step, row, must=True) for step, row in steps),
        *(
            Statement(END_RUN, (one, "steered", usage, detail, now), changes=1)
            for one in request.inputs
        ),
        *(to_tell(one, InputSteered(request.run_id)) for one in request.inputs),
    )


def finish(
    request: FinishRun, session: str, rows: Sequence[ChatMessage], now: float
) -> tuple[Statement, ...]:
    """End a run with these rows; the first statement fails when it has ended before."""
    run_id = request.run_id
    usage = msgspec.json.encode(request.usage).decode()
    end = (run_id, request.status, usage, storable(request.detail), now)
    escalation = request.escalation
    return (
        Statement(END_RUN, end, changes=1),
        *((add_escalation(run_id, escalation, now),) if escalation else ()),
        *((Statement(WITHDRAW_APPROVALS, (run_id, now)),) if request.withdraw else ()),
        *((Statement(ADD_MESSAGE, each=_stored(session, run_id, rows, now)),) if rows else ()),
        Statement(CLEAR_STEPS, (run_id,)),
        *((to_tell(run_id, request.event),) if request.event else ()),
        Statement(TOUCH_SESSION, (session, now)),
    )


def bodies(statements: Sequence[Statement]) -> list[str]:
    """The rows that :func:`finish` has stored, as they are on disk."""
    return [str(row[4]) for one in statements if one.sql is ADD_MESSAGE for row in one.each]


def _stored(
    session: str, run_id: str, rows: Sequence[ChatMessage], now: float
) -> tuple[tuple[SqlValue, ...], ...]:
    return tuple([(session, run_id, now, role(row), encode(row)) for row in rows])


def to_tell(run_id: str, event: InputEnd) -> Statement:
    """An end is kept until the journal of events has it."""
    return Statement(ADD_END, (run_id, END_STEP, text_of(event)))


def set_model(session: str, model: str | None) -> tuple[Statement, ...]:
    chosen = None if model is None else storable(model)
    return (Statement(SET_MODEL, (storable(session), chosen), expect=1),)


def reset(session: str, now: float) -> tuple[Statement, ...]:
    return (Statement(RESET_SESSION, (session, now), expect=1),)


# Queues as the session store writes and reads them: pure functions, statements and rows.


JOIN_TEXT = """
UPDATE runs SET text = ?2, updated = ?3 WHERE run_id = ?1 AND status = 'queued' RETURNING 1"""
SET_MODE = "UPDATE sessions SET queue_mode = ?2 WHERE session = ?1 RETURNING 1"
MODES_SET = "SELECT session, queue_mode FROM sessions WHERE queue_mode IS NOT NULL"


def join(request: JoinInputs, now: float) -> tuple[Statement, ...]:
    """A statement fails when the input, or one that is answered with it, has begun or ended."""
    usage, detail = msgspec.json.encode(Usage()).decode(), f"it has entered {request.run_id}"
    ends = ((one, "steered", usage, detail, now) for one in request.inputs)
    return (
        Statement(JOIN_TEXT, (request.run_id, storable(request.text), now), expect=1),
        *(Statement(END_RUN, end, changes=1) for end in ends),
        *(to_tell(one, InputSteered(request.run_id)) for one in request.inputs),
    )


def set_mode(request: SetQueueMode) -> tuple[Statement, ...]:
    return (Statement(SET_MODE, (request.session, request.mode), expect=1),)


def modes(found: Iterable[Row]) -> dict[str, QueueMode]:
    """Without those that only another motet knows."""
    known: dict[str, QueueMode] = {mode: mode for mode in MODES}
    return {str(session): known[str(mode)] for session, mode in found if str(mode) in known}


# Rows that are put into a transcript without a run, as transactions. Pure.
#
# Invariant: the rows and their key are stored together or not at all.


METHOD = "chat.inject"

ADD_ROW = """
INSERT INTO messages (session, pos, run_id, ts, role, body)
SELECT session,
       1 + coalesce((SELECT max(pos) FROM messages WHERE messages.session = ?1), 0),
       ?2, ?3, ?4, ?5
FROM sessions WHERE session = ?1
RETURNING 1"""


def inject(request: InjectRows, now: float) -> tuple[Statement, ...]:
    """``CLAIM_KEY`` fails for a key that was used, :data:`ADD_ROW` for an unknown session."""
    claim = (request.user, METHOD, request.key, request.body_hash, request.id, now)
    return (
        Statement(FORGET_KEYS, (now - KEY_LIFE,)),
        Statement(CLAIM_KEY, claim, changes=1),
        *(
            Statement(
                ADD_ROW,
                (request.session, request.id, now, rows.role(row), rows.encode(row)),
                expect=1,
            )
            for row in request.rows
        ),
        Statement(TOUCH_SESSION, (request.session, now)),
    )
