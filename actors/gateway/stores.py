"""What was answered under a key, on disk, so that a resend after a restart finds it.

An answer is noted when it was given, by a task beside: a stop must not wait for a disk that may be
stuck. So a kill within the few milliseconds until the commit has a resend carried out again, which
stops what the next host has taken up in spite of the stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

import attrs
import msgspec

from motet.actors.storage.readers import Readers
from motet.actors.storage.session_sql import FORGET_KEYS
from motet.protocols.storage import Commit, SqlValue, Statement, storable

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

    transact: Commit
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


# Which session a conversation belongs to that a client only sends the messages of.
#
# Clients of the OpenAI format keep a conversation themselves and send all of it each time. What
# they send is not trusted as history: it is compared with what was said here, by its digest, and
# only tells which session goes on. Invariant: a conversation is found only by whom it was with,
# and only as long as nothing else was said in its session by this way.


MOST: Final = 1_000

Said: TypeAlias = tuple[str, str]
"""A role and a text."""

_FIND_of_conversations = "SELECT session FROM conversations WHERE state = ?"
_FORGET = "DELETE FROM conversations WHERE session = ?"
_NOTE = (
    "INSERT INTO conversations (state, session) VALUES (?, ?)"
    " ON CONFLICT (state) DO UPDATE SET session = excluded.session"
)


def digest_of(user: str, agent: str, said: Sequence[Said]) -> str:
    """What a conversation is known by; spaces around its texts do not count."""
    stripped = [(role, text.strip()) for role, text in said]
    return sha256(msgspec.json.encode((user, agent, stripped))).hexdigest()


class Conversations(Protocol):
    """The newest state of each conversation."""

    async def find(self, state: str) -> str | None:
        """The session whose newest state this is."""
        ...

    async def note(self, session: str, state: str) -> None:
        """A session is in this state now, and in no other."""
        ...


@attrs.define(eq=False)
class Remembered:
    """Those of a gateway without a database, at most :data:`MOST`; the least recent go first."""

    _states: dict[str, str] = attrs.field(init=False, factory=dict[str, str])

    async def find(self, state: str) -> str | None:
        return next((one for one, newest in self._states.items() if newest == state), None)

    async def note(self, session: str, state: str) -> None:
        others = {one: now for one, now in self._states.items() if one != session and now != state}
        while len(others) >= MOST:
            del others[next(iter(others))]
        self._states = others | {session: state}


@attrs.frozen(eq=False)
class Stored:
    """Those of a host, on disk before the client has the answer that they end with.

    Both may raise a ``StorageError``.
    """

    transact: Commit
    readers: Readers

    async def find(self, state: str) -> str | None:
        found = await self.readers.read(_FIND_of_conversations, (state,))
        return str(found[0][0]) if found else None

    async def note(self, session: str, state: str) -> None:
        noted = Statement(_NOTE, (state, session))
        await self.transact((Statement(_FORGET, (session,)), noted))
