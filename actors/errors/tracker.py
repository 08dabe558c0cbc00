"""Failed calls of a session: counted until a run escalates, and shown to the model as blocks. Pure.

Laws of counting, for every order of events: a tool's row is the number of batches with an error of
it after its last success, in the order of the calls; a run's total is the number of its pairs of a
batch and a tool that has failed in it. So calls that ran in parallel, before the model has seen a
failure, are one attempt. The third attempt of one tool in a row, or the tenth of a run, *is* the
escalation; a success ends only its own tool's row. Only faults are errors: negative results, wrong
arguments, refusals, cancelled calls and look-ups of errors change no count (``TAXONOMY``).
Rows belong to the session; where several people share one, to a person, and they end with that
person's next answered run. The total belongs to the run: :meth:`ErrorTracker.new_run`. Results are
counted in call order, and the state that is rebuilt from a transcript equals the one that was kept
while it was made, so that nothing is stored beside it. Every transition returns a new value.
Source: seed 004, contradictions 35, 36 and 39 to 45; errors specification, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from motet.actors.errors.classify import (
    MESSAGE_LIMIT,
    RepeatedCalls,
    Verdict,
    classify,
    compact_error,
    consequences,
    error_block,
    is_kind,
    kind_lines,
    parse_failure_text,
)
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    FailureClass,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.errors import CompactError, Resolved
from motet.protocols.limits import Limits
from motet.protocols.tools import CallResult

Limit: TypeAlias = Literal["consecutive", "total"]
Count: TypeAlias = Literal["error", "success", "neither"]

HISTORY_LIMIT = 100
LOOKUPS = frozenset({"get_error_detail", "get_error_details", "get_tool_result"})
"""The tools by which a model reads what the host has kept for it."""


def counts_as(outcome: Outcome, failure: FailureClass | Literal[""] = "", tool: str = "") -> Count:
    """The effect of a result on the counts. A look-up of an error that fails tells of no tool."""
    if outcome == "done":
        return "success"
    found = consequences(outcome, failure)
    is_counted = found is not None and found.counted and tool not in LOOKUPS
    return "error" if is_counted else "neither"


def is_error(outcome: Outcome, failure: FailureClass | Literal[""] = "") -> bool:
    """Whether a call has failed, and not with an answer of its tool."""
    if outcome != "failed":
        return False
    found = consequences(outcome, failure)
    return found is not None and found.error


def verdict_of(outcome: Outcome, failure: FailureClass | Literal[""] = "") -> Verdict:
    """The verdict of a call that its breakers have admitted."""
    if outcome == "done":
        return "succeeded"
    found = consequences(outcome, failure)
    return "abandoned" if found is None else found.verdict


def is_shortened(row: ToolMessage) -> bool:
    """Whether requests have an error block, or a line, for a failed call that was answered."""
    if row.outcome != "failed":
        return False
    found = consequences(row.outcome, row.failure)
    return found is not None and found.shortened


def any_failed(rows: Iterable[ChatMessage]) -> bool:
    """Whether any call has failed, other than with an answer. Usually none has, and callers can
    return at once.
    """
    return any(isinstance(row, ToolMessage) and is_shortened(row) for row in rows)


class ErrorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many errors end a run: ``consecutive`` of one tool, ``total`` of a run.

    The error that reaches a limit escalates, so that 1 and 0 both mean the first one. None: no
    limit.
    """

    consecutive: int | None = 3
    total: int | None = 10

    def __post_init__(self) -> None:
        for name, value in (("consecutive", self.consecutive), ("total", self.total)):
            if value is not None and value < 0:
                raise ValueError(f"errors.{name} must be at least 0 or absent, not {value}")


class Escalation(msgspec.Struct, frozen=True):
    """The reached limit, and the errors that reached it.

    Attributes:
        count: errors that count towards the limit.
        history: the newest 100 errors that were counted, the last one included: those of the run,
            and those of earlier runs whose tools have not succeeded since.
    """

    limit: Limit
    count: int
    tool_name: str
    last_error: CompactError
    history: tuple[CompactError, ...]

    @property
    def reason(self) -> str:
        if self.limit == "total":
            return f"Too many errors in this run: {self.count}"
        return f"Too many errors with {self.tool_name}"

    @property
    def explanation(self) -> str:
        """One line for a person: the reason, the count and the last message."""
        row = f" ({self.count} in a row)" if self.limit == "consecutive" else ""
        return f"{self.reason}{row}; the last one, {self.tool_name}: {self.last_error.message}"


class ErrorTracker(msgspec.Struct, frozen=True):
    """The counts; ``escalation`` is set by the error that reaches a limit.

    Attributes:
        rows: attempts in a row that have failed, by tool; a tool whose last call succeeded is
            absent.
        total: attempts of this run that have failed.
    """

    limits: ErrorLimits = ErrorLimits()
    rows: dict[str, int] = {}
    total: int = 0
    history: tuple[CompactError, ...] = ()
    escalation: Escalation | None = None

    def failed(self, error: CompactError, *, again: bool = False) -> ErrorTracker:
        """The error is recorded first, then counted. ``again``: its tool has failed in its batch
        before, so that it begins a row at most.
        """
        tool = error.tool_name
        row = self.rows.get(tool, 0)
        row, total = row if again and row else row + 1, self.total if again else self.total + 1
        history = (*self.history, error)[-HISTORY_LIMIT:]
        return replace(
            self,
            rows={**self.rows, tool: row},
            total=total,
            history=history,
            escalation=self._escalation(error, row, total, history),
        )

    def succeeded(self, tool: str) -> ErrorTracker:
        if tool not in self.rows:
            return self
        return replace(
            self,
            rows={name: n for name, n in self.rows.items() if name != tool},
            history=tuple(
                replace(one, resolved=True) if one.tool_name == tool else one
                for one in self.history
            ),
        )

    def new_run(self) -> ErrorTracker:
        """The tracker of the session's next run: the rows stay, the total is reset."""
        history = tuple(one for one in self.history if not one.resolved)
        return ErrorTracker(self.limits, self.rows, history=history)

    def forgiven(self) -> ErrorTracker:
        """The tracker after a person has answered an escalation: all counts are reset."""
        return ErrorTracker(self.limits)

    def _escalation(
        self, error: CompactError, row: int, total: int, history: tuple[CompactError, ...]
    ) -> Escalation | None:
        limits = self.limits
        if limits.consecutive is not None and row >= limits.consecutive:
            return Escalation("consecutive", row, error.tool_name, error, history)
        if limits.total is not None and total >= limits.total:
            return Escalation("total", total, error.tool_name, error, history)
        return None


class Failures(msgspec.Struct, frozen=True):
    """The failures of a running turn: the counts, and repeated calls.

    ``batch``: the tools that have failed among the calls of the last answer.
    """

    tracker: ErrorTracker = ErrorTracker()
    repeated: RepeatedCalls = RepeatedCalls()
    batch: frozenset[str] = frozenset()

    def new_batch(self) -> Failures:
        """The state before the calls of an answer. It escalates by their errors only."""
        tracker = self.tracker
        if tracker.escalation is not None:
            tracker = replace(tracker, escalation=None)
        return (
            Failures(tracker, self.repeated) if self.batch or tracker is not self.tracker else self
        )

    def ended(self, call: Call, result: CallResult, now: float = 0.0) -> tuple[Failures, str]:
        """The state after a call, and the advice for its result; usually none."""
        if result.outcome == "done":
            if not self.tracker.rows and not self.repeated.rows:
                return self, ""
            tracker = self.tracker.succeeded(call.name)
            repeated = self.repeated.succeeded(call.name)
            if tracker is self.tracker and repeated is self.repeated:
                return self, ""
            return Failures(tracker, repeated, self.batch), ""
        found = consequences(result.outcome, result.failure)
        counted = counts_as(result.outcome, result.failure, call.name) == "error"
        if found is None or not (counted or found.advised):
            return self, ""
        tracker, repeated, batch, advice = self.tracker, self.repeated, self.batch, ""
        if counted:
            error = replace(
                compacted_error(call.name, result.text, result.kind, now),
                arguments=call.arguments,
                error_id=parse_failure_text(result.text)[1],
            )
            tracker = tracker.failed(error, again=call.name in batch)
            batch |= {call.name}
        if found.advised:
            repeated, advice = repeated.failed(call.name, call.arguments)
        return Failures(tracker, repeated, batch), advice


def compacted_error(tool: str, text: str, kind: str = "", now: float = 0.0) -> CompactError:
    """The short form of a failed call, from its result in the transcript.

    The kind is that of the stored error. Rows of older hosts have none: it is read from the words.
    """
    if not is_kind(kind):
        message, _ = parse_failure_text(text)
        return compact_error(tool, classify(message), message, now)
    message, _ = parse_failure_text(text.replace(kind_lines(kind), "", 1))
    return compact_error(tool, kind, message, now)


def stored_result(row: ToolMessage) -> CallResult:
    """A stored result, as far as its row has it."""
    return CallResult(row.call_id, row.name, row.text, row.outcome, row.kind, failure=row.failure)


def failures_before(
    rows: Sequence[ChatMessage],
    limits: Limits,
    *,
    needs_review: bool = False,
    said_by: Callable[[UserMessage], bool] | None = None,
) -> Failures:
    """The failures in a session's transcript that count against its next run.

    Args:
        needs_review: its last escalation is open. An answer resets the counts before it.
        said_by: whether the next run's person has begun a turn, where several people share the
            session: only their runs count, and an answered one ends their counts. None: the session
            is one person's.
    """
    errors = ErrorLimits(limits.tool_errors, limits.total_errors)
    fresh = Failures(ErrorTracker(errors))
    state, shared, is_theirs, is_answered = fresh, said_by is not None, True, False
    calls: Mapping[str, Call] = {}
    for row in rows if any_failed(rows) else ():
        if isinstance(row, UserMessage) and not row.note:
            state = fresh if is_answered else state
            is_theirs, is_answered = said_by is None or said_by(row), False
        if not is_theirs:
            continue
        match row:
            case AssistantMessage(note="escalated") if not needs_review:
                state = Failures(state.tracker.forgiven())
            case AssistantMessage():
                state = state.new_batch()
                calls = {call.id: call for call in row.calls}
                is_answered = shared and not row.calls and row.note in ("", "silent")
            case ToolMessage():
                call = calls.get(row.call_id, Call(row.call_id, row.name))
                state, _ = state.ended(call, stored_result(row))
            case _:
                pass
    state = fresh if is_answered else state
    return Failures(state.tracker.new_run(), state.repeated)


# Open errors. Laws: a tool's success resolves its own open errors and no others; errors are
# identified by number, never by text. The event log keeps all of them.

SHOWN = 3


class OpenError(msgspec.Struct, frozen=True):
    """An unresolved error. ``error_id``: of the whole error, if it was stored."""

    number: int
    error: CompactError
    error_id: str | None = None


class ErrorContext(msgspec.Struct, frozen=True):
    """The open errors of a session, oldest first; transitions return a new context."""

    open: tuple[OpenError, ...] = ()
    last: int = 0

    def failed(self, error: CompactError, error_id: str | None = None) -> ErrorContext:
        number = self.last + 1
        return ErrorContext((*self.open, OpenError(number, error, error_id)), number)

    def succeeded(self, tool: str) -> ErrorContext:
        return replace(self, open=tuple(e for e in self.open if e.error.tool_name != tool))


def successes(rows: Iterable[ChatMessage]) -> Resolved:
    """The tools that have succeeded among these rows: their earlier errors are resolved."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if not isinstance(row, ToolMessage) or row.name in LOOKUPS:
            continue
        if counts_as(row.outcome) == "success":
            found[row.name] = ()
        elif row.name in found and (error_id := parse_failure_text(row.text)[1]):
            found[row.name] += (error_id,)
    return found


# Error blocks, where a conversation is pruned or compacted. Until then errors are sent as they were
# told: to shorten one whenever a call fails or succeeds would invalidate the provider's cache from
# that row on. Of the errors that the model has answered, the last three open ones become blocks,
# older ones a line with their number, and resolved ones a line that says so. Laws: rows keep their
# number, order and calls; only texts of failed calls change; equal rows give equal bytes; the
# transcript itself is never rewritten. A block has at most :data:`SENT_LIMIT` code points, a line
# at most :data:`LINE_LIMIT`.

RESOLVED = "[Failed; a later call of this tool succeeded]"
LINE_LIMIT = 80
SENT_LIMIT = MESSAGE_LIMIT + 300
"""Of a block: message, name, suggestion, id and labels."""


def with_error_blocks(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows with the errors that were answered as blocks or lines."""
    sent = list(rows)
    for at, text in short_errors(rows).items():
        sent[at] = replace(sent[at], text=text)
    return tuple(sent)


def short_errors(rows: Sequence[ChatMessage]) -> dict[int, str]:
    """The new texts of failed calls that the model has answered, by index."""
    context, places = ErrorContext(), dict[int, int]()
    if not any_failed(rows):
        return {}
    answered = -1
    for at, row in enumerate(rows):
        if isinstance(row, AssistantMessage):
            answered = at
        elif isinstance(row, ToolMessage):
            if is_shortened(row):
                short = compacted_error(row.name, row.text, row.kind)
                context = context.failed(short, parse_failure_text(row.text)[1])
                places[context.last] = at
            elif row.outcome == "done" and context.open:
                context = context.succeeded(row.name)
    texts = {at: RESOLVED for at in places.values() if at < answered}
    for back, error in enumerate(reversed(context.open)):
        at = places[error.number]
        if at < answered:
            older = f"[Error {error.number} of this session: not shown again, newer ones are]"
            texts[at] = error_block(error.error, error.error_id) if back < SHOWN else older
    return texts
