"""Which session a conversation belongs to that a client only sends the messages of.

Clients of the OpenAI format keep a conversation themselves and send all of it each time. What they
send is not trusted as history: it is compared with what was said here, by its digest, and only
tells which session goes on. Invariant: a conversation is found only by whom it was with, and only
as long as nothing else was said in its session by this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

import attrs
import msgspec

from motet.actors.storage.readers import Readers
from motet.actors.tokens import Transact
from motet.protocols.storage import Statement

MOST: Final = 1_000

Said: TypeAlias = tuple[str, str]
"""A role and a text."""

_FIND = "SELECT session FROM conversations WHERE state = ?"
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

    transact: Transact
    readers: Readers

    async def find(self, state: str) -> str | None:
        found = await self.readers.read(_FIND, (state,))
        return str(found[0][0]) if found else None

    async def note(self, session: str, state: str) -> None:
        noted = Statement(_NOTE, (state, session))
        await self.transact((Statement(_FORGET, (session,)), noted))
