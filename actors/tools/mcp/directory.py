"""The MCP servers of a host, and their tools as tools of agents.

Invariants: a server is started when an agent that names it runs for the first time, or with the
host where that is configured; one that cannot be used costs a run its tools, never the run.

Names of tools (:func:`tool_names`), such as ``mcp__git__status``: every name has 1 to 64 letters,
digits, ``_`` and ``-``; different tools have different names; a name does not depend on the order
in which tools are listed; tools of different servers never collide, since no server's name holds
``__``.
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

from motet.actors.tools.arguments import ForeignArguments
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
from motet.actors.tools.tool import Length, Range, Runner, Tool, tool
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
from motet.protocols.tools import ToolFailure, ToolNegative, ToolRetry, ToolSpec
from motet.runtime import ActorDead, ActorRef, System

if TYPE_CHECKING:
    from motet.actors.tools.mcp.server import GetServer, McpProtocol

LENGTH = 64
_HASH = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The name of each tool for the model, by the server's own name for it.

    A valid name is kept. In others, ``_`` replaces each invalid character; where the result is too
    long, or equals another tool's name, it ends with a hash of the whole name.
    """
    prefix = f"mcp__{server}__"
    plain = {tool: prefix + (_OTHER.sub("_", tool) or "_") for tool in tools}
    shared = Counter(plain.values())
    for own, name in plain.items():
        # Of two tools that share a name, one whose own name it is keeps it.
        if len(name) > LENGTH or (name != prefix + own and shared[name] > 1):
            digest = sha256(own.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
            plain[own] = f"{name[: LENGTH - _HASH - 1]}_{digest}"
    return plain


AskServer: TypeAlias = Callable[[CallMcpTool], Awaitable[McpAnswer]]

MARGIN = 10.0
"""Seconds that a tool's time-out exceeds those of its server, whose messages say more."""


def tools_of(
    server_name: str, server: McpServer, listed: Iterable[McpTool], ask: AskServer
) -> tuple[Tool, ...]:
    """The tools of a server, in the group ``mcp:<server>`` of policies.

    A tool counts as one that writes, so that its calls run one after the other in the model's
    order, unless its server declares it read-only. One with a problem is not offered.
    """
    listed = tuple(tool for tool in listed if not tool.problem)
    names = tool_names(server_name, (tool.name for tool in listed))
    return tuple(
        Tool(
            name=names[tool.name],
            description=tool.description,
            parameters=tool.parameters,
            accepts=ForeignArguments(tool.parameters),  # compiled by its first call
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
            text, kind, failure = str(failed), failed.kind, failed.failure
            if failure == "argument":
                raise ToolRetry(text) from failed
            if failure == "negative":
                raise ToolNegative(text) from failed
            raise ToolFailure(text, kind=kind, failure=failure) from failed
        except ActorDead as dead:
            text = f"the MCP servers are not running: {dead}"
            raise ToolFailure(text, failure="infrastructure") from dead
        if answer.failed:  # the tool's own answer
            raise ToolNegative(_message(answer.value), value=answer.value or _message(answer.value))
        return answer.value

    return run


def _message(value: object) -> str:
    """The text of a failed answer."""
    if isinstance(value, list):
        parts = cast("list[object]", value)
        value = next((part for part in parts if isinstance(part, str)), "")
    text = value.strip() if isinstance(value, str) else ""
    return text or "it failed and said no more"


_SEARCH = (
    "Search the tools of connected services for any of the words of the query. The best fit comes "
    "first; what is found can be called from then on."
)

Specs: TypeAlias = tuple[ToolSpec, ...]


@attrs.define(eq=False)
class _Shared:
    """A server and the directories that use it: those of several configurations after a reload.

    Attributes:
        parent: the parent of its actor.
        siblings: the servers below that parent that are in use.
    """

    users: list[McpDirectory]
    parent: ActorRef[GetServer]
    siblings: set[str]


class McpDirectory:
    """The servers of one configuration of a host.

    Attributes:
        servers: by name, as configured.
        policy: the tools that a run may know of.
        found: the tools that a run has searched for, by its id; the search adds to them.
    """

    def __init__(
        self,
        servers: Mapping[str, McpServer] | None = None,
        catalog: ToolCatalog | None = None,
        policy: PolicyEngine | None = None,
        *,
        found: Callable[[str], set[str]] | None = None,
    ) -> None:
        self.servers = dict(servers or {})
        self._catalog = catalog or ToolCatalog()
        self._found = found or defaultdict[str, set[str]](set).__getitem__
        self.policy = policy or PolicyEngine(self._catalog)
        self._refs: dict[str, ActorRef[McpProtocol]] = {}
        self._shared: dict[str, _Shared] = {}
        self._shown: dict[str, tuple[Specs, frozenset[str], Specs]] = {}
        self._catalog.declare(self.sources)

    @property
    def sources(self) -> tuple[str, ...]:
        """Their names for agents and policies."""
        return tuple(f"{MCP}{name}" for name in self.servers)

    def tools(self) -> dict[str, Tool]:
        """The search, for agents that have servers."""
        if not self.servers:
            return {}

        async def find(
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

        made = tool(find, name=MCP_SEARCH, description=_SEARCH, effects="read")
        # It finds only tools that the run may call, so that an allow list need not name it.
        return {MCP_SEARCH: attrs.evolve(made, groups=(RESULTS, BUILTIN))}

    def share(self, before: McpDirectory) -> None:
        """Take over the servers of another directory that are configured alike."""
        for name, ref in before._refs.items():
            if self.servers.get(name) == before.servers[name] and ref.is_alive:
                self._refs[name], shared = ref, before._shared[name]
                shared.users.append(self)
                self._shared[name] = shared
                offered = before._catalog.provided_by(f"{MCP}{name}")
                if offered is not None:
                    self._catalog.provide(f"{MCP}{name}", offered)

    async def start(self, system: System, name: str = "mcp") -> None:
        """Start the actors that are not shared; of the servers, only the eager ones.

        ``name``: of their parent. After a cancellation or an error, :meth:`close` ends the rest.
        """
        own = {name: one for name, one in self.servers.items() if name not in self._refs}
        if not own:
            return
        from motet.actors.tools.mcp.server import GetServer, McpServers

        parent = await system.start(lambda: McpServers(own, self.publish), name=name)
        siblings = set(own)
        self._shared |= {server: _Shared([self], parent, siblings) for server in own}
        for server in own:
            self._refs[server] = await parent.ask(GetServer(server))

    async def close(self) -> None:
        """End the servers that no other directory shares."""
        async with trio.open_nursery() as nursery:
            for name, shared in self._shared.items():
                if self in shared.users:
                    shared.users.remove(self)
                if shared.users:
                    continue
                shared.siblings.discard(name)
                if not shared.siblings:
                    nursery.start_soon(shared.parent.stop)
                elif name in self._refs:
                    nursery.start_soon(self._refs[name].stop)

    def publish(self, name: str, listed: tuple[McpTool, ...]) -> None:
        """Take the current tools of a server; agents that name it have them at once."""
        made = tools_of(name, self.servers[name], listed, partial(self._ask, name))
        shared = self._shared.get(name)
        for directory in shared.users if shared is not None else (self,):
            directory._catalog.provide(f"{MCP}{name}", made)

    async def prepare(self, agent: str) -> tuple[str, ...]:
        """Wait until the servers of an agent have listed their tools; returns why some have not."""
        unknown = [
            source.removeprefix(MCP)
            for source in self._catalog.sources(agent)
            if self._catalog.provided_by(source) is None
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

        ``found``: the tools that its run has searched for; those called in ``history`` are added.
        """
        if not self._catalog.sources(agent):
            return specs
        if not is_small(foreign(specs)):
            found |= called(history)
        before, names = self._shown.get(agent), frozenset(found)
        if before is None or before[0] is not specs or before[1] != names:
            before = self._shown[agent] = (specs, names, shown(specs, names))
        return before[2]

    def listed(self, agent: str, subjects: tuple[Subject, ...]) -> tuple[PromptTool, ...]:
        """All the tools of servers that an agent may call for ``subjects``, for its prompt."""
        if not self._catalog.sources(agent):
            return ()
        return foreign(self.policy.offered(subjects, self._catalog.specs(agent)))

    async def statuses(self) -> tuple[McpStatus, ...]:
        """The status of each server; starts none."""
        return tuple([await ref.ask(GetMcpStatus()) for ref in self._refs.values()])

    async def _ask(self, name: str, request: CallMcpTool) -> McpAnswer:
        return await self._refs[name].ask(request)
