"""What the memory actor is asked."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from motet.protocols.memory import Remembered, Source
from motet.protocols.messages import Request


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
