"""The end of a run: its rows are stored, its one terminal event goes out, its caller gets a result.

Everything that awaits here is shielded by the runner, with a budget, so that it is done also when
the whole host is being cancelled (G7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from msgspec.structs import replace

from motet.actors.errors.tracker import is_error
from motet.actors.runs.queue import SessionQueue
from motet.actors.runs.recall import write_memory
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services, publish_entered
from motet.actors.runs.turn import Finish
from motet.protocols import events
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import AgentError, NotFound
from motet.protocols.escalations import escalation_id
from motet.protocols.models import Usage
from motet.protocols.room_copies import fixed_end
from motet.protocols.run import RunResult
from motet.protocols.sessions import FinishRun, GetRun
from motet.protocols.tools import CallResult


@attrs.frozen
class Failure:
    """The error by which a run has failed; ``error_id``: of the stored error."""

    error: AgentError
    error_id: str | None

    @property
    def kind(self) -> str:
        return type(self.error).__name__

    @property
    def labels(self) -> tuple[str, str | None]:
        """For the trace."""
        return self.kind, self.error_id


@attrs.frozen
class Outcome:
    """The end of a run, once its turn has ended and its rows are complete.

    Attributes:
        results: of all its calls.
        approvals: that it waits for, if it was suspended.
        structured: whether its agent declares a type for its output; ``value``: the output.
    """

    run: Run
    finish: Finish
    rows: tuple[ChatMessage, ...]
    usage: Usage
    results: Sequence[CallResult] = ()
    failure: Failure | None = None
    approvals: tuple[str, ...] = ()
    structured: bool = False
    value: object = None

    def terminal(self) -> events.Terminal:
        """The one terminal event."""
        finish, usage = self.finish, self.usage
        match finish.status:
            case "completed":
                return events.RunCompleted(usage)
            case "limited":
                return events.RunLimited(usage, finish.detail)
            case "refused":
                return events.RunRefused(usage, finish.detail)
            case "escalated":
                assert finish.escalation is not None
                tool, by = finish.escalation.tool, escalation_id(self.run.id)
                return events.RunEscalated(usage, finish.detail, tool, by)
            case "failed":
                kind, error_id = self.failure.labels if self.failure else ("Internal", None)
                return events.RunFailed(usage, kind, finish.detail, error_id)
            case _:
                return events.RunCancelled(usage, finish.detail)

    def result(self) -> RunResult[Any]:
        """The result for the caller."""
        run, finish = self.run, self.finish
        failed = [result for result in self.results if result.outcome == "failed"]
        return RunResult(
            run_id=run.id,
            session=run.session,
            agent=run.agent.name,
            status=finish.status,
            text=finish.output,
            usage=self.usage,
            limit=finish.detail if finish.status == "limited" else "",
            detail=finish.detail,
            error=self.failure.error if self.failure else None,
            errors=tuple([one for one in failed if is_error(one.outcome, one.failure)]),
            rows=self.rows,
            approvals=self.approvals,
            structured=self.structured,
            value=self.value,
        )


async def store(
    outcome: Outcome, terminal: events.Terminal, queue: SessionQueue, services: Services
) -> bool:
    """Store the end of a run, behind those that are late; else its session stores it when it can.

    Whether it is stored: the journal of events must not have an end that a crash could take back.
    In one transaction with its ``terminal`` event, so that a crash leaves both or neither. Then
    publish the approvals that it has withdrawn.
    """
    run, finish = outcome.run, outcome.finish
    handed = finish.escalation and replace(finish.escalation, sender=run.input.sender)
    end = FinishRun(
        run_id=run.id,
        status=finish.status,
        rows=outcome.rows,
        usage=outcome.usage,
        detail=finish.detail,
        escalation=handed,
        withdraw=run.carried.has_approval,
        inputs=run.carried.entered,
        agents=run.carried.handed_to,
        event=terminal,
        user=run.input.principal.user,
    )
    is_stored = False
    try:
        if services.health.problem is not None:
            raise services.health.problem
        async with queue.storing():
            while queue.unsaved:
                await store_late(queue, services)
            end = _as_now(end, run)
            withdrawn = await services.runs.finish(end)
        is_stored = True
    except Exception as error:
        message = f"the transcript could not be stored and is kept in memory: {error}"
        await services.events.warn(run, "transcript", message)
        return False
    finally:
        if not is_stored:  # also when the disk has taken longer than there is time
            queue.unsaved.append(_as_now(end, run))
    await publish_withdrawn(run.session, run.input.principal.user, run.id, withdrawn, services)
    if end.inputs:
        await publish_entered(run, end.inputs, services)
    return True


def _as_now(end: FinishRun, run: Run) -> FinishRun:
    """An end whose rows were taken before messages in them were changed."""
    return fixed_end(run.carried.fixes, end) if run.carried.fixes else end


async def store_late(queue: SessionQueue, services: Services) -> None:
    """Store the oldest end that could not be stored before; the caller has ``queue.storing()``.

    Its terminal event is published once more, and gets its number now. Raises ``NotFound`` when its
    session was deleted.
    """
    run_id = queue.unsaved[0].run_id
    info = await services.store.ask(GetRun(run_id))
    if info is None:
        raise NotFound(f"no run {run_id!r}")
    end = queue.unsaved[0]  # its rows may have been changed meanwhile
    withdrawn = await services.store.ask(end)
    queue.unsaved[:] = [one for one in queue.unsaved if one.run_id != end.run_id]
    await publish_withdrawn(info.session, info.user, end.run_id, withdrawn, services)
    for one in end.inputs:
        entered = events.InputSteered(end.run_id)
        await services.events.emit_to(info.session, info.user, entered, one)
    if end.event is not None:
        await services.events.emit_to(info.session, info.user, end.event, end.run_id)


async def publish_withdrawn(
    session: str, user: str, run_id: str, approvals: Sequence[str], services: Services
) -> None:
    """Publish that the stored end of a run in a user's session has withdrawn these approvals.

    They are those that the store has changed, not those that were pending shortly before: one that
    is answered or expires meanwhile is published with that.
    """
    for approval in approvals:
        services.pending_approvals.deadlines.pop(approval, None)
        withdrawn = events.ApprovalResolved(approval, "cancelled", "")
        await services.events.emit_to(session, user, withdrawn, run_id)


async def learn(outcome: Outcome, services: Services) -> None:
    """Give a completed turn to the agent's memory, and count it for the agent's first steps."""
    run = outcome.run
    if run.agent.memory:
        await write_memory(services, run, outcome.rows)
    if run.agent.profile.seeds:
        # The files for a user's first conversation go after some turns.
        problem = await services.toolkits.current.workspaces.count_turn(
            run.agent.name, run.agent.profile, user=run.input.principal.user, session=run.session
        )
        if problem:
            await services.events.warn(run, "bootstrap", problem, grave=False)
