"""Decides which runs of the last host can resume, and from where. Pure.

Laws: a run that resumes has a result for each call whose effects may not happen twice; its rows are
those it had; of its published messages, as many stand as there are rows for. Source: agent loop
specification, section 11; guarantees G14, G15.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from motet.actors.runs.queue import TOO_LATE
from motet.actors.storage.recovery import UnfinishedRun
from motet.actors.transcript.grammar import close_calls, is_held, violations
from motet.actors.transcript.guards import truncate_message
from motet.protocols.approvals import Resumption, SuspendedState, TurnState
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.limits import Limits
from motet.protocols.recovery import InputOptions, RecoveryConfig

OPEN: Outcome = "unknown"
"""The outcome of a call when only its begin is on disk."""


def refusal(left: UnfinishedRun, config: RecoveryConfig, now: float) -> str:
    """Why a run cannot resume, whatever its agent; empty: it can."""
    if left.quarantined:
        return "its session is quarantined"
    if left.given is None:
        return "the host ended during this run"  # and the caller that waited for it ended too
    if left.given.only_enters:
        return TOO_LATE  # its text is where it came from: in the room
    if left.given.deps:
        return "the host ended during this run, which had deps that are not stored"
    if now - left.seen >= config.resume_within:
        return "the host ended during this run, and was away for long"
    if left.broken or _strays(left.rows):
        return "the host ended during this run, whose journal has gaps"
    return ""


def unrepeatable(left: UnfinishedRun, is_repeatable: Callable[[str], bool]) -> str:
    """The name of a tool that may have run and must not run again; empty: none.

    ``is_repeatable`` takes the name of a tool.
    """
    return next((call.name for call in _open(left.rows) if not is_repeatable(call.name)), "")


def has_started(left: UnfinishedRun) -> bool:
    """Whether its start was published."""
    return any(event == "run.started" for event, _ in left.published)


def has_left_queue(left: UnfinishedRun) -> bool:
    """Whether its host has started it, or has joined other inputs into it in order to."""
    return left.info.status == "running" or has_started(left)


def has_begun(left: UnfinishedRun) -> bool:
    """Whether it has an answer. A run with its input only starts anew, its gates included."""
    return any(isinstance(row, AssistantMessage) for row in left.rows)


def rows_of(left: UnfinishedRun, limits: Limits) -> tuple[ChatMessage, ...]:
    """The rows it resumes from, its input first; open calls of the last answer have no result, or
    the mark that they have not begun.

    None if it has no answer, and its input was neither journalled nor published: a gate may have
    been about to refuse that.
    """
    rows = list(left.rows)
    if not rows and not _published_messages(left):
        return ()
    if not rows or not isinstance(rows[0], UserMessage):
        sender = left.given.sender if left.given is not None else ""
        said = truncate_message(left.info.text, limits.message_chars)
        rows.insert(0, UserMessage(said, sender=sender))
    last = _last_calls(rows)
    if last is None:
        return close_calls(rows, OPEN)
    head = close_calls(rows[:last], OPEN)
    found = {row.call_id: row for row in rows[last + 1 :] if isinstance(row, ToolMessage)}
    calls = rows[last]
    assert isinstance(calls, AssistantMessage)
    results = (found[one.id] for one in calls.calls if one.id in found)
    return (*head, calls, *(row for row in results if row.outcome != OPEN))


def resumption(
    left: UnfinishedRun, given: InputOptions, rows: Sequence[ChatMessage], limits: Limits
) -> Resumption:
    """The state that it resumes from; ``rows``: from :func:`rows_of`."""
    step = _last_calls(rows)
    before = tuple(rows) if step is None else tuple(rows[: step + 1])
    found = [row for row in rows[len(before) :] if isinstance(row, ToolMessage)]
    held = {row.call_id for row in found if is_held(row)}
    said = [row for row in rows if isinstance(row, AssistantMessage)]
    calls = sum(len(row.calls) for row in said)
    usage = left.info.usage
    turn = TurnState(len(said), calls, usage, usage, usage.cost or 0.0)
    batch = said[-1].calls if step is not None else ()
    announced, reported = _published(left, before, batch)
    # By the wall clock. A run whose time was over has ended: then somebody has put it forward.
    elapsed = left.seen - left.info.updated
    return Resumption(
        SuspendedState(
            rows=before,
            step=len(before) - 1,
            last=len(before) - 1 + len(batch),
            role=given.role,
            limits=limits,
            turn=turn,
            elapsed=elapsed if 0 < elapsed < (limits.wall or inf) else 0.0,
            messages=min(_messages(before), _published_messages(left)),
            spans=left.spans,
            started=left.started,
            errors=left.errors,
            repeats=tuple(one.id for one in batch if one.id not in held),
        ),
        tuple(row for row in found if row.call_id not in held),
        announced,
        reported,
    )


def _messages(rows: Sequence[ChatMessage]) -> int:
    """The number of messages among the rows."""
    return sum(1 for row in rows if not isinstance(row, ToolMessage) and row.text)


def _published_messages(left: UnfinishedRun) -> int:
    return sum(1 for event, _ in left.published if event == "message")


def _published(
    left: UnfinishedRun, before: Sequence[ChatMessage], batch: Sequence[Call]
) -> tuple[frozenset[str], frozenset[str]]:
    """Calls of the last answer whose begin, and whose end, was published. Models reuse ids."""
    earlier = Counter(
        call.id for row in before[:-1] if isinstance(row, AssistantMessage) for call in row.calls
    )
    published = Counter(left.published)

    def of(event: str) -> frozenset[str]:
        return frozenset(one.id for one in batch if published[(event, one.id)] > earlier[one.id])

    return of("tool.call"), of("tool.result")


def _last_calls(rows: Sequence[ChatMessage]) -> int | None:
    """The place of the last answer, if it has calls and only results follow it."""
    for at in range(len(rows) - 1, -1, -1):
        row = rows[at]
        if not isinstance(row, ToolMessage):
            return at if isinstance(row, AssistantMessage) and row.calls else None
    return None


def _open(rows: Sequence[ChatMessage]) -> list[Call]:
    """The calls without a known result."""
    found: dict[str, Call] = {}
    for row in rows:
        if isinstance(row, AssistantMessage):
            found |= {call.id: call for call in row.calls}
        elif isinstance(row, ToolMessage) and row.outcome != OPEN:
            found.pop(row.call_id, None)
    return list(found.values())


def _strays(rows: Sequence[ChatMessage]) -> bool:
    """Whether an answer is missing whose results are there, so that its calls have run."""
    if not rows:
        return False
    closed = close_calls(rows, OPEN)
    lost = _results(rows) != _results(closed)
    return lost or any("two user rows" in problem for problem in violations(closed))


def _results(rows: Sequence[ChatMessage]) -> int:
    return sum(1 for row in rows if isinstance(row, ToolMessage) and row.outcome != OPEN)
