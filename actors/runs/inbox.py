"""The messages that reach a run while it works: texts that steer it, and results of its children.

A text that steers is an input like any other: on disk before it is acknowledged, and queued behind
the run. The run takes it out of the queue at its next boundary. So none is lost: a text that comes
too late, or finds no model request left, stays queued and becomes a run of its own.
Invariants: an input enters one run, or becomes one; it is in the queue until the step in which it
is in the run's rows; its entry and the row that it becomes are stored in one transaction; an input
enters only after its gates have allowed it (G10, G15).
"""

from __future__ import annotations

from typing import Any

import trio

from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.queue import SessionQueue
from motet.actors.runs.recall import recall
from motet.actors.runs.run import CALLER_ENDED, Child, ChildSet, Run
from motet.actors.runs.services import Services, publish_entered
from motet.actors.runs.turn import Turn
from motet.actors.transcript.grammar import (
    EndedChild,
    child_notice,
    unreported_children,
    with_unreported_children,
)
from motet.protocols import events
from motet.protocols.chat import UserMessage
from motet.protocols.errors import AgentError
from motet.protocols.models import ModelResponse
from motet.protocols.room_copies import Fix, fixed_text
from motet.protocols.run import RunResult
from motet.protocols.sessions import EnterRun, ListBackgroundRuns, SessionStoreMessage
from motet.runtime import ActorRef

BUDGET = 5.0
"""Seconds to store that an input has entered, also while the run is being cancelled."""


class SteeringInbox:
    """The inputs that steer one run."""

    def __init__(
        self, run: Run, queue: SessionQueue, services: Services, hooks: RunHooks, turn: Turn
    ) -> None:
        self._run = run
        self._queue = queue
        self._services = services
        self._hooks = hooks
        self._turn = turn
        self._admitted: dict[str, str] = {}
        self._offered: list[Run] = []
        self._entered: list[tuple[str, str]] = []

    async def admit(self) -> None:
        """Ask the input gates about new inputs. No checkpoint where there are no gates.

        An input that they do not allow as a text becomes a run of its own; they decide on it again.
        """
        if not self._queue.inputs or not self._hooks.guard_input:
            return
        for one in self._queue.steering(self._run.id):
            if one.id not in self._admitted:
                text = await self._passed(one)
                if text is None:
                    one.free()
                else:
                    self._admitted[one.id] = text

    async def _passed(self, one: Run) -> str | None:
        try:
            passed = await self._hooks.input(one.input.text)
        except AgentError:
            return None
        return passed if isinstance(passed, str) else None

    def correct(self, fix: Fix) -> None:
        """Change texts that the gates have passed, or that are to be published."""
        self._admitted = {id: fixed_text(fix, text) for id, text in self._admitted.items()}
        self._entered = [(author, fixed_text(fix, text)) for author, text in self._entered]

    def ready(self) -> list[Run]:
        """The inputs that may enter now."""
        if not self._queue.inputs:
            return []
        runs = self._queue.steering(self._run.id)
        if self._hooks.guard_input:
            runs = [one for one in runs if one.id in self._admitted]
        return runs

    def offer(self) -> None:
        """Offer the ready inputs to the next decision of the turn; :meth:`record` ends the offer.

        Nothing is awaited from here to :meth:`record`, so that nobody else finds them meanwhile: a
        stop, a full queue, or a suspension, which stores the turn.
        """
        self._offered = self.ready()
        if self._offered:
            self._turn.offer(*[UserMessage(self._text(one)) for one in self._offered])

    async def record(self) -> None:
        """Store the inputs that the turn has just taken, if any; the others stay in the queue.

        Call it right after the turn has decided. A checkpoint only if an input has entered, and it
        is shielded: the row is in the transcript already.
        """
        offered, self._offered = tuple(self._offered), []
        if offered and self._turn.withdraw():
            await self._record(offered)

    async def _record(self, taken: tuple[Run, ...]) -> None:
        # Out of the queue in the step in which they are in the rows, before any await: a stop or a
        # suspension in between would find a text that has two owners, or none (G15).
        for one in taken:
            self._queue.inputs.remove(one)
            one.move("enter")
            self._entered.append((one.input.principal.user, self._text(one)))
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + BUDGET):
                async with self._queue.storing():
                    await self._store(taken)
        finally:
            into = f"it has entered {self._run.id}"
            for one in taken:
                self._services.table.finish(one, one.ends_as("steered", into))

    def entered(self) -> tuple[tuple[str, str], ...]:
        """Author and text of each input that has entered since the last call."""
        texts, self._entered = tuple(self._entered), []
        return texts

    def _text(self, one: Run) -> str:
        return self._admitted.get(one.id, one.input.text)

    async def _store(self, taken: tuple[Run, ...]) -> None:
        # From the answer on: one that was to be the last, or had no call to run, is not journalled.
        run, late = self._run, self._run.carried.entered
        step = 0 if late else self._turn.last_answer
        rows, ids = tuple(self._turn.rows[step:]), tuple(one.id for one in taken)
        services, steered = self._services, events.InputSteered(run.id)
        run.carried.entered += ids  # until it is known to be on disk, also when the time is over
        try:
            await services.store.ask(EnterRun(run.id, step, rows, ids, late))
        except Exception as error:
            message = f"that an input has entered the run is not on disk yet: {error}"
            await services.events.warn(run, "transcript", message)
            for one in taken:
                services.events.show(one, steered)
        else:
            run.carried.entered = ()
            await publish_entered(run, late, services)
            for one in taken:
                await services.events.emit(one, steered)


class ChildInbox:
    """The results of the children that work beside a run, between its requests and before its end.

    A run that has an answer does not end while children work: it waits, and its model may add to
    the answer when it knows their results. Only a limit, a failure or a stop ends the run before,
    and the children with it. Costs nothing while there are no children.
    """

    def __init__(self, run: Run, queue: SessionQueue, turn: Turn, publisher: RunPublisher) -> None:
        self._run = run
        self._queue = queue
        self._turn = turn
        self._publisher = publisher
        self._earlier: tuple[EndedChild, ...] = ()
        self._is_new = False

    async def load_earlier(self, store: ActorRef[SessionStoreMessage]) -> None:
        """Load the results of children that worked when the run was suspended or its host died."""
        found = await store.ask(ListBackgroundRuns(self._run.id))
        results = [await recall(one.run_id, one.session, store) for one in found]
        self._earlier, self._is_new = tuple(map(ended_as, results)), True

    def take(self) -> None:
        """Give the turn the new results, for its next request."""
        if self._is_new:
            self._is_new = False
            self._turn.inject(
                *map(child_notice, unreported_children(self._turn.rows, self._earlier))
            )
        children = self._run.lineage.children
        if children is not None and children.has_news:
            self._turn.inject(*(child_notice(ended(child)) for child in children.take()))

    async def before_end(self, response: ModelResponse, steering: SteeringInbox) -> None:
        """Wait for the children before the last answer. Cancellable.

        A text that steers the run also ends the wait.
        """
        children = self._run.lineage.children
        if children is None or not self._turn.may_wait(response):
            return
        if children.alive:
            self._publisher.partial = response.text  # what a stop would leave of it
            await self._publisher.emit(events.Activity("waiting_children", self._turn.iteration))
            await self._settled(children, steering)
            self._publisher.partial = ""
        self.take()

    async def _settled(self, children: ChildSet, steering: SteeringInbox) -> None:
        while True:
            await children.settled(self._is_steered)
            if not self._is_steered() or children.has_news:
                return
            await steering.admit()
            if self._is_steered():  # and its gates have let it pass
                return

    def _is_steered(self) -> bool:
        return bool(self._queue.steering(self._run.id))

    async def end(self) -> None:
        """End all live children, and wait for them. Shield it."""
        if self._run.lineage.children is not None:
            await self._run.lineage.children.end(CALLER_ENDED)

    def conclude(self) -> None:
        """Put the results that the model has not seen into the last row."""
        children, rows = self._run.lineage.children, self._turn.rows
        if children is None and not self._earlier:
            return
        beside = children.members.values() if children is not None else ()
        all_of_them = (*self._earlier, *map(ended, beside))
        rows[:] = with_unreported_children(rows, unreported_children(rows, all_of_them))


class Inbox:
    """Both kinds of messages for a run that works."""

    def __init__(
        self,
        run: Run,
        queue: SessionQueue,
        services: Services,
        hooks: RunHooks,
        turn: Turn,
        publisher: RunPublisher,
    ) -> None:
        self.texts = SteeringInbox(run, queue, services, hooks, turn)
        self.children = ChildInbox(run, queue, turn, publisher)


def ended(child: Child) -> EndedChild:
    """The notice of a child whose run has ended, for its caller."""
    return ended_as(child.run.result or child.run.ends_as("cancelled", "the host is closing"))


def ended_as(result: RunResult[Any]) -> EndedChild:
    detail = "" if result.status == "completed" else result.detail
    return EndedChild(result.run_id, result.agent, result.status, result.text, detail)
