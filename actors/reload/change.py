"""Puts another configuration in force while the host runs.

Invariants: all that can be wrong with it is found before anything changes, so that the last good
one stays in force; what changes does so in one step, without a checkpoint; no run that goes on
loses what it began with.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.agent.definition import AnyAgent
from motet.actors.agents.resolver import Resolver
from motet.actors.equipment import Equipment
from motet.actors.errors.hidden import hiding
from motet.actors.hooks.command import add_configured
from motet.actors.hooks.hookset import HookSet
from motet.actors.models.catalog import ModelCatalog
from motet.actors.models.providers import providers_of
from motet.actors.origin import keep_teams
from motet.actors.policy.desk import PolicyDesk
from motet.actors.registry import AgentRegistry
from motet.actors.reload.retiring import Retire, Retiring
from motet.actors.rooms.renewal import Renewal, renewals
from motet.protocols.config import HostConfig
from motet.runtime import ActorDead, MailboxFull

if TYPE_CHECKING:
    from motet.actors.gateway.context import Settings
    from motet.actors.tree import Tree


@attrs.frozen
class Prepared:
    """All that a configuration needs, made and checked, with nothing of it in use."""

    config: HostConfig
    kit: Equipment
    hooks: HookSet
    described: tuple[AnyAgent, ...]
    gateway: Settings | None
    rooms: list[Renewal]


async def check_policy(
    policy: PolicyDesk, registry: AgentRegistry, resolver: Resolver, config: HostConfig
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
    new.kit.mcp.share(ground.kits[-1].mcp)
    ground.reloads += 1
    try:
        await new.kit.mcp.start(tree.system, f"mcp-{ground.reloads}")
        retiring = tree.system.find("/host/retiring")
        if retiring is None:
            retiring = await tree.system.start(
                lambda: Retiring(ground, tree.table, tree.services), name="retiring"
            )
        _add_new_ones(tree, new)
    except BaseException:
        # Awaits while being cancelled: nobody else would ever end its servers.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await new.kit.mcp.leave()
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
    kit = ground.kit(config, models, generation)
    for agent in (*own, *described):
        kit.registry.add(agent)
    await check_policy(kit.policy, kit.registry, tree.resolver, config)
    hooks = HookSet()
    add_configured(hooks, config.hooks, tree.workspace)
    gateway = None if tree.gateway is None else tree.gateway.prepared(config.gateway)
    rooms = await renewals(tree, kit.registry, config)
    return Prepared(config, kit, hooks, described, gateway, rooms)


def _add_new_ones(tree: Tree, new: Prepared) -> None:
    """Agents of the program that became known meanwhile. Raises ``ConfigError``."""
    for agent in tree.registry.own_agents():
        if agent.name not in tree.described:
            new.kit.registry.add(agent)


def _commit(tree: Tree, new: Prepared) -> None:
    """The change itself: everything is there, and nothing here can fail or wait."""
    from motet.actors.tree import secrets_of

    ground, services, config = tree.ground, tree.services, new.config
    ground.secrets.enter_context(hiding(secrets_of(config)))
    new.kit.policy.rates.go_on(ground.kits[-1].policy.rates)
    for kit in ground.kits:
        kit.policy.adopt(new.kit.policy)  # what guards counts for all
    hooks = new.hooks.all()
    tree.hooks.swap(ground.hooks, hooks)
    ground.hooks, ground.gate.config = hooks, config.approvals
    ground.adopt(new.kit)
    services.adopt(new.kit)
    services.guard, services.table.rules = config.guard, config.queue
    tree.config, tree.registry = config, new.kit.registry
    tree.described = frozenset(agent.name for agent in new.described)
    tree.resolver.adopt(new.kit.registry, config.limits)
    if tree.gateway is not None and new.gateway is not None:
        tree.gateway.adopt(new.gateway)
    for room in new.rooms:
        room.commit()
