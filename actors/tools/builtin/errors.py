"""The tool that gives a model the whole of an error it has seen the summary of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.chat import JsonObject

Lookup: TypeAlias = Callable[[Context[object], object], Awaitable[JsonObject]]
"""A whole error of the session by its id: ``success`` with ``data``, or without and ``error``."""

_DESCRIPTION = (
    "Get the complete details of an error by the id that stands in a failed tool result, such as "
    "err_20250131_093000_a1b2c3. Only errors of this session are found."
)


def error_detail_tools(lookup: Lookup) -> list[Tool]:
    """``get_error_detail`` and its alias ``get_error_details``, bound to the caller's session.

    An answer without success fails the call, and is not stored as an error in its turn.
    """

    async def get_error_detail(ctx: Context[object], error_id: str) -> JsonObject:
        answer = await lookup(ctx, error_id)
        if answer.get("success") is False:
            raise ToolRetry(msgspec.json.encode(answer).decode())
        return answer

    names = ("get_error_detail", "get_error_details")
    return [tool(get_error_detail, name=name, description=_DESCRIPTION) for name in names]
