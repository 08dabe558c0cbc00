"""Runs the calls of one answer and keeps account of them, so that a cut leaves no call unanswered.

Invariant: every ``tool.call`` event is followed by exactly one ``tool.result`` event (G7, G8).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from motet.actors.agent.transcript import GAP_TEXT
from motet.actors.services import Services
from motet.actors.sessions.table import Run
from motet.actors.tools.batch import run_batch
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, Call, ToolMessage
from motet.protocols.sessions import RecordIntent, RecordStep
from motet.protocols.tools import CallResult, ExecuteCall

PREVIEW = 1_000
ARGUMENT_PREVIEW = 500


class Batch:
    """The calls of one assistant row. ``step`` is that row's place among the rows of its run."""

    def __init__(self, run: Run, services: Services, calls: tuple[Call, ...], step: int) -> None:
        self.run = run
        self.services = services
        self.calls = calls
        self.step = step
        self._begun: dict[str, float] = {}
        self._done: dict[str, CallResult] = {}
        self._told: set[str] = set()

    async def execute(self, intent: AssistantMessage) -> Sequence[CallResult]:
        """Results by call index; events come in completion order.

        The calls are on disk before the first one starts: a crash then shows as ``unknown``.
        """
        await self._store_intent(intent)
        return await run_batch(
            self.calls,
            self._call,
            limit=self.run.limits.parallel,
            serial=self.services.catalog.any_writes(self.run.agent.name, self.calls),
        )

    def known(self) -> list[CallResult]:
        """What is known when the batch is cut: results, and calls stopped while they ran."""
        return [
            self._done.get(call.id) or self._cut(call)
            for call in self.calls
            if call.id in self._begun
        ]

    async def tell_cut(self) -> None:
        """Announce the end of calls whose end was not announced; part of a run's clean-up."""
        for index, call in enumerate(self.calls):
            if call.id in self._begun and call.id not in self._told:
                await self._announce(self._done.get(call.id) or self._cut(call), index)

    async def _call(self, index: int, call: Call) -> CallResult:
        self._begun[call.id] = trio.current_time()
        args = self.services.catalog.preview(call, ARGUMENT_PREVIEW)
        await self.services.emit(self.run, events.ToolCall(call.id, call.name, args, index))
        result = self._done[call.id] = await self._ask(call)
        row = ToolMessage(result.call_id, result.name, result.text, result.outcome)
        await self.services.note(RecordStep(self.run.id, self.step + 1 + index, row))
        await self._announce(result, index)
        return result

    async def _ask(self, call: Call) -> CallResult:
        run = self.run
        request = ExecuteCall(run.id, run.session, run.agent.name, run.principal.user, call)
        try:
            return await self.services.tools.ask(request)
        except Exception as error:
            # The executor answers every call; this is a bug or its death, and still one result.
            self.services.log.exception("tool executor failed", run=run.id, tool=call.name)
            text = f"Tool {call.name!r} could not be run: {error}"
            return CallResult(call.id, call.name, text, "failed", kind="unknown")

    async def _announce(self, result: CallResult, index: int) -> None:
        self._told.add(result.call_id)
        event = events.ToolResult(
            id=result.call_id,
            name=result.name,
            ok=result.ok,
            outcome=result.outcome,
            preview=result.text[:PREVIEW],
            ms=result.ms,
            index=index,
            error_id=result.error_id,
        )
        await self.services.emit(self.run, event)

    async def _store_intent(self, intent: AssistantMessage) -> None:
        try:
            await self.services.store.ask(RecordIntent(self.run.id, self.step, intent))
        except Exception as error:
            # A full disk must not stop the agent; the crash of this very run would then lose rows.
            await self.services.warn(
                self.run, "transcript", f"the calls are not journalled: {error}"
            )

    def _cut(self, call: Call) -> CallResult:
        ms = (trio.current_time() - self._begun[call.id]) * 1000
        outcome = "cancelled_while_running"
        return CallResult(call.id, call.name, GAP_TEXT[outcome], outcome, "cancelled", None, ms)
