"""An agent's memory of a person, beyond the transcript of a session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.messages import Request

Source: TypeAlias = Literal["user", "assistant", "note"]
"""The author; ``note``: an agent wrote it down on purpose."""


class Remembered(msgspec.Struct, frozen=True):
    """One memory. ``created``: Unix seconds."""

    text: str
    source: Source
    created: float


class Memory(Protocol):
    """The memory of all sessions of a host.

    Only sessions of the same owner find what a session has stored (G16). Every method may raise
    anything and may be cancelled at its deadline: a run goes on without it.
    """

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        """Memories relevant to an input, best first; called before a turn."""
        ...

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        """Take the rows of a completed turn."""
        ...

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        """Search for an agent, best first; memories of this session are included."""
        ...

    async def write(self, text: str, session: str) -> None:
        """Remember a text at an agent's request."""
        ...


# Messages of the memory store


class FindMemories(Request[tuple[Remembered, ...]], frozen=True, tag="memory.find"):
    """Memories of the owner of a session that contain words of a query.

    ``elsewhere``: without the talk of this session, which its transcript has.
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


# What is remembered, and what is searched for

WORDS: Final = 24
"""Words of a query that are searched for: the longest."""
_WORD: Final = re.compile(r"\w{2,64}")


def memorable(rows: Sequence[ChatMessage]) -> tuple[Memorable, ...]:
    """The talk of a turn, without results of tools and without texts beside calls."""
    said: list[Memorable] = []
    for row in rows:
        match row:
            case UserMessage(text=text) if row.note != "hint":
                said.append(Memorable(text, "user"))
            case AssistantMessage(text=text) if not row.calls and not row.note:
                said.append(Memorable(text, "assistant"))
            case _:
                pass
    return tuple(said)


def full_text_query(text: str) -> str:
    """A query that matches any of the words; quotes keep words from being operators."""
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text))
    longest = sorted(words, key=len, reverse=True)[:WORDS]
    return " OR ".join(f'"{word}"' for word in longest)
