"""Stored answers of the gateway, so that a resend after a restart finds them; and conversations.

Plain statements over ``transact`` and ``readers``: the gateway waits for the disk itself. A key
that a message has used stays the message's: its row has a run and no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from motet.actors.storage.idempotency import FORGET_KEYS
from motet.actors.storage.readers import Readers
from motet.protocols.gateway_stores import StoredAnswer
from motet.protocols.storage import Commit, SqlValue, Statement, storable

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
