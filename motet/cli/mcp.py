"""``motet mcp``: the configured MCP servers, and what they offer when they are started."""

from __future__ import annotations

import shlex
import sys

import msgspec
import trio

from motet.actors.tools.mcp.directory import tool_names
from motet.actors.tools.mcp.session import Probe, probe_all
from motet.cli.exits import FAILED, OK
from motet.cli.render import one_line
from motet.cli.screen import STYLES, console
from motet.cli.setup import Setup
from motet.protocols.errors import UnknownName
from motet.protocols.mcp import MCP, McpServer

LIMIT = 30.0
"""Seconds that a server may take to start; less where it is configured so."""


def list_servers(setup: Setup, *, json: bool) -> int:
    """Print the configured servers. None is started."""
    servers = setup.config.mcp
    if json:
        rows = [{"name": name, "reached": _reached(server)} for name, server in servers.items()]
        print(msgspec.json.encode(rows).decode())
    elif servers:
        _print_table([(f"{MCP}{name}", _reached(server)) for name, server in servers.items()])
    else:
        print(f"no [mcp.NAME] in {setup.source}", file=sys.stderr)
    return OK


def list_server_tools(setup: Setup, server: str | None, *, json: bool) -> int:
    """Start one server, or all, and print its tools by the names models call; 1: one failed."""
    servers = setup.config.mcp
    if server is not None:
        name = server.removeprefix(MCP)
        if name not in servers:
            raise UnknownName("MCP server", name, tuple(servers))
        servers = {name: servers[name]}
    found = trio.run(probe_all, servers, LIMIT)
    if json:
        print(msgspec.json.encode(found).decode())
    else:
        for one in found:
            _print_tools(one)
    return FAILED if any(one.problem for one in found) else OK


def _print_tools(one: Probe) -> None:
    if one.problem:
        line = f"{MCP}{one.name}: {one_line(one.problem)}"
        console(sys.stderr).print(line, style=STYLES["failed"], markup=False)
        return
    print(f"{MCP}{one.name}: {one.about}", file=sys.stderr)
    names = tool_names(one.name, (tool.name for tool in one.tools))
    _print_table([(names[tool.name], one_line(tool.description)) for tool in one.tools])


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for name, about in rows:
        table.add_row(Text(name), Text(about, "dim"))
    console(sys.stdout).print(table)


def _reached(server: McpServer) -> str:
    return server.url or shlex.join(server.command)
