"""The parts of a command: the configuration, its agents, and a host opened on its state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host, hosted
from motet.actors.hosting.config import (
    CONFIG_FILE,
    DEFAULT_AGENTS,
    ConfigSource,
    build_agents,
    load_config,
)
from motet.announced import default_state
from motet.cli.exits import explained
from motet.cli.logs import starting
from motet.cli.trust import ask_trust, check_trust
from motet.protocols.config import HostConfig
from motet.protocols.errors import UnknownName
from motet.protocols.storage import StorageError
from motet.runtime import StartFailed


@attrs.frozen
class Setup:
    """A loaded configuration.

    Attributes:
        file: its file; None: there is none.
        state: directory of the database.
        chosen: whether the user chose ``state``, so that no other will do.
    """

    config: HostConfig
    file: Path | None
    state: Path
    chosen: bool

    @property
    def source(self) -> str:
        return self.file.name if self.file else "the built-in configuration"

    @property
    def origin(self) -> ConfigSource:
        """The source for the host, which a reload reads only while it is trusted."""
        permit = partial(check_trust, home=default_state())
        return ConfigSource(self.file, defaults=True, permit=permit)

    @property
    def workspace(self) -> Path:
        """The directory of the tools."""
        return Path(self.config.workspace or self.state / "workspace")

    def with_model(self, agent: str, model: str | None) -> Setup:
        """The setup with another model for ``agent``."""
        if model is None:
            return self
        agents = dict(self.config.agents or DEFAULT_AGENTS)
        agents[self.name(agent)] = attrs.evolve(agents[self.name(agent)], model=model)
        return attrs.evolve(self, config=attrs.evolve(self.config, agents=agents))

    def unattended(self) -> Setup:
        """The setup of a process in which no person can allow a call: a run that waits for an
        approval is suspended at once."""
        approvals = attrs.evolve(self.config.approvals, hold=0.0)
        return attrs.evolve(self, config=attrs.evolve(self.config, approvals=approvals))

    def name(self, agent: str | None) -> str:
        """The name of a known agent; None: the first one. Raises ``UnknownName``."""
        known = tuple(self.config.agents or DEFAULT_AGENTS)
        if agent is None:
            return known[0]
        if agent not in known:
            raise UnknownName("agent", agent, known)
        return agent

    def agents(self) -> tuple[AnyAgent, ...]:
        root = self.file.parent if self.file else Path.cwd()
        return build_agents(self.config, source=self.source, root=root)


def load_setup(config: Path | None, state: Path | None) -> Setup:
    """The configuration of the option, else ``motet.toml`` here, else the built-in one.

    Raises ``ConfigError``, also for a file that is not trusted.
    """
    file = chosen_file(config)
    loaded = load_config(file) if file else HostConfig(workspace=_here_if_safe(state))
    chosen = state or (Path(loaded.state) if loaded.state else None)
    return Setup(
        config=loaded,
        file=file.absolute() if file else None,
        state=chosen or default_state(),
        chosen=chosen is not None,
    )


def _here_if_safe(state: Path | None) -> str | None:
    """The current directory, unless the state is below it, as it is in a home directory."""
    here = Path.cwd().resolve()
    return None if (state or default_state()).resolve().is_relative_to(here) else str(here)


def chosen_file(config: Path | None) -> Path | None:
    """The file of the option, else ``motet.toml`` in the current directory, if it is there.

    The one door to a configuration: every command gets its file from here. At a terminal it asks
    for a consent that is missing; else it raises ``Untrusted``.
    """
    here = Path(CONFIG_FILE)
    file = config or (here if here.is_file() else None)
    if file is not None:
        ask_trust(file, default_state())
    return file


@asynccontextmanager
async def opened(setup: Setup, warn: Callable[[str], None]) -> AsyncGenerator[Host]:
    """A host with the agents of the setup.

    If the default state directory is in use or unusable, it keeps its state in memory and says so.
    Raises as ``open_host`` does.
    """
    origin = setup.origin
    config = origin.whole(setup.config)
    async with AsyncExitStack() as stack:
        with starting():
            try:
                stored = hosted(origin, config, state=setup.state)
                host = await stack.enter_async_context(stored)
            except (StorageError, StartFailed) as error:
                if setup.chosen:
                    raise
                warn(f"this conversation is not stored: {explained(error)}")
                memory = attrs.evolve(config, state=None)
                host = await stack.enter_async_context(hosted(origin, memory))
        yield host
