"""Which session a conversation belongs to that a client only sends the messages of.

Clients of the OpenAI format keep a conversation themselves and send all of it each time. What they
send is not trusted as history: it is compared with what was said here, by its digest, and only
tells which session goes on. Invariant: a conversation is found only by whom it was with, and only
as long as nothing else was said in its session by this way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import attrs
import msgspec

MOST: Final = 10_000

Said: TypeAlias = tuple[str, str]
"""A role and a text."""


def digest_of(user: str, agent: str, said: Sequence[Said]) -> bytes:
    """What a conversation is known by; spaces around its texts do not count."""
    stripped = [(role, text.strip()) for role, text in said]
    return sha256(msgspec.json.encode((user, agent, stripped))).digest()


@attrs.define(eq=False)
class Conversations:
    """The newest state of at most :data:`MOST` conversations; the least recent go first."""

    _sessions: OrderedDict[bytes, str] = attrs.field(init=False, factory=OrderedDict[bytes, str])
    _states: dict[str, bytes] = attrs.field(init=False, factory=dict[str, bytes])

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, state: bytes) -> str | None:
        """The session whose newest state this is."""
        return self._sessions.get(state)

    def note(self, session: str, state: bytes) -> None:
        """A session is in this state now, and in no other."""
        before = self._states.pop(session, None)
        if before is not None:
            del self._sessions[before]
        replaced = self._sessions.pop(state, None)
        if replaced is not None:
            del self._states[replaced]
        self._sessions[state], self._states[session] = session, state
        if len(self._sessions) > MOST:
            _, oldest = self._sessions.popitem(last=False)
            del self._states[oldest]
