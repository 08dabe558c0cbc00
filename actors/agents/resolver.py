"""Resolves the name of an agent to the agent: the program's own, else one from a store.

Invariants: what code and configuration have named is found without waiting and never shadowed;
a stored agent is loaded by one task at a time and kept for :data:`TTL`; expiry and invalidation
replace its configuration and nothing else, since runs, locks and queues live in the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
import trio

from motet.actors.agent.definition import Agent, AnyAgent
from motet.actors.log import logger
from motet.actors.models.catalog import DEMO
from motet.actors.models.providers import PROVIDERS
from motet.actors.registry import AgentRegistry
from motet.protocols.agents import AgentRecord, AgentSource
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.limits import Limits

TTL = 600.0
"""Seconds after which a stored agent is looked up again, when it is used (seed 002)."""

_log = logger("motet.agents")


@attrs.frozen
class _Kept:
    agent: AnyAgent
    since: float


@attrs.define(eq=False)
class _Load:
    """A load under way; ``error``: what it failed with, for those who wait for it."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    error: Exception | None = None


class Resolver:
    """The agents of one host by name.

    Args:
        source: where stored agents are; None: nowhere.
        providers: names of model providers, the first of them for agents that name none.
        limits: of stored agents that have none of their own.
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
        self._kept: dict[str, _Kept] = {}
        self._loads: dict[str, _Load] = {}

    def __repr__(self) -> str:
        return f"<Resolver kept={len(self._kept)} loading={len(self._loads)}>"

    async def resolve(self, name: str) -> AnyAgent:
        """The agent of that name. Returns at once for what is known and fresh.

        Cancelling one who waits harms nobody: if they were loading, the next in line loads.
        Raises ``UnknownName`` with the nearest name of all sources, ``ConfigError`` for an
        inactive or impossible agent, and whatever the source raises.
        """
        own = self._registry.own(name)
        while own is None:
            kept = self._kept.get(name)
            if kept is not None and trio.current_time() - kept.since <= self._ttl:
                return kept.agent
            load = self._loads.get(name)
            if load is None:
                agent = await self._lead(name)
                if agent is not None:
                    return agent
            else:
                await load.ended.wait()
                if load.error is not None:
                    raise load.error
            own = self._registry.own(name)
        return own

    def adopt(self, registry: AgentRegistry, limits: Limits) -> None:
        """Resolve into another registry from now on; stored agents are looked up again."""
        self._registry, self._limits = registry, limits
        self.invalidate()

    def known(self, name: str) -> AnyAgent | None:
        """The agent of that name, if it is there without waiting."""
        kept = self._kept.get(name)
        return self._registry.own(name) or (kept.agent if kept is not None else None)

    def invalidate(self, name: str | None = None) -> None:
        """Look an agent up again at its next use; None: all of them.

        What is being loaded now was perhaps read before the change, and will not be kept.
        """
        if name is None:
            self._kept.clear()
            self._loads.clear()
        else:
            self._kept.pop(name, None)
            self._loads.pop(name, None)

    async def put(self, record: AgentRecord) -> None:
        """Store an agent, or replace the one of its name, from the next run on.

        Raises ``ConfigError``, ``UnknownName`` for what could never run, before it is stored.
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
        """Forget a stored agent; live runs go on. False: there was none."""
        try:
            return await self._stored().remove(name)
        finally:
            self.invalidate(name)
            self._registry.drop(name)

    async def records(self) -> tuple[AgentRecord, ...]:
        """The stored agents, by name."""
        return await self._source.records() if self._source else ()

    async def _lead(self, name: str) -> AnyAgent | None:
        """Load for all who wait; None when the agent was invalidated meanwhile."""
        load = self._loads[name] = _Load()
        try:
            agent = await self._load(name)
            if self._loads.get(name) is not load:
                return None
            if self._registry.own(name) is None:
                self._registry.put(agent)
                self._kept[name] = _Kept(agent, trio.current_time())
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
            raise ConfigError(f"agent {record.name!r}: its files {files!r} are no folder")
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
    return Agent(
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
