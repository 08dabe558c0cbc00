"""The session of a conversation whose client sends all messages each time, as OpenAI's clients do.

The messages are not trusted as history: their digest is compared with the session's own, and only
tells which session to continue. Invariant: a conversation is found only for its own user and agent,
and only until something else is said in its session over this API.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import attrs
import msgspec

MOST: Final = 1_000

Message: TypeAlias = tuple[str, str]
"""A role and a text."""


def state_digest(user: str, agent: str, messages: Sequence[Message]) -> str:
    """The identity of a conversation's state; spaces around its texts do not count."""
    stripped = [(role, text.strip()) for role, text in messages]
    return sha256(msgspec.json.encode((user, agent, stripped))).hexdigest()


@attrs.define(eq=False)
class MemoryConversations:
    """For a gateway without a database: at most :data:`MOST`, the least recent are dropped."""

    _states: dict[str, str] = attrs.field(init=False, factory=dict[str, str])

    async def find(self, state: str) -> str | None:
        return next((one for one, newest in self._states.items() if newest == state), None)

    async def note(self, session: str, state: str) -> None:
        others = {one: now for one, now in self._states.items() if one != session and now != state}
        while len(others) >= MOST:
            del others[next(iter(others))]
        self._states = others | {session: state}
