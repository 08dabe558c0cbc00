"""Idempotency keys of inputs, messages and gateway methods; and the gateway's conversations.

A key is scoped to (user, method). Invariants: a key and the row it stands for are stored in one
transaction; a key that a message has used stays the message's: its row has a run and no answer. A
key expires after :data:`KEY_LIFE`; the key of a resent input never does, since that input may be
sent again at most once.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import storable
from motet.protocols.gateway_stores import StoredAnswer
from motet.protocols.sessions import RESEND, KeyConflict
from motet.protocols.storage import Commit, SqlValue, Statement
from motet.runtime.outside import steady_time

KEY_LIFE = 24 * 3600.0
"""Seconds for which a resend with the same idempotency key is recognised."""

FORGET_KEYS = f"DELETE FROM idempotency WHERE ts <= ? AND method <> '{RESEND}'"

CLAIM_KEY = """
INSERT INTO idempotency (user, method, key, body_hash, run_id, ts) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""

_FIND_KEY = "SELECT run_id, body_hash FROM idempotency WHERE user = ? AND method = ? AND key = ?"


def claim_key(
    user: str, method: str, key: str, body_hash: str, stands_for: str
) -> tuple[Statement, Statement]:
    """Forget expired keys and claim this one; :data:`CLAIM_KEY` fails when it is taken.

    By steady time: a wall clock that is put right would make all keys old.
    """
    now = steady_time()
    claim = (user, method, key, body_hash, stands_for, now)
    return Statement(FORGET_KEYS, (now - KEY_LIFE,)), Statement(CLAIM_KEY, claim, changes=1)


async def is_used(readers: Readers, user: str, method: str, key: str) -> bool:
    """Whether a key stands for something already. Raises ``StorageError``."""
    of = (user, method, storable(key), steady_time() - KEY_LIFE)
    return bool(await readers.point(f"{_FIND_KEY} AND ts > ?", of))


async def first_use(
    readers: Readers, user: str, method: str, key: str, *body_hash: str, of: str = "input"
) -> str | None:
    """The id that the key stands for; None if it expired since it was found taken.

    Of several hashes, each is that of the body, as some version of motet made it.
    Raises ``KeyConflict`` when it was used for another body.
    """
    for stands_for, first_hash in await readers.read(_FIND_KEY, (user, method, key)):
        if first_hash not in body_hash:
            raise KeyConflict(f"the key {key!r} was used for another {of}: use a new key for each")
        return str(stands_for)
    return None


# The gateway's own stores: answers of methods under their keys, and conversations by their state.

_LOAD = (
    "SELECT user, method, key, body_hash, answer, ts FROM idempotency"
    " WHERE answer IS NOT NULL AND ts > ? ORDER BY ts DESC LIMIT ?"
)
_SAVE = (
    "INSERT INTO idempotency (user, method, key, body_hash, run_id, answer, ts)"
    " VALUES (?, ?, ?, ?, '', ?, ?) ON CONFLICT DO NOTHING"
)
_FIND = "SELECT session FROM conversations WHERE state = ?"
_FORGET = "DELETE FROM conversations WHERE session = ?"
_NOTE = (
    "INSERT INTO conversations (state, session) VALUES (?, ?)"
    " ON CONFLICT (state) DO UPDATE SET session = excluded.session"
)


@attrs.frozen(eq=False)
class SqliteIdempotency:
    """An :class:`~motet.protocols.gateway_stores.IdempotencyStore`."""

    transact: Commit
    readers: Readers

    async def load(self, since: float, most: int) -> tuple[StoredAnswer, ...]:
        found = await self.readers.read(_LOAD, (since, most))
        return tuple(
            StoredAnswer(
                (str(user), str(method), str(key)), str(digest), str(answer), float(ts or 0)
            )
            for user, method, key, digest, answer, ts in reversed(found)
        )

    async def save(self, answers: Sequence[StoredAnswer], forget: float) -> None:
        rows = tuple(_row(one) for one in answers)
        await self.transact((Statement(FORGET_KEYS, (forget,)), Statement(_SAVE, each=rows)))


def _row(one: StoredAnswer) -> tuple[SqlValue, ...]:
    user, method, key = map(storable, one.scope)
    return user, method, key, one.request_digest, storable(one.answer), one.since


@attrs.frozen(eq=False)
class SqliteConversations:
    """:class:`~motet.protocols.gateway_stores.Conversations` of a host with a database."""

    transact: Commit
    readers: Readers

    async def find(self, state: str) -> str | None:
        found = await self.readers.read(_FIND, (state,))
        return str(found[0][0]) if found else None

    async def note(self, session: str, state: str) -> None:
        noted = Statement(_NOTE, (state, session))
        await self.transact((Statement(_FORGET, (session,)), noted))
