"""Runs the calls of one answer and publishes them, so that a cut leaves no call unanswered.

Invariant: every ``tool.call`` event is followed by exactly one ``tool.result`` event (G7, G8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import trio
from msgspec.structs import replace

from motet.actors.errors.tracker import stored_result
from motet.actors.runs.pending_approvals import CallApprovals
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services, publish_entered
from motet.actors.telemetry.tracer import ToolSpan
from motet.actors.tools.arguments import preview
from motet.actors.tools.batch import BEFORE_START, RunningBatch, unknown
from motet.actors.tools.mcp.tool_search import PREFIX as FOREIGN
from motet.actors.transcript import guards as guard
from motet.actors.transcript.grammar import held, missing_result, row_of
from motet.protocols import events
from motet.protocols.approvals import LATER, NOT_STORED, Mark, Resumption, SuspendedState
from motet.protocols.chat import Call, ChatMessage, ToolMessage
from motet.protocols.room_copies import Fix, fixed_call, fixed_text
from motet.protocols.run_states import BEGINS, OPEN, CallStates
from motet.protocols.sessions import RecordIntent
from motet.protocols.storage import StorageUnavailable
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Cut, Failed, Settled

PREVIEW = 1_000
ARGUMENT_PREVIEW = 500


class ToolStep:
    """The calls of one assistant row, the last of ``rows``; these are all rows of its run so far.

    ``record`` holds one result per call at every moment, also when the calls have been cut.
    ``refused``: the results of the row's other calls, which do not run. ``capture`` gives what the
    run needs to be resumed; None: it cannot be suspended. ``left``: what the run resumes from, if
    it was suspended or recovered at these calls.
    """

    def __init__(
        self,
        run: Run,
        services: Services,
        calls: tuple[Call, ...],
        rows: Sequence[ChatMessage],
        refused: Iterable[CallResult] = (),
        capture: Callable[[], SuspendedState] | None = None,
        left: Resumption | None = None,
    ) -> None:
        self.run = run
        self.services = services
        self.calls = calls
        self.step = len(rows) - 1
        self.record: list[CallResult] = []
        self.states = CallStates(calls, left)
        self._repeats = left.suspended.repeats if left is not None else ()
        self._known = known(left)
        self.approvals = CallApprovals(
            run,
            calls,
            self.states,
            self.step,
            services.toolkits.of(run).catalog.in_order(run.agent.name, calls),
            self._with_repeats(capture),
            on_record=left is not None,
            held=frozenset(self._held()),
        )
        self._rows, self._refused = tuple(rows), tuple(refused)
        self._journalling = trio.Lock()
        self._trace = services.tracer.of(run.id)
        self._spans: dict[int, ToolSpan] = {}
        self._announced = left.announced if left is not None else frozenset[str]()
        self._fixes: list[Fix] = []

    def correct(self, fix: Fix) -> None:
        """Change the results of the calls, also of those under way; see ``room_messages``.

        A call that waits with an old text does not begin, and nobody is asked about it any more.
        """
        self._fixes.append(fix)
        before, pending = self.calls, self.services.pending_approvals
        after = [fixed_call(fix, call) for call in before]
        is_new = [self.states[call.id] == "new" for call in before]
        self.calls = tuple(map(lambda old, now, new: now if new else old, before, after, is_new))
        for old, now, new in zip(before, after, is_new, strict=True):
            if now != old and not new:
                self.approvals.stale.add(old.id)
                if (approval := self.approvals.asked.get(old.id, "")) in pending.deadlines:
                    pending.expect(approval, 0)
        self.record[:] = map(self._as_now, self.record)
        self._known = {id: self._as_now(result) for id, result in self._known.items()}

    def _as_now(self, result: CallResult) -> CallResult:
        for fix in self._fixes:
            result = replace(result, text=fixed_text(fix, result.text))
        return result

    @property
    def results(self) -> list[CallResult]:
        """The results as of now; before the first call has begun, those that were stored before.

        What an earlier host may have begun, and this one has not, has an unknown outcome.
        """
        return list(map(self._since_kill, self.calls, self._here))

    def _since_kill(self, call: Call, result: CallResult) -> CallResult:
        is_begun = result.outcome != "cancelled_before_start" or call.id in self._known
        if is_begun or call.id not in self._repeats:
            return result
        return stored_result(missing_result(call, "unknown"))

    def _with_repeats(
        self, capture: Callable[[], SuspendedState] | None
    ) -> Callable[[], SuspendedState] | None:
        """So that a run that is suspended again knows which of its calls a kill has cut."""
        if capture is None or not self._repeats:
            return capture
        return lambda: replace(capture(), repeats=self._repeats)

    @property
    def _here(self) -> list[CallResult]:
        """The results by what has become of the calls in this host."""
        found = self.record or [
            CallResult(call.id, call.name, BEFORE_START, "cancelled_before_start")
            for call in self.calls
        ]
        return [self._known.get(result.call_id) or self._as_begun(result) for result in found]

    def _as_begun(self, result: CallResult) -> CallResult:
        """The result; a call that was cut before its tool began has done nothing.

        The batch knows only that it was asked for. It may have waited for a gate or a person.
        """
        cut = result.outcome == "cancelled_while_running"
        if not cut or self.states[result.call_id] in ("begun", "done"):
            return result
        return replace(result, text=BEFORE_START, outcome="cancelled_before_start")

    async def execute(self) -> Sequence[CallResult]:
        """Results by call index; events come in completion order.

        The calls are on disk before the first one starts: a crash then shows as ``unknown``. While
        the storage is unavailable, calls that only read start all the same.
        """
        # One commit for all calls. A read may begin without it: after a crash it is run again.
        await self._try_journal()
        run, approvals, steps = self.run, self.approvals, self.services.pending_approvals.steps
        limit, may_begin = run.limits.parallel, None
        if approvals.in_order:
            # The gate keeps their order, so that people are asked for several of them at once.
            limit, may_begin = len(self.calls), approvals.may_ask
        batch = RunningBatch(
            self.calls,
            self.services.tools,
            self,
            limit=limit,
            may_begin=may_begin,
            record=self.record,
        )
        steps[run.id] = approvals
        approvals.watch(self.journalled, batch.look_again)
        try:
            return await batch.run()
        finally:
            approvals.forget()
            del steps[run.id]

    async def report_cut(self) -> None:
        """Publish the results of calls that were cut, as a part of a run's clean-up (G7)."""
        for index, (call, result) in enumerate(zip(self.calls, self.results, strict=True)):
            # An earlier host has begun the call, or may have, and died before it announced that.
            if self.states[call.id] == "new" and result.outcome != "cancelled_before_start":
                await self._announce(index, call)
            if self.states[call.id] in OPEN:
                await self._report_cut(result, index)

    async def _report_cut(self, result: CallResult, index: int) -> None:
        if self.record:
            self.record[index] = result  # its state says no more how it was cut, once it is done
        await self._report(result, index)

    def for_next_host(self) -> Iterator[ToolMessage]:
        """What is known of each call here, in place of an intent that was never stored."""
        for call, result in zip(self.calls, self._here, strict=True):
            if call.id in self._known or self.states[call.id] == "done":
                yield row_of(result)
            elif call.id in self._repeats or self.states[call.id] in BEGINS:
                yield missing_result(call, "unknown")
            else:
                yield held(call)
        yield from map(row_of, self._refused)

    async def suspend(self) -> tuple[Mark, ...]:
        """Publish the results of calls that were cut while they ran; all results that are known.

        The other calls have not begun, and begin when the run is resumed.
        """
        settled: dict[str, CallResult] = {}
        for index, (call, result) in enumerate(zip(self.calls, self._here, strict=True)):
            match self.states[call.id]:
                case "cleared" | "begun":
                    await self._report_cut(result, index)
                    settled[call.id] = result
                case "new" | "done" if result.outcome != "cancelled_before_start":
                    settled[call.id] = result
                case _:
                    pass
        return marks(self.step, self.calls, settled)

    # Around each call: see ``Around`` of the batch

    async def begin(self, index: int) -> ExecuteCall | CallResult:
        run, call = self.run, self.calls[index]
        if (result := self._known.get(call.id)) is not None:
            if self.states[call.id] != "done":
                await self._announce(index, call)
                await self._report(result, index)
            return result
        self._spans[index] = self._trace.tool(call)
        await self._announce(index, call)
        said, call = run.input, self.calls[index]  # it may have been changed meanwhile
        return ExecuteCall(
            run.id, run.session, run.agent.name, said.principal.user, call, said.sender
        )

    def end(self, index: int, became: Settled[CallResult]) -> CallResult | None:
        call, span = self.calls[index], self._spans.pop(index)
        if isinstance(became, Cut):
            span.cut()
            return None
        try:
            if isinstance(became, Failed):
                raise became.error
            result = became.value
            if result.name in guard.WEB_TOOLS or result.name.startswith(FOREIGN):
                result = self._screened(result)
            if self._repeats:
                result = self._since_kill(call, result)
            if self._fixes:
                result = self._as_now(result)
        except Exception as error:
            # The executor answers every call: this is a bug in it, or its death. Still one result,
            # and nobody knows whether the call has had its effect.
            self.services.events.log.error("tool executor failed", run=self.run.id, exc_info=error)
            result = unknown(call, error)
        span.returned(result)
        span.end()
        return result

    async def tell(self, index: int, result: CallResult) -> None:
        if result.kind != LATER:
            now = self._as_now(result) if self._fixes else result
            row, journal = row_of(now), self.services.journal
            # Before the result that announces it: after a kill between the two, the next host would
            # go on with the old agent and tell it that another one has taken over.
            if self.run.next_agent is not None:
                await journal.hand_over(self.run.id, self.run.next_agent.name)
            await journal.note(self.run.id, self.step + 1 + index, row)
            await self._report(self.record[index], index)  # a message may have changed meanwhile

    async def _announce(self, index: int, call: Call) -> None:
        if self.states[call.id] == "announced":
            return
        if call.id not in self._announced:
            for fix in self.run.carried.fixes:  # it may quote what was changed since it was read
                call = fixed_call(fix, call)
            args = preview(call.arguments, ARGUMENT_PREVIEW)
            event = events.ToolCall(call.id, call.name, args, index)
            if not self.services.events.put(self.run, event):
                await self.services.events.emit(self.run, event)
        # After the event, which is cut as a whole or not at all: so no end comes without a begin.
        self.states.move(call.id, "announce")

    def _screened(self, result: CallResult) -> CallResult:
        """A result of the web or of an MCP server; if it reads like orders, behind a warning."""
        finding = guard.check(result.text, self.services.toolkits.current.guard, "result")
        if finding is None:
            return result
        self.services.events.log_finding(self.run, finding)
        return replace(result, text=guard.with_warning(result.text, finding))

    async def _report(self, result: CallResult, index: int) -> None:
        event = events.ToolResult(
            id=result.call_id,
            name=result.name,
            ok=result.ok,
            outcome=result.outcome,
            preview=result.text[:PREVIEW],
            ms=result.ms,
            index=index,
            error_id=result.error_id,
            result_id=result.result_id,
            failure=result.failure,
        )
        if not self.services.events.put(self.run, event):
            await self.services.events.emit(self.run, event)
        self.approvals.move(result.call_id, "report")

    # The intent of the calls

    def _held(self) -> Iterator[str]:
        """The calls that a person may be asked about: those have not begun on record.

        Storing that one begins costs a commit, which a call that nobody keeps back does not need.
        """
        run, toolkit = self.run, self.services.toolkits.of(self.run)
        hooks, tools = self.services.hooks.hooks, toolkit.catalog.by_name(run.agent.name)
        policy, subjects, gated = toolkit.policy, run.subjects, "before_tool" in hooks.points
        is_open = policy.is_open
        for call in self.calls:
            tool = tools.get(call.name)
            if tool is None or tool.only_reads or call.id in (*self._known, *self._repeats):
                continue
            if (
                tool.approval is not False
                or (gated and hooks.at("before_tool", tool.name))
                or (not is_open and policy.ruling(subjects, tool).effect == "ask")
            ):
                yield call.id

    async def journalled(self) -> None:
        """Wait until the calls are on disk. Raises ``NotFound`` if the run has ended elsewhere."""
        async with self._journalling:
            if not self.approvals.is_journalled:
                await self.services.health.insist(self._journal)

    async def _try_journal(self) -> None:
        """Store the intent of the calls; a failure holds up those calls only that need it."""
        services, run = self.services, self.run
        problem = services.health.problem
        try:
            if problem is None:
                await self._journal()
        except StorageUnavailable as error:
            problem = error
        except Exception as error:
            # Calls with effects meet the same error, and do not run.
            message = f"the calls are not journalled: {error}"
            await services.events.warn(run, "transcript", message)
        if problem is not None:
            services.journal.torn.add(run.id)
            catalog = services.toolkits.of(run).catalog
            if not catalog.only_read(run.agent.name, self.calls):
                message = f"{NOT_STORED}: calls with effects wait until they can be stored: "
                await services.events.warn(run, "storage", f"{message}{problem.reason}")

    async def _journal(self) -> None:
        """Store the intent, with all rows before it if the journal has lost some."""
        run, budget, late = self.run, self.run.lineage.budget, self.run.carried.entered
        *earlier, intent = self._rows
        is_torn = bool(late) or run.id in self.services.journal.torn
        behind = self.step + 1 + len(self.calls)
        refused = enumerate(map(row_of, self._refused), behind)
        held_back = (call for call in self.calls if call.id in self.approvals.held)
        await self.services.runs.record_intent(
            RecordIntent(
                run.id,
                self.step,
                intent,
                budget.usage if budget is not None else None,
                tuple(earlier) if is_torn else (),
                late,
                run.carried.handed_to,
                (*refused, *((self.approvals.place(c.id), held(c)) for c in held_back)),
            )
        )
        self.approvals.is_journalled, run.carried.handed_to = True, ()
        if late:
            run.carried.entered = ()
            await publish_entered(run, late, self.services)


def known(resumption: Resumption | None) -> dict[str, CallResult]:
    """The results that the calls of the step had when the run was suspended, by their ids."""
    rows = resumption.results if resumption is not None else ()
    return {row.call_id: stored_result(row) for row in rows}


def marks(step: int, calls: Sequence[Call], results: Mapping[str, CallResult]) -> tuple[Mark, ...]:
    """The results as rows that follow the row at ``step``, which has these calls."""
    places = {call.id: step + 1 + index for index, call in enumerate(calls)}
    return tuple(Mark(places[id], row_of(result)) for id, result in results.items())
