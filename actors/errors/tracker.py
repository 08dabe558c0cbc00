"""Failed calls of a session: counted until a run escalates, and shown to the model as blocks. Pure.

Laws of counting, for every order of events: the third error of one tool in a row, or the tenth of a
run, *is* the escalation; a success ends only its own tool's row; denials and cancelled calls change
nothing. Rows belong to the session, the total to the run: :meth:`ErrorTracker.new_run`. Results are
counted in call order, and the state that is rebuilt from a transcript equals the one that was kept
while it was made, so that nothing is stored beside it. Every transition returns a new value.
Source: seed 004, contradictions 35, 36 and 39 to 45; errors specification, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeGuard, get_args

import msgspec
from msgspec.structs import replace

from motet.actors.errors.classify import (
    MESSAGE_LIMIT,
    RepeatedCalls,
    classify,
    compact_error,
    error_block,
    parse_failure_text,
)
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
)
from motet.protocols.errors import CompactError, ErrorType
from motet.protocols.limits import Limits

Limit: TypeAlias = Literal["consecutive", "total"]
Count: TypeAlias = Literal["error", "success", "neither"]

HISTORY_LIMIT = 100


def counts_as(outcome: Outcome) -> Count:
    """The effect of an outcome on the counts; the only place that decides it.

    A call that never ran, was stopped, or has an unknown outcome says nothing about its tool.
    """
    match outcome:
        case "done":
            return "success"
        case "failed":
            return "error"
        case _:
            return "neither"


_ERRORS = frozenset(outcome for outcome in get_args(Outcome) if counts_as(outcome) == "error")


def any_failed(rows: Iterable[ChatMessage]) -> bool:
    """Whether any call counts as an error. Usually none does, and callers can return at once."""
    outcomes: set[Outcome] = {row.outcome for row in rows if isinstance(row, ToolMessage)}
    return not outcomes.isdisjoint(_ERRORS)


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
        history: the newest 100 errors of the run, the last one included.
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
        rows: errors in a row by tool; a tool whose last call succeeded is absent.
        total: errors of this run.
    """

    limits: ErrorLimits = ErrorLimits()
    rows: dict[str, int] = {}
    total: int = 0
    history: tuple[CompactError, ...] = ()
    escalation: Escalation | None = None

    def failed(self, error: CompactError) -> ErrorTracker:
        """The error is recorded first, then counted."""
        row = self.rows.get(error.tool_name, 0) + 1
        history = (*self.history, error)[-HISTORY_LIMIT:]
        return replace(
            self,
            rows={**self.rows, error.tool_name: row},
            total=self.total + 1,
            history=history,
            escalation=self._escalation(error, row, history),
        )

    def succeeded(self, tool: str) -> ErrorTracker:
        if tool not in self.rows:
            return self
        return replace(self, rows={name: n for name, n in self.rows.items() if name != tool})

    def new_run(self) -> ErrorTracker:
        """The tracker of the session's next run: the rows stay, the total is reset."""
        return ErrorTracker(self.limits, self.rows)

    def forgiven(self) -> ErrorTracker:
        """The tracker after a person has answered an escalation: all counts are reset."""
        return ErrorTracker(self.limits)

    def _escalation(
        self, error: CompactError, row: int, history: tuple[CompactError, ...]
    ) -> Escalation | None:
        limits, total = self.limits, self.total + 1
        if limits.consecutive is not None and row >= limits.consecutive:
            return Escalation("consecutive", row, error.tool_name, error, history)
        if limits.total is not None and total >= limits.total:
            return Escalation("total", total, error.tool_name, error, history)
        return None


class Failures(msgspec.Struct, frozen=True):
    """The failures of a running turn: the counts, and repeated calls."""

    tracker: ErrorTracker = ErrorTracker()
    repeated: RepeatedCalls = RepeatedCalls()

    def ended(
        self, call: Call, outcome: Outcome, text: str, kind: str = "", now: float = 0.0
    ) -> tuple[Failures, str]:
        """The state after a call, and the advice for its result; usually none."""
        match counts_as(outcome):
            case "success":
                if not self.tracker.rows and not self.repeated.rows:
                    return self, ""
                tracker = self.tracker.succeeded(call.name)
                repeated = self.repeated.succeeded(call.name)
                if tracker is self.tracker and repeated is self.repeated:
                    return self, ""
                return Failures(tracker, repeated), ""
            case "error":
                error = compacted_error(call.name, text, kind, now)
                repeated, advice = self.repeated.failed(call.name, call.arguments)
                return Failures(self.tracker.failed(error), repeated), advice
            case "neither":
                return self, ""


def compacted_error(tool: str, text: str, kind: str = "", now: float = 0.0) -> CompactError:
    """The short form of a failed call, from its result text in the transcript."""
    message, _ = parse_failure_text(text)
    return compact_error(tool, kind if _is_type(kind) else classify(message), message, now)


def failures_before(
    rows: Sequence[ChatMessage], limits: Limits, *, needs_review: bool = False
) -> Failures:
    """The failures in a session's transcript that count against its next run.

    ``needs_review``: its last escalation is open. An answer resets the counts before it.
    """
    errors = ErrorLimits(limits.tool_errors, limits.total_errors)
    state = Failures(ErrorTracker(errors))
    calls: Mapping[str, Call] = {}
    for row in rows if any_failed(rows) else ():
        match row:
            case AssistantMessage(note="escalated") if not needs_review:
                state = Failures(state.tracker.forgiven())
            case AssistantMessage():
                calls = {call.id: call for call in row.calls}
            case ToolMessage():
                call = calls.get(row.call_id, Call(row.call_id, row.name))
                state, _ = state.ended(call, row.outcome, row.text)
            case _:
                pass
    return Failures(state.tracker.new_run(), state.repeated)


def _is_type(kind: str) -> TypeGuard[ErrorType]:
    return kind in get_args(ErrorType)


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


# Error blocks in a request. A new error keeps its result text of three lines. Once the model has
# answered it, the last three open errors become blocks, older ones a line with their number, and
# resolved ones a line that says so. Laws: rows keep their number, order and calls; only texts of
# failed calls change; equal rows give equal bytes; the transcript itself is never rewritten. A
# block has at most :data:`SENT_LIMIT` code points, a line at most :data:`LINE_LIMIT`.

RESOLVED = "[Failed; a later call of this tool succeeded]"
LINE_LIMIT = 80
SENT_LIMIT = MESSAGE_LIMIT + 300
"""Of a block: message, name, suggestion, id and labels."""


def with_error_blocks(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows of a request, with the errors that were answered as blocks or lines."""
    if not any_failed(rows):
        return tuple(rows)
    texts = _texts(rows)
    sent = list(rows)
    for at, text in texts.items():
        sent[at] = replace(sent[at], text=text)
    return tuple(sent)


def _texts(rows: Sequence[ChatMessage]) -> dict[int, str]:
    """The new texts of failed calls that the model has answered, by index."""
    context, places = ErrorContext(), dict[int, int]()
    answered = -1
    for at, row in enumerate(rows):
        if isinstance(row, AssistantMessage):
            answered = at
        elif isinstance(row, ToolMessage):
            counts = counts_as(row.outcome)
            if counts == "error":
                short = compacted_error(row.name, row.text)
                context = context.failed(short, parse_failure_text(row.text)[1])
                places[context.last] = at
            elif counts == "success" and context.open:
                context = context.succeeded(row.name)
    texts = {at: RESOLVED for at in places.values() if at < answered}
    for back, error in enumerate(reversed(context.open)):
        at = places[error.number]
        if at < answered:
            older = f"[Error {error.number} of this session: not shown again, newer ones are]"
            texts[at] = error_block(error.error, error.error_id) if back < SHOWN else older
    return texts
