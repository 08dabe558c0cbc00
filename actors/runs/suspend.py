"""Suspends a run that waits for a person, so that it costs nothing until it is resumed.

A run is suspended when its calls have waited long enough, and when its host closes meanwhile: a
stop by a person, by its caller or by a limit ends it instead. It is suspended only with all of it
on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.tracker import Failures, stored_result
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.queue import SuspendedRun
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services, publish_entered
from motet.actors.runs.table import RunEvents, RunTable
from motet.actors.runs.tool_step import ToolStep
from motet.actors.runs.turn import Decision, Turn
from motet.actors.storage.writer import RETRY, StorageHealth
from motet.actors.telemetry.tracer import RunTrace
from motet.protocols import events
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalInfo,
    ApprovalProtocol,
    ListApprovals,
    ListSuspended,
    ResumeRun,
    Resumption,
    SuspendedState,
    SuspendRun,
    resolved,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage
from motet.protocols.errors import MotetError
from motet.protocols.recovery import RecoveryConfig
from motet.protocols.sessions import EnterRun, Principal
from motet.protocols.storage import StorageUnavailable
from motet.protocols.tools import CallResult
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.telemetry.subscription import EventJournal

SUSPEND_BUDGET = 5.0


class Suspension:
    """Takes one run out of memory, or leaves it to the next host.

    Attributes:
        state: ``active``: the run has its task. ``suspended``: it is on disk, and its task ends.
            ``kept``: the same, for the next host. ``failed``: it has to end here.
        approvals: ids of the approvals that a suspended run waits for.
    """

    def __init__(
        self, run: Run, services: Services, turn: Turn, publisher: RunPublisher, trace: RunTrace
    ) -> None:
        self.state: Literal["active", "suspended", "kept", "failed"] = "active"
        self.approvals: tuple[str, ...] = ()
        self._run = run
        self._services = services
        self._turn = turn
        self._publisher = publisher
        self._trace = trace

    @property
    def done(self) -> bool:
        """Whether the run goes on later, so that it has not ended with its task."""
        return self.state in ("suspended", "kept")

    @property
    def capture(self) -> Callable[[], SuspendedState] | None:
        """Gives what the run needs to be resumed; None: it is a part of a run that needs it now."""
        if self._services.suspended_runs is None or self._run.lineage.caller is not None:
            return None
        return self._captured

    def is_due(self, step: ToolStep) -> bool:
        """Whether a run that is cut off now is suspended, not ended."""
        run = self._run
        if step.approvals.capture is None or self.state == "failed":
            return False
        if run.lineage.children is not None and run.lineage.children.open:
            return False  # its children would end with it, and their results would be lost
        return step.approvals.waits and not run.was_stopped

    async def suspend(self, step: ToolStep | None) -> bool:
        """Store all of the run and publish that it waits; False: it has to end.

        Each attempt is shielded, with a budget. A run whose state the storage does not take now
        tries again, until a stop ends it, or its host leaves it to the next one: that has the run
        as it was when it asked the person.
        """
        assert step is not None
        # Until all of it is on disk, the run counts as one that has to end here.
        self.state = "failed"
        while await self._tries(step):
            run = self._run
            is_cut = run.is_cut or trio.current_effective_deadline() == -inf
            if (is_cut or run.stop_reason) and not run.was_stopped:
                self.state = "kept"
                break
            with trio.CancelScope(shield=True):
                await trio.sleep(RETRY)
        return self.done

    async def _tries(self, step: ToolStep) -> bool:
        """Try to store the run; whether to try again."""
        why = "the storage is slow"
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SUSPEND_BUDGET):
            try:
                is_stored = await self._store(step)
            except StorageUnavailable as error:
                why = str(error)
            except Exception as error:
                message = f"the run waits for a person and could not be left: {error}"
                await self._services.events.warn(self._run, "approvals", message)
                self._run.cancel(f"it could not be suspended: {error}")
                return False
            else:
                if not is_stored:
                    self._run.cancel("it has ended on disk already")
                elif not self._run.was_stopped:
                    self.state = "suspended"
                return False
        self._services.events.log.warning("not suspended", run=self._run.id, why=why)
        return not self._run.was_stopped

    async def keep_for_next_host(self, step: ToolStep | None) -> None:
        """Leave the run to the next host, with its whole journal on disk. Shield it."""
        self.state = "kept"
        try:
            await self._enter_late(step)
        except Exception as error:  # the next host goes on from the rows that are there
            message = f"the last rows of a run for the next host are not on disk: {error}"
            await self._services.events.warn(self._run, "transcript", message)

    async def _enter_late(self, step: ToolStep | None = None) -> None:
        """Store the rest of the journal, and the inputs that are in its rows."""
        run, late = self._run, self._run.carried.entered
        is_torn = bool(late) or run.id in self._services.journal.torn
        calls = step.for_next_host() if step is not None else ()
        rows = (*self._turn.rows, *calls) if is_torn else ()
        await self._services.store.ask(EnterRun(run.id, 0, rows, (), late))
        run.carried.entered = ()
        await publish_entered(run, late, self._services)

    async def _store(self, step: ToolStep) -> bool:
        suspended_runs, run = self._services.suspended_runs, self._run
        capture = step.approvals.capture
        assert suspended_runs is not None
        assert capture is not None
        results = await step.suspend()
        if run.carried.entered:
            await self._enter_late()
        store = suspended_runs.approvals
        if not await store.ask(SuspendRun(run.id, capture(), results)):
            return False
        waiting = await store.ask(ListApprovals(run_id=run.id, state="pending"))
        self.approvals = tuple(one.id for one in reversed(waiting))
        await self._publisher.emit(events.RunWaiting(self.approvals))
        return True

    def publish(self) -> None:
        """Hand a suspended run over to the host, in the step in which its task ends.

        Nothing is awaited, so that an answer finds the task or the suspended run.
        """
        if self.state == "suspended" and self._services.suspended_runs is not None:
            self._services.suspended_runs.add(self._run)

    def _captured(self) -> SuspendedState:
        return suspended_state(self._run, self._turn, self._publisher, self._trace)


@attrs.define(eq=False)
class SuspendedRuns:
    """The suspended runs of one host: plain data and short steps. The ``Resumer`` has the tasks.

    Invariants: a run leaves the table of suspended runs in the step that resumes it; a run that
    cannot be resumed now stays suspended and says why.

    Attributes:
        due: ids of runs to be checked.
        answering: ids of approvals that are being answered in this process.
        opened: set when the block of the host begins: none resumes before, so that hooks are there.
        recovery: how many hosts in a row one run may end; then a person decides (G14).
    """

    approvals: ActorRef[ApprovalProtocol]
    pending_approvals: PendingApprovals
    table: RunTable
    resolver: Resolver
    journal: EventJournal
    events: RunEvents
    health: StorageHealth
    recovery: RecoveryConfig
    answering: set[str] = attrs.field(factory=set[str])
    due: deque[str] = attrs.field(factory=deque[str])
    opened: trio.Event = attrs.field(factory=trio.Event)

    def add(self, run: Run) -> None:
        """Keep a run whose task ends now; it resumes at once if an answer came meanwhile."""
        self.table.suspend(SuspendedRun.of(run))
        if run.carried.approval_missed:
            self.wake(run.id)

    async def load(self) -> None:
        """Find the runs that the last host left suspended or waiting; once, before recovery."""
        for run in await self.approvals.ask(ListSuspended()):
            self.table.suspend(SuspendedRun.stored(run))
            if run.due:
                self.wake(run.run_id)

    # Answers

    async def answer(self, request: AnswerApproval, deps: object) -> ApprovalInfo:
        """Store an answer, publish it, and resume its run. Shield it."""
        self.answering.add(request.id)
        try:
            settled = await self.approvals.ask(request)
            if settled.fresh:
                await self.publish(settled.info)
            if request.who is not None:
                self.hear(request.runs, request.who)
            suspended = self.table.find_suspended(settled.info.run_id)
            if suspended is not None:
                suspended.resumed = 0
                suspended.deps = deps if deps is not None else suspended.deps
                await self.agent_for(suspended)
            info = self.with_block(settled.info)
            self.deliver(settled.info)
            return info
        finally:
            self.answering.discard(request.id)

    def hear(self, runs: Sequence[str], who: Principal) -> None:
        """Runs that are here answer this person, too: they read the note of a denial."""
        for run in filter(None, map(self.table.runs.get, runs)):
            run.ask_also(who)

    def deliver(self, info: ApprovalInfo) -> None:
        """Give an answer to the call that waits for it, or resume its suspended run.

        A run that is being suspended just now finds that an answer came too late for its call.
        """
        if self.pending_approvals.settle(info):
            return
        run = self.table.runs.get(info.run_id)
        if run is not None:
            run.carried.approval_missed = True
        self.wake(info.run_id)

    async def publish(self, info: ApprovalInfo) -> None:
        """Publish an answer, before anything comes of it."""
        await self.events.emit_to(info.session, info.user, resolved(info), info.run_id)

    def with_block(self, info: ApprovalInfo) -> ApprovalInfo:
        """The approval, with the reason why its suspended run cannot resume."""
        suspended = self.table.find_suspended(info.run_id)
        return info if suspended is None else replace(info, blocked=suspended.blocked)

    # Resuming

    async def has_work(self) -> None:
        """Wait until a run is due, or resuming. For one task."""
        await self.table.resumes.wait()
        self.table.resumes = trio.Event()

    def wake(self, run_id: str) -> None:
        """Resume a run that has an answer, if it is suspended and can."""
        suspended = self.table.find_suspended(run_id)
        if suspended is not None:
            suspended.due = True
            self.due.append(run_id)
            self.table.resumes.set()

    def agent_added(self, name: str) -> None:
        """Resume the runs that waited for this agent only."""
        for suspended in self.table.all_suspended():
            if suspended.due and (suspended.blocked or suspended.agent == name):
                self.wake(suspended.id)

    async def agent_for(self, suspended: SuspendedRun) -> AnyAgent | None:
        """The agent that a run resumes with; None, and ``blocked`` says why, when it cannot."""
        try:
            agent = suspended.code or await self.resolver.resolve(suspended.agent)
        except MotetError as error:
            suspended.blocked = f"{error}: it resumes when host.add(...) adds the agent"
            return None
        suspended.blocked = ""
        if agent.deps_type is not None and suspended.deps is None:
            suspended.blocked = (
                f"the agent {agent.name!r} needs deps, which are not stored: "
                "give them with host.approve(id, decision, deps=...)"
            )
        elif suspended.resumed >= self.recovery.quarantine_after:
            suspended.blocked = (
                f"it was taken up {suspended.resumed} times and each time the host ended: "
                "answer again to have it tried once more, or stop it"
            )
        return None if suspended.blocked else agent

    async def load_state(self, run: Run, suspended: SuspendedRun) -> Resumption | None:
        """Load the stored state into a live run; None: it is no longer suspended on disk."""
        await self.journal.journalled()  # the run's own events are read with its state
        found = await self.health.insist(partial(self.approvals.ask, ResumeRun(run.id)))
        if found is not None:
            left = found.suspended
            run.carried.resumption, run.carried.has_approval = found, True
            run.carried.start_published = None if found.started else False
            run.limits, run.lineage.ancestors = left.limits, left.lineage
            who = Principal(suspended.user, left.role)
            of = {name: getattr(left, name) for name in ("extra", "asked_by", "payers", "round")}
            of["turn"] = left.room_turn
            # Somebody may have answered it with a note while its state was read.
            of["asked_by"] = tuple(dict.fromkeys((*left.asked_by, *run.input.asked_by)))
            run.input = attrs.evolve(run.input, principal=who, **of)
            run.found.update(left.found)
            if left.next_agent:
                run.next_agent = await self.resolver.resolve(left.next_agent)
        return found


# Pure: the state of a suspended run, and the way back. Laws: a resumed run has spent what it had
# spent, and has the results that it had; a call that had begun does not begin again; no event is
# published twice.


def suspended_state(
    run: Run, turn: Turn, publisher: RunPublisher, trace: RunTrace
) -> SuspendedState:
    """The state of a run while the calls of its last row run: all it needs to be resumed."""
    step = len(turn.rows) - 1
    row = turn.rows[step]
    assert isinstance(row, AssistantMessage)
    return SuspendedState(
        rows=tuple(turn.rows),
        step=step,
        last=step + len(row.calls),
        role=run.input.principal.role,
        limits=run.limits,
        turn=turn.state_of_calls(),
        elapsed=turn.budget.elapsed(trio.current_time()),
        messages=publisher.messages,
        spans=trace.count,
        started=trace.root.started,
        errors=trace.errors,
        next_agent=run.next_agent.name if run.next_agent is not None else "",
        found=tuple(sorted(run.found)),
        extra=run.input.extra,
        lineage=run.lineage.ancestors,
        asked_by=run.input.asked_by,
        payers=run.input.payers,
        round=run.input.round,
        room_turn=run.input.turn,
    )


def resume_turn(
    turn: Turn, publisher: RunPublisher, trace: RunTrace, resumption: Resumption
) -> Decision:
    """Bring a fresh turn to where the run was suspended. No await: a stop finds it whole."""
    left = resumption.suspended
    publisher.go_on(left.messages)
    trace.go_on(left.spans, left.started, left.errors, left.turn.usage)
    for calls, results in _batches(left.rows):
        turn.results += results.values()
        turn.watch((call, results[call.id]) for call in calls if call.id in results)
    return turn.resume(left.rows, left.turn)


def counted(failures: Failures, rows: Sequence[ChatMessage]) -> Failures:
    """The failures of the session, with those among the rows of the run itself."""
    for calls, results in _batches(rows):
        failures = failures.new_batch()
        for call in calls:
            if call.id in results:
                result = results[call.id]
                failures, _ = failures.ended(call, result)
    return failures


def _batches(rows: Sequence[ChatMessage]) -> list[tuple[tuple[Call, ...], dict[str, CallResult]]]:
    """The calls of each answer with the results that follow it."""
    found: list[tuple[tuple[Call, ...], dict[str, CallResult]]] = []
    for row in rows:
        if isinstance(row, AssistantMessage) and row.calls:
            found.append((row.calls, {}))
        elif isinstance(row, ToolMessage) and found:
            found[-1][1][row.call_id] = stored_result(row)
    return found
