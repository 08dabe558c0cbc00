"""The tool that gives a model the pages of a result it has seen the head of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import msgspec

from motet.actors.results.detail import PAGE_LIMIT, page_text
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.chat import JsonObject

Pages: TypeAlias = Callable[[str, object, object, object], Awaitable[JsonObject]]
"""``pages(session, result_id, offset, limit)``: ``success`` with ``data``, or with ``error``."""

_DESCRIPTION = (
    "Get more of a large tool result, by the Result ID that its first part names. offset and "
    "limit count lines, or the items of an array; a page is at most 16 KB. Only results of this "
    "session are found, for one hour after their last use."
)


def tool_result_tools(pages: Pages) -> list[Tool]:
    """``get_tool_result``, bound to the caller's session.

    An answer without success fails the call, and is not stored as an error.
    """

    async def get_tool_result(
        ctx: Context[object], result_id: str, offset: int = 0, limit: int | None = None
    ) -> str:
        answer = await pages(ctx.session, result_id, offset, limit)
        if answer.get("success") is not True:
            raise ToolRetry(msgspec.json.encode(answer).decode())
        return page_text(cast(JsonObject, answer["data"]))

    return [tool(get_tool_result, description=_DESCRIPTION, max_output=PAGE_LIMIT)]
