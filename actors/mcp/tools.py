"""The tools of a server as tools of agents."""

from __future__ import annotations

from collections.abc import Iterable

from motet.actors.mcp.client import McpProtocol
from motet.actors.mcp.names import tool_names
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Runner, Tool, ToolFailure
from motet.protocols.chat import JsonObject
from motet.protocols.mcp import MCP, CallMcpTool, McpFailed, McpServer, McpTool
from motet.runtime import ActorDead, ActorRef

MARGIN = 10.0
"""Seconds that a tool's own time-out is longer than those of its server, which say more."""


def tools_of(
    server_name: str, server: McpServer, listed: Iterable[McpTool], ref: ActorRef[McpProtocol]
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
            run=_runner(tool.name, ref),
            effects="read" if tool.read_only else "write",
            timeout=server.start_timeout + server.timeout + MARGIN,
            groups=(f"{MCP}{server_name}",),
        )
        for tool in listed
    )


def _runner(tool: str, ref: ActorRef[McpProtocol]) -> Runner:
    async def run(_: Context[object], arguments: JsonObject) -> object:
        try:
            answer = await ref.ask(CallMcpTool(tool, arguments))
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
        value = next((part for part in value if isinstance(part, str)), "")
    return (
        value.strip() if isinstance(value, str) and value.strip() else "it failed and said no more"
    )
