"""What the session store writes, as transactions: pure functions from a request to statements.

There is no branching inside a transaction. What must hold is said by the number of rows that a
statement returns or changes, and the whole is rolled back when it does not. Invariants: a key, its
session and its run are stored together or not at all; rows of ``messages`` are only added, at the
next position of their session; a run that has ended is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from motet.actors.events.rows import END_STEP, text_of
from motet.actors.sessions.escalations import add as add_escalation
from motet.actors.sessions.store_rows import encode, role
from motet.protocols.chat import ChatMessage
from motet.protocols.events import InputEnd, InputSteered
from motet.protocols.models import Usage
from motet.protocols.sessions import EnterRun, FinishRun, NewInput
from motet.protocols.storage import Row, SqlValue, Statement, storable

KEY_LIFE = 24 * 3600.0
"""Seconds for which a resend with the same idempotency key is recognised."""

SET_MODEL = "UPDATE sessions SET model = ?2 WHERE session = ?1 RETURNING 1"

RESEND = "runs.resend"
"""The method of a key by which an input is sent again: at most once, whenever."""

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

WITHDRAW_APPROVALS = """
UPDATE approvals SET state = 'withdrawn', resolved = ?2 WHERE run_id = ?1 AND state = 'pending'"""

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
