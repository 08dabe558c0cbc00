"""Compaction as the store knows it: a start pointer that moves forward, and the summary before it.

Pure: requests to statements, rows to structs. Invariants: rows of ``messages`` are not touched; a
summary is shown only while the start pointer stands where it ends, so that a reset leaves it on
disk and out of sight; the pointer never goes back, and at least one row stands behind a summary.
"""

from __future__ import annotations

from collections.abc import Sequence

from motet.actors.sessions.store_rows import history_row
from motet.protocols.sessions import MarkFlushed, SessionContext, StoreSummary
from motet.protocols.storage import Row, Statement

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
