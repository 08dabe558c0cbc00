"""Compacts a session in the background: summarises old history after a run, off the critical path.

Invariants: nothing here raises but a cancellation, and no reply waits for it; a session makes one
summary at a time; if the model fails, the summary is made of the rows; a summary that comes too
late, after a reset, another summary or a change of its rows, is not stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.prompt import assemble
from motet.actors.agents.workspace import PromptRun, Workspace, prompt_input
from motet.actors.errors.log import logger
from motet.actors.errors.tracker import with_error_blocks
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.run import Run
from motet.actors.runs.runner import Runner
from motet.actors.runs.services import Services
from motet.actors.runs.turn import Turn
from motet.actors.sessions.memory_flush import AskModel, MemoryFlush, memory_executor, memory_tools
from motet.actors.telemetry.tracer import RunTrace
from motet.actors.tools.context import Context
from motet.actors.transcript.summary import SUMMARY_DEADLINE, one_line, summary_of, summary_request
from motet.actors.transcript.window import (
    Compacting,
    ContextWindow,
    cut,
    due_after_run,
    request_before,
)
from motet.protocols.events import SessionCompacted
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.sessions import (
    LoadContext,
    MarkFlushed,
    SessionContext,
    SessionStoreMessage,
    StoreSummary,
)
from motet.runtime import ActorRef

Flush: TypeAlias = Callable[[SessionContext], Awaitable[bool]]

_REQUEST_CHARS = 2_000

_log = logger("motet.summaries")


async def ask_for_summary(ask: AskModel, request: ModelRequest) -> ModelResponse | None:
    """The model's answer; None when it failed or took too long, which is logged."""
    with trio.move_on_after(SUMMARY_DEADLINE):
        try:
            return await ask(request)
        except Exception as error:
            _log.warning("no summary from the model", model=request.model, exc_info=error)
            return None
    _log.warning("no summary from the model in time", model=request.model, seconds=SUMMARY_DEADLINE)
    return None


@attrs.frozen
class SummaryTask:
    """Everything that a summary of a session needs, apart from its rows.

    Attributes:
        model: the provider's own name of the agent's model.
        view: the run's last view: its window, settings and calibration count.
        around: estimated tokens of system prompt and tools.
        flush: writes memory files first; None for an agent without memory.
        allowed: asks the hooks, with the number of rows and their tokens.
        stored: called with the number of rows and their summary.
        generation: of the session that is meant; None: whichever is there.
    """

    model: str
    ask: AskModel
    view: ContextWindow
    around: int = 0
    flush: Flush | None = None
    allowed: Callable[[int, int], Awaitable[bool]] | None = None
    stored: Callable[[int, str], None] | None = None
    generation: str | None = None

    def tokens(self, context: SessionContext) -> int:
        """The size of the next run's request."""
        view = replace(
            self.view, history=context.rows, summary=context.summary, covered=0, pinned=None
        )
        return view.prepare((), self.around).tokens


@attrs.define
class SessionSummariser:
    """Summarises one session after its runs; it belongs to the session's actor."""

    session: str
    store: ActorRef[SessionStoreMessage]
    busy: bool = False

    async def after_run(self, task: SummaryTask) -> StoreSummary | None:
        """Summarise if that is due; the stored summary, if any.

        Does nothing while another summary is being made: the next run checks again.
        """
        if self.busy:
            return None
        self.busy = True
        try:
            return await self._summarise(task)
        except Exception as error:
            _log.warning("session not summarised", session=self.session, exc_info=error)
            return None
        finally:
            self.busy = False

    async def _summarise(self, task: SummaryTask) -> StoreSummary | None:
        context, view = await self.store.ask(LoadContext(self.session)), task.view
        if task.generation not in (None, context.generation):
            return None  # it was deleted, and its name is another session's (G16)
        tokens = task.tokens(context)
        if not due_after_run(len(context.rows), tokens, view.window, view.compacting):
            return None
        at = cut(context.rows, view.compacting)
        if at is None or (task.allowed and not await task.allowed(at, tokens)):
            return None
        if task.flush is not None and not context.flushed and await task.flush(context):
            await self.store.ask(MarkFlushed(self.session, context.start_pos, context.generation))
        text = await _summary(task, context, at)
        span = context.start_pos, context.start_pos + at
        summary = StoreSummary(self.session, *span, text, context.generation, context.corrected)
        if not await self.store.ask(summary):
            return None
        if task.stored:
            task.stored(at, text)
        return summary


async def _summary(task: SummaryTask, context: SessionContext, at: int) -> str:
    covered = with_error_blocks(context.rows)[:at]
    request = summary_request(task.model, covered, context.summary, task.view.window)
    text = summary_of(await ask_for_summary(task.ask, request), covered, context.summary)
    open_request = request_before(context.rows, at)
    if open_request is None:
        return text
    asked = one_line(open_request.text, _REQUEST_CHARS)
    return f"{text}\n\nThe rows that follow belong to this request: {asked}"


AT_ONCE = Compacting(rows=1)
"""For a compaction on request: as much as possible."""


@attrs.frozen
class CompactionJob:
    """A summary on behalf of a run, or of a person who asked for one.

    Attributes:
        around: estimated tokens of the system prompt and the tools.
        turn: of the run that pays for it; None: no limits apply.
        generation: see :class:`SummaryTask`.
    """

    run: Run
    view: ContextWindow
    around: int
    prepared: Workspace
    turn: Turn | None = None
    generation: str | None = None

    @classmethod
    def after_run(cls, runner: Runner) -> CompactionJob:
        model_step = runner.model_step
        return cls(runner.run, model_step.view, model_step.around, model_step.prepared, runner.turn)

    @classmethod
    def on_request(
        cls, run: Run, prepared: Workspace, generation: str | None = None
    ) -> CompactionJob:
        view = ContextWindow(window=run.agent.window, compacting=AT_ONCE)
        return cls(run, view, 0, prepared, generation=generation)


async def compact_session(
    job: CompactionJob, services: Services, summariser: SessionSummariser
) -> SessionCompacted | None:
    """Summarise a session if it has become too long; the rows that have a summary now, if any.

    Raises nothing but a cancellation. The requests are a part of the run's trace.
    """
    run, hooks = job.run, RunHooks(job.run, services.hooks)
    model = run.model_name
    trace = services.tracer.beside(
        run.id, "summary", session=run.session, agent=run.agent.name, user=run.input.principal.user
    )
    with trace:
        task = SummaryTask(
            model.partition(":")[2] or model,
            services.models.asking(run, model, trace, "summary", job.turn),
            job.view,
            job.around,
            _flush(job, services, trace) if _may_flush(run, services) else None,
            hooks.compact,
            hooks.compacted,
            job.generation,
        )
        done = await summariser.after_run(task)
    if done is None:
        return None
    event = SessionCompacted(done.start_pos, done.next_pos - 1)
    await services.events.emit_to(run.session, run.input.principal.user, event, run.id)
    return event


def _may_flush(run: Run, services: Services) -> bool:
    """Whether policy lets the run write memory files without asking: no person is there."""
    rulings = (
        services.toolkits.of(run).policy.ruling(run.subjects, tool) for tool in memory_tools()
    )
    return run.agent.memory and all(ruling.effect == "allow" for ruling in rulings)


def _flush(job: CompactionJob, services: Services, trace: RunTrace) -> Flush:
    """Writes memory files in the agent's workspace, before the rows are summarised away."""
    run, model = job.run, job.run.model_name
    ask: AskModel = services.models.asking(run, model, trace, "flush", job.turn)
    context = Context[object](
        deps=run.input.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.input.principal,
        call_id="",
        workspace=job.prepared.folder,
    )
    occasion = PromptRun(
        agent=run.agent.name,
        instructions=run.agent.instructions,
        profile=run.agent.profile,
        workspace=job.prepared,
        today=services.today(),
        session=run.session,
        user=run.input.principal.user,
        mode="minimal",
    )
    return MemoryFlush(
        model.partition(":")[2] or model,
        ask,
        memory_executor(services.hooks, services.errors, context),
        services.today,
        lambda context: services.store.ask(
            MarkFlushed(run.session, context.start_pos, context.generation)
        ),
        assemble(prompt_input(occasion)).text,
    )
