"""An agent's memory of a person, beyond the transcript of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from motet.protocols.chat import ChatMessage
from motet.protocols.messages import Request

Source: TypeAlias = Literal["user", "assistant", "note"]
"""Who said it; ``note``: an agent wrote it down on purpose."""


class Remembered(msgspec.Struct, frozen=True):
    """One thing that is remembered. ``created``: Unix seconds."""

    text: str
    source: Source
    created: float


class Memory(Protocol):
    """A memory for all sessions of a host.

    What one session has put in, the sessions of the same owner find, and no others (G16). Every
    method may raise anything and may be cancelled at its deadline: a run goes on without.
    """

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        """What may help with an input, the best first; asked before a turn."""
        ...

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        """The rows of a turn that has been completed."""
        ...

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        """What an agent looks for, the best first; what this session has said is found too."""
        ...

    async def write(self, text: str, session: str) -> None:
        """Remember a text that an agent found worth it."""
        ...


# What the memory actor is asked.


class FindMemories(Request[tuple[Remembered, ...]], frozen=True, tag="memory.find"):
    """What the owner of a session said or had written down that has words of a query.

    ``elsewhere``: without what this very session said, since its transcript has that.
    """

    query: str
    session: str
    limit: int
    elsewhere: bool = False


class Memorable(msgspec.Struct, frozen=True):
    """A text to remember."""

    text: str
    source: Source


class Memorize(Request[None], frozen=True, tag="memory.memorize"):
    """Remember texts for the owner of a session; answered after COMMIT."""

    session: str
    texts: tuple[Memorable, ...]


MemoryProtocol: TypeAlias = FindMemories | Memorize
