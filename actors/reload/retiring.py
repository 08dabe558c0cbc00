"""Ends what a former configuration needed when the last run that works with it has ended."""

from __future__ import annotations

import trio

from motet.actors.equipment import Equipment
from motet.actors.reload.ground import Ground
from motet.actors.services import Services
from motet.actors.sessions.table import RunTable
from motet.protocols.messages import Message
from motet.runtime import Actor, handles

CLOSING = 5.0
"""Seconds that the connections of models may take to close."""


class Retire(Message, frozen=True, tag="reload.retire"):
    """There is a newer kit than before."""


class Retiring(Actor[Retire]):
    """Waits for runs, and outlives none of what they use."""

    def __init__(self, ground: Ground, table: RunTable, services: Services) -> None:
        self._ground = ground
        self._table = table
        self._services = services
        self._watched: set[int] = set()

    @handles(Retire)
    async def retire(self, _message: Retire) -> None:
        for kit in self._ground.kits[:-1]:
            if id(kit) not in self._watched:
                self._watched.add(id(kit))
                self.start_soon(self._watch, kit)

    async def _watch(self, kit: Equipment) -> None:
        while (ended := self._user(kit)) is not None:
            await ended.wait()
        self._ground.kits.remove(kit)
        self._watched.discard(id(kit))
        await kit.mcp.leave()
        if all(other.generation != kit.generation for other in self._ground.kits):
            await self._close(kit)

    def _user(self, kit: Equipment) -> trio.Event | None:
        """The end of a run that works with it."""
        runs = self._table.runs.values()
        return next((run.ended for run in runs if run.kit is kit and not run.ended.is_set()), None)

    async def _close(self, kit: Equipment) -> None:
        """Nobody asks these models any more. Awaits while being cancelled: sockets are closed."""
        await self._services.forget_models(kit.generation)
        self._ground.finders.pop(kit.generation, None)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING):
            await kit.models.aclose()
