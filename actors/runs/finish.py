"""The one terminal event of a run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from motet.actors.runs.recall import remember
from motet.actors.runs.turn import Finish
from motet.protocols import events
from motet.protocols.chat import AssistantMessage
from motet.protocols.errors import AgentError
from motet.protocols.escalations import escalation_id
from motet.protocols.models import Usage
from motet.protocols.run import RunResult
from motet.protocols.sessions import FinishRun

if TYPE_CHECKING:
    from motet.actors.runs.runner import TurnRunner


def terminal(
    run_id: str,
    finish: Finish,
    usage: Usage,
    *,
    failure: AgentError | None,
    error_id: str | None,
) -> events.Terminal:
    """``failure``: by which it has failed, if it has."""
    match finish.status:
        case "completed":
            return events.RunCompleted(usage)
        case "limited":
            return events.RunLimited(usage, finish.detail)
        case "escalated":
            assert finish.escalation is not None
            tool, by = finish.escalation.tool, escalation_id(run_id)
            return events.RunEscalated(usage, finish.detail, tool, by)
        case "failed":
            kind = type(failure).__name__ if failure else "Internal"
            return events.RunFailed(usage, kind, finish.detail, error_id)
        case _:
            return events.RunCancelled(usage, finish.detail)


# Finishes a run: its rows are stored, its one terminal event goes out, its caller gets a result.
#
# Everything that awaits here is shielded by the runner, with a budget, so that it is done also when
# the whole host is being cancelled (G7).


async def conclude(runner: TurnRunner, finish: Finish) -> None:
    """Announce cut calls, store the rows, say how the run ended. One transaction, one event."""
    run, turn, leaving = runner.run, runner.turn, runner.suspension
    if runner.batch is not None:
        await runner.batch.tell_cut()
    runner.hearing.conclude()
    last = turn.rows[-1] if turn.rows else None
    if isinstance(last, AssistantMessage) and last.note not in ("", "silent"):
        await runner.voice.say("assistant", run.agent.name, last.text)
    end = terminal(run.id, finish, turn.spent, failure=runner.failure, error_id=runner.error_id)
    pending = await leaving.pending() if run.asked else ()
    await _flush(runner, finish, end)
    if pending:
        await leaving.withdrawn(pending)
    if finish.status == "completed":
        await remember(runner.services, run, turn.rows)
        if run.agent.profile.seeds:
            await _count_turn(runner)
    await runner.voice.emit(end)


async def tell_end(runner: TurnRunner, finish: Finish) -> None:
    """Show the end to the hooks that watch for it."""
    failure, hooks = runner.failure, runner.hooks
    if failure is not None:
        await hooks.failed(type(failure).__name__, finish.detail, runner.error_id)
    await hooks.end(finish.status, finish.output, finish.detail, runner.turn.spent)


def end_trace(runner: TurnRunner, finish: Finish) -> None:
    """Close the spans of the run."""
    error = type(runner.failure).__name__ if runner.failure else ""
    runner.trace.finish(finish.status, finish.output, error=error, error_id=runner.error_id)


def result_of(runner: TurnRunner, finish: Finish) -> RunResult[Any]:
    """What the run came to."""
    run, turn = runner.run, runner.turn
    return RunResult(
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        status=finish.status,
        text=finish.output,
        usage=turn.spent,
        limit=finish.detail if finish.status == "limited" else "",
        detail=finish.detail,
        error=runner.failure,
        errors=tuple([result for result in turn.results if result.outcome == "failed"]),
        rows=tuple(turn.rows),
        approvals=runner.suspension.approvals,
        structured=runner.output.declared,
        value=runner.output.value(finish),
    )


async def _flush(runner: TurnRunner, finish: Finish, end: events.Terminal) -> None:
    """Store what earlier runs could not, then this run; keep what still can't be stored."""
    run, turn, unsaved = runner.run, runner.turn, runner.slot.unsaved
    last = FinishRun(
        run_id=run.id,
        status=finish.status,
        rows=tuple(turn.rows),
        usage=turn.spent,
        detail=finish.detail,
        escalation=finish.escalation,
        withdraw=run.asked,
        event=end,
    )
    unsaved.append(last)
    try:
        async with runner.slot.storing():
            while unsaved:
                await runner.services.store.ask(unsaved[0])
                del unsaved[0]
    except Exception as error:
        if last in unsaved:
            # It will have been told when a later run stores this one.
            unsaved[unsaved.index(last)] = replace(last, event=None)
        message = f"the transcript could not be stored and is kept in memory: {error}"
        await runner.services.warn(run, "transcript", message)


async def _count_turn(runner: TurnRunner) -> None:
    """The files for a user's first conversation go after some turns."""
    run = runner.run
    problem = await runner.services.workbench.turn_ended(
        run.agent.name, run.agent.profile, user=run.principal.user, session=run.session
    )
    if problem:
        await runner.services.warn(run, "bootstrap", problem, grave=False)
