"""What the agents of a configuration have to do with each other: handoffs and teams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from motet.actors.teams.team import Team
from motet.protocols.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from motet.actors.agent.definition import AnyAgent
    from motet.protocols.config import HostConfig


def link(config: HostConfig, agents: Mapping[str, AnyAgent]) -> list[str]:
    """Let the agents that a configuration describes know of each other; what is wrong, and where.

    ``agents``: all that there are, also those that it does not describe.
    """
    problems: list[str] = []
    for name, spec in config.agents.items():
        for at, target in enumerate(spec.handoffs):
            if target not in agents:
                unknown = UnknownName("agent", target, sorted(agents))
                problems.append(f"agents.{name}.handoffs[{at}]: {unknown}")
            elif name in agents:
                agents[name].may_hand_to(agents[target])
    for name in config.teams:
        problems += _team(config, name, agents)
    return problems


def _team(config: HostConfig, name: str, agents: Mapping[str, AnyAgent]) -> list[str]:
    spec, place = config.teams[name], f"teams.{name}"
    lead = spec.lead or spec.members[0]
    names = dict.fromkeys((lead, *spec.members))
    wrong = [UnknownName("agent", who, sorted(agents)) for who in names if who not in agents]
    if wrong:
        return [f"{place}: {unknown}" for unknown in wrong]
    try:
        members = [agents[who] for who in names]
        Team(name, lead=agents[lead], members=members, workspace=spec.workspace)
    except ConfigError as error:
        return [f"{place}: {error}"]
    return []
