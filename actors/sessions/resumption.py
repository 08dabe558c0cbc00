"""The tasks behind approvals: they expire in time, and suspended runs go on when they can."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import trio

from motet.actors.errors.log import logger
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.publisher import RunEvents
from motet.actors.runs.run import Run
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import RunTable, SuspendedRun
from motet.actors.sessions.session import wake
from motet.protocols.approvals import (
    ApprovalProtocol,
    ExpireApproval,
    GetApproval,
    ListApprovals,
    WithdrawLeft,
)
from motet.protocols.events import Warned
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, System, handles
from motet.runtime.outside import wall_time

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.telemetry.subscription import EventJournal


ALL = 1_000
LOOK = 2.0
"""Seconds between two looks at whether somebody answered beside this host: ``motet approvals``."""
AGAIN = 5.0
"""Seconds after which something is tried again that the store could not do."""

log = logger(__name__)


class PendingCount(Request[int], frozen=True, tag="approvals.pending"):
    """How many approvals are pending in this host."""


class Resumer(Actor[PendingCount]):
    """``clock`` gives Unix seconds, by which approvals of before are known to expire."""

    def __init__(
        self, suspended_runs: SuspendedRuns, clock: Callable[[], float] = wall_time
    ) -> None:
        self._suspended_runs = suspended_runs
        self._clock = clock

    async def on_start(self) -> None:
        self.start_soon(self._expire)
        self.start_soon(self._attend)
        self.start_soon(self._watch)

    @handles(PendingCount)
    async def pending(self, _: PendingCount) -> int:
        return len(self._suspended_runs.pending_approvals.deadlines)

    # Expiring

    async def _expire(self) -> None:
        await self._remember()
        desk = self._suspended_runs.pending_approvals
        while True:
            first = min(desk.deadlines, key=desk.deadlines.__getitem__, default=None)
            with trio.move_on_at(inf if first is None else desk.deadlines[first]):
                await desk.news.wait()
            desk.news = trio.Event()
            if first is not None and desk.deadlines.get(first, inf) <= trio.current_time():
                await self._end(first)

    async def _remember(self) -> None:
        """What a host before has left pending."""
        desk = self._suspended_runs.pending_approvals
        while True:
            try:
                left = await self._suspended_runs.approvals.ask(
                    ListApprovals(state="pending", limit=ALL)
                )
            except Exception as error:
                log.warning("approvals not read", why=str(error))
                await trio.sleep(AGAIN)
                continue
            for info in left:
                if info.id not in desk.deadlines:
                    desk.expect(info, max(0.0, info.expires - self._clock()))
            return

    async def _end(self, approval: str) -> None:
        desk = self._suspended_runs.pending_approvals
        del desk.deadlines[approval]  # so that nobody else tells of it
        try:
            settled = await self._suspended_runs.approvals.ask(ExpireApproval(approval))
        except Exception as error:
            log.warning("approval not expired", approval=approval, why=str(error))
            desk.deadlines[approval] = trio.current_time() + AGAIN
            return
        if settled.info.state == "expired":
            await self._suspended_runs.tell(settled.info)
        self._suspended_runs.settled(settled.info)

    # Answers by another process

    async def _watch(self) -> None:
        """While something is pending, look whether somebody answered it on disk."""
        desk = self._suspended_runs.pending_approvals
        while True:
            while not desk.deadlines:
                await desk.asked.wait()
            desk.asked = trio.Event()
            await trio.sleep(LOOK)
            if desk.deadlines:
                desk.asked.set()
                await self._look()

    async def _look(self) -> None:
        suspended_runs, known = (
            self._suspended_runs,
            set(self._suspended_runs.pending_approvals.deadlines),
        )
        try:
            left = await suspended_runs.approvals.ask(ListApprovals(state="pending", limit=ALL))
            for approval in known - {info.id for info in left} if len(left) < ALL else ():
                info = await suspended_runs.approvals.ask(GetApproval(approval))
                mine = (
                    approval in suspended_runs.answering
                    or approval not in suspended_runs.pending_approvals.deadlines
                )
                if info is not None and info.state != "pending" and not mine:
                    suspended_runs.pending_approvals.deadlines.pop(approval)
                    await suspended_runs.tell(info)
                    suspended_runs.settled(info)
        except Exception as error:
            log.warning("approvals not looked at", why=str(error))

    # Going on

    async def _attend(self) -> None:
        suspended_runs = self._suspended_runs
        await suspended_runs.opened.wait()
        while True:
            await suspended_runs.news.wait()
            suspended_runs.news = trio.Event()
            while suspended_runs.resuming:
                self.start_soon(self._go_on, *suspended_runs.resuming.popleft())
            while suspended_runs.due:
                self.start_soon(self._look_at, suspended_runs.due.popleft())

    async def _look_at(self, run_id: str) -> None:
        """Take a run up again, if its agent and all it needs are there."""
        suspended_runs = self._suspended_runs
        suspended = suspended_runs.find(run_id)
        if suspended is None:
            return
        agent = await suspended_runs.agent(suspended)
        if suspended_runs.find(run_id) is not suspended:
            return  # somebody else was faster
        if agent is not None:
            suspended_runs.resume(suspended, agent)
        elif suspended.blocked != suspended.warned:
            suspended.warned = suspended.blocked
            log.warning("a suspended run cannot go on", run=run_id, why=suspended.blocked)
            warned = Warned("approvals", f"the run is answered and waits: {suspended.blocked}")
            await suspended_runs.events.emit_to(suspended.session, warned, run_id)

    async def _go_on(self, run: Run, suspended: SuspendedRun) -> None:
        """Give a resuming run its rows, and its session the run."""
        if not run.stop_reason and await self._suspended_runs.agent(suspended) is None:
            self._back(run, suspended)  # it was resuming to be stopped, and then was not
            return
        try:
            found = await self._suspended_runs.rows(run, suspended)
        except Exception as error:
            log.error("a suspended run cannot be read", run=run.id, why=str(error))
            suspended.blocked = f"what is stored of it cannot be read: {error}"
            self._back(run, suspended)
            return
        table = self._suspended_runs.table
        if found is None:
            table.finish(run, run.ends_as("dropped", "it is not suspended any more"))
        else:
            table.slot(run.session).starting.append(run)
        wake(table, run.session)

    def _back(self, run: Run, suspended: SuspendedRun) -> None:
        """It stays suspended."""
        table = self._suspended_runs.table
        table.finish(run, run.ends_as("waiting", suspended.blocked))
        table.suspend(suspended)


# Starts what a host needs for approvals, and takes up what the last host left of them.


async def load_suspended(
    approvals: ActorRef[ApprovalProtocol],
    pending_approvals: PendingApprovals,
    table: RunTable,
    resolver: Resolver,
    journal: EventJournal,
    events: RunEvents,
) -> SuspendedRuns:
    """To be called before runs are recovered: those that wait are none of them."""
    suspended_runs = SuspendedRuns(approvals, pending_approvals, table, resolver, journal, events)
    await suspended_runs.load()
    return suspended_runs


async def start_resumer(system: System, suspended_runs: SuspendedRuns) -> None:
    """To be called when runs have been recovered: suspended ones may go on from now on."""
    for info in await suspended_runs.approvals.ask(WithdrawLeft()):
        await suspended_runs.tell(info)
    await system.start(lambda: Resumer(suspended_runs), name="approvals-keeper")
