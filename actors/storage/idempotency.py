"""Idempotency keys in storage: claimed with what they are for, recognised when they are sent again.

A key is scoped to (user, method). Invariant: a key and the row it stands for are stored in one
transaction. A key expires after :data:`KEY_LIFE`; the key of a resent input never does, since that
input may be sent again at most once.
"""

from __future__ import annotations

from motet.actors.storage.readers import Readers
from motet.protocols.sessions import RESEND, KeyConflict
from motet.protocols.storage import Statement

KEY_LIFE = 24 * 3600.0
"""Seconds for which a resend with the same idempotency key is recognised."""

FORGET_KEYS = f"DELETE FROM idempotency WHERE ts <= ? AND method <> '{RESEND}'"

CLAIM_KEY = """
INSERT INTO idempotency (user, method, key, body_hash, run_id, ts) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""

_FIND_KEY = "SELECT run_id, body_hash FROM idempotency WHERE user = ? AND method = ? AND key = ?"


def claim_key(
    user: str, method: str, key: str, body_hash: str, stands_for: str, now: float
) -> tuple[Statement, Statement]:
    """Forget expired keys and claim this one; :data:`CLAIM_KEY` fails when it is taken."""
    claim = (user, method, key, body_hash, stands_for, now)
    return Statement(FORGET_KEYS, (now - KEY_LIFE,)), Statement(CLAIM_KEY, claim, changes=1)


async def first_use(
    readers: Readers, user: str, method: str, key: str, body_hash: str, *, of: str = "input"
) -> str | None:
    """The id that the key stands for; None if it expired since it was found taken.

    Raises ``KeyConflict`` when it was used for another body.
    """
    for stands_for, first_hash in await readers.read(_FIND_KEY, (user, method, key)):
        if first_hash != body_hash:
            raise KeyConflict(f"the key {key!r} was used for another {of}: use a new key for each")
        return str(stands_for)
    return None
