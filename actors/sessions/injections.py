"""Rows that are put into a transcript without a run, as transactions. Pure.

Invariant: the rows and their key are stored together or not at all.
"""

from __future__ import annotations

from motet.actors.sessions import store_rows as rows
from motet.actors.sessions import store_sql as sql
from motet.protocols.injections import InjectRows
from motet.protocols.storage import Statement

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
        Statement(sql.FORGET_KEYS, (now - sql.KEY_LIFE,)),
        Statement(sql.CLAIM_KEY, claim, changes=1),
        *(
            Statement(
                ADD_ROW,
                (request.session, request.id, now, rows.role(row), rows.encode(row)),
                expect=1,
            )
            for row in request.rows
        ),
        Statement(sql.TOUCH_SESSION, (request.session, now)),
    )
