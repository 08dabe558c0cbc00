"""Stores behind the gateway: answers kept for resends, and the sessions of conversations.

Every call may raise a ``StorageError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import attrs
import msgspec

IdempotencyScope: TypeAlias = tuple[str, str, str]
"""User, method and idempotency key."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer as JSON, and the digest of the request. ``since``: Unix seconds."""

    scope: IdempotencyScope
    request_digest: str
    answer: str
    since: float


class IdempotencyStore(Protocol):
    """The answers that were given under a key."""

    async def load(self, since: float, most: int) -> tuple[StoredAnswer, ...]:
        """The latest ``most`` since then, oldest first."""
        ...

    async def save(self, answers: Sequence[StoredAnswer], forget: float) -> None:
        """Store these, and drop all keys from before ``forget``."""
        ...


class Conversations(Protocol):
    """The sessions of conversations by the digest of all that was said in them."""

    async def find(self, state: str) -> str | None:
        """The session whose newest state this is."""
        ...

    async def note(self, session: str, state: str) -> None:
        """Replace a session's state. When it returns, the new state is stored."""
        ...


@attrs.frozen(eq=False)
class GatewayStores:
    """The part of a gateway that survives a restart, beside tokens."""

    idempotency: IdempotencyStore
    conversations: Conversations
