"""Leaves a run that waits for a person, so that it costs nothing until it is taken up again.

A run is left when its calls have waited long enough, and when its host closes meanwhile: a stop by
a person, by its caller or by a limit ends it instead. It is left only with all of it on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.publisher import RunEvents, RunPublisher
from motet.actors.runs.resume import suspended_state
from motet.actors.runs.run import CLOSING, SHUTDOWN, Run
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable, SuspendedRun
from motet.actors.runs.tool_step import ToolStep
from motet.actors.runs.turn import Turn
from motet.actors.telemetry.tracer import RunTrace
from motet.protocols import events
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalInfo,
    ApprovalProtocol,
    ListApprovals,
    ListSuspended,
    Mark,
    ResumeRun,
    Resumption,
    SuspendedState,
    SuspendRun,
)
from motet.protocols.errors import MotetError
from motet.protocols.events import ApprovalResolved
from motet.protocols.sessions import EnterRun, Principal
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.telemetry.subscription import EventJournal


LEAVE_BUDGET = 5.0


class Suspension:
    """Of one run. ``done``: it is suspended on disk; ``approvals``: what it waits for."""

    def __init__(
        self, run: Run, services: Services, turn: Turn, publisher: RunPublisher, trace: RunTrace
    ) -> None:
        self.done = False
        self.approvals: tuple[str, ...] = ()
        self._run = run
        self._services = services
        self._turn = turn
        self._publisher = publisher
        self._trace = trace
        self._failed = False
        self._kept_for_next_host = False

    @property
    def capture(self) -> Callable[[], SuspendedState] | None:
        """Gives what the run needs to be resumed; None: it is a part of a run that needs it now."""
        if self._services.suspended_runs is None or self._run.caller is not None:
            return None
        return self._captured

    def is_due(self, step: ToolStep | None) -> bool:
        """Whether a run that is cut off now is suspended, not ended."""
        run = self._run
        if step is None or step.approvals.capture is None or self._failed:
            return False
        if run.family is not None and run.family.open:
            return False  # nobody would tell it later what came of its children
        return self._is_free and step.approvals.waits

    @property
    def _is_free(self) -> bool:
        """Whether nobody wants its end."""
        return not self._run.by_user and self._run.stop_reason in ("", CLOSING, SHUTDOWN)

    async def suspend(self, step: ToolStep | None) -> bool:
        """Put all of it on disk and say so; False: it must be ended. Shielded, with a budget."""
        assert step is not None
        deadline = trio.current_time() + LEAVE_BUDGET
        with trio.CancelScope(shield=True, deadline=deadline):
            try:
                self.done = await self._store(step)
                self.done = self.done and self._is_free
            except Exception as error:
                message = f"the run waits for a person and could not be left: {error}"
                await self._services.events.warn(self._run, "approvals", message)
        if not self.done:
            self._failed = True
            self._run.stop_reason = self._run.stop_reason or "it could not be suspended"
        return self.done

    async def keep_for_next_host(self) -> None:
        """Leave the run to the next host, with all that is journalled of it on disk. Shield it."""
        self.done = self._kept_for_next_host = True
        try:
            await self._services.store.ask(EnterRun(self._run.id, 0, (), ()))
        except Exception as error:  # then it is what is there that the next host goes on from
            message = f"the last rows of a run for the next host are not on disk: {error}"
            await self._services.events.warn(self._run, "transcript", message)

    async def _store(self, step: ToolStep) -> bool:
        suspended_runs, run = self._services.suspended_runs, self._run
        assert suspended_runs is not None
        rows = await step.suspend()
        if not await suspended_runs.store(run.id, self._captured(), rows):
            return False
        waiting = await suspended_runs.approvals.ask(ListApprovals(run_id=run.id, state="pending"))
        self.approvals = tuple(one.id for one in reversed(waiting))
        await self._publisher.emit(events.RunWaiting(self.approvals))
        return True

    def publish(self) -> None:
        """Its task ends here, without an await in between: what waits for it finds it suspended."""
        if self.done and not self._kept_for_next_host and self._services.suspended_runs is not None:
            self._services.suspended_runs.add(self._run)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        """What nobody has answered yet of a run that ends; for :meth:`withdrawn`."""
        suspended_runs = self._services.suspended_runs
        if not self._run.asked or suspended_runs is None:
            return ()
        try:
            return await suspended_runs.approvals.ask(
                ListApprovals(run_id=self._run.id, state="pending")
            )
        except Exception as error:
            await self._services.events.warn(
                self._run, "approvals", f"not told of: {error}", grave=False
            )
            return ()

    async def withdrawn(self, pending: tuple[ApprovalInfo, ...]) -> None:
        """Tell that nobody needs to answer these any more."""
        for info in pending:
            self._services.pending_approvals.deadlines.pop(info.id, None)
            await self._publisher.emit(events.ApprovalResolved(info.id, "cancelled", ""))

    def _captured(self) -> SuspendedState:
        return suspended_state(self._run, self._turn, self._publisher, self._trace)


MOST_RESUMED = 3
"""Times in a row that a run is taken up by itself; if nothing came of it, a person has to (G14)."""


@attrs.define(eq=False)
class SuspendedRuns:
    """The suspended runs of one host: plain data and short steps. The ``Resumer`` has the tasks.

    Invariants: a run leaves the table of suspended runs in the step that resumes it; a run that
    cannot be resumed now stays suspended and says why.

    Attributes:
        due: ids of runs to be looked at; ``news`` is set when there are some.
        answering: ids of approvals that are being answered in this process.
        resuming: runs that were taken out of the table and wait for their rows.
        opened: set when the block of the host begins: none goes on before, so that hooks are there.
    """

    approvals: ActorRef[ApprovalProtocol]
    pending_approvals: PendingApprovals
    table: RunTable
    resolver: Resolver
    journal: EventJournal
    events: RunEvents
    answering: set[str] = attrs.field(factory=set[str])
    due: deque[str] = attrs.field(factory=deque[str])
    resuming: deque[tuple[Run, SuspendedRun]] = attrs.field(factory=deque[tuple[Run, SuspendedRun]])
    news: trio.Event = attrs.field(factory=trio.Event)
    opened: trio.Event = attrs.field(factory=trio.Event)

    # Leaving

    async def store(self, run_id: str, suspended: SuspendedState, rows: tuple[Mark, ...]) -> bool:
        return await self.approvals.ask(SuspendRun(run_id, suspended, rows))

    def add(self, run: Run) -> None:
        """A run has left its task; it goes on at once if it has an answer already."""
        agent = run.agent
        user = run.principal.user
        self.table.suspend(
            SuspendedRun(run.id, run.session, agent.name, user, run.text, agent, run.deps)
        )
        if run.missed:
            self.wake(run.id)

    async def load(self) -> None:
        """Once, before runs are recovered: what the last host left suspended or waiting."""
        for run in await self.approvals.ask(ListSuspended()):
            self.table.suspend(SuspendedRun.stored(run))
            if run.due:
                self.wake(run.run_id)

    # Going on

    def find(self, run_id: str) -> SuspendedRun | None:
        return next((one for one in self.table.all_suspended() if one.run_id == run_id), None)

    async def answer(self, request: AnswerApproval, deps: object) -> ApprovalInfo:
        """Put an answer on record, tell of it, and have its run go on. Shield it."""
        self.answering.add(request.id)
        try:
            settled = await self.approvals.ask(request)
            if settled.fresh:
                await self.tell(settled.info)
            suspended = self.find(settled.info.run_id)
            if suspended is not None:
                suspended.resumed = 0
                suspended.deps = deps if deps is not None else suspended.deps
                await self.agent(suspended)
            info = self.blocked(settled.info)
            self.settled(settled.info)
            return info
        finally:
            self.answering.discard(request.id)

    def settled(self, info: ApprovalInfo) -> None:
        """Pass an answer on to whoever waits for it: a call that runs, or a suspended run.

        A run that is leaving just now will find that it was answered.
        """
        if self.pending_approvals.settle(info):
            return
        run = self.table.runs.get(info.run_id)
        if run is not None:
            run.missed = True
        self.wake(info.run_id)

    async def tell(self, info: ApprovalInfo) -> None:
        """Announce an answer, before anything comes of it."""
        await self.events.emit_to(info.session, resolved(info), info.run_id)

    def wake(self, run_id: str) -> None:
        """Have a run go on that has an answer, if it is suspended and can."""
        suspended = self.find(run_id)
        if suspended is not None:
            suspended.due = True
            self.due.append(run_id)
            self.news.set()

    def agent_known(self, name: str) -> None:
        """Runs that only waited for this agent can go on now."""
        for suspended in self.table.all_suspended():
            if suspended.due and (suspended.blocked or suspended.agent == name):
                self.wake(suspended.run_id)

    async def agent(self, suspended: SuspendedRun) -> AnyAgent | None:
        """The agent that it goes on with; None, and it says why, when it cannot."""
        try:
            agent = suspended.code or await self.resolver.resolve(suspended.agent)
        except MotetError as error:
            suspended.blocked = f"{error}: it goes on when host.add(...) makes the agent known"
            return None
        if agent.deps_type is not None and suspended.deps is None:
            suspended.blocked = (
                f"the agent {agent.name!r} needs deps, which are not stored: "
                "give them with host.approve(id, decision, deps=...)"
            )
            return None
        if suspended.resumed >= MOST_RESUMED:
            suspended.blocked = (
                f"it was taken up {suspended.resumed} times and each time the host ended: "
                "answer again to have it tried once more, or stop it"
            )
            return None
        suspended.blocked = ""
        return agent

    def resume(self, suspended: SuspendedRun, agent: AnyAgent) -> Run:
        """A live run in its place, which has no rows yet: the ``Resumer`` loads them.

        The caller awaits nothing between finding the suspended run and this.
        """
        run = Run(
            suspended.run_id,
            suspended.session,
            agent,
            Principal(suspended.user),
            suspended.text,
            agent.limits,
            suspended.deps,
        )
        self.table.resume(run)
        self.resuming.append((run, suspended))
        self.news.set()
        return run

    def resume_to_stop(self, suspended: SuspendedRun) -> Run:
        """Revive a suspended run so that it can be stopped; no agent is needed."""
        known = self.resolver.known(suspended.agent)
        return self.resume(suspended, suspended.code or known or AgentSpec(suspended.agent))

    async def rows(self, run: Run, suspended: SuspendedRun) -> Resumption | None:
        """Load the stored state into a resumed run; None: it is no longer suspended on disk."""
        await self.journal.settle()  # what has been told of it is there to be read
        found = await self.approvals.ask(ResumeRun(run.id))
        if found is not None:
            left = found.suspended
            run.resumption, run.limits, run.asked = found, left.limits, True
            run.principal = Principal(suspended.user, left.role)
            run.found, run.extra, run.lineage = set(left.found), left.extra, left.lineage
            if left.next_agent:
                run.next_agent = await self.resolver.resolve(left.next_agent)
        return found

    def blocked(self, info: ApprovalInfo) -> ApprovalInfo:
        """The approval, with what keeps its run from going on."""
        suspended = self.find(info.run_id)
        return info if suspended is None else replace(info, blocked=suspended.blocked)


def resolved(info: ApprovalInfo) -> ApprovalResolved:
    """The event that tells of a settled approval."""
    decision: Literal["allow", "deny", "expired", "cancelled"]
    match info.state:
        case "allowed":
            decision = "allow"
        case "denied":
            decision = "deny"
        case "expired":
            decision = "expired"
        case _:
            decision = "cancelled"
    return ApprovalResolved(info.id, decision, info.resolved_by or "", info.note)
