"""The memory tools of an agent: search and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Range, Tool, tool
from motet.protocols.chat import JsonObject
from motet.protocols.memory import Memory, Remembered

MEMORY_TOOL_GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"group:memory": ("memory_search", "memory_write")}
)
"""Both tools by one name."""

_SEARCH = (
    "Search what was said in all conversations with this user, and the notes about them, for any "
    "of the words of the query. The best fit comes first."
)
_WRITE = (
    "Write a note about this user that later conversations will find: one fact or wish in a full "
    "sentence with the words somebody would search for."
)


def memory_tools(memory: Memory) -> list[Tool]:
    """``memory_search`` and ``memory_write``, for the owner of the caller's session (G16)."""

    async def memory_search(
        ctx: Context[object],
        query: Annotated[str, Length(1)],
        limit: Annotated[int, Range(1, 20)] = 5,
    ) -> list[JsonObject]:
        return _shown(await memory.search(query, ctx.session, limit))

    async def memory_write(ctx: Context[object], text: Annotated[str, Length(1, 4_000)]) -> str:
        await memory.write(text, ctx.session)
        return "Noted."

    return [
        tool(memory_search, description=_SEARCH, effects="read"),
        tool(memory_write, description=_WRITE, effects="write"),
    ]


def _shown(found: Sequence[Remembered]) -> list[JsonObject]:
    return [
        {
            "date": f"{datetime.fromtimestamp(item.created, UTC):%Y-%m-%d}",
            "source": item.source,
            "text": item.text,
        }
        for item in found
    ]
