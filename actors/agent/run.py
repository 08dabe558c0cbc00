"""Runs one turn: carries out what the turn decides, and ends it well whatever happens.

Every await is under the run's scope, so a stop ends the model's stream, the tools and their
processes, and waits for them (G1). The end runs shielded with a budget: the transcript is
stored and the one terminal event goes out also when the whole host is being cancelled (G7).
"""

from __future__ import annotations

import time

import trio

from motet.actors.agent.act import Batch
from motet.actors.agent.prompt import system_prompt
from motet.actors.agent.turn import CallModel, Finish, RunCalls, Turn
from motet.actors.errors.failures import Failures, failures_before
from motet.actors.errors.sent import as_sent
from motet.actors.models.directory import Provide
from motet.actors.result import RunResult
from motet.actors.services import Services
from motet.actors.sessions.table import Run, Slot
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.errors import AgentError, Internal
from motet.protocols.escalations import escalation_id
from motet.protocols.models import (
    Generate,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    Retrying,
    TextPart,
    ThinkingPart,
)
from motet.protocols.sessions import FinishRun, GetSession, LoadTranscript
from motet.protocols.tools import CallResult

FINISH_BUDGET = 5.0


class TurnRunner:
    """Drives one run from its input to its terminal event. Use once."""

    def __init__(self, run: Run, slot: Slot, services: Services) -> None:
        self.run = run
        self.slot = slot
        self.services = services
        self.turn = Turn(run.limits)
        self.history: tuple[ChatMessage, ...] = ()
        self.failure: AgentError | None = None
        self.error_id: str | None = None
        self._batch: Batch | None = None
        self._message = 0
        self._text = ""
        self._thought = 0

    async def execute(self) -> RunResult:
        """The result, stored and announced. Raises nothing but a cancellation from outside."""
        finish: Finish | None = None
        try:
            finish = await self._bounded()
        except AgentError as error:
            finish = self._failed(error)
        except Exception as error:
            finish = self._failed(await self._internal(error))
        finally:
            # Awaits while being cancelled: shielded, and bounded by the budget.
            deadline = trio.current_time() + FINISH_BUDGET
            finish = finish or self.turn.stop(self._text, self._known())
            with trio.CancelScope(shield=True, deadline=deadline):
                await self._conclude(finish)
            self.services.table.finish(self.run, self._result(finish))
        return self._result(finish)

    async def _bounded(self) -> Finish:
        """The turn under its two scopes: the stop and the wall time."""
        wall = self.run.limits.wall
        with self.run.scope, trio.CancelScope() as clock:
            if wall is not None:
                clock.deadline = trio.current_time() + wall
            return await self._drive()
        if clock.cancelled_caught:
            return self.turn.limit("wall", self._text, self._known())
        return self.turn.stop(self._text, self._known())

    async def _drive(self) -> Finish:
        decision = self.turn.begin(self.run.text)
        await self.services.begin(self.run)
        await self._announce()
        self.history = await self._load()
        self.turn.failures = await self._failures()
        while True:
            match decision:
                case CallModel() if self.run.soft_stop:
                    return self.turn.stop()
                case CallModel():
                    decision = self.turn.answered(await self._think(decision))
                case RunCalls():
                    decision = self.turn.observed(await self._act(decision), time.time())
                case Finish():
                    return decision

    async def _announce(self) -> None:
        run = self.run
        await self._emit(events.RunStarted(run.agent.name, run.agent.model_name))
        await self._say("user", run.principal.user, run.text)

    async def _load(self) -> tuple[ChatMessage, ...]:
        stored = await self.services.store.ask(LoadTranscript(self.run.session))
        return stored + tuple(row for late in self.slot.unsaved for row in late.rows)

    async def _failures(self) -> Failures:
        """What the session's transcript counts against this run."""
        needs_review = False
        if any(
            isinstance(row, AssistantMessage) and row.note == "escalated" for row in self.history
        ):
            session = await self.services.store.ask(GetSession(self.run.session))
            needs_review = session is not None and session.needs_review
        return failures_before(self.history, self.run.limits, needs_review=needs_review)

    async def _think(self, decision: CallModel) -> ModelResponse:
        """Ask the model, and stream its answer out as it comes."""
        await self._emit(events.Activity("waiting_model", decision.iteration))
        provider = await self.services.models.ask(Provide(self.run.agent.model_name))
        async with provider.stream(Generate(self._request(decision))) as parts:
            async for part in parts:
                await self._stream_out(part)
        response = parts.result
        self._text, self._thought = "", 0
        if response.text:
            await self._say("assistant", self.run.agent.name, response.text)
        return response

    def _request(self, decision: CallModel) -> ModelRequest:
        agent = self.run.agent
        hint = (UserMessage(decision.hint),) if decision.hint else ()
        return ModelRequest(
            model=agent.model_name.partition(":")[2] or agent.model_name,
            messages=(*as_sent((*self.history, *self.turn.rows)), *hint),
            system=system_prompt(agent.instructions, self.services.today()),
            tools=self.services.catalog.specs(agent.name) if decision.offer_tools else (),
        )

    async def _stream_out(self, part: ModelEvent | Retrying) -> None:
        match part:
            case TextPart(text=text):
                at = len(self._text)
                self._text += text
                await self._emit(events.TextDelta(self._message, at, text))
            case ThinkingPart(text=text):
                at = self._thought
                self._thought += len(text)
                await self._emit(events.ThinkingDelta(self._message, at, text))
            case Retrying(attempt=attempt, delay=delay, reason=reason):
                withdrawn = bool(self._text or self._thought)
                self._text, self._thought = "", 0
                ms = round(delay * 1000)
                await self._emit(events.RunRetrying(attempt, ms, reason, self._message, withdrawn))
            case _:
                pass

    async def _act(self, decision: RunCalls) -> list[CallResult]:
        await self._emit(events.Activity("tool", self.turn.iteration))
        step = len(self.turn.rows) - 1
        intent = self.turn.rows[step]
        assert isinstance(intent, AssistantMessage)
        self._batch = Batch(self.run, self.services, decision.calls, step)
        results = await self._batch.execute(intent)
        self._batch = None
        return list(results)

    def _known(self) -> list[CallResult]:
        return self._batch.record if self._batch else []

    def _failed(self, error: AgentError) -> Finish:
        self.failure = error
        return self.turn.fail(str(error), self._text, self._known())

    async def _internal(self, error: Exception) -> Internal:
        """A bug: the whole of it goes to the log and the error channel, its id to the user."""
        self.services.log.error("internal error in a run", run=self.run.id, exc_info=error)
        run = self.run
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            report = await self.services.errors.report(
                session=run.session, run_id=run.id, tool="runtime", error=error
            )
            self.error_id = report.error_id
        where = f" [Error ID: {self.error_id}]" if self.error_id else ""
        internal = Internal(f"internal error: {type(error).__name__}{where}")
        internal.__cause__ = error
        return internal

    async def _conclude(self, finish: Finish) -> None:
        """Announce cut calls, store the rows, say how the run ended. One transaction, one event."""
        if self._batch:
            await self._batch.tell_cut()
        last = self.turn.rows[-1] if self.turn.rows else None
        if isinstance(last, AssistantMessage) and last.note:
            await self._say("assistant", self.run.agent.name, last.text)
        await self._flush(finish)
        await self._emit(self._terminal(finish))

    async def _flush(self, finish: Finish) -> None:
        """Store what earlier runs could not, then this run; keep what still can't be stored."""
        run, turn = self.run, self.turn
        last = FinishRun(
            run_id=run.id,
            status=finish.status,
            rows=tuple(turn.rows),
            usage=turn.usage,
            detail=self._detail(finish),
            escalation=finish.escalation,
        )
        self.slot.unsaved.append(last)
        try:
            while self.slot.unsaved:
                await self.services.store.ask(self.slot.unsaved[0])
                del self.slot.unsaved[0]
        except Exception as error:
            message = f"the transcript could not be stored and is kept in memory: {error}"
            await self.services.warn(run, "transcript", message)

    def _detail(self, finish: Finish) -> str:
        return self.run.stop_reason if finish.status == "cancelled" else finish.detail

    def _terminal(self, finish: Finish) -> events.Terminal:
        usage = self.turn.usage
        match finish.status:
            case "completed":
                return events.RunCompleted(usage)
            case "limited":
                return events.RunLimited(usage, finish.detail)
            case "escalated":
                assert finish.escalation is not None
                tool, by = finish.escalation.tool, escalation_id(self.run.id)
                return events.RunEscalated(usage, finish.detail, tool, by)
            case "failed":
                kind = type(self.failure).__name__ if self.failure else "Internal"
                return events.RunFailed(usage, kind, finish.detail, self.error_id)
            case _:
                return events.RunCancelled(usage, self.run.stop_reason or "the host is closing")

    def _result(self, finish: Finish) -> RunResult:
        run, turn = self.run, self.turn
        return RunResult(
            run_id=run.id,
            session=run.session,
            agent=run.agent.name,
            status=finish.status,
            output=finish.output,
            usage=turn.usage,
            limit=finish.detail if finish.status == "limited" else "",
            detail=self._detail(finish),
            error=self.failure,
            errors=tuple(result for result in turn.results if result.outcome == "failed"),
            rows=tuple(turn.rows),
        )

    async def _say(self, role: events.Role, author: str, text: str) -> None:
        await self._emit(events.MessageAdded(role, author, text, self._message))
        self._message += 1

    async def _emit(self, event: events.AnyEvent) -> None:
        await self.services.emit(self.run, event)
