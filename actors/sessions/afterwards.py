"""What is done for a session when no run has to wait for it: a summary of what is long gone by."""

from __future__ import annotations

import attrs

from motet.actors.agent.compaction import Compacting
from motet.actors.agent.prompt import assemble
from motet.actors.agent.run import TurnRunner
from motet.actors.agent.turn import Turn
from motet.actors.agent.view import View
from motet.actors.agents.briefing import Occasion, prompt_input
from motet.actors.agents.workbench import Prepared
from motet.actors.hooks.turn import RunHooks
from motet.actors.services import Services
from motet.actors.sessions.flush import AskModel, MemoryFlush, memory_executor, memory_tools
from motet.actors.sessions.run import Run
from motet.actors.sessions.summarise import Afterwards, Flush, Summariser
from motet.actors.tools.context import Context
from motet.actors.tracing.recorder import RunTrace
from motet.protocols.events import SessionCompacted

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
    view: View
    around: int
    prepared: Prepared
    turn: Turn | None = None

    @classmethod
    def after(cls, runner: TurnRunner) -> Chore:
        thinker = runner.thinker
        return cls(runner.run, thinker.view, thinker.around, thinker.prepared, runner.turn)

    @classmethod
    def at_once(cls, run: Run, prepared: Prepared) -> Chore:
        return cls(run, View(window=run.agent.window, compacting=AT_ONCE), 0, prepared)


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
            services.asking(model, trace, "summary", chore.turn),
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
    await services.announce(run.session, event, run.id)
    return event


def _may_flush(run: Run, services: Services) -> bool:
    """Whether the run may write files of memory by itself: nobody is there to be asked."""
    rulings = (services.of(run).policy.ruling(run.subjects, tool) for tool in memory_tools())
    return run.agent.memory and all(ruling.effect == "allow" for ruling in rulings)


def _flush(chore: Chore, services: Services, trace: RunTrace) -> Flush:
    """Writes what would be forgotten to the files of the agent's memory, in its workspace."""
    run, model = chore.run, chore.run.model_name
    ask: AskModel = services.asking(model, trace, "flush", chore.turn)
    context = Context[object](
        deps=run.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.principal,
        call_id="",
        workspace=chore.prepared.workspace,
    )
    occasion = Occasion(
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
