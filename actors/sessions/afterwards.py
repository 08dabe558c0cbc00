"""What is done for a session when a run has ended and its reply is out: a summary, if it is due."""

from __future__ import annotations

from motet.actors.agent.prompt import assemble
from motet.actors.agent.run import TurnRunner
from motet.actors.agents.briefing import Occasion, prompt_input
from motet.actors.services import Services
from motet.actors.sessions.flush import AskModel, MemoryFlush, memory_executor
from motet.actors.sessions.summarise import Afterwards, Flush, Summariser
from motet.actors.tools.context import Context
from motet.actors.tracing.recorder import RunTrace
from motet.protocols.events import SessionCompacted


async def tidy(runner: TurnRunner, services: Services, summariser: Summariser) -> None:
    """Summarise a session that has become too long. Raises nothing but a cancellation.

    What it costs is a part of the run's trace.
    """
    run, thinker = runner.run, runner.thinker
    trace = services.tracer.beside(
        run.id, "summary", session=run.session, agent=run.agent.name, user=run.principal.user
    )
    with trace:
        ask = services.asking(run.agent.model_name, trace, "summary")
        about = Afterwards(
            thinker.model,
            ask,
            thinker.view,
            thinker.around,
            _flush(runner, services, trace) if run.agent.memory else None,
            runner.hooks.compact,
            runner.hooks.compacted,
        )
        done = await summariser.after_run(about)
    if done is not None:
        event = SessionCompacted(done.start_pos, done.next_pos - 1)
        await services.announce(run.session, event, run.id)


def _flush(runner: TurnRunner, services: Services, trace: RunTrace) -> Flush:
    """Writes what would be forgotten to the files of the agent's memory, in its workspace."""
    run, thinker = runner.run, runner.thinker
    ask: AskModel = services.asking(run.agent.model_name, trace, "flush")
    context = Context[object](
        deps=run.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.principal,
        call_id="",
        workspace=thinker.prepared.workspace,
    )
    occasion = Occasion(
        agent=run.agent.name,
        instructions=run.agent.instructions,
        profile=run.agent.profile,
        prepared=thinker.prepared,
        today=services.today(),
        session=run.session,
        user=run.principal.user,
        mode="minimal",
    )
    return MemoryFlush(
        thinker.model,
        ask,
        memory_executor(services.hooks, services.errors, context),
        services.today,
        assemble(prompt_input(occasion)).text,
    )
