"""``motet tools`` and ``motet mcp``: the tools of an agent, with the rule that decides on each, and
the tools of the configured MCP servers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory

import attrs
import msgspec
import trio

from motet.actors.host import open_host
from motet.actors.hosting.config import DEFAULT_AGENTS
from motet.actors.tools.mcp.directory import tool_names
from motet.actors.tools.mcp.session import open_connection
from motet.actors.tools.mcp.stdio import End, StderrLog
from motet.actors.tools.policy.rules import BUILTIN
from motet.cli.exits import FAILED, OK
from motet.cli.render import in_json, one_line
from motet.cli.screen import STYLES, console
from motet.cli.setup import Setup
from motet.protocols.errors import MissingExtra, UnknownName
from motet.protocols.mcp import MCP, McpServer, McpTool
from motet.protocols.policy import Effect, Judged, ToolsList
from motet.protocols.redaction.redact import registered_secrets
from motet.protocols.sessions import LOCAL, Principal, Role
from motet.runtime.errors import only_error
from motet.runtime.outside import foreign_code

_COLOURS: dict[Effect, str] = {"allow": "green", "ask": "yellow", "deny": "red"}


def list_tools(
    setup: Setup, agent: str, user: str | None, role: Role | None, session: str, *, json: bool
) -> int:
    """Print the tools of a configured agent, those that are denied as well."""
    who = _principal(setup, user, role)
    tools = trio.run(_judged, setup, agent, session, who)
    if json:
        print(in_json(ToolsList(agent, who.user, who.role, tools)))
        return OK
    print(f"{agent}, for {one_line(who.user)} ({who.role})", file=sys.stderr)
    _print_table(tools)
    for server in _servers(setup, agent):
        line = f"{server}: its tools are known when it is connected, by a run"
        console(sys.stderr).print(line, style=STYLES["note"], markup=False)
    return OK


def _principal(setup: Setup, user: str | None, role: Role | None) -> Principal:
    """The principal of a user: the role of their token, else an operator, or the local user."""
    if user is None:
        return Principal(LOCAL.user, role or LOCAL.role)
    roles: list[Role] = [token.role for token in setup.config.gateway.tokens if token.user == user]
    return Principal(user, role or (roles[0] if roles else "operator"))


async def _judged(setup: Setup, agent: str, session: str, who: Principal) -> tuple[Judged, ...]:
    """Rulings of a host in memory, which are those of a server."""
    with TemporaryDirectory() as folder:
        config = attrs.evolve(setup.config, state=None, hooks=())
        agents = setup.agents()
        async with open_host(config=config, agents=agents, workspace=folder) as host:
            return await host.tools(agent, session=session, principal=who)


def _servers(setup: Setup, agent: str) -> list[str]:
    named = (setup.config.agents or DEFAULT_AGENTS)[agent].tools
    return [name for name in named if name.startswith(MCP)]


def _print_table(tools: tuple[Judged, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("tool", "", "an hour", "decided by", "groups"):
        right = heading == "an hour"
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for one in tools:
        why = f"{one.rule} ({one.reason})" if one.reason else one.rule
        limit = "" if one.effect == "deny" else str(one.per_hour or "no limit")
        table.add_row(
            Text(one.name),
            Text(one.effect, _COLOURS[one.effect]),
            Text(limit),
            Text(one_line(why)),
            Text(" ".join(group for group in one.groups if group != BUILTIN), "dim"),
        )
    console(sys.stdout).print(table)


# MCP servers


LIMIT = 30.0
"""Seconds that a server may take to start; less where it is configured so."""


def list_servers(setup: Setup, *, json: bool) -> int:
    """Print the configured servers. None is started."""
    servers = setup.config.mcp
    if json:
        rows = [{"name": name, "reached": _reached(server)} for name, server in servers.items()]
        print(in_json(rows))
    elif servers:
        _print_rows([(f"{MCP}{name}", _reached(server)) for name, server in servers.items()])
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
        print(in_json(found))
    else:
        for one in found:
            _print_tools(one)
    return FAILED if any(one.problem for one in found) else OK


class Probe(msgspec.Struct, frozen=True):
    """The result of a test connection to a server.

    Attributes:
        about: the server's own name and version, and its protocol.
        problem: why it cannot be used; empty when it can.
    """

    name: str
    about: str = ""
    tools: tuple[McpTool, ...] = ()
    problem: str = ""


async def probe(name: str, server: McpServer, limit: float) -> Probe:
    """Start one server within ``limit`` seconds, list its tools and end it. Never raises."""
    server = attrs.evolve(server, start_timeout=min(server.start_timeout, limit))
    log, end = StderrLog(name), End()
    with registered_secrets(server.secrets):
        try:
            with foreign_code:
                async with open_connection(server, log, end) as (connection, tools):
                    return Probe(name, connection.about(), tools)
        except MissingExtra as error:
            return Probe(name, problem=str(error))
        except Exception as raised:
            why, last = end.reason or str(only_error(raised)), log.last()
            return Probe(name, problem=f"{why}; it said: {last}" if last else why)


async def probe_all(servers: Mapping[str, McpServer], limit: float) -> tuple[Probe, ...]:
    """Probe all servers at once; in the order of their names."""
    found: dict[str, Probe] = {}

    async def one(name: str) -> None:
        found[name] = await probe(name, servers[name], limit)

    async with trio.open_nursery() as nursery:
        for name in servers:
            nursery.start_soon(one, name)
    return tuple(found[name] for name in sorted(found))


def _print_tools(one: Probe) -> None:
    if one.problem:
        line = f"{MCP}{one.name}: {one_line(one.problem)}"
        console(sys.stderr).print(line, style=STYLES["failed"], markup=False)
        return
    print(f"{MCP}{one.name}: {one.about}", file=sys.stderr)
    offered = [tool for tool in one.tools if not tool.problem]
    names = tool_names(one.name, (tool.name for tool in offered))
    _print_rows([(names[tool.name], one_line(tool.description)) for tool in offered])
    for tool in one.tools:
        if tool.problem:
            line = f"not offered: {one_line(tool.name)}: {one_line(tool.problem)}"
            console(sys.stderr).print(line, style=STYLES["note"], markup=False)


def _print_rows(rows: list[tuple[str, str]]) -> None:
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
