"""A team: agents with a lead, a folder and a task board in common.

Invariants: an agent is in one team at most; a team's folder lies inside of the workspace of the
host, wherever links lead. It runs nothing by itself: whoever talks with the lead talks with the
team. Source: agent loop specification, section 12.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from motet.actors.children.names import GROUP as AGENTS
from motet.actors.teams.names import GROUP as TASKS
from motet.protocols.agents import Member
from motet.protocols.agents import Team as Membership
from motet.protocols.errors import ConfigError
from motet.protocols.teams import TeamWorkspace

if TYPE_CHECKING:
    from motet.actors.agent.definition import AnyAgent

FOLDER = "teams"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Team:
    """Makes agents a team, before a host knows them: they are told of each other.

    The lead gets ``group:agents``, by which it starts the others; all get the task board,
    ``group:tasks``. The lead works in the team's folder, and so do the runs that it starts.

    Args:
        name: letters, digits, ``_ . -``; its folder and its task board go by it.
        lead: who is talked with.
        members: the others.
        workspace: ``isolated``: a folder for each user or group chat; ``shared``: one for all.

    Raises ``ConfigError`` for a name that cannot be one, and an agent that is in a team already.
    """

    def __init__(
        self,
        name: str,
        *,
        lead: AnyAgent,
        members: Sequence[AnyAgent],
        workspace: TeamWorkspace = "isolated",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"team name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        self.name = name
        self.lead = lead
        self.members = tuple(member for member in members if member is not lead)
        self.workspace = workspace
        twice = {agent.name for agent in self.agents if self._named(agent.name) > 1}
        if twice:
            raise ConfigError(f"team {name!r} has two agents named {min(twice)!r}: rename one")
        for agent in self.agents:
            if agent.profile.team is not None:
                raise ConfigError(
                    f"agent {agent.name!r} is in the team {agent.profile.team.name!r} already, and "
                    f"cannot be in {name!r} too: make another agent for it"
                )
        for agent in self.agents:
            agent.join(self._as_seen_by(agent), *(AGENTS if agent is lead else ()), *TASKS)

    def __repr__(self) -> str:
        return f"<Team {self.name} lead={self.lead.name} members={len(self.members)}>"

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """All of them, the lead first: for ``open_host(agents=...)``."""
        return (self.lead, *self.members)

    def _as_seen_by(self, agent: AnyAgent) -> Membership:
        others = [other for other in self.agents if other is not agent]
        return Membership(
            name=self.name,
            role="lead" if agent is self.lead else "member",
            members=tuple(Member(other.name, other.description) for other in others),
            workspace=f"{FOLDER}/{self.name}",
            shared=self.workspace == "shared",
        )

    def _named(self, name: str) -> int:
        return sum(agent.name == name for agent in self.agents)
