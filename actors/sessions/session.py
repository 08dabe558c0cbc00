"""One actor per session: it makes inputs durable and runs them one after the other.

Guarantees: an input is acknowledged only when it is on disk (G15); two runs never write one
transcript at once, because only this actor starts them; a stop fences what is still arriving.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

import trio

from motet.actors.agent.closing import stopped_row
from motet.actors.agent.run import TurnRunner
from motet.actors.agent.transcript import close_calls
from motet.actors.hooks.turn import END_BUDGET
from motet.actors.services import Services
from motet.actors.sessions.afterwards import Chore, tidy
from motet.actors.sessions.digest import body_hash
from motet.actors.sessions.lineup import strays
from motet.actors.sessions.queueing import Way, wakes
from motet.actors.sessions.slot import Slot
from motet.actors.sessions.summarise import Summariser
from motet.actors.sessions.table import Run
from motet.protocols import events
from motet.protocols.approvals import Resumption
from motet.protocols.events import SessionCompacted
from motet.protocols.hooks import SessionEnd
from motet.protocols.messages import Request
from motet.protocols.queueing import JoinInputs
from motet.protocols.sessions import Accepted, AcceptInput, Ack, FinishRun, NewInput
from motet.runtime import Actor, handles

JOIN_BUDGET = 5.0
"""Seconds to put on record which inputs are answered together, also while being cancelled."""


class Submit(Request[Ack], frozen=True, tag="session.submit"):
    """Store the input of a run that is registered in the run table, and queue it.

    Cancelling the asker before the input is on its way to disk withdraws it; after that it is
    accepted all the same, and a resend with its key finds it.
    """

    run_id: str


class Compact(Request[SessionCompacted | None], frozen=True, tag="session.compact"):
    """Summarise the session now, in the name of a run of the run table that never starts.

    Which rows have a summary now; None when it is too short, or when a hook was against it.
    """

    run_id: str


class TakeUp(Request[None], frozen=True, tag="session.take_up"):
    """Go on with a run that was parked, if it is in the run table; else with what is queued."""

    run_id: str


SessionMessage: TypeAlias = Submit | Compact | TakeUp


class Session(Actor[SessionMessage]):
    """Owns the order of one session. Its runs are tasks of this actor, under its life."""

    cleanup_budget = 10.0

    def __init__(self, key: str, services: Services) -> None:
        self.key = key
        self.services = services
        self.last: Run | None = None
        self.summariser = Summariser(key, services.store)
        self._alarm = inf

    @property
    def slot(self) -> Slot:
        return self.services.table.slot(self.key)

    async def on_start(self) -> None:
        self._pump()

    @handles(Submit, concurrent=16)
    async def submit(self, message: Submit) -> Ack:
        table = self.services.table
        run = table.runs[message.run_id]
        accepted = await self._store(run)  # else the asker refuses it, or asks once more
        if accepted.duplicate:
            table.refuse(run)
            return Ack(accepted.run_id, "duplicate")
        arrived = table.enqueue(run)
        if arrived is None:
            # A stop overtook it on its way to disk: on record as dropped, never run.
            self._drop(run)
            return Ack(run.id, "dropped")
        self._drop(*arrived.drops)
        self._pump()
        return self._ack(run, arrived.way)

    def _ack(self, run: Run, way: Way) -> Ack:
        """What has become of an input by now."""
        if way == "drop":
            return Ack(run.id, "dropped")
        if run not in self.slot.queue:
            return Ack(run.id, "accepted" if run.state == "running" else "collected")
        waiting = [one for one in self.slot.queue if one.steers not in self.services.table.runs]
        if run not in waiting:
            return Ack(run.id, "steered")
        position = waiting.index(run) + 1
        return Ack(run.id, "collected" if way == "join" else "queued", position)

    async def _store(self, run: Run) -> Accepted:
        new = NewInput(
            run_id=run.id,
            session=run.session,
            agent=run.agent.name,
            user=run.principal.user,
            text=run.text,
            key=run.key,
            body_hash=body_hash(run.session, run.agent.name, run.text)
            if run.key is not None
            else "",
            method=run.method,
            parent=run.caller[0] if run.caller else None,
            beside=run.beside,
            given=run.given,
        )
        # Not shielded, or a store that crashed would wait for this before it is started again: an
        # ask that is cancelled is withdrawn, or gives its outcome.
        accepted = await self.services.store.ask(AcceptInput(new))
        if not accepted.duplicate:
            # It is accepted now: whoever is cancelled does not keep it from being queued.
            with trio.CancelScope(shield=True):
                await self._announce(run)
        return accepted

    async def _announce(self, run: Run) -> None:
        await self.services.emit(run, events.InputAccepted(run.text, run.principal.user, run.key))

    def _pump(self) -> None:
        """Place what is held no more, start what may start, and look again when there is more."""
        table = self.services.table
        self._drop(*table.ripen(self.key), *strays(self.slot, table.runs))
        while (run := table.start_next(self.key)) is not None:
            self.start_soon(self._execute, run, name=run.id)
        at = wakes(self.slot.queue, trio.current_time())
        if at < self._alarm:
            self._alarm = at
            self.start_soon(self._wake, at)

    async def _wake(self, at: float) -> None:
        await trio.sleep_until(at)
        if self._alarm == at:
            self._alarm = inf
        self._pump()

    async def _execute(self, run: Run) -> None:
        first, self.last = self.last is None, run
        run.start_soon = self.start_soon
        if run.joined:
            await self._join(run)
        runner = TurnRunner(run, self.slot, self.services, first=first)
        await runner.execute()
        self.slot.tokens, self.slot.window = runner.thinker.filled
        if run.stop_reason:
            self._drop_steering(run)
        self._pump()
        if runner.thinker.is_long and run.caller is None:  # a child's session has no next run
            self.start_soon(self._tidy, Chore.after(runner))

    @handles(TakeUp, concurrent=4)
    async def take_up(self, message: TakeUp) -> None:
        run = self.services.table.runs.get(message.run_id)
        if run is None:
            self._pump()
        else:
            self.start_soon(self._execute, run, name=run.id)

    def _drop_steering(self, ended: Run) -> None:
        """What its sender had enter a run that was stopped is stopped with it."""
        for run in self.slot.steering(ended.id):
            if run.author != ended.author:
                run.steers = None
                continue
            self.slot.queue.remove(run)
            run.cancel(ended.stop_reason)
            self._drop(run)

    def _drop(self, *runs: Run) -> None:
        for run in runs:
            self.start_soon(drop, run, self.services)

    async def _join(self, run: Run) -> None:
        """Put on record which inputs a run answers beside its own; they have left the queue."""
        detail = f"it has entered {run.id}"
        # What is not stored by now is with the run's end, as its rows are.
        event = events.InputSteered(run.id)
        late = [FinishRun(one, "steered", (), detail=detail, event=event) for one in run.joined]
        self.slot.unsaved += late
        with trio.CancelScope(shield=True, deadline=trio.current_time() + JOIN_BUDGET):
            try:
                await self.services.store.ask(JoinInputs(run.id, run.text, run.joined))
            except Exception as error:
                message = f"that inputs are answered together is not on disk yet: {error}"
                await self.services.warn(run, "transcript", message)
            else:
                for end in late:
                    self.slot.unsaved.remove(end)
            for one in run.joined:
                await self.services.publish(run.session, event, one)

    @handles(Compact, concurrent=4)
    async def compact(self, message: Compact) -> SessionCompacted | None:
        run = self.services.table.runs[message.run_id]
        run.model = self.services.model_of(run)
        prepared = await self.services.workbench.prepare(
            run.agent.name, run.agent.profile, user=run.principal.user, session=self.key
        )
        return await self._tidy(Chore.at_once(run, prepared))

    async def _tidy(self, chore: Chore) -> SessionCompacted | None:
        slot = self.slot
        slot.chores += 1
        try:
            done = await tidy(chore, self.services, self.summariser)
            if done is not None:
                slot.tokens = None  # as short as it is now, nobody has counted it
            return done
        finally:
            slot.chores -= 1

    async def on_stop(self) -> None:
        run = self.last
        if run is not None:
            end = SessionEnd(run.id, run.session, run.agent.name, run.principal)
            with trio.move_on_after(END_BUDGET):
                await self.services.hooks.ask(end)


async def drop(run: Run, services: Services) -> None:
    """Put on record that a stored input will not be answered, and tell whoever waits for it."""
    reason = run.stop_reason or "stopped before it started"
    told: events.InputDropped | events.RunCancelled = events.InputDropped(reason)
    end = FinishRun(run.id, "dropped", (), detail=reason, event=told)
    if run.resumption is not None:  # of the host before: it had begun
        told = events.RunCancelled(run.resumption.suspended.turn.spent, reason)
        end = left_behind(run, run.resumption, reason, told)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
        try:
            await services.store.ask(end)
        except Exception as error:
            await services.warn(run, "transcript", f"a dropped input is not on record: {error}")
        await services.emit(run, told)
    services.table.finish(run, run.ends_as(end.status, reason))


def left_behind(run: Run, left: Resumption, reason: str, event: events.RunCancelled) -> FinishRun:
    """The end of a run that was stopped before it could be taken up again."""
    spent, cause = left.suspended.turn.spent, "" if run.by_user else reason
    rows = close_calls((*left.suspended.rows, *left.results), "unknown")
    return FinishRun(
        run_id=run.id,
        status="cancelled",
        rows=(*rows, stopped_row("", cause)),
        usage=spent,
        detail=reason,
        withdraw=True,
        event=event,
    )
