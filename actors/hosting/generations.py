"""What stays of a host whatever its configuration becomes, and the toolkits it has been given.

Invariant: what a toolkit needs, such as the connections of its models, is there as long as a run
works with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import attrs
import trio

from motet.actors.agents.toolkit import Toolkit
from motet.actors.hooks.registry import Hook
from motet.actors.hosting.config import Origin
from motet.actors.models.catalog import ModelCatalog
from motet.actors.runs.approval_gate import ApprovalGate
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable
from motet.protocols.config import HostConfig
from motet.protocols.messages import Message
from motet.protocols.models import Model
from motet.protocols.policy import Policy
from motet.runtime import Actor, handles


class Equip(Protocol):
    """Makes a toolkit of a configuration; the rest of what it is made of stays the same."""

    def __call__(
        self,
        config: HostConfig,
        *,
        models: ModelCatalog,
        engine: Policy | None,
        generation: int,
    ) -> Toolkit: ...


@attrs.define(eq=False)
class Ground:
    """Made with a host, and changed by a reload only.

    Attributes:
        secrets: what keeps the secrets of all configurations out of errors and logs.
        models: the connections of now; ``generation``: their number.
        hooks: those that the configuration names.
        toolkits: that of now last, and before it those that runs may still work with.
        finders: how the models of each generation are found by name.
        reloads: how many there were.
    """

    origin: Origin
    secrets: ExitStack
    models: ModelCatalog
    generation: int = 0
    hooks: tuple[Hook, ...] = ()
    toolkits: list[Toolkit] = attrs.field(factory=list[Toolkit])
    finders: dict[int, Callable[[str], Model]] = attrs.field(
        factory=dict[int, Callable[[str], Model]]
    )
    reloads: int = 0
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    _gate: ApprovalGate | None = None
    _equip: Equip | None = None

    @property
    def gate(self) -> ApprovalGate:
        assert self._gate is not None
        return self._gate

    @gate.setter
    def gate(self, gate: ApprovalGate) -> None:
        self._gate = gate

    def begin(self, equip: Equip, config: HostConfig) -> Toolkit:
        """The first toolkit. Raises as :func:`~motet.actors.hosting.wiring.build_toolkit` does."""
        self._equip = equip
        toolkit = self.toolkit(config, self.models, self.generation)
        self.adopt(toolkit)
        return toolkit

    def toolkit(self, config: HostConfig, models: ModelCatalog, generation: int) -> Toolkit:
        """A toolkit that nobody works with yet."""
        assert self._equip is not None
        engine = self.origin.engine
        return self._equip(config, models=models, engine=engine, generation=generation)

    def adopt(self, toolkit: Toolkit) -> None:
        """The toolkit of now is another one."""
        self.toolkits.append(toolkit)
        self.models, self.generation = toolkit.models, toolkit.generation
        self.finders[toolkit.generation] = toolkit.registry.model

    def find(self, model: str) -> Model:
        """A model as it is configured now."""
        return self.finders[self.generation](model)

    async def aclose(self) -> None:
        """Close the connections of all models. Each has its own deadline for it."""
        for models in dict.fromkeys(toolkit.models for toolkit in self.toolkits) or (self.models,):
            await models.aclose()


# Ends what a former configuration needed when the last run that works with it has ended.


CLOSING = 5.0
"""Seconds that the connections of models may take to close."""


class Retire(Message, frozen=True, tag="reload.retire"):
    """There is a newer toolkit than before."""


class Retiring(Actor[Retire]):
    """Waits for runs, and outlives none of what they use."""

    def __init__(self, ground: Ground, table: RunTable, services: Services) -> None:
        self._ground = ground
        self._table = table
        self._services = services
        self._watched: set[int] = set()

    @handles(Retire)
    async def retire(self, _message: Retire) -> None:
        for toolkit in self._ground.toolkits[:-1]:
            if id(toolkit) not in self._watched:
                self._watched.add(id(toolkit))
                self.start_soon(self._watch, toolkit)

    async def _watch(self, toolkit: Toolkit) -> None:
        while (ended := self._user(toolkit)) is not None:
            await ended.wait()
        self._ground.toolkits.remove(toolkit)
        self._watched.discard(id(toolkit))
        await toolkit.mcp.close()
        if all(other.generation != toolkit.generation for other in self._ground.toolkits):
            await self._close(toolkit)

    def _user(self, toolkit: Toolkit) -> trio.Event | None:
        """The end of a run that works with it."""
        runs = self._table.runs.values()
        return next(
            (run.ended for run in runs if run.toolkit is toolkit and not run.ended.is_set()), None
        )

    async def _close(self, toolkit: Toolkit) -> None:
        """Nobody asks these models any more. Awaits while being cancelled: sockets are closed."""
        await self._services.models.forget(toolkit.generation)
        self._ground.finders.pop(toolkit.generation, None)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING):
            await toolkit.models.aclose()
