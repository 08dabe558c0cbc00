"""Expires pending approvals in time, and resumes suspended runs when they are answered."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Never

import trio

from motet.actors.errors.log import logger
from motet.actors.runs.queue import SuspendedRun
from motet.actors.runs.run import Run
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import SessionActors
from motet.protocols.approvals import ExpireApproval, GetApproval, ListApprovals, WithdrawLeft
from motet.protocols.events import Warned
from motet.runtime import Actor, System
from motet.runtime.outside import wall_time

ALL = 1_000
WATCH_EVERY = 2.0
"""Seconds between two checks for answers by another process: ``motet approvals``."""
RETRY_AFTER = 5.0
"""Seconds after which a request is repeated that the store could not serve."""

log = logger(__name__)


class Resumer(Actor[Never]):
    """Has the tasks of :class:`SuspendedRuns`; it is told nothing. ``clock`` gives Unix seconds.

    The deadlines of pending approvals are on Trio's clock, which a clock that is put back does not
    lengthen, and on the wall clock, whichever comes first.
    """

    def __init__(
        self,
        suspended_runs: SuspendedRuns,
        actors: SessionActors,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        self._runs = suspended_runs
        self._actors = actors
        self._pending = suspended_runs.pending_approvals
        self._store = suspended_runs.approvals
        self._clock = clock

    async def on_start(self) -> None:
        self.start_soon(self._expire)
        self.start_soon(self._resume)
        self.start_soon(self._watch)

    # Expiring

    async def _expire(self) -> None:
        await self._load_deadlines()
        while True:
            await self._end(await self._pending.expired())

    async def _load_deadlines(self) -> None:
        """The deadlines of approvals that an earlier host has left pending."""
        while True:
            try:
                left = await self._store.ask(ListApprovals(state="pending", limit=ALL))
            except Exception as error:
                log.warning("approvals not read", why=str(error))
                await trio.sleep(RETRY_AFTER)
                continue
            for info in left:
                if info.id not in self._pending.deadlines:
                    # At most its whole life: the clock may have been put back meanwhile.
                    life = min(info.expires - self._clock(), info.expires - info.created)
                    self._pending.expect(info.id, max(0.0, life), info.expires)
            return

    async def _end(self, approval: str) -> None:
        """Expire an approval and publish that, unless it was answered or withdrawn before."""
        try:
            settled = await self._store.ask(ExpireApproval(approval))
        except Exception as error:
            log.warning("approval not expired", approval=approval, why=str(error))
            if approval in self._pending.deadlines:  # or it was answered meanwhile
                self._pending.expect(approval, RETRY_AFTER)
            return
        if settled.info.state == "expired":
            await self._runs.publish(settled.info)
        self._runs.deliver(settled.info)

    # Answers by another process

    async def _watch(self) -> None:
        """While something is pending, check whether it was answered on disk or the clock jumped."""
        while True:
            await self._pending.any_pending()
            await trio.sleep(WATCH_EVERY)
            self._pending.look_at_clock(self._clock())
            await self._check_disk()

    async def _check_disk(self) -> None:
        runs, deadlines, known = self._runs, self._pending.deadlines, set(self._pending.deadlines)
        try:
            left = await self._store.ask(ListApprovals(state="pending", limit=ALL))
            for approval in known - {info.id for info in left} if len(left) < ALL else ():
                info = await self._store.ask(GetApproval(approval))
                expiring = deadlines.get(approval, inf) == inf
                mine = expiring or approval in runs.answering
                if info is None or info.state == "pending" or mine:
                    continue
                # A live run publishes its own withdrawals, and those of earlier runs of its session
                # whose ends it stores.
                live = {run.session for run in runs.table.runs.values()}
                if info.state != "withdrawn" or info.session not in live:
                    deadlines.pop(approval)
                    await runs.publish(info)
                    runs.deliver(info)
        except Exception as error:
            log.warning("approvals not looked at", why=str(error))

    # Resuming

    async def _resume(self) -> None:
        runs = self._runs
        await runs.opened.wait()
        while True:
            await runs.has_work()
            while runs.table.resuming:
                self.start_soon(self._begin, *runs.table.resuming.popleft())
            while runs.due:
                self.start_soon(self._check, runs.due.popleft())

    async def _check(self, run_id: str) -> None:
        """Make a suspended run live, if its agent and all it needs are there."""
        runs = self._runs
        suspended = runs.table.find_suspended(run_id)
        if suspended is None:
            return
        agent = await runs.agent_for(suspended)
        if runs.table.find_suspended(run_id) is not suspended:
            return  # a stop, or another answer, has resumed it meanwhile
        if runs.table.draining.is_set():
            return  # the next host resumes it: here it would be cut off
        if agent is not None:
            runs.table.resume(suspended, agent)
        elif suspended.blocked != suspended.warned:
            suspended.warned = suspended.blocked
            log.warning("a suspended run cannot go on", run=run_id, why=suspended.blocked)
            warned = Warned("approvals", f"the run is answered and waits: {suspended.blocked}")
            await runs.events.emit_to(suspended.session, suspended.user, warned, run_id)

    async def _begin(self, run: Run, suspended: SuspendedRun) -> None:
        """Load the stored state of a live run, and have its session start it."""
        if run.stop_reason:
            agent = suspended.code or self._runs.resolver.known(suspended.agent)
        elif (agent := await self._runs.agent_for(suspended)) is None:
            self._suspend_again(run, suspended)  # a stop was to end it, and then did not
            return
        run.agent = agent or run.agent
        try:
            found = await self._runs.load_state(run, suspended)
        except Exception as error:
            log.error("a suspended run cannot be read", run=run.id, why=str(error))
            suspended.blocked = f"its stored state cannot be read: {error}"
            self._suspend_again(run, suspended)
            return
        table = self._runs.table
        if found is None:
            table.finish(run, run.ends_as("dropped", "it is not suspended any more"))
        else:
            table.queue(run.session).starting.append(run)
        self._actors.wake(run.session)

    def _suspend_again(self, run: Run, suspended: SuspendedRun) -> None:
        table = self._runs.table
        table.finish(run, run.ends_as("waiting", suspended.blocked))
        table.suspend(suspended)


async def start_resumer(
    system: System, suspended_runs: SuspendedRuns, actors: SessionActors
) -> None:
    """After recovery: suspended runs may be resumed from now on."""
    for info in await suspended_runs.approvals.ask(WithdrawLeft()):
        await suspended_runs.publish(info)
    await system.start(lambda: Resumer(suspended_runs, actors), name="approvals-keeper")
