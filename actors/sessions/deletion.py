"""Deleting a session: every table that knows of it, in one transaction. Pure.

It is the one exception to "rows are only added": a session goes whole, with those of its
sub-agents, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from motet.protocols.storage import Row, Statement

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
