"""Runs the calls of one answer and tells of them, so that a cut leaves no call unanswered.

Invariant: every ``tool.call`` event is followed by exactly one ``tool.result`` event (G7, G8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from motet.actors.runs.pending_approvals import Standing
from motet.actors.runs.resume import known, marks
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.telemetry.spans import OpenSpan
from motet.actors.tools.arguments import preview
from motet.actors.tools.batch import BEFORE_START, RunningBatch, unknown
from motet.actors.tools.mcp.tool_search import PREFIX as FOREIGN
from motet.actors.transcript import input_guard as guard
from motet.protocols import events
from motet.protocols.approvals import LATER, Mark, SuspendedState
from motet.protocols.chat import AssistantMessage, Call, ToolMessage
from motet.protocols.sessions import RecordIntent
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Cut, Failed, Settled

PREVIEW = 1_000
ARGUMENT_PREVIEW = 500


class ToolStep:
    """The calls of one assistant row. ``step`` is that row's place among the rows of its run.

    ``record`` holds one result per call at every moment, also when the batch has been cut.
    ``suspended`` gives what the run needs to go on later; None: it cannot be left.
    """

    def __init__(
        self,
        run: Run,
        services: Services,
        calls: tuple[Call, ...],
        step: int,
        suspended: Callable[[], SuspendedState] | None = None,
    ) -> None:
        self.run = run
        self.services = services
        self.calls = calls
        self.step = step
        self.record: list[CallResult] = []
        self._spans: dict[int, OpenSpan] = {}
        in_order = services.of(run).catalog.in_order(run.agent.name, calls)
        self.standing = Standing(run, calls, step, in_order, suspended)
        left, run.resumption = run.resumption, None
        self._known = known(left)
        self._announced = left.announced if left is not None else frozenset[str]()
        self._told = left.told if left is not None else frozenset[str]()
        self._open = {
            index
            for index, call in enumerate(calls)
            if call.id in self._announced and call.id not in self._told
        }
        self.standing.asked = left is not None

    @property
    def results(self) -> list[CallResult]:
        """What is known of each call now; before a batch has begun, what was known of it before."""
        found = self.record or [
            CallResult(call.id, call.name, BEFORE_START, "cancelled_before_start")
            for call in self.calls
        ]
        return [self._known.get(result.call_id, result) for result in found]

    async def execute(self, intent: AssistantMessage) -> Sequence[CallResult]:
        """Results by call index; events come in completion order.

        The calls are on disk before the first one starts: a crash then shows as ``unknown``.
        """
        await self._store_intent(intent)
        run, standing, standings = (
            self.run,
            self.standing,
            self.services.pending_approvals.standings,
        )
        limit, may_begin = run.limits.parallel, None
        if standing.in_order:
            limit, may_begin = len(self.calls), standing.may_begin
        batch = RunningBatch(
            self.calls,
            self.services.tools,
            self,
            limit=limit,
            may_begin=may_begin,
            record=self.record,
        )
        if standing.in_order:
            standing.look = batch.look_again
        standings[run.id] = standing
        try:
            return await batch.run()
        finally:
            del standings[run.id]
            standing.look = None  # else all of it would wait for the garbage collector

    async def tell_cut(self) -> None:
        """Tell the end of calls that were cut; part of a run's clean-up.

        What a run that was suspended had announced has an end too.
        """
        results = self.results
        for index in sorted(self._open):
            await self._tell_end(results[index], index)

    async def leave(self) -> tuple[Mark, ...]:
        """Tell the end of calls that were cut while they worked, and give all that is known.

        The others are for later: they have not begun.
        """
        standing = self.standing
        settled: dict[str, CallResult] = {}
        for index, (call, result) in enumerate(zip(self.calls, self.results, strict=True)):
            if index not in self._open:
                begun = call.id not in standing.left and result.outcome != "cancelled_before_start"
            else:
                begun = call.id in standing.began
                if begun:
                    await self._tell_end(result, index)
            if begun:
                settled[call.id] = result
        return marks(self.step, self.calls, settled)

    # Around each call

    async def begin(self, index: int) -> ExecuteCall | CallResult:
        run, call = self.run, self.calls[index]
        if (result := self._known.get(call.id)) is not None:
            if call.id not in self._told:
                await self._announce(index, call)
                await self._tell_end(result, index)
            self.standing.end(call.id)
            return result
        self._spans[index] = self.services.tracer.of(run.id).tool(call)
        await self._announce(index, call)
        return ExecuteCall(run.id, run.session, run.agent.name, run.principal.user, call)

    def end(self, index: int, became: Settled[CallResult]) -> CallResult | None:
        call, span = self.calls[index], self._spans.pop(index)
        if isinstance(became, Cut):
            span.cut()
            self._ended(call)
            return None
        try:
            if isinstance(became, Failed):
                raise became.error
            result = self._screened(became.value)
        except Exception as error:
            # The executor answers every call: this is a bug in it, or its death. Still one result,
            # and nobody knows whether the call has had its effect.
            self.services.log.error("tool executor failed", run=self.run.id, exc_info=error)
            result = unknown(call, error)
        span.returned(result)
        span.end()
        return result

    async def tell(self, index: int, result: CallResult) -> None:
        try:
            if result.kind != LATER:
                row = ToolMessage(result.call_id, result.name, result.text, result.outcome)
                await self.services.note(self.run, self.step + 1 + index, row)
                await self._tell_end(result, index)
        finally:
            self._ended(self.calls[index])

    def _ended(self, call: Call) -> None:
        if call.id not in self.standing.left:
            self.standing.end(call.id)

    async def _announce(self, index: int, call: Call) -> None:
        self._open.add(index)
        if call.id in self._announced:
            return
        args = preview(call.arguments, ARGUMENT_PREVIEW)
        await self.services.emit(self.run, events.ToolCall(call.id, call.name, args, index))

    def _screened(self, result: CallResult) -> CallResult:
        """What came from the web or a server, with a warning in front if it reads like orders."""
        if result.name not in guard.WEB_TOOLS and not result.name.startswith(FOREIGN):
            return result
        finding = guard.check(result.text, self.services.guard, "result")
        if finding is None:
            return result
        self.services.log_finding(self.run, finding)
        return replace(result, text=guard.with_warning(result.text, finding))

    async def _tell_end(self, result: CallResult, index: int) -> None:
        self._open.discard(index)
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
        )
        await self.services.emit(self.run, event)

    async def _store_intent(self, intent: AssistantMessage) -> None:
        try:
            spent = self.run.budget.usage if self.run.budget is not None else None
            await self.services.store.ask(RecordIntent(self.run.id, self.step, intent, spent))
        except Exception as error:
            # A full disk must not stop the agent; a crash of this very run would lose these rows.
            message = f"the calls are not journalled: {error}"
            await self.services.warn(self.run, "transcript", message)
