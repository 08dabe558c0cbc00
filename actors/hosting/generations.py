"""The generations of a host's configuration: each reload makes one, and runs keep theirs.

Invariant: what a toolkit needs, such as the connections of its models, is there as long as a run
works with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Protocol

import trio

from motet.actors.agents.registry import AgentRegistry
from motet.actors.agents.spec import AnyAgent
from motet.actors.agents.toolkit import Toolkit
from motet.actors.hooks.registry import Hook
from motet.actors.hosting.config import ConfigSource
from motet.actors.models.catalog import ModelCatalog, keys_of, providers_of
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable
from motet.protocols.config import HostConfig
from motet.protocols.fair_queue import FairQueue
from motet.protocols.messages import Message
from motet.protocols.models import Model
from motet.protocols.policy import Policy
from motet.protocols.redaction.redact import registered_secrets
from motet.protocols.sessions import LOCAL
from motet.runtime import Actor, handles


class BuildToolkit(Protocol):
    """Makes the toolkit of a configuration; everything else it is made of stays the same."""

    def __call__(
        self, config: HostConfig, *, models: ModelCatalog, engine: Policy | None, generation: int
    ) -> Toolkit: ...


class Generations:
    """The parts of a host that a reload replaces.

    Attributes:
        source: of the configuration.
        config: the one in force.
        described: names of the agents that it describes.
        hooks: those that it names.
        toolkits: the current one last; before it those that live runs may still use.
        finders: by the generation of models, the function that finds one by its name.
        reloads: how many there were.
        lock: held by a reload.
    """

    def __init__(self, source: ConfigSource, config: HostConfig, secrets: ExitStack) -> None:
        self.source = source
        self.config = config
        self.described: frozenset[str] = frozenset()
        self.hooks: tuple[Hook, ...] = ()
        self.toolkits: list[Toolkit] = []
        self.finders: dict[int, Callable[[str], Model]] = {}
        self.reloads = 0
        self.lock = trio.Lock()
        self._secrets = secrets
        self._models = ModelCatalog(providers_of(config.models))
        self._build: BuildToolkit | None = None

    @property
    def current(self) -> Toolkit:
        return self.toolkits[-1]

    @property
    def registry(self) -> AgentRegistry:
        """The agents of the configuration in force, and those of the program."""
        return self.current.registry

    def begin(self, build: BuildToolkit, hooks: tuple[Hook, ...]) -> Toolkit:
        """The first toolkit. Raises as :func:`~motet.actors.hosting.wiring.build_toolkit` does."""
        self._build, self.hooks = build, hooks
        engine = self.source.engine
        toolkit = build(self.config, models=self._models, engine=engine, generation=0)
        self._add(toolkit)
        return toolkit

    def describe(self, agents: Iterable[AnyAgent]) -> None:
        """Note which agents the configuration describes."""
        self.described = frozenset(agent.name for agent in agents)

    def own_agents(self) -> tuple[AnyAgent, ...]:
        """The agents of the program."""
        return tuple(a for a in self.registry.own_agents() if a.name not in self.described)

    def prepare(self, config: HostConfig) -> Toolkit:
        """The toolkit of another configuration, not yet in use.

        The connections of models are shared if their configuration is the same.
        """
        assert self._build is not None
        self.reloads += 1
        now = self.current
        models, generation = now.models, now.generation
        if config.models != self.config.models:
            models, generation = ModelCatalog(providers_of(config.models)), generation + 1
        return self._build(config, models=models, engine=self.source.engine, generation=generation)

    def adopt(
        self,
        config: HostConfig,
        toolkit: Toolkit,
        hooks: tuple[Hook, ...],
        described: Iterable[AnyAgent],
    ) -> None:
        """Put a configuration in force. Its secrets join those that are kept out of all output."""
        self._secrets.enter_context(registered_secrets(secrets_of(config)))
        self.config, self.hooks = config, hooks
        self._add(toolkit)
        self.describe(described)

    def find(self, model: str) -> Model:
        """A model as it is configured now."""
        return self.finders[self.current.generation](model)

    def places(self) -> FairQueue:
        """The places of one model, as they are configured now.

        The program itself, user ``local``, may have all of them.
        """
        models = self.config.models
        return FairQueue(
            models.concurrency, models.most_per_user, models.per_session, frozenset({LOCAL.user})
        )

    async def aclose(self) -> None:
        """Close the connections of all models. Each has its own deadline for it."""
        for models in dict.fromkeys(one.models for one in self.toolkits) or (self._models,):
            await models.aclose()

    def _add(self, toolkit: Toolkit) -> None:
        self.toolkits.append(toolkit)
        toolkit.workspaces.users.note(self.config.gateway.tokens, late=True)
        self.finders[toolkit.generation] = toolkit.registry.model


CLOSING = 5.0
"""Seconds that the connections of models may take to close."""


class Retire(Message, frozen=True, tag="reload.retire"):
    """A reload has made a newer toolkit."""


class Retirement(Actor[Retire]):
    """Closes what a former configuration needed when the last run that uses it has ended."""

    def __init__(self, generations: Generations, table: RunTable, services: Services) -> None:
        self._generations = generations
        self._table = table
        self._services = services
        self._watched: set[int] = set()

    @handles(Retire)
    async def retire(self, _message: Retire) -> None:
        for toolkit in self._generations.toolkits[:-1]:
            if id(toolkit) not in self._watched:
                self._watched.add(id(toolkit))
                self.start_soon(self._watch, toolkit)

    async def _watch(self, toolkit: Toolkit) -> None:
        while (ended := self._user(toolkit)) is not None:
            await ended.wait()
        self._generations.toolkits.remove(toolkit)
        self._watched.discard(id(toolkit))
        await toolkit.mcp.close()
        if all(other.generation != toolkit.generation for other in self._generations.toolkits):
            await self._close(toolkit)

    def _user(self, toolkit: Toolkit) -> trio.Event | None:
        """The end of a live run that uses it."""
        runs = self._table.runs.values()
        return next(
            (run.ended for run in runs if run.toolkit is toolkit and not run.ended.is_set()), None
        )

    async def _close(self, toolkit: Toolkit) -> None:
        """No run asks these models any more. Awaits while being cancelled: sockets are closed."""
        await self._services.models.forget(toolkit.generation)
        self._generations.finders.pop(toolkit.generation, None)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING):
            await toolkit.models.aclose()


def secrets_of(config: HostConfig) -> list[str | None]:
    """The values of the configuration and its environment that are redacted everywhere."""
    tokens = [token.token for token in config.gateway.tokens]
    servers = [secret for server in config.mcp.values() for secret in server.secrets]
    headers = config.tracing.otlp_headers.values()
    return [*keys_of(config.models), *tokens, *headers, *servers]
