"""Invariants of stops, budgets and what a host keeps in its memory (G2, G13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from motet.protocols.events import AgentChanged, RunRetrying, SessionCompacted
from motet.testing.invariants.snapshot import Snapshot
from motet.testing.invariants.violation import Finding

__all__ = ["budgets_hold", "counters_agree", "nothing_is_left", "stops_are_total"]


def stops_are_total(snapshot: Snapshot) -> Iterator[Finding]:
    """After a stop has returned, no task, child or request of its runs is there (G2)."""
    for stop in snapshot.stops:
        for run_id in stop.report.still_running:
            held = f": {'; '.join(stop.report.held_by)}" if stop.report.held_by else ""
            yield f"the stop of {stop.place!r} has left the run {run_id} running{held}"
        for left in stop.left:
            yield f"after the stop of {stop.place!r} there is still {left}"


def budgets_hold(snapshot: Snapshot) -> Iterator[Finding]:
    """A run takes no more turns than its limit, and exceeds no other by more than one request."""
    asked = Counter(one.run_id for one in snapshot.asked)
    # An attempt that failed, one that a crash has cut off and a summary cost a request, no turn.
    free = Counter(
        item.record.run_id
        for item in snapshot.events
        if isinstance(item.record.event, RunRetrying | SessionCompacted)
    )
    several = {
        item.record.run_id
        for item in snapshot.events
        if isinstance(item.record.event, AgentChanged)
    }
    for run in snapshot.runs:
        limits = snapshot.limits.get(run.agent)
        if limits is None or run.run_id in several:
            continue
        turns = asked[run.run_id] - free[run.run_id] - len(snapshot.crashes)
        if turns > limits.turns + 1:
            yield f"the run {run.run_id} took {turns} turns, its limit is {limits.turns}"
        if limits.tokens is not None:
            most = limits.tokens + _largest(snapshot, run.run_id)
            if run.usage.total_tokens > most:
                used = run.usage.total_tokens
                yield f"the run {run.run_id} used {used} tokens, its limit is {limits.tokens}"


def _largest(snapshot: Snapshot, run_id: str) -> int:
    """A bound of the tokens of a run's largest request: no token is shorter than a byte."""
    sizes = (
        len(msgspec.json.encode((one.request.system, one.request.messages, one.request.tools)))
        for one in snapshot.asked
        if one.run_id == run_id
    )
    return max(sizes, default=0)


def counters_agree(snapshot: Snapshot) -> Iterator[Finding]:
    """The kernel's own counters: no mail is lost, no mailbox overflows, no turn is shared."""
    yield from snapshot.laws


def nothing_is_left(snapshot: Snapshot) -> Iterator[Finding]:
    """A host at rest has no tool at work, nor anything that a tool has started."""
    if not snapshot.settled:
        return
    for call in snapshot.ran:
        if not call.ended and not snapshot.crashed_after(call.at):
            yield f"the host is at rest, and the tool {call.tool!r} of {call.run_id} is at work"
    for task in snapshot.tasks:
        yield f"the host is at rest, and the task {task.name} of {task.run_id} goes on"
