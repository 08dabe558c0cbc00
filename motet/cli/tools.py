"""``motet tools``: the tools of an agent for somebody, and the rule that decides on each."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

import attrs
import msgspec
import trio

from motet.actors.host import open_host
from motet.actors.hosting.config import DEFAULT_AGENTS
from motet.actors.tools.policy.rules import BUILTIN
from motet.cli.exits import OK
from motet.cli.render import one_line
from motet.cli.screen import STYLES, console
from motet.cli.setup import Setup
from motet.protocols.mcp import MCP
from motet.protocols.policy import Effect, Judged, ToolsList
from motet.protocols.sessions import LOCAL, Principal, Role

_COLOURS: dict[Effect, str] = {"allow": "green", "ask": "yellow", "deny": "red"}


def list_tools(
    setup: Setup, agent: str, user: str | None, role: Role | None, session: str, *, json: bool
) -> int:
    """Print the tools of a configured agent, those that are denied as well."""
    who = _principal(setup, user, role)
    tools = trio.run(_judged, setup, agent, session, who)
    if json:
        print(msgspec.json.encode(ToolsList(agent, who.user, who.role, tools)).decode())
        return OK
    print(f"{agent}, for {one_line(who.user)} ({who.role})", file=sys.stderr)
    _print_table(tools)
    for server in _servers(setup, agent):
        line = f"{server}: its tools are known when it is connected, by a run"
        console(sys.stderr).print(line, style=STYLES["note"], markup=False)
    return OK


def _principal(setup: Setup, user: str | None, role: Role | None) -> Principal:
    """Somebody with a token has its role; who has none is an operator, and one is oneself."""
    if user is None:
        return Principal(LOCAL.user, role or LOCAL.role)
    roles: list[Role] = [token.role for token in setup.config.gateway.tokens if token.user == user]
    return Principal(user, role or (roles[0] if roles else "operator"))


async def _judged(setup: Setup, agent: str, session: str, who: Principal) -> tuple[Judged, ...]:
    """From a host in memory, which rules as the one that serves does."""
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
