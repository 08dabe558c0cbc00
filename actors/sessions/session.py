"""One actor per session: it makes inputs durable and runs them one after the other.

Guarantees: an input is acknowledged only when it is on disk (G15); two runs never write one
transcript at once, because only this actor starts them; a stop fences what is still arriving.
"""

from __future__ import annotations

from typing import TypeAlias

import trio

from motet.actors.agent.run import TurnRunner
from motet.actors.hooks.turn import END_BUDGET
from motet.actors.services import Services
from motet.actors.sessions.afterwards import Chore, tidy
from motet.actors.sessions.digest import body_hash
from motet.actors.sessions.summarise import Summariser
from motet.actors.sessions.table import Run, Slot
from motet.protocols import events
from motet.protocols.events import SessionCompacted
from motet.protocols.hooks import SessionEnd
from motet.protocols.messages import Request
from motet.protocols.sessions import Accepted, AcceptInput, Ack, FinishRun, NewInput
from motet.runtime import Actor, handles


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

    @property
    def slot(self) -> Slot:
        return self.services.table.slot(self.key)

    async def on_start(self) -> None:
        self._pump()

    @handles(Submit, concurrent=16)
    async def submit(self, message: Submit) -> Ack:
        table = self.services.table
        run = table.runs[message.run_id]
        try:
            accepted = await self._store(run)
        except BaseException:
            table.refuse(run)
            raise
        if accepted.duplicate:
            table.refuse(run)
            return Ack(accepted.run_id, "duplicate")
        position = table.enqueue(run)
        if position is None:
            # A stop overtook it on its way to disk: on record as dropped, never run.
            self.start_soon(drop, run, self.services)
            return Ack(run.id, "accepted")
        self._pump()
        if run.steers in table.runs:
            return Ack(run.id, "steered")
        return Ack(run.id, "queued" if position else "accepted", position)

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
            parent=run.caller[0] if run.caller else None,
            beside=run.beside,
        )
        # Shielded: the outcome of a commit would be ambiguous to whoever is cancelled during it.
        with trio.CancelScope(shield=True):
            accepted = await self.services.store.ask(AcceptInput(new))
            if not accepted.duplicate:
                await self._announce(run)
            return accepted
        raise AssertionError("nobody cancels this scope")

    async def _announce(self, run: Run) -> None:
        await self.services.emit(run, events.InputAccepted(run.text, run.principal.user, run.key))

    def _pump(self) -> None:
        run = self.services.table.start_next(self.key)
        if run is not None:
            self.start_soon(self._execute, run, name=run.id)

    async def _execute(self, run: Run) -> None:
        first, self.last = self.last is None, run
        run.start_soon = self.start_soon
        runner = TurnRunner(run, self.slot, self.services, first=first)
        await runner.execute()
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
        """What was to enter a run that was stopped is stopped with it."""
        for run in self.slot.steering(ended.id):
            self.slot.queue.remove(run)
            run.cancel(ended.stop_reason)
            self.start_soon(drop, run, self.services)

    @handles(Compact, concurrent=4)
    async def compact(self, message: Compact) -> SessionCompacted | None:
        run = self.services.table.runs[message.run_id]
        prepared = await self.services.workbench.prepare(
            run.agent.name, run.agent.profile, user=run.principal.user, session=self.key
        )
        return await self._tidy(Chore.at_once(run, prepared))

    async def _tidy(self, chore: Chore) -> SessionCompacted | None:
        slot = self.slot
        slot.chores += 1
        try:
            return await tidy(chore, self.services, self.summariser)
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
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
        try:
            await services.store.ask(FinishRun(run.id, "dropped", (), detail=reason))
        except Exception as error:
            await services.warn(run, "transcript", f"a dropped input is not on record: {error}")
        await services.emit(run, events.InputDropped(reason))
    services.table.finish(run, run.ends_as("dropped", reason))
