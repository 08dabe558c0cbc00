"""Where the configuration of a host comes from, and what its program has given beside it.

Invariant: what the program gives comes before what a configuration says under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from motet.actors.agent.definition import AnyAgent
from motet.actors.config import DEFAULT_AGENTS, build_agents, load_config
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError
from motet.protocols.mcp import McpServer
from motet.protocols.policy import Policy


@attrs.frozen
class Origin:
    """What does not change while a host is open.

    Attributes:
        file: where the configuration is; None: only in the program.
        mcp: servers of the program, by name.
        engine: a policy of the program, beside the rules of the configuration.
        defaults: whether a configuration without agents has the built-in ones.
    """

    file: Path | None = None
    mcp: Mapping[str, McpServer] = attrs.field(factory=dict[str, McpServer])
    engine: Policy | None = None
    defaults: bool = False

    @classmethod
    def of(
        cls, config: HostConfig | str | Path, mcp: Mapping[str, McpServer], engine: Policy | None
    ) -> tuple[Origin, HostConfig]:
        """What ``open_host`` is given. Raises ``ConfigError``."""
        if isinstance(config, HostConfig):
            origin = cls(None, mcp, engine)
            return origin, origin.whole(config)
        origin = cls(Path(config).absolute(), mcp, engine)
        return origin, origin.read()

    def read(self) -> HostConfig:
        """What the file says now. Raises ``ConfigError``."""
        if self.file is None:
            raise ConfigError("this host was not opened with a file: give it a configuration")
        return self.whole(load_config(self.file))

    def whole(self, config: HostConfig) -> HostConfig:
        """A configuration with what the program adds."""
        agents = config.agents or (DEFAULT_AGENTS if self.defaults else {})
        return attrs.evolve(config, agents=agents, mcp={**config.mcp, **self.mcp})

    def agents(self, config: HostConfig, own: Sequence[AnyAgent]) -> tuple[AnyAgent, ...]:
        """The agents that a configuration describes, but for those that the program has: ``own``.

        Raises ``ConfigError`` naming all problems.
        """
        known = {agent.name for agent in own}
        rest = {name: spec for name, spec in config.agents.items() if name not in known}
        if not rest:
            return ()
        source, root = "the configuration", Path.cwd()
        if self.file is not None:
            source, root = self.file.name, self.file.parent
        described = attrs.evolve(config, agents=rest)
        return build_agents(described, source=source, root=root, known=own)


def keep_teams(config: HostConfig, before: HostConfig, own: Sequence[AnyAgent]) -> HostConfig:
    """The same without the teams that agents of the program are in already.

    Raises ``ConfigError`` for one that is another now, or that has other agents beside them.
    """
    known, teams = {agent.name for agent in own}, dict(config.teams)
    for name, team in config.teams.items():
        members = {*team.members, team.lead or team.members[0]}
        if members.isdisjoint(known):
            continue
        if not members <= known or before.teams.get(name) != team:
            raise ConfigError(f"teams.{name}: it has agents of the program: start the host anew")
        del teams[name]
    return attrs.evolve(config, teams=teams)
