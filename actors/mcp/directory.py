"""The MCP servers of a host: their actors, and what agents get of them.

Invariants: a server is started when an agent that names it runs for the first time, or with the
host where that is configured; one that cannot be used costs a run its tools, never the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import attrs
import trio

from motet.actors.agent.prompt.equipment import MCP_SEARCH, is_small
from motet.actors.agent.prompt.given import PromptTool
from motet.actors.mcp.offer import called, foreign, search, shown
from motet.actors.mcp.tools import tools_of
from motet.actors.policy.desk import PolicyDesk
from motet.actors.policy.names import BUILTIN, RESULTS
from motet.actors.sessions.run import Run
from motet.actors.sessions.table import RunTable
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Range, Tool, tool
from motet.protocols.chat import ChatMessage
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
from motet.protocols.tools import ToolSpec
from motet.runtime import ActorDead, ActorRef, System

if TYPE_CHECKING:
    from motet.actors.mcp.client import McpProtocol
    from motet.actors.mcp.servers import GetServer

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
        policy: which of the tools a run may know of.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer] | None = None,
        catalog: ToolCatalog | None = None,
        table: RunTable | None = None,
    ) -> None:
        self.servers = dict(servers or {})
        self._catalog = catalog or ToolCatalog()
        self._table = table or RunTable()
        self.policy = PolicyDesk(self._catalog)
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
            return self._search(self._table.runs[ctx.run_id], query, limit)

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
        from motet.actors.mcp.servers import GetServer, McpServers  # most hosts have none

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

    def shown(self, run: Run, specs: Specs, history: Iterable[ChatMessage]) -> Specs:
        """What of its tools a run's model is shown; the same object for the same tools."""
        name = run.agent.name
        if not self.servers or not self._catalog.sources(name):
            return specs
        if not is_small(foreign(specs)):
            run.found |= called(history)
        before = self._shown.get(name)
        if before is None or before[0] is not specs or before[1] != frozenset(run.found):
            found = frozenset(run.found)
            before = self._shown[name] = (specs, found, shown(specs, found))
        return before[2]

    def listed(self, run: Run) -> tuple[PromptTool, ...]:
        """All the tools of servers that a run may call, for its prompt."""
        name = run.agent.name
        if not self.servers or not self._catalog.sources(name):
            return ()
        return foreign(self.policy.offered(run.subjects, self._catalog.specs(name)))

    async def statuses(self) -> tuple[McpStatus, ...]:
        """How each server is; starts none."""
        return tuple([await ref.ask(GetMcpStatus()) for ref in self._refs.values()])

    def _search(self, run: Run, query: str, limit: int) -> list[dict[str, str]] | str:
        tools = self.listed(run)
        best = search(tools, query, limit)
        run.found |= {one.name for one in best}
        if best:
            return [{"name": one.name, "description": one.description} for one in best]
        names = ", ".join(
            source.removeprefix(MCP) for source in self._catalog.sources(run.agent.name)
        )
        return f"Nothing fits. {len(tools)} tools come from: {names}."

    async def _ask(self, name: str, request: CallMcpTool) -> McpAnswer:
        return await self._refs[name].ask(request)
