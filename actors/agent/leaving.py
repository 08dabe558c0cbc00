"""Leaves a run that waits for a person, so that it costs nothing until it is taken up again.

A run is left when its calls have waited long enough, and when its host closes meanwhile: a stop by
a person, by its caller or by a limit ends it instead. It is left only with all of it on disk.
"""

from __future__ import annotations

import trio

from motet.actors.agent.act import Batch
from motet.actors.agent.resume import suspended
from motet.actors.agent.turn import Turn
from motet.actors.agent.voice import Voice
from motet.actors.services import Services
from motet.actors.sessions.run import CLOSING, SHUTDOWN, Run
from motet.actors.tracing.recorder import RunTrace
from motet.protocols import events
from motet.protocols.approvals import ApprovalInfo, ListApprovals, Suspended
from motet.protocols.sessions import EnterRun

LEAVE_BUDGET = 5.0


class Leaving:
    """Of one run. ``done``: it is parked on disk; ``approvals``: what it waits for."""

    def __init__(
        self, run: Run, services: Services, turn: Turn, voice: Voice, trace: RunTrace
    ) -> None:
        self.done = False
        self.approvals: tuple[str, ...] = ()
        self._run = run
        self._services = services
        self._turn = turn
        self._voice = voice
        self._trace = trace
        self._failed = False
        self._handed_on = False

    def batch(self, calls: Batch) -> Batch:
        """Let it be left, unless it is a part of another run, which needs its result now."""
        if self._services.parking is not None and self._run.caller is None:
            calls.standing.suspended = self._suspended
        return calls

    def is_due(self, batch: Batch | None) -> bool:
        """Whether a run that is cut off now is left, not ended."""
        run = self._run
        if batch is None or batch.standing.suspended is None or self._failed:
            return False
        if run.family is not None and run.family.open:
            return False  # nobody would tell it later what came of its children
        return self._is_free and batch.standing.waits

    @property
    def _is_free(self) -> bool:
        """Whether nobody wants its end."""
        return not self._run.by_user and self._run.stop_reason in ("", CLOSING, SHUTDOWN)

    async def leave(self, batch: Batch | None) -> bool:
        """Put all of it on disk and say so; False: it must be ended. Shielded, with a budget."""
        assert batch is not None
        deadline = trio.current_time() + LEAVE_BUDGET
        with trio.CancelScope(shield=True, deadline=deadline):
            try:
                self.done = await self._leave(batch)
                self.done = self.done and self._is_free
            except Exception as error:
                message = f"the run waits for a person and could not be left: {error}"
                await self._services.warn(self._run, "approvals", message)
        if not self.done:
            self._failed = True
            self._run.stop_reason = self._run.stop_reason or "it could not be parked"
        return self.done

    async def hand_on(self) -> None:
        """Leave the run to the next host, with all that is journalled of it on disk. Shield it."""
        self.done = self._handed_on = True
        try:
            await self._services.store.ask(EnterRun(self._run.id, 0, (), ()))
        except Exception as error:  # then it is what is there that the next host goes on from
            message = f"the last rows of a run for the next host are not on disk: {error}"
            await self._services.warn(self._run, "transcript", message)

    async def _leave(self, batch: Batch) -> bool:
        parking, run = self._services.parking, self._run
        assert parking is not None
        rows = await batch.leave()
        if not await parking.store(run.id, self._suspended(), rows):
            return False
        waiting = await parking.approvals.ask(ListApprovals(run_id=run.id, state="pending"))
        self.approvals = tuple(one.id for one in reversed(waiting))
        await self._voice.emit(events.RunWaiting(self.approvals))
        return True

    def left(self) -> None:
        """Its task ends here, without an await in between: what waits for it finds it parked."""
        if self.done and not self._handed_on and self._services.parking is not None:
            self._services.parking.left(self._run)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        """What nobody has answered yet of a run that ends; for :meth:`withdrawn`."""
        parking = self._services.parking
        if not self._run.asked or parking is None:
            return ()
        try:
            return await parking.approvals.ask(ListApprovals(run_id=self._run.id, state="pending"))
        except Exception as error:
            await self._services.warn(self._run, "approvals", f"not told of: {error}", grave=False)
            return ()

    async def withdrawn(self, pending: tuple[ApprovalInfo, ...]) -> None:
        """Tell that nobody needs to answer these any more."""
        for info in pending:
            self._services.desk.deadlines.pop(info.id, None)
            await self._voice.emit(events.ApprovalResolved(info.id, "cancelled", ""))

    def _suspended(self) -> Suspended:
        return suspended(self._run, self._turn, self._voice, self._trace)
