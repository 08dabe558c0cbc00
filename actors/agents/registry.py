"""The agents of one host by name: those of the program, and stored ones, loaded on demand.

Invariants: agents of code and configuration are found without waiting and never shadowed; one task
at a time loads a stored agent, which is cached for :data:`TTL`; expiry and invalidation replace its
configuration and nothing else, since runs, locks and queues live in the sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import attrs
import msgspec
import trio

from motet.actors.agents.skills import SKILL_TOOL_GROUP, SkillCatalog
from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import logger
from motet.actors.models.catalog import DEMO, PROVIDERS, ModelCatalog
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.mcp.tool_search import MCP_SEARCH
from motet.actors.tools.policy.engine import PolicyEngine
from motet.actors.tools.tool import Tool
from motet.protocols.agents import AgentRecord, AgentSource
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.host import AgentInfo
from motet.protocols.limits import Limits
from motet.protocols.models import Model

ALWAYS_OFFERED = ("get_error_detail", "get_tool_result")
"""For every agent that has tools: results of calls name these two."""
MEMORY = "group:memory"


class AgentRegistry:
    """Agents by name. Adding an agent resolves the names of its tools and its model.

    ``builtin``: the tools that an agent may name; ``groups``: names of several at once;
    ``offered``: models that users may choose besides those of the agents.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        models: ModelCatalog,
        builtin: Mapping[str, Tool],
        groups: Mapping[str, tuple[str, ...]],
        policy: PolicyEngine | None = None,
        skills: SkillCatalog | None = None,
        offered: Iterable[str] = (),
    ) -> None:
        self._catalog = catalog
        self._policy = policy or PolicyEngine(catalog)
        self._skills = skills or SkillCatalog()
        self._models = models
        self._offered = tuple(offered)
        for name in self._offered:
            models.get(name)
        self._builtin = builtin
        self._groups = groups
        self._agents: dict[str, AnyAgent] = {}
        self._tool_names: dict[str, tuple[str, ...]] = {}
        self._keys: dict[str, Model] = {}
        self._stored: set[str] = set()

    def add(self, agent: AnyAgent) -> None:
        """Register an agent. Adding the same one again changes nothing.

        It replaces a stored agent of its name. Raises ``ConfigError`` if another agent has its
        name, ``UnknownName`` for an unknown model provider or built-in tool.
        """
        known = self._agents.get(agent.name)
        if known is agent:
            return
        if known is not None and agent.name not in self._stored:
            raise ConfigError(f"this host has another agent named {agent.name!r}: rename one")
        self._set(agent)
        self._stored.discard(agent.name)

    def put(self, agent: AnyAgent) -> None:
        """Register or replace a stored agent: new runs get this one, live ones keep theirs.

        Its permissions change for live runs too: a tool that was taken away is gone at once.
        Raises as :meth:`add`.
        """
        if agent.name in self._agents and agent.name not in self._stored:
            raise ConfigError(f"this host has an agent of its own named {agent.name!r}")
        self._set(agent)
        self._stored.add(agent.name)

    def drop(self, name: str) -> None:
        """Unregister a stored agent. Its live runs go on without tools."""
        if name in self._stored:
            self._stored.discard(name)
            del self._agents[name], self._tool_names[name]
            self._catalog.remove(name)
            self._policy.drop_agent(name)

    def check(self, agent: AnyAgent) -> None:
        """Raise the errors that :meth:`put` would raise for the agent's model, tools and policy."""
        self._add_model(agent)
        tools = [tool.name for tool in self._complete(agent)]
        self._policy.check_agent(agent.name, agent.policy, tools)

    def own(self, name: str) -> AnyAgent | None:
        """The agent of that name, unless it is a stored one."""
        return None if name in self._stored else self._agents.get(name)

    def has(self, agent: AnyAgent) -> bool:
        """Whether this very agent is registered by its name."""
        return self._agents.get(agent.name) is agent

    def own_agents(self) -> tuple[AnyAgent, ...]:
        """All but the stored ones, in the order of their registration."""
        return tuple(agent for name, agent in self._agents.items() if name not in self._stored)

    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    def get(self, name: str) -> AnyAgent:
        """Raises ``UnknownName`` with the nearest known name."""
        try:
            return self._agents[name]
        except KeyError:
            raise UnknownName("agent", name, tuple(self._agents)) from None

    def first(self) -> AnyAgent:
        """The default agent."""
        if not self._agents:
            raise ConfigError("this host has no agents: give open_host(agents=...) one")
        return next(iter(self._agents.values()))

    def model(self, key: str) -> Model:
        """The model behind the name that :attr:`Agent.model_name` gives."""
        return self._keys.get(key) or self._models.get(key)

    def models(self) -> tuple[str, ...]:
        """The names of the models that a session may have."""
        names = (agent.model_name for agent in self._agents.values())
        return tuple(dict.fromkeys((*names, *self._offered)))

    def infos(self) -> tuple[AgentInfo, ...]:
        return tuple(
            AgentInfo(agent.name, agent.model_name, agent.description, self._tool_names[name])
            for name, agent in self._agents.items()
        )

    def _set(self, agent: AnyAgent) -> None:
        self._add_model(agent)
        tools = self._complete(agent)
        self._policy.set_agent(agent.name, agent.policy, [tool.name for tool in tools])
        sources = self._sources(agent)
        self._catalog.put(agent.name, tools, sources)
        names = (*(tool.name for tool in tools), *sources)
        self._tool_names[agent.name] = tuple(sorted(names))
        self._agents[agent.name] = agent
        for tool in tools:
            if tool.agent is not None:
                # Tools know nothing of agents, whose module needs theirs.
                self.add(cast("AnyAgent", tool.agent))

    def _complete(self, agent: AnyAgent) -> list[Tool]:
        """The tools that an agent is offered."""
        tools = self._resolve((*agent.tools, *((MEMORY,) if agent.memory else ())))
        if sources := self._sources(agent):
            tools += [tool for tool in (self._builtin[MCP_SEARCH],) if tool not in tools]
        if self._skills.offers(agent.profile):
            skills = [self._builtin[name] for name in SKILL_TOOL_GROUP["group:skills"]]
            tools += [tool for tool in skills if tool not in tools]
        if tools or sources:
            # From the first request on, since a stable list keeps the provider's cache.
            offered = [self._builtin[name] for name in ALWAYS_OFFERED if name in self._builtin]
            tools += [tool for tool in offered if tool not in tools]
        return tools

    def _add_model(self, agent: AnyAgent) -> None:
        if isinstance(agent.model, str):
            self._models.get(agent.model)
            return
        known = self._keys.setdefault(agent.model.name, agent.model)
        if known is not agent.model:
            raise ConfigError(
                f"agent {agent.name!r}: this host has another model object named "
                f"{agent.model.name!r}: give each its own name"
            )

    def _resolve(self, tools: Iterable[Tool | str]) -> list[Tool]:
        found: dict[str, Tool] = {}
        for item in tools:
            for tool in [item] if isinstance(item, Tool) else self._named(item):
                if found.setdefault(tool.name, tool) is not tool:
                    raise ConfigError(f"two tools are named {tool.name!r}: rename one")
        return list(found.values())

    def _named(self, name: str) -> list[Tool]:
        if name in self._groups:
            return [self._builtin[member] for member in self._groups[name]]
        if name in self._builtin:
            return [self._builtin[name]]
        if name in self._catalog.declared:
            return []
        known = (*self._builtin, *self._groups, *self._catalog.declared)
        raise UnknownName("tool", name, known)

    def _sources(self, agent: AnyAgent) -> tuple[str, ...]:
        """The MCP servers that an agent names. Their tools are known when they are asked."""
        declared = self._catalog.declared
        named = (name for name in agent.tools if isinstance(name, str) and name in declared)
        return tuple(dict.fromkeys(named))


TTL = 600.0
"""Seconds for which a stored agent is cached (seed 002)."""

_log = logger("motet.agents")


@attrs.frozen
class _Cached:
    agent: AnyAgent
    since: float


@attrs.define(eq=False)
class _Load:
    """A load under way. ``error``: its failure, for the other tasks that wait for it."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    error: Exception | None = None


class Resolver:
    """The agents of one host by name.

    Args:
        source: the store; None: there is none.
        providers: names of model providers. The first one is for agents that name none.
        limits: for stored agents that have none of their own.
    """

    def __init__(
        self,
        registry: AgentRegistry,
        source: AgentSource | None = None,
        *,
        providers: Sequence[str] = tuple(PROVIDERS),
        limits: Limits | None = None,
        ttl: float = TTL,
    ) -> None:
        self._registry = registry
        self._source = source
        self._providers = tuple(providers)
        self._limits = limits or Limits()
        self._ttl = ttl
        self._cache: dict[str, _Cached] = {}
        self._loads: dict[str, _Load] = {}

    def __repr__(self) -> str:
        return f"<Resolver kept={len(self._cache)} loading={len(self._loads)}>"

    async def resolve(self, name: str) -> AnyAgent:
        """The agent of that name. Returns at once for a registered or cached one.

        Cancelling a caller harms no other: if it was loading, the next one in line loads. Raises
        ``UnknownName`` with the nearest name, ``ConfigError`` for an inactive or impossible agent,
        and the errors of the source.
        """
        own = self._registry.own(name)
        while own is None:
            kept = self._cache.get(name)
            if kept is not None and trio.current_time() - kept.since <= self._ttl:
                return kept.agent
            load = self._loads.get(name)
            if load is None:
                agent = await self._load_for_all(name)
                if agent is not None:
                    return agent
            else:
                await load.ended.wait()
                if load.error is not None:
                    raise load.error
            own = self._registry.own(name)
        return own

    def adopt(self, registry: AgentRegistry, limits: Limits) -> None:
        """Use another registry from now on. Stored agents are loaded again."""
        self._registry, self._limits = registry, limits
        self.invalidate()

    def known(self, name: str) -> AnyAgent | None:
        """The agent of that name, if it is registered or cached."""
        kept = self._cache.get(name)
        return self._registry.own(name) or (kept.agent if kept is not None else None)

    def invalidate(self, name: str | None = None) -> None:
        """Load an agent again at its next use; None: all of them.

        A load under way may have read the agent before the change, so it is not cached.
        """
        if name is None:
            self._cache.clear()
            self._loads.clear()
        else:
            self._cache.pop(name, None)
            self._loads.pop(name, None)

    async def put(self, record: AgentRecord) -> None:
        """Store an agent, or replace the one of its name, from the next run on.

        Raises ``ConfigError``, ``UnknownName`` for one that could never run, before storing it.
        """
        if self._registry.own(record.name) is not None:
            raise ConfigError(
                f"agent {record.name!r} is defined by the program or its configuration, which "
                "comes before a store: choose another name"
            )
        self._registry.check(await self._built(record))
        try:
            await self._stored().put(record)
        finally:
            self.invalidate(record.name)

    async def remove(self, name: str) -> bool:
        """Delete a stored agent; live runs go on. False: there was none."""
        try:
            return await self._stored().remove(name)
        finally:
            self.invalidate(name)
            self._registry.drop(name)

    async def records(self) -> tuple[AgentRecord, ...]:
        """The stored agents, by name."""
        return await self._source.records() if self._source else ()

    async def _load_for_all(self, name: str) -> AnyAgent | None:
        """Load for all waiting callers; None if the agent was invalidated meanwhile."""
        load = self._loads[name] = _Load()
        try:
            agent = await self._load(name)
            if self._loads.get(name) is not load:
                return None
            if self._registry.own(name) is None:
                self._registry.put(agent)
                self._cache[name] = _Cached(agent, trio.current_time())
                return agent
            return None
        except Exception as error:
            load.error = error
            raise
        finally:
            if self._loads.get(name) is load:
                del self._loads[name]
            load.ended.set()

    async def _load(self, name: str) -> AnyAgent:
        record = await self._source.get(name) if self._source else None
        if record is None:
            self._registry.drop(name)
            known = {*self._registry.names(), *(stored.name for stored in await self.records())}
            raise UnknownName("agent", name, sorted(known))
        if record.status == "inactive":
            self._registry.drop(name)
            raise ConfigError(f"agent {name!r} is inactive: store it as active to use it again")
        return await self._built(record)

    async def _built(self, record: AgentRecord) -> AnyAgent:
        files = record.profile.files
        if files is not None and not await trio.Path(files).is_dir():
            raise ConfigError(f"agent {record.name!r}: its files {files!r} are not a folder")
        return agent_of(record, self._providers, self._limits)

    def _stored(self) -> AgentSource:
        if self._source is None:
            raise ConfigError("this host has no store of agents")
        return self._source


def agent_of(record: AgentRecord, providers: Sequence[str], limits: Limits) -> AnyAgent:
    """The agent that a record describes, its defaults filled in. Raises ``ConfigError``."""
    chosen = record.limits or limits
    if record.iterations > 0:
        chosen = msgspec.structs.replace(chosen, turns=record.iterations)
    return AgentSpec(
        record.name,
        model=model_name(record, providers),
        instructions=record.instructions,
        description=record.description,
        tools=record.tools,
        limits=chosen,
        memory=record.memory,
        profile=record.profile,
        policy=record.policy,
    )


def model_name(record: AgentRecord, providers: Sequence[str]) -> str:
    """``provider:model`` of a record: the provider it names, else the first one registered."""
    if DEMO in (record.provider, record.model):
        return DEMO
    if not record.provider and ":" in record.model:
        return record.model
    if record.provider in providers:
        return f"{record.provider}:{record.model}"
    if not providers:
        raise ConfigError(f"agent {record.name!r}: this host has no model provider")
    if record.provider:
        _log.warning(
            "an agent names a provider that is not registered; the first one is used",
            agent=record.name,
            provider=record.provider,
            instead=providers[0],
        )
    return f"{providers[0]}:{record.model}"
