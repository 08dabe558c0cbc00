"""Invariants of tool calls and of the transcripts that hold them (G1, G7, G10)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import attrs

from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage
from motet.protocols.events import RunResumed, ToolCall, ToolResult, Warned
from motet.testing.invariants.runs import ends
from motet.testing.invariants.snapshot import Finding, Snapshot

__all__ = [
    "code_behaves",
    "effects_at_most_once",
    "gates_hold",
    "hooks_do_not_fail",
    "no_work_after_the_end",
    "one_result_per_call",
    "requests_are_valid",
    "transcripts_are_valid",
]

PLANNED = "planned to fail"
"""The message of every failure that a program plans."""

NOT_RUN = ("denied", "answered", "cancelled_before_start")


def one_result_per_call(snapshot: Snapshot) -> Iterator[Finding]:
    """Every ``tool.call`` has exactly one ``tool.result`` when its run has ended (G7).

    A resumed run repeats the events that were not certain: only the last repetition counts.
    """
    runs: dict[str, _Calls] = defaultdict(_Calls)
    for item in snapshot.events:
        run_id = item.record.run_id or ""
        if item.record.stream.startswith("room:"):
            continue  # it repeats the events of its members' sessions
        match item.record.event:
            case ToolCall(id=call):
                runs[run_id].begun[call] = item.at
            case ToolResult(id=call):
                runs[run_id].results[call] += 1
            case RunResumed():
                runs[run_id] = _Calls()
            case _:
                pass
    over = ends(snapshot)
    for run_id, calls in runs.items():
        for call, count in calls.results.items():
            if count > 1:
                yield f"the call {call} of run {run_id} has {count} results"
        for call, at in calls.begun.items():
            cut_off = run_id not in over or snapshot.crashed_after(at)
            if not cut_off and not calls.results[call]:
                yield f"the run {run_id} has ended, and its call {call} has no result"


@attrs.define
class _Calls:
    """The starts of a run's calls, and the number of results of each."""

    begun: dict[str, int] = attrs.field(factory=dict[str, int])
    results: Counter[str] = attrs.field(factory=Counter[str])


def transcripts_are_valid(snapshot: Snapshot) -> Iterator[Finding]:
    """Providers accept every stored transcript (G7)."""
    for session in snapshot.transcripts:
        for wrong in violations(snapshot.rows(session)):
            yield f"the transcript of session {session!r}: {wrong}"


def requests_are_valid(snapshot: Snapshot) -> Iterator[Finding]:
    """Providers accept every request, whatever hooks have changed (G7)."""
    for asked in snapshot.asked:
        for wrong in unpaired(asked.request.messages):
            yield f"a request of run {asked.run_id} in session {asked.session!r}: {wrong}"


def unpaired(rows: Sequence[ChatMessage]) -> Iterator[Finding]:
    """Calls that are not followed by their results, and results without their call.

    Unlike a stored transcript, a request may begin anywhere and have adjacent rows of one role.
    """
    due: list[str] = []
    for number, row in enumerate(rows):
        if isinstance(row, ToolMessage):
            if row.call_id not in due:
                yield f"row {number} is a result of {row.call_id}, which nobody has called there"
            else:
                due.remove(row.call_id)
            continue
        if due:
            yield f"row {number} comes before the results of {', '.join(due)}"
        due = [call.id for call in row.calls] if isinstance(row, AssistantMessage) else []
    if due:
        yield f"the results of {', '.join(due)} are missing at the end"


def no_work_after_the_end(snapshot: Snapshot) -> Iterator[Finding]:
    """A finished run has no running tool and sends no request (G1)."""
    over = ends(snapshot)
    for call in snapshot.ran:
        if not call.ended and call.run_id in over:
            yield f"the run {call.run_id} has ended, and its tool {call.tool!r} is at work"
        elif call.at > over.get(call.run_id, call.at):
            yield f"the run {call.run_id} had ended when its tool {call.tool!r} began"
    for asked in snapshot.asked:
        if asked.at > over.get(asked.run_id, asked.at):
            yield f"the run {asked.run_id} had ended when it asked its model"
    for task in snapshot.tasks:
        if task.run_id in over:
            yield f"the run {task.run_id} has ended, and its task {task.name} goes on"


def gates_hold(snapshot: Snapshot) -> Iterator[Finding]:
    """Denied or cancelled calls have not run; gated calls have run only with an approval (G10)."""
    ran = {(call.run_id, call.call_id) for call in snapshot.ran}
    for item in chain.from_iterable(snapshot.transcripts.values()):
        row = item.row
        if not isinstance(row, ToolMessage) or row.outcome not in NOT_RUN:
            continue
        if (item.run_id, row.call_id) in ran:
            yield (
                f"the call {row.call_id} of {row.name!r} in run {item.run_id} has run, "
                f"though its result says {row.outcome}"
            )
    allowed = {
        (approval.run_id, approval.call_id)
        for approval in snapshot.approvals
        if approval.state == "allowed"
    }
    for call in snapshot.ran:
        if call.gated and (call.run_id, call.call_id) not in allowed:
            yield f"the tool {call.tool!r} of run {call.run_id} ran without its approval"


def hooks_do_not_fail(snapshot: Snapshot) -> Iterator[Finding]:
    """No hook raises, times out, or makes an invalid decision (G10 defines the consequences).

    A failure that the program itself has planned is none.
    """
    for item in snapshot.events:
        event = item.record.event
        if isinstance(event, Warned) and event.source == "hook" and PLANNED not in event.message:
            yield f"in run {item.record.run_id}: {event.message}"


def code_behaves(snapshot: Snapshot) -> Iterator[Finding]:
    """Tools and hooks end when they are cancelled, and leave no system task behind (G1)."""
    yield from snapshot.misbehaved


def effects_at_most_once(snapshot: Snapshot) -> Iterator[Finding]:
    """No call has the same effect twice, despite retries, resumption and crashes."""
    once = (effect for effect in snapshot.effects if not effect.repeatable)
    for effect, count in Counter(once).items():
        if count > 1:
            yield f"the call {effect.call} has done {effect.what!r} {count} times"
