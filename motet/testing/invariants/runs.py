"""Invariants of runs, event streams, inputs, stops and limits (G1, G2, G4, G14, G15)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import get_args

import msgspec

from motet.protocols.events import (
    AgentChanged,
    Event,
    InputDropped,
    InputSteered,
    RunRetrying,
    RunStarted,
    SessionCompacted,
    Terminal,
)
from motet.protocols.sessions import FINAL
from motet.testing.invariants.snapshot import Finding, Sent, Snapshot

__all__ = [
    "budgets_hold",
    "counters_agree",
    "ends",
    "inputs_are_answered_once",
    "is_end",
    "keys_start_one_run",
    "nothing_is_left",
    "one_terminal_event",
    "stops_are_total",
    "streams_have_no_gaps",
    "work_comes_to_rest",
]


ENDS: tuple[type[Event], ...] = (*get_args(Terminal), InputDropped, InputSteered)


def is_end(event: Event) -> bool:
    """True for an event that ends its run, which may never have begun."""
    return isinstance(event, ENDS)


def ends(snapshot: Snapshot) -> dict[str, int]:
    """The ``at`` of the end of each finished run, as a subscriber saw it."""
    found: dict[str, int] = {}
    for item in snapshot.events:
        if item.record.run_id is not None and is_end(item.record.event):
            found.setdefault(item.record.run_id, item.at)
    return found


def one_terminal_event(snapshot: Snapshot) -> Iterator[Finding]:
    """Every finished run has exactly one terminal event, and no other run has any."""
    told: Counter[str] = Counter()
    started: set[str] = set()
    for records in snapshot.journal.values():
        for record in records:
            if record.run_id is not None and is_end(record.event):
                told[record.run_id] += 1
            elif record.run_id is not None and isinstance(record.event, RunStarted):
                started.add(record.run_id)
    for run_id, count in told.items():
        if count > 1:
            yield f"the run {run_id} has {count} terminal events"
    for run in snapshot.runs:
        if run.status in FINAL and snapshot.settled and not told[run.run_id]:
            yield f"the run {run.run_id} is {run.status}, and no event says that it has ended"
        elif run.status not in FINAL and told[run.run_id]:
            yield f"an event says that the run {run.run_id} has ended, and it is {run.status}"
    if snapshot.settled:
        known = {run.run_id for run in snapshot.runs}
        for run_id in sorted(started - known - told.keys()):
            yield f"the run {run_id} has begun, and nothing is known of its end"


def streams_have_no_gaps(snapshot: Snapshot) -> Iterator[Finding]:
    """The numbers of a stream have no gaps, and none is used twice, across crashes."""
    for stream, records in snapshot.journal.items():
        numbers = [record.seq for record in records]
        if numbers and numbers != list(range(numbers[0] or 0, (numbers[0] or 0) + len(numbers))):
            yield f"the stream {stream} has the numbers {numbers}"
    stored = {
        (stream, record.seq): record
        for stream, records in snapshot.journal.items()
        for record in records
    }
    for item in snapshot.events:
        record = item.record
        if record.seq is None or record.stream not in snapshot.journal:
            continue
        kept = stored.get((record.stream, record.seq))
        if kept is not None and kept.event != record.event:
            yield (
                f"number {record.seq} of the stream {record.stream} was told as "
                f"{record.event!r} and is {kept.event!r}"
            )


# ---------------------------------------------------------------------- inputs


def inputs_are_answered_once(snapshot: Snapshot) -> Iterator[Finding]:
    """An accepted input is answered, queued or listed as ended: not lost, not doubled (G15)."""
    times = Counter(sent.token for sent in snapshot.sent if sent.accepted and sent.key is None)
    for sent in _first_ones(snapshot):
        held = [run for run in snapshot.runs if sent.token in run.text]
        own = [run for run in held if run.status not in ("steered", "dropped")]
        if not held and not _is_said(snapshot, sent):
            yield f"the accepted input {sent.text[:60]!r} of {sent.user} is nowhere"
        elif len(own) > 1 and times[sent.token] < 2 and not sent.to_room:
            which = ", ".join(f"{run.run_id} ({run.status})" for run in own)
            yield f"the input {sent.text[:60]!r} of {sent.user} has several runs: {which}"
    for run in snapshot.runs:
        if run.status not in FINAL and run.status != "waiting" and snapshot.settled:
            yield f"the run {run.run_id} of {run.user} is {run.status}, and nothing goes on"


def keys_start_one_run(snapshot: Snapshot) -> Iterator[Finding]:
    """The same key of the same user never starts two runs (G15)."""
    runs: dict[tuple[str, str], set[str]] = defaultdict(set)
    for sent in snapshot.sent:
        if sent.key is not None and sent.run_id and sent.accepted:
            runs[sent.user, sent.key].add(sent.run_id)
    for (user, key), ids in runs.items():
        if len(ids) > 1:
            yield f"the key {key!r} of {user} has started {len(ids)} runs: {', '.join(sorted(ids))}"


def _first_ones(snapshot: Snapshot) -> Iterator[Sent]:
    """Accepted generated inputs, each once. Other inputs may repeat a text on purpose."""
    seen: set[str] = set()
    for sent in snapshot.sent:
        if not sent.accepted or sent.token == sent.text or sent.token in seen:
            continue
        seen.add(sent.token)
        yield sent


def _is_said(snapshot: Snapshot, sent: Sent) -> bool:
    """True if an input without a run is in a transcript or a room."""
    rooms = (said.text for room in snapshot.rooms for said in room.messages)
    rows = (
        getattr(item.row, "text", "") for rows in snapshot.transcripts.values() for item in rows
    )
    return any(sent.token in text for text in (*rooms, *rows))


def work_comes_to_rest(snapshot: Snapshot) -> Iterator[Finding]:
    """Without further inputs, all activity comes to an end."""
    if snapshot.restless:
        yield snapshot.restless


def stops_are_total(snapshot: Snapshot) -> Iterator[Finding]:
    """After a stop has returned, no task, child or request of its runs is left (G2)."""
    for stop in snapshot.stops:
        for run_id in stop.report.still_running:
            held = f": {'; '.join(stop.report.held_by)}" if stop.report.held_by else ""
            yield f"the stop of {stop.place!r} has left the run {run_id} running{held}"
        for left in stop.left:
            yield f"after the stop of {stop.place!r} there is still {left}"


def budgets_hold(snapshot: Snapshot) -> Iterator[Finding]:
    """A run keeps its limit of turns, and exceeds no other limit by more than one request."""
    asked = Counter(one.run_id for one in snapshot.asked)
    # A failed attempt, one that a crash cut off, and a summary count as requests, not as turns.
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
    """An upper bound of the tokens of a run's largest request: a token has at least one byte."""
    sizes = (
        len(msgspec.json.encode((one.request.system, one.request.messages, one.request.tools)))
        for one in snapshot.asked
        if one.run_id == run_id
    )
    return max(sizes, default=0)


def counters_agree(snapshot: Snapshot) -> Iterator[Finding]:
    """The kernel's counters agree: no lost message, no mailbox overflow, no shared turn."""
    yield from snapshot.laws


def nothing_is_left(snapshot: Snapshot) -> Iterator[Finding]:
    """A host at rest has no running tool, and no live task or program of a tool."""
    if not snapshot.settled:
        return
    for call in snapshot.ran:
        if not call.ended and not snapshot.crashed_after(call.at):
            yield f"the host is at rest, and the tool {call.tool!r} of {call.run_id} is at work"
    for task in snapshot.tasks:
        yield f"the host is at rest, and the task {task.name} of {task.run_id} goes on"
