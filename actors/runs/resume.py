"""The state of a suspended run, and how a run resumes from it, in this host or another one. Pure.

Laws: what a run had spent it has spent; the results it had are its results; a call that had begun
does not begin again; no event is published twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from motet.actors.errors.tracker import Failures
from motet.actors.runs.budget import Budget
from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.run import Run
from motet.actors.runs.turn import Decision, Turn
from motet.actors.telemetry.tracer import RunTrace
from motet.protocols.approvals import Mark, Resumption, SuspendedState
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage
from motet.protocols.tools import CallResult


def suspended_state(
    run: Run, turn: Turn, publisher: RunPublisher, trace: RunTrace
) -> SuspendedState:
    """The state of a run while the calls of its last row run: all it needs to be resumed."""
    step = len(turn.rows) - 1
    row = turn.rows[step]
    assert isinstance(row, AssistantMessage)
    return SuspendedState(
        rows=tuple(turn.rows),
        step=step,
        last=step + len(row.calls),
        role=run.input.principal.role,
        limits=run.limits,
        turn=turn.state_of_calls(),
        elapsed=trio.current_time() - turn.budget.started,
        messages=publisher.messages,
        spans=trace.count,
        started=trace.root.started,
        errors=trace.errors,
        next_agent=run.next_agent.name if run.next_agent is not None else "",
        found=tuple(sorted(run.found)),
        extra=run.input.extra,
        lineage=run.lineage.ancestors,
    )


def fresh_budget(run: Run) -> Budget:
    """The budget of a run that starts now; a resumed run has spent what it had spent."""
    budget = Budget(run.limits, started=trio.current_time())
    if run.carried.resumption is not None:
        left = run.carried.resumption.suspended
        budget.started -= left.elapsed
        budget.turns, budget.tool_calls = left.turn.turns, left.turn.tool_calls
        budget.usage, budget.usd = left.turn.spent, left.turn.usd
    return budget


def resume_turn(
    turn: Turn, publisher: RunPublisher, trace: RunTrace, resumption: Resumption
) -> Decision:
    """Bring a fresh turn to where the run was suspended. No await: a stop finds it whole."""
    left = resumption.suspended
    publisher.go_on(left.messages)
    trace.go_on(left.spans, left.started, left.errors, left.turn.usage)
    for calls, results in _batches(left.rows):
        turn.results += results.values()
        turn.loops.observe_batch((call, results[call.id]) for call in calls if call.id in results)
    return turn.resume(left.rows, left.turn)


def counted(failures: Failures, rows: Sequence[ChatMessage]) -> Failures:
    """The failures of the session, with those among the rows of the run itself."""
    for calls, results in _batches(rows):
        for call in calls:
            if call.id in results:
                result = results[call.id]
                failures, _ = failures.ended(call, result.outcome, result.text)
    return failures


def known(resumption: Resumption | None) -> dict[str, CallResult]:
    """The results that the calls of the step had when the run was suspended, by their ids."""
    rows = resumption.results if resumption is not None else ()
    return {row.call_id: _result(row) for row in rows}


def marks(step: int, calls: Sequence[Call], results: Mapping[str, CallResult]) -> tuple[Mark, ...]:
    """The results as rows that follow the row at ``step``, which has these calls."""
    places = {call.id: step + 1 + index for index, call in enumerate(calls)}
    return tuple(
        Mark(places[id], ToolMessage(id, result.name, result.text, result.outcome))
        for id, result in results.items()
    )


def _batches(
    rows: Sequence[ChatMessage],
) -> list[tuple[tuple[Call, ...], dict[str, CallResult]]]:
    """The calls of each answer with the results that follow it."""
    found: list[tuple[tuple[Call, ...], dict[str, CallResult]]] = []
    for row in rows:
        if isinstance(row, AssistantMessage) and row.calls:
            found.append((row.calls, {}))
        elif isinstance(row, ToolMessage) and found:
            found[-1][1][row.call_id] = _result(row)
    return found


def _result(row: ToolMessage) -> CallResult:
    """A stored result; the kind of a failure is not stored."""
    return CallResult(row.call_id, row.name, row.text, row.outcome)
