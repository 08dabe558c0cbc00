"""The tools of a server as tools of agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, cast

from motet.actors.mcp.names import tool_names
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Runner, Tool, ToolFailure
from motet.protocols.chat import JsonObject
from motet.protocols.mcp import MCP, CallMcpTool, McpAnswer, McpFailed, McpServer, McpTool
from motet.runtime import ActorDead

AskServer: TypeAlias = Callable[[CallMcpTool], Awaitable[McpAnswer]]

MARGIN = 10.0
"""Seconds that a tool's own time-out is longer than those of its server, which say more."""


def tools_of(
    server_name: str, server: McpServer, listed: Iterable[McpTool], ask: AskServer
) -> tuple[Tool, ...]:
    """Callable by models under valid names, in policies under ``mcp:<server>``.

    Unless its server says that it changes nothing, a tool counts as one that does: calls of it run
    one after the other, in the model's order.
    """
    listed = tuple(listed)
    names = tool_names(server_name, (tool.name for tool in listed))
    return tuple(
        Tool(
            name=names[tool.name],
            description=tool.description,
            parameters=tool.parameters,
            run=_runner(tool.name, ask),
            effects="read" if tool.read_only else "write",
            idempotent=tool.read_only,
            timeout=server.start_timeout + server.timeout + MARGIN,
            groups=(f"{MCP}{server_name}",),
        )
        for tool in listed
    )


def _runner(tool: str, ask: AskServer) -> Runner:
    async def run(_: Context[object], arguments: JsonObject) -> object:
        try:
            answer = await ask(CallMcpTool(tool, arguments))
        except McpFailed as failed:
            raise ToolFailure(str(failed), kind=_KINDS[failed.kind]) from failed
        except ActorDead as dead:
            raise ToolFailure(f"the MCP servers are not running: {dead}") from dead
        if answer.failed:
            raise ToolFailure(_words(answer.value), detail={"content": answer.value})
        return answer.value

    return run


_KINDS = {"unavailable": "unavailable", "timeout": "timeout", "refused": ""}


def _words(value: object) -> str:
    """What is said of a failure in an answer."""
    if isinstance(value, list):
        parts = cast("list[object]", value)
        value = next((part for part in parts if isinstance(part, str)), "")
    said = value.strip() if isinstance(value, str) else ""
    return said or "it failed and said no more"
