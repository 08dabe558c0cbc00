"""Where a run hears of the children beside it: between its requests, and before it would end.

A run that has an answer does not end while children work: it waits, and its model gets to say more
when it knows what came of them. Only a limit, a failure or a stop ends it before, and them with it.
"""

from __future__ import annotations

from typing import Any

from motet.actors.agent.steering import Steering
from motet.actors.agent.turn import Turn
from motet.actors.agent.voice import Voice
from motet.actors.children.family import Child, Family
from motet.actors.children.news import Ended, closed, message, untold
from motet.actors.result import RunResult
from motet.actors.sessions.recall import recall
from motet.actors.sessions.run import Run
from motet.actors.sessions.slot import Slot
from motet.actors.sessions.store import SessionStoreMessage
from motet.protocols import events
from motet.protocols.models import ModelResponse
from motet.protocols.sessions import ListBeside
from motet.runtime import ActorRef

WHY = "its caller has ended"


class Hearing:
    """Of one run. Costs nothing while it has no children."""

    def __init__(self, run: Run, slot: Slot, turn: Turn, voice: Voice) -> None:
        self._run = run
        self._slot = slot
        self._turn = turn
        self._voice = voice
        self._earlier: tuple[Ended, ...] = ()
        self._is_new = False

    async def take_up(self, store: ActorRef[SessionStoreMessage]) -> None:
        """Find out about those that worked beside it when it was left, or its host was killed."""
        found = await store.ask(ListBeside(self._run.id))
        results = [await recall(one.run_id, one.session, store) for one in found]
        self._earlier, self._is_new = tuple(map(ended_as, results)), True

    def take(self) -> None:
        """Let the turn have what is new, for its next request."""
        if self._is_new:
            self._is_new = False
            self._turn.inject(*map(message, untold(self._turn.rows, self._earlier)))
        family = self._run.family
        if family is not None and family.has_news:
            self._turn.inject(*(message(ended(child)) for child in family.take()))

    async def before_end(self, response: ModelResponse, steering: Steering) -> None:
        """Wait for children before an answer that would be the last one. Cancellable.

        A text that steers the run ends the waiting too.
        """
        family = self._run.family
        if family is None or not self._turn.may_wait(response):
            return
        if family.alive:
            self._voice.partial = response.text  # what a stop would leave of it
            await self._voice.emit(events.Activity("waiting_children", self._turn.iteration))
            await self._settled(family, steering)
            self._voice.partial = ""
        self.take()

    async def _settled(self, family: Family, steering: Steering) -> None:
        while True:
            await family.settled(self._is_steered)
            if not self._is_steered() or family.has_news:
                return
            await steering.admit()
            if self._is_steered():  # and its gates have let it pass
                return

    def _is_steered(self) -> bool:
        return bool(self._slot.steering(self._run.id))

    async def end(self) -> None:
        """End all that are alive, and wait. Shield it."""
        if self._run.family is not None:
            await self._run.family.end(WHY)

    def conclude(self) -> None:
        """Let the last row tell of those whose end the model has not been shown."""
        family, rows = self._run.family, self._turn.rows
        if family is None and not self._earlier:
            return
        beside = family.members.values() if family is not None else ()
        children = (*self._earlier, *map(ended, beside))
        rows[:] = closed(rows, untold(rows, children))


def ended(child: Child) -> Ended:
    """A child whose run has ended, as its caller is told of it."""
    return ended_as(child.run.result or child.run.ends_as("cancelled", "the host is closing"))


def ended_as(result: RunResult[Any]) -> Ended:
    detail = "" if result.status == "completed" else result.detail
    return Ended(result.run_id, result.agent, result.status, result.text, detail)
