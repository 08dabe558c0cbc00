"""The tools that come with motet: files, shell, web, memories, and details of stored errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
import trio

from motet.actors.tools.builtin.files import file_tools
from motet.actors.tools.builtin.shell import shell_tool
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Range, Tool, tool
from motet.protocols.chat import JsonObject, json_object
from motet.protocols.config import HttpConfig, ShellConfig
from motet.protocols.error_pages import Part, error_page
from motet.protocols.memory import Memory, Remembered
from motet.protocols.redaction.redact import is_large
from motet.protocols.tools import ToolRetry

if TYPE_CHECKING:
    from motet.actors.tools.builtin.http import Fetch

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "group:fs": ("read_file", "write_file", "edit_file", "list_files"),
        "group:shell": ("shell",),
        "group:web": ("http_fetch",),
    }
)
"""The groups that a configuration can name."""
FETCH_MARGIN = 5.0
"""Seconds that the time-out of ``http_fetch`` exceeds that of its request."""

Lookup: TypeAlias = Callable[[Context[object], object], Awaitable[JsonObject]]
"""Reads an error of the session by its id: ``success`` with ``data``, or with ``error``."""

_ERROR_DETAIL = (
    "Get the complete details of an error by the id that stands in a failed tool result, such as "
    "err_20250131_093000_a1b2c3. Only errors of this session, its sub-agents and its callers are "
    "found. A long error comes in pages: part is head or tail, offset skips so many characters "
    'from there, as next_offset says; part="search" lists the lines with the query.'
)

MEMORY_TOOL_GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"group:memory": ("memory_search", "memory_write")}
)
"""Both tools by one name."""

_SEARCH_MEMORY = (
    "Search what was said in all conversations with this user, and the notes about them, for any "
    "of the words of the query. The best fit comes first."
)
_WRITE_MEMORY = (
    "Write a note about this user that later conversations will find: one fact or wish in a full "
    "sentence with the words somebody would search for."
)


def builtin_tools(
    shell: ShellConfig | None = None, http: HttpConfig | None = None, lookup: Lookup | None = None
) -> dict[str, Tool]:
    """Every built-in tool by its name, in a stable order.

    A shell that is switched off is included, and says so. ``lookup`` adds the tools that read
    stored errors.
    """
    tools = [*file_tools(), shell_tool(shell or ShellConfig()), http_tool(http or HttpConfig())]
    if lookup is not None:
        tools += error_detail_tools(lookup)
    return {tool.name: tool for tool in tools}


def error_detail_tools(lookup: Lookup) -> list[Tool]:
    """``get_error_detail`` and its alias ``get_error_details``, bound to the caller's session.

    An answer without success fails the call, and is not stored as another error.
    """

    async def get_error_detail(
        ctx: Context[object], error_id: str, part: Part = "head", query: str = "", offset: int = 0
    ) -> JsonObject:
        answer = await lookup(ctx, error_id)
        if answer.get("success") is True:
            data = json_object(answer["data"])
            if is_large(data):  # megabytes take longer than others should wait
                answer = await trio.to_thread.run_sync(error_page, data, part, query, offset)
            else:
                answer = error_page(data, part, query, offset)
        if answer.get("success") is False:
            raise ToolRetry(msgspec.json.encode(answer).decode())
        return answer

    names = ("get_error_detail", "get_error_details")
    return [tool(get_error_detail, name=name, description=_ERROR_DETAIL) for name in names]


def http_tool(config: HttpConfig) -> Tool:
    """The ``http_fetch`` tool. The HTTP client is imported by its first call."""

    @cache
    def fetch() -> Fetch:
        from motet.actors.tools.builtin.http import fetcher

        return fetcher(config)

    async def http_fetch(url: str, method: Literal["GET", "HEAD"] = "GET", offset: int = 0) -> str:
        return await fetch()(url, method, offset)

    return tool(
        http_fetch,
        description="Fetch a web page or file by its http or https address. HTML is given as "
        "readable text with its links, JSON and other text as it is. HEAD gives the headers only. "
        "A long text comes in pages: offset is the character to begin with.",
        timeout=config.timeout + FETCH_MARGIN,
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
        tool(memory_search, description=_SEARCH_MEMORY, effects="read"),
        tool(memory_write, description=_WRITE_MEMORY, effects="write"),
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
