"""Escalations as the session store writes and reads them: pure functions, statements and rows.

Invariant: an escalation is on record with the end of its run or not at all, and is answered once.
"""

from __future__ import annotations

import msgspec

from motet.actors.sessions.store_rows import LIST_LIMIT, Query, clamped, matching
from motet.protocols.escalations import (
    AnswerEscalation,
    EscalationInfo,
    ListEscalations,
    NewEscalation,
    escalation_id,
)
from motet.protocols.storage import Row, Statement

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
