"""What a changed configuration means for a running host, key by key. Pure.

Laws: every key of a configuration has exactly one plan; equal configurations have no changes; a
configuration in force has, of a changed one, all values but those that need a restart.
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
from motet.actors.errors.redact import registered_secrets
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.answers import Answering
from motet.actors.hosting.config import keep_teams, load_config
from motet.actors.hosting.config_schema import config_hash
from motet.actors.hosting.generations import Retire, Retiring
from motet.actors.models.catalog import ModelCatalog, providers_of
from motet.actors.rooms.api import RoomUpdate, room_updates
from motet.actors.tools.policy.engine import PolicyEngine
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.events import HOST_STREAM, ConfigChanged, Warned
from motet.protocols.host_records import LiveActor
from motet.protocols.reload import Change, How, Reloaded
from motet.runtime import ActorDead, MailboxFull, StartFailed

if TYPE_CHECKING:
    from motet.actors.gateway.context import Settings
    from motet.actors.hosting.tree import Tree
    from motet.protocols.events import AnyEvent


PLANS: Final[Mapping[str, How]] = {
    "state": "restart",
    "workspace": "restart",
    "recovery": "restart",
    "watchdog": "restart",
    "errors": "restart",
    "tracing": "restart",
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
"""A key stands for all below it. What guards counts at once; what runs work with is drained."""


def how(key: str) -> How:
    """The plan of a key, or of the table that it is in. Raises ``KeyError``."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        plan = PLANS.get(".".join(parts[:end]))
        if plan is not None:
            return plan
    raise KeyError(key)


def changes(old: HostConfig, new: HostConfig) -> tuple[Change, ...]:
    """What is different in ``new``, in the order of the classes."""
    return tuple(Change(key, how(key)) for key in _different(old, new, ""))


def in_force(old: HostConfig, new: HostConfig) -> HostConfig:
    """``new`` as far as it can count without a restart."""
    return cast("HostConfig", _merged(old, new, ""))


def _different(old: object, new: object, at: str) -> Iterator[str]:
    """The keys with other values; of a table of classes or of names, those in it."""
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
    make = cast("Callable[..., object]", type(new))  # a class whose fields these are
    return make(**values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_config(value: object) -> bool:
    return attrs.has(type(value))


def _names(value: object) -> Iterator[str]:
    kind = cast("type[attrs.AttrsInstance]", type(value))
    return (field.name for field in attrs.fields(kind))


# Puts another configuration in force while the host runs.
#
# Invariants: all that can be wrong with it is found before anything changes, so that the last good
# one stays in force; what changes does so in one step, without a checkpoint; no run that goes on
# loses what it began with.


@attrs.frozen
class Prepared:
    """All that a configuration needs, made and checked, with nothing of it in use."""

    config: HostConfig
    toolkit: Toolkit
    hooks: HookSet
    described: tuple[AnyAgent, ...]
    gateway: Settings | None
    rooms: list[RoomUpdate]


async def check_policy(
    policy: PolicyEngine, registry: AgentRegistry, resolver: Resolver, config: HostConfig
) -> None:
    """Raises ``ConfigError`` for rules on tools and agents that nobody knows."""
    stored = await resolver.records() if config.policy else ()
    policy.check([*registry.names(), *(one.name for one in stored)])


async def change(tree: Tree, config: HostConfig) -> None:
    """Put a configuration in force that has the same values where a restart would be needed.

    Raises ``ConfigError``, ``UnknownName``, ``MissingExtra`` for a wrong one, and then, or
    cancelled, nothing has changed.
    """
    ground = tree.ground
    new = await _prepared(tree, config)
    new.toolkit.mcp.share(ground.toolkits[-1].mcp)
    ground.reloads += 1
    try:
        await new.toolkit.mcp.start(tree.system, f"mcp-{ground.reloads}")
        retiring = tree.system.find("/host/retiring")
        if retiring is None:
            retiring = await tree.system.start(
                lambda: Retiring(ground, tree.table, tree.services), name="retiring"
            )
        _add_new_ones(tree, new)
    except BaseException:
        # Awaits while being cancelled: nobody else would ever end its servers.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await new.toolkit.mcp.close()
        raise
    _commit(tree, new)
    with suppress(ActorDead, MailboxFull):  # the next reload tells it as well
        retiring.tell_nowait(Retire())


async def _prepared(tree: Tree, config: HostConfig) -> Prepared:
    ground, before = tree.ground, tree.config
    own = tuple(a for a in tree.registry.own_agents() if a.name not in tree.described)
    described = ground.origin.agents(keep_teams(config, before, own), own)
    models, generation = ground.models, ground.generation
    if config.models != before.models:
        models, generation = ModelCatalog(providers_of(config.models)), generation + 1
    toolkit = ground.toolkit(config, models, generation)
    for agent in (*own, *described):
        toolkit.registry.add(agent)
    await check_policy(toolkit.policy, toolkit.registry, tree.resolver, config)
    hooks = HookSet()
    add_configured(hooks, config.hooks, tree.workspace)
    gateway = None if tree.gateway is None else tree.gateway.prepared(config.gateway)
    rooms = await room_updates(
        tree.places,
        tree.rooms_store,
        tree.resolver,
        toolkit.registry,
        tree.config.rooms,
        config.rooms,
    )
    return Prepared(config, toolkit, hooks, described, gateway, rooms)


def _add_new_ones(tree: Tree, new: Prepared) -> None:
    """Agents of the program that became known meanwhile. Raises ``ConfigError``."""
    for agent in tree.registry.own_agents():
        if agent.name not in tree.described:
            new.toolkit.registry.add(agent)


def _commit(tree: Tree, new: Prepared) -> None:
    """The change itself: everything is there, and nothing here can fail or wait."""
    from motet.actors.hosting.tree import secrets_of

    ground, services, config = tree.ground, tree.services, new.config
    ground.secrets.enter_context(registered_secrets(secrets_of(config)))
    new.toolkit.policy.rates.continue_from(ground.toolkits[-1].policy.rates)
    for toolkit in ground.toolkits:
        toolkit.policy.adopt(new.toolkit.policy)  # what guards counts for all
    hooks = new.hooks.all()
    tree.hooks.swap(ground.hooks, hooks)
    ground.hooks, ground.gate.config = hooks, config.approvals
    ground.adopt(new.toolkit)
    services.toolkits.adopt(new.toolkit)
    services.table.rules = config.queue
    tree.config, tree.registry = config, new.toolkit.registry
    tree.described = frozenset(agent.name for agent in new.described)
    tree.resolver.adopt(new.toolkit.registry, config.limits)
    if tree.gateway is not None and new.gateway is not None:
        tree.gateway.adopt(new.gateway)
    for room in new.rooms:
        room.commit()


# The part of a host that its operator uses: a look at its actors, another configuration.


_log = logger("motet.config")


class Reloading(Answering):
    """See :class:`motet.Host`."""

    async def reload(
        self, config: HostConfig | str | Path | None = None, *, expect_hash: str | None = None
    ) -> Reloaded:
        """Put a configuration in force; None: what the file of this host says now. The files of a
        gateway's certificate are read again.

        Runs that go on keep their agents, tools and models; each change says when it counts.
        ``expect_hash``: refuse unless that of the configuration in force is this one. A wrong
        configuration changes nothing. Raises ``ConfigError`` naming all its problems, and
        ``UnknownName``, ``MissingExtra``, ``StartFailed``. Cancelled before it is in
        force, nothing has changed.
        """
        async with self._tree.ground.lock:
            try:
                self._expect(expect_hash)
                return await self._reload(self._asked(config))
            except (MotetError, StartFailed) as error:
                _log.error("the configuration stays as it is", problem=str(error))
                await self._tell(Warned("config", str(error)))
                raise

    def plan_reload(self, config: HostConfig | str | Path | None = None) -> Reloaded:
        """What :meth:`reload` would change; nothing is changed. Raises ``ConfigError``."""
        return self._plan(self._asked(config))

    def actors(self) -> tuple[LiveActor, ...]:
        """Every actor that is there now, parents first, siblings in start order."""
        return tuple(
            LiveActor(one.path, one.state, one.queued, one.age_s, one.waiting_on, one.paused)
            for one in self._tree.system.snapshot()
        )

    def _plan(self, asked: HostConfig) -> Reloaded:
        before = self._tree.config
        return Reloaded(config_hash(in_force(before, asked)), changes(before, asked))

    def _expect(self, expected: str | None) -> None:
        if expected not in (None, config_hash(self._tree.config)):
            raise ConfigError(
                f"the configuration in force is not the one with the hash {expected!r} any more: "
                "look at it again"
            )

    async def _reload(self, asked: HostConfig) -> Reloaded:
        tree, plan = self._tree, self._plan(asked)
        if tree.gateway is not None:
            tree.gateway.renew()
        for one in plan.changes:
            _log.info(str(one))
        if any(one.how != "restart" for one in plan.changes):
            await change(tree, in_force(tree.config, asked))
            for agent in tree.registry.names():
                self._suspended_runs.agent_added(agent)
        if plan.changes:
            await self._tell(ConfigChanged(plan.hash, plan.changes))
        return plan

    def _asked(self, config: HostConfig | str | Path | None) -> HostConfig:
        origin = self._tree.ground.origin
        if config is None:
            return origin.read()
        return origin.whole(config if isinstance(config, HostConfig) else load_config(config))

    async def _tell(self, event: AnyEvent) -> None:
        await self._tree.publisher.emit(HOST_STREAM, event)
