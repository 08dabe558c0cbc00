"""The MCP servers of a host: their actors, and what agents get of them.

Invariants: a server is started when an agent that names it runs for the first time, or with the
host where that is configured; one that cannot be used costs a run its tools, never the run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import attrs
import trio

from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.mcp.tool_search import (
    MCP_SEARCH,
    PromptTool,
    called,
    foreign,
    is_small,
    search,
    shown,
)
from motet.actors.tools.policy.engine import PolicyEngine
from motet.actors.tools.policy.rules import BUILTIN, RESULTS
from motet.actors.tools.tool import Length, Range, Runner, Tool, ToolFailure, tool
from motet.protocols.chat import ChatMessage, JsonObject
from motet.protocols.mcp import (
    MCP,
    CallMcpTool,
    GetMcpStatus,
    ListMcpTools,
    McpAnswer,
    McpFailed,
    McpServer,
    McpStatus,
    McpTool,
)
from motet.protocols.policy import Subject
from motet.protocols.tools import ToolSpec
from motet.runtime import ActorDead, ActorRef, System

if TYPE_CHECKING:
    from motet.actors.tools.mcp.server import GetServer, McpProtocol


# Names that models can call for the tools of a server: ``mcp__git__status``.
#
# Laws: every name has 1 to 64 letters, digits, ``_`` and ``-``; different tools have different
# names; a tool's name does not depend on the order in which tools are listed; tools of different
# servers never meet, since no server's name holds ``__``. Pure.


LENGTH = 64
_HASH = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The name for the model of each tool, by the server's own name for it.

    One that fits stays as it is. Others have ``_`` for what may not stand in a name; where that is
    too long, or is the name of another tool, a hash of the whole name tells them apart.
    """
    prefix = f"mcp__{server}__"
    plain = {tool: prefix + (_OTHER.sub("_", tool) or "_") for tool in tools}
    shared = Counter(plain.values())
    return {
        tool: name if _fits(prefix + tool, name, shared[name]) else _hashed(name, tool)
        for tool, name in plain.items()
    }


def _fits(own: str, name: str, sharers: int) -> bool:
    return len(name) <= LENGTH and (own == name or sharers == 1)


def _hashed(name: str, tool: str) -> str:
    digest = sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    return f"{name[: LENGTH - _HASH - 1]}_{digest}"


# The tools of a server as tools of agents.


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


_SEARCH = (
    "Search the tools of connected services for any of the words of the query. The best fit comes "
    "first; what is found can be called from then on."
)


Specs: TypeAlias = tuple[ToolSpec, ...]


@attrs.define(eq=False)
class _Shared:
    """A server that is used by the directories ``users``.

    Attributes:
        parent: the actor above its own.
        left: the servers below that one which somebody uses.
    """

    users: list[McpDirectory]
    parent: ActorRef[GetServer]
    left: set[str]


class McpDirectory:
    """The servers of one host. Everything here is for the host's own tasks.

    Attributes:
        servers: by name, as configured.
        policy: the tools that a run may know of.
        found: the tools that a run has searched for, by its id; the search adds to them.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer] | None = None,
        catalog: ToolCatalog | None = None,
        *,
        found: Callable[[str], set[str]] | None = None,
    ) -> None:
        self.servers = dict(servers or {})
        self._catalog = catalog or ToolCatalog()
        self._found = found or defaultdict[str, set[str]](set).__getitem__
        self.policy = PolicyEngine(self._catalog)
        self._refs: dict[str, ActorRef[McpProtocol]] = {}
        self._shared: dict[str, _Shared] = {}
        self._shown: dict[str, tuple[Specs, frozenset[str], Specs]] = {}
        self._catalog.declare(self.sources)

    @property
    def sources(self) -> tuple[str, ...]:
        """How agents and policies call them."""
        return tuple(f"{MCP}{name}" for name in self.servers)

    def tools(self) -> dict[str, Tool]:
        """What an agent that has servers gets beside their tools."""
        if not self.servers:
            return {}

        async def look(
            ctx: Context[object],
            query: Annotated[str, Length(1)],
            limit: Annotated[int, Range(1, 20)] = 5,
        ) -> list[dict[str, str]] | str:
            tools = self.listed(ctx.agent, ctx.subjects)
            best = search(tools, query, limit)
            self._found(ctx.run_id).update(one.name for one in best)
            if best:
                return [{"name": one.name, "description": one.description} for one in best]
            names = (source.removeprefix(MCP) for source in self._catalog.sources(ctx.agent))
            return f"Nothing fits. {len(tools)} tools come from: {', '.join(names)}."

        made = tool(look, name=MCP_SEARCH, description=_SEARCH, effects="read")
        # It tells of nothing that the run may not call: a list of what it may need not name it.
        return {MCP_SEARCH: attrs.evolve(made, groups=(RESULTS, BUILTIN))}

    def share(self, before: McpDirectory) -> None:
        """Use the servers of another directory that are configured as here."""
        for name, ref in before._refs.items():
            if self.servers.get(name) == before.servers[name] and ref.is_alive:
                self._refs[name], shared = ref, before._shared[name]
                shared.users.append(self)
                self._shared[name] = shared
                offered = before._catalog.provided_by(f"{MCP}{name}")
                if offered is not None:
                    self._catalog.provide(f"{MCP}{name}", offered)

    async def start(self, system: System, name: str = "mcp") -> None:
        """Start the actors that are not shared; of the servers, only those that are to start at
        once. ``name``: of the actor above them. Cancelled or failed, :meth:`leave` ends the rest.
        """
        own = {name: one for name, one in self.servers.items() if name not in self._refs}
        if not own:
            return
        from motet.actors.tools.mcp.server import GetServer, McpServers

        parent = await system.start(lambda: McpServers(own, self.offer), name=name)
        left = set(own)
        self._shared |= {server: _Shared([self], parent, left) for server in own}
        for server in own:
            self._refs[server] = await parent.ask(GetServer(server))

    async def leave(self) -> None:
        """End the servers that no other directory shares; nothing here is used afterwards."""
        async with trio.open_nursery() as nursery:
            for name, shared in self._shared.items():
                if self in shared.users:
                    shared.users.remove(self)
                if shared.users:
                    continue
                shared.left.discard(name)
                if not shared.left:
                    nursery.start_soon(shared.parent.stop)
                elif name in self._refs:
                    nursery.start_soon(self._refs[name].stop)

    def offer(self, name: str, listed: tuple[McpTool, ...]) -> None:
        """Take what a server offers now; agents that name it have it at once."""
        made = tools_of(name, self.servers[name], listed, partial(self._ask, name))
        shared = self._shared.get(name)
        for directory in shared.users if shared is not None else (self,):
            directory._catalog.provide(f"{MCP}{name}", made)

    async def prepare(self, agent: str) -> tuple[str, ...]:
        """Wait until the servers of an agent have said what they offer; why some have not."""
        if not self.servers:
            return ()
        unknown = [
            source.removeprefix(MCP)
            for source in self._catalog.sources(agent)
            if not self._catalog.provided(source)
        ]
        if not unknown:
            return ()
        problems: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                await self._refs[name].ask(ListMcpTools())
            except (McpFailed, ActorDead) as failed:
                problems[name] = str(failed)

        async with trio.open_nursery() as nursery:
            for name in unknown:
                nursery.start_soon(ask, name)
        return tuple(problems[name] for name in sorted(problems))

    def shown(
        self, agent: str, specs: Specs, found: set[str], history: Iterable[ChatMessage]
    ) -> Specs:
        """The tools of an agent that its model is shown; the same object for the same tools.

        ``found``: what its run has searched for; it takes what ``history`` has called.
        """
        if not self.servers or not self._catalog.sources(agent):
            return specs
        if not is_small(foreign(specs)):
            found |= called(history)
        before, names = self._shown.get(agent), frozenset(found)
        if before is None or before[0] is not specs or before[1] != names:
            before = self._shown[agent] = (specs, names, shown(specs, names))
        return before[2]

    def listed(self, agent: str, subjects: tuple[Subject, ...]) -> tuple[PromptTool, ...]:
        """All the tools of servers that an agent may call for ``subjects``, for its prompt."""
        if not self.servers or not self._catalog.sources(agent):
            return ()
        return foreign(self.policy.offered(subjects, self._catalog.specs(agent)))

    async def statuses(self) -> tuple[McpStatus, ...]:
        """How each server is; starts none."""
        return tuple([await ref.ask(GetMcpStatus()) for ref in self._refs.values()])

    async def _ask(self, name: str, request: CallMcpTool) -> McpAnswer:
        return await self._refs[name].ask(request)
