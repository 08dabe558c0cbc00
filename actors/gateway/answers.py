"""What was answered under a key, on disk, so that a resend after a restart finds it.

An answer is noted when it was given, by a task beside: a stop must not wait for a disk that may be
stuck. So a kill within the few milliseconds until the commit has a resend carried out again, which
stops what the next host has taken up in spite of the stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from motet.actors.sessions.store_sql import FORGET_KEYS
from motet.actors.storage.readers import Readers
from motet.actors.tokens import Transact
from motet.protocols.storage import SqlValue, Statement, storable

Whose: TypeAlias = tuple[str, str, str]
"""User, method and key."""

_FIND = (
    "SELECT user, method, key, body_hash, answer, ts FROM idempotency"
    " WHERE answer IS NOT NULL AND ts > ? ORDER BY ts DESC LIMIT ?"
)
# A message may have had the key: then that is what it was used for.
_ADD = (
    "INSERT INTO idempotency (user, method, key, body_hash, run_id, answer, ts)"
    " VALUES (?, ?, ?, ?, '', ?, ?) ON CONFLICT DO NOTHING"
)


@attrs.frozen
class Given:
    """An answer as JSON, and the digest of what it is the answer to. ``since``: Unix seconds."""

    whose: Whose
    body: str
    answer: str
    since: float


@attrs.frozen(eq=False)
class AnswerBook:
    """The answers of one host's gateways. Both calls may raise a ``StorageError``."""

    transact: Transact
    readers: Readers

    async def read(self, since: float, most: int) -> tuple[Given, ...]:
        """The latest, oldest first."""
        found = await self.readers.read(_FIND, (since, most))
        return tuple(
            Given((str(user), str(method), str(key)), str(body), str(answer), float(ts or 0))
            for user, method, key, body, answer, ts in reversed(found)
        )

    async def keep(self, given: Sequence[Given], forget: float) -> None:
        """Store these; keys of before ``forget`` are used no more."""
        rows = tuple(_row(one) for one in given)
        await self.transact((Statement(FORGET_KEYS, (forget,)), Statement(_ADD, each=rows)))


def _row(one: Given) -> tuple[SqlValue, ...]:
    user, method, key = map(storable, one.whose)
    return user, method, key, one.body, storable(one.answer), one.since
