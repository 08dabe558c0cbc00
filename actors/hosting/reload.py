"""The reload of a configuration, carried out on an open host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.agents.toolkit import Toolkit
from motet.actors.errors.log import logger
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.config import keep_teams, load_config
from motet.actors.hosting.generations import Retire, Retirement
from motet.actors.hosting.tree import Parts
from motet.actors.rooms.api import RoomUpdate, room_updates
from motet.actors.rooms.publisher import room_stream
from motet.actors.tools.policy.engine import PolicyEngine
from motet.protocols.config import HostConfig
from motet.protocols.config_changes import changes, config_hash, in_force
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.events import HOST_STREAM, ConfigChanged, Warned
from motet.protocols.reload import Reloaded
from motet.runtime import ActorDead, MailboxFull, StartFailed

if TYPE_CHECKING:
    from motet.actors.gateway.context import Settings

_log = logger("motet.config")


@attrs.frozen
class Prepared:
    """The parts of a configuration, built and checked, none of them in use."""

    config: HostConfig
    toolkit: Toolkit
    hooks: HookSet
    described: tuple[AnyAgent, ...]
    gateway: Settings | None
    rooms: list[RoomUpdate]


async def check_policy(
    policy: PolicyEngine, registry: AgentRegistry, resolver: Resolver, config: HostConfig
) -> None:
    """Raises ``ConfigError`` for rules on unknown tools and agents."""
    stored = await resolver.records() if config.policy else ()
    policy.check([*registry.names(), *(one.name for one in stored)])


class Reloads:
    """Puts another configuration in force while the host runs.

    Invariants: everything that can be wrong with it is found before anything changes, so that the
    last good one stays in force; the change happens in one step, without a checkpoint; no live run
    loses what it began with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._generations = parts.generations

    async def reload(
        self, config: HostConfig | str | Path | None, expect_hash: str | None
    ) -> Reloaded:
        async with self._generations.lock:
            try:
                if expect_hash not in (None, config_hash(self._generations.config)):
                    raise ConfigError(
                        "the configuration in force is not the one with the hash "
                        f"{expect_hash!r} any more: look at it again"
                    )
                return await self._reload(self._asked(config))
            except (MotetError, StartFailed) as error:
                _log.error("the configuration stays as it is", problem=str(error))
                await self._parts.stores.publisher.emit(HOST_STREAM, Warned("config", str(error)))
                raise

    def plan(self, config: HostConfig | str | Path | None) -> Reloaded:
        return self._plan(self._asked(config))

    def _asked(self, config: HostConfig | str | Path | None) -> HostConfig:
        source = self._generations.source
        if config is None:
            return source.read()
        return source.whole(config if isinstance(config, HostConfig) else load_config(config))

    def _plan(self, asked: HostConfig) -> Reloaded:
        before = self._generations.config
        return Reloaded(config_hash(in_force(before, asked)), changes(before, asked))

    async def _reload(self, asked: HostConfig) -> Reloaded:
        parts, plan = self._parts, self._plan(asked)
        if parts.gateway.served is not None:
            parts.gateway.served.renew()
        if any(one.how != "restart" for one in plan.changes):
            await self._change(in_force(self._generations.config, asked))
            for agent in self._generations.registry.names():
                parts.suspended_runs.agent_added(agent)
        for one in plan.changes:
            _log.info(str(one))
        if plan.changes:
            await self._parts.stores.publisher.emit(
                HOST_STREAM, ConfigChanged(plan.hash, plan.changes)
            )
        return plan

    async def _change(self, config: HostConfig) -> None:
        """If this raises or is cancelled, nothing has changed."""
        parts, generations = self._parts, self._generations
        new = await self._prepare(config)
        new.toolkit.mcp.share(generations.current.mcp)
        try:
            await new.toolkit.mcp.start(parts.system, f"mcp-{generations.reloads}")
            retirement = parts.system.find("/host/retiring")
            if retirement is None:
                retirement = await parts.system.start(
                    lambda: Retirement(generations, parts.table, parts.services), name="retiring"
                )
            for agent in generations.own_agents():  # also those added in the meantime
                new.toolkit.registry.add(agent)
        except BaseException:
            # Awaits while being cancelled: nothing else would ever end its servers.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await new.toolkit.mcp.close()
            raise
        self._commit(new)
        with suppress(ActorDead, MailboxFull):  # the next reload sends it again
            retirement.tell_nowait(Retire())

    async def _prepare(self, config: HostConfig) -> Prepared:
        parts, generations = self._parts, self._generations
        own = generations.own_agents()
        described = generations.source.agents(keep_teams(config, generations.config, own), own)
        toolkit = generations.prepare(config)
        for agent in (*own, *described):
            toolkit.registry.add(agent)
        await check_policy(toolkit.policy, toolkit.registry, parts.resolver, config)
        hooks = HookSet()
        add_configured(hooks, config.hooks, parts.workspace)
        served = parts.gateway.served
        return Prepared(
            config,
            toolkit,
            hooks,
            described,
            None if served is None else served.prepared(config.gateway),
            await room_updates(
                parts.room_table,
                parts.stores.rooms,
                parts.resolver,
                toolkit.registry,
                generations.config.rooms,
                config.rooms,
            ),
        )

    def _commit(self, new: Prepared) -> None:
        """The change itself: everything is there, and nothing here can fail or wait."""
        parts, generations, config = self._parts, self._generations, new.config
        before = generations.config.rooms
        new.toolkit.policy.rates.continue_from(generations.current.policy.rates)
        for toolkit in generations.toolkits:
            toolkit.policy.adopt(new.toolkit.policy)  # rules hold for all runs at once
        hooks = new.hooks.all()
        parts.hooks.swap(generations.hooks, hooks)
        generations.adopt(config, new.toolkit, hooks, new.described)
        parts.gate.reconfigure(config.approvals)
        parts.services.toolkits.adopt(new.toolkit)
        parts.table.reconfigure(config.queue)
        parts.resolver.adopt(new.toolkit.registry, config.limits)
        if parts.gateway.served is not None and new.gateway is not None:
            parts.gateway.served.live.adopt(new.gateway)
        for room in new.rooms:
            room.commit()
        for name in before.keys() | config.rooms.keys():
            if before.get(name) != config.rooms.get(name):
                parts.journal.access_changed(room_stream(name))
