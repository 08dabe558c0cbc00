"""The reload of a configuration: the plan of each key, and the change itself.

Laws: every key of a configuration has exactly one plan; equal configurations have no changes; a
configuration in force has all values of the changed one, except those that need a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs
import trio

from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.agents.toolkit import Toolkit
from motet.actors.errors.log import logger
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.config import config_hash, keep_teams, load_config
from motet.actors.hosting.generations import Retire, Retirement
from motet.actors.hosting.tree import Parts
from motet.actors.rooms.api import RoomUpdate, room_updates
from motet.actors.rooms.publisher import room_stream
from motet.actors.tools.policy.engine import PolicyEngine
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.events import HOST_STREAM, ConfigChanged, Warned
from motet.protocols.reload import Change, How, Reloaded
from motet.runtime import ActorDead, MailboxFull, StartFailed

if TYPE_CHECKING:
    from motet.actors.gateway.context import Settings

_log = logger("motet.config")

PLANS: Final[Mapping[str, How]] = {
    "state": "restart",
    "workspace": "restart",
    "recovery": "restart",
    "watchdog": "restart",
    "errors": "restart",
    "tracing": "restart",
    "redaction": "restart",
    "gateway.listen": "restart",
    "limits": "drain",
    "skills": "drain",
    "models": "drain",
    "agents": "drain",
    "teams": "drain",
    "rooms": "drain",
    "mcp": "drain",
    "tools.shell": "drain",
    "tools.http": "drain",
    "queue": "hot",
    "guard": "hot",
    "policy": "hot",
    "hooks": "hot",
    "approvals": "hot",
    "gateway.certificate": "restart",
    "gateway.private_key": "restart",
    "gateway.allowed_origins": "hot",
    "gateway.connections": "hot",
    "gateway.connections_per_user": "hot",
    "gateway.messages_per_minute": "hot",
    "gateway.tokens": "hot",
    "tools.profile": "hot",
    "tools.calls_per_hour": "hot",
    "tools.per_hour": "hot",
    "tools.aliases": "hot",
    "tools.prefixes": "hot",
    "tools.cedar": "hot",
}
"""A key stands for all keys below it. Guards change at once; live runs keep what they work with."""


def how(key: str) -> How:
    """The plan of a key, or of the table that it is in. Raises ``KeyError``."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        plan = PLANS.get(".".join(parts[:end]))
        if plan is not None:
            return plan
    raise KeyError(key)


def changes(old: HostConfig, new: HostConfig) -> tuple[Change, ...]:
    """The differences of ``new``, in the order of the classes."""
    return tuple(Change(key, how(key)) for key in _different(old, new, ""))


def in_force(old: HostConfig, new: HostConfig) -> HostConfig:
    """``new``, except for the values that need a restart."""
    return cast("HostConfig", _merged(old, new, ""))


def _different(old: object, new: object, at: str) -> Iterator[str]:
    """The keys whose values differ; for a table, the keys in it."""
    if old == new:
        return
    if at not in PLANS and _is_config(old) and type(old) is type(new):
        for name in _names(old):
            yield from _different(getattr(old, name), getattr(new, name), _below(at, name))
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        before = cast("Mapping[str, object]", old)
        after = cast("Mapping[str, object]", new)
        yield from (
            _below(at, name)
            for name in dict.fromkeys((*before, *after))
            if (name in before) != (name in after) or before.get(name) != after.get(name)
        )
    else:
        yield at


def _merged(old: object, new: object, at: str) -> object:
    if at in PLANS:
        return old if PLANS[at] == "restart" else new
    assert _is_config(new)
    values = {
        name: _merged(getattr(old, name), getattr(new, name), _below(at, name))
        for name in _names(new)
    }
    make = cast("Callable[..., object]", type(new))  # these are its fields
    return make(**values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_config(value: object) -> bool:
    return attrs.has(type(value))


def _names(value: object) -> Iterator[str]:
    kind = cast("type[attrs.AttrsInstance]", type(value))
    return (field.name for field in attrs.fields(kind))


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
        for one in plan.changes:
            _log.info(str(one))
        if any(one.how != "restart" for one in plan.changes):
            await self._change(in_force(self._generations.config, asked))
            for agent in self._generations.registry.names():
                parts.suspended_runs.agent_added(agent)
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
