"""Has a conversation summarised: during a run when the window fills up, and after a run.

Invariants: nothing here raises but a cancellation, and nobody waits for it who waits for a reply;
a session is summarised by one at a time; a model that fails leaves a summary made of the rows; a
summary that comes too late, after a reset or another one, is not stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.prompt import assemble
from motet.actors.agents.workspace import PromptRun, Workspace, prompt_input
from motet.actors.errors.log import logger
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.run import Run
from motet.actors.runs.runner import TurnRunner
from motet.actors.runs.services import Services
from motet.actors.runs.turn import Turn
from motet.actors.sessions.memory_flush import AskModel, MemoryFlush, memory_executor, memory_tools
from motet.actors.telemetry.tracer import RunTrace
from motet.actors.tools.context import Context
from motet.actors.transcript.summary import DEADLINE, one_line, summary_of, summary_request
from motet.actors.transcript.window import (
    Compacting,
    ContextWindow,
    Plan,
    cut,
    due_after_run,
    request_before,
)
from motet.protocols.chat import ChatMessage
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
    with trio.move_on_after(DEADLINE):
        try:
            return await ask(request)
        except Exception as error:
            _log.warning("no summary from the model", model=request.model, exc_info=error)
            return None
    _log.warning("no summary from the model in time", model=request.model, seconds=DEADLINE)
    return None


async def compact(
    view: ContextWindow,
    plan: Plan,
    rows: Sequence[ChatMessage],
    around: int,
    model: str,
    ask: AskModel,
) -> ContextWindow:
    """Carry out a compaction during a run: the view after it, which may be no shorter.

    Cancelled, it leaves the view as it was.
    """
    response = await ask_for_summary(ask, plan.request(model))
    return view.compacted(plan, response, rows, around)


@attrs.frozen
class Afterwards:
    """What a summary after a run needs to know of it.

    Attributes:
        model: the provider's own name of the agent's model.
        view: the run's last view: its window, settings and calibration count.
        around: estimated tokens of system prompt and tools.
        flush: writes memory files first; None for an agent without memory.
        allowed: whether so many rows may be summarised, in so many tokens.
        told: of the summary that stands for so many rows.
    """

    model: str
    ask: AskModel
    view: ContextWindow
    around: int = 0
    flush: Flush | None = None
    allowed: Callable[[int, int], Awaitable[bool]] | None = None
    told: Callable[[int, str], None] | None = None

    def tokens(self, context: SessionContext) -> int:
        """What the next run would send."""
        view = replace(
            self.view,
            history=context.rows,
            summary=context.summary,
            covered=0,
            pinned=None,
        )
        return view.prepare((), self.around).tokens


@attrs.define
class Summariser:
    """Summarises one session after its runs; it belongs to the session's actor.

    ``busy``: it is at work, and the session must not be put to sleep.
    """

    session: str
    store: ActorRef[SessionStoreMessage]
    busy: bool = False

    async def after_run(self, about: Afterwards) -> StoreSummary | None:
        """Summarise if that is due; what was stored, if anything.

        Does nothing while one is being made: the next run looks again.
        """
        if self.busy:
            return None
        self.busy = True
        try:
            return await self._summarise(about)
        except Exception as error:
            _log.warning("session not summarised", session=self.session, exc_info=error)
            return None
        finally:
            self.busy = False

    async def _summarise(self, about: Afterwards) -> StoreSummary | None:
        context, view = await self.store.ask(LoadContext(self.session)), about.view
        tokens = about.tokens(context)
        if not due_after_run(len(context.rows), tokens, view.window, view.compacting):
            return None
        at = cut(context.rows, view.compacting)
        if at is None or (about.allowed and not await about.allowed(at, tokens)):
            return None
        if about.flush is not None and not context.flushed and await about.flush(context):
            await self.store.ask(MarkFlushed(self.session, context.start_pos))
        text = await _summary(about, context, at)
        to = context.start_pos + at
        summary = StoreSummary(self.session, context.start_pos, to, text)
        if not await self.store.ask(summary):
            return None
        if about.told:
            about.told(at, text)
        return summary


async def _summary(about: Afterwards, context: SessionContext, at: int) -> str:
    covered = context.rows[:at]
    request = summary_request(about.model, covered, context.summary, about.view.window)
    text = summary_of(await ask_for_summary(about.ask, request), covered, context.summary)
    open_request = request_before(context.rows, at)
    if open_request is None:
        return text
    asked = one_line(open_request.text, _REQUEST_CHARS)
    return f"{text}\n\nThe rows that follow belong to this request: {asked}"


# What is done for a session when no run has to wait for it: a summary of what is long gone by.


AT_ONCE = Compacting(rows=1)
"""For a compaction that somebody asked for: whatever there is to win."""


@attrs.frozen
class Chore:
    """A summary to be made on behalf of a run, or of a person who wants one.

    Attributes:
        around: estimated tokens of the system prompt and the tools.
        turn: of the run that pays for it; None: nobody's limits are asked.
    """

    run: Run
    view: ContextWindow
    around: int
    prepared: Workspace
    turn: Turn | None = None

    @classmethod
    def after(cls, runner: TurnRunner) -> Chore:
        thinker = runner.thinker
        return cls(runner.run, thinker.view, thinker.around, thinker.prepared, runner.turn)

    @classmethod
    def at_once(cls, run: Run, prepared: Workspace) -> Chore:
        return cls(run, ContextWindow(window=run.agent.window, compacting=AT_ONCE), 0, prepared)


async def tidy(chore: Chore, services: Services, summariser: Summariser) -> SessionCompacted | None:
    """Summarise a session if it has become too long; which rows, if any were.

    Raises nothing but a cancellation. What it costs is a part of the run's trace.
    """
    run, hooks = chore.run, RunHooks(chore.run, services.hooks)
    model = run.model_name
    trace = services.tracer.beside(
        run.id, "summary", session=run.session, agent=run.agent.name, user=run.principal.user
    )
    with trace:
        about = Afterwards(
            model.partition(":")[2] or model,
            services.models.asking(model, trace, "summary", chore.turn),
            chore.view,
            chore.around,
            _flush(chore, services, trace) if _may_flush(run, services) else None,
            hooks.compact,
            hooks.compacted,
        )
        done = await summariser.after_run(about)
    if done is None:
        return None
    event = SessionCompacted(done.start_pos, done.next_pos - 1)
    await services.events.emit_to(run.session, event, run.id)
    return event


def _may_flush(run: Run, services: Services) -> bool:
    """Whether the run may write files of memory by itself: nobody is there to be asked."""
    rulings = (
        services.toolkits.of(run).policy.ruling(run.subjects, tool) for tool in memory_tools()
    )
    return run.agent.memory and all(ruling.effect == "allow" for ruling in rulings)


def _flush(chore: Chore, services: Services, trace: RunTrace) -> Flush:
    """Writes what would be forgotten to the files of the agent's memory, in its workspace."""
    run, model = chore.run, chore.run.model_name
    ask: AskModel = services.models.asking(model, trace, "flush", chore.turn)
    context = Context[object](
        deps=run.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.principal,
        call_id="",
        workspace=chore.prepared.workspace,
    )
    occasion = PromptRun(
        agent=run.agent.name,
        instructions=run.agent.instructions,
        profile=run.agent.profile,
        prepared=chore.prepared,
        today=services.today(),
        session=run.session,
        user=run.principal.user,
        mode="minimal",
    )
    return MemoryFlush(
        model.partition(":")[2] or model,
        ask,
        memory_executor(services.hooks, services.errors, context),
        services.today,
        assemble(prompt_input(occasion)).text,
    )
