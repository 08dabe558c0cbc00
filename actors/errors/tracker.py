"""When a run has failed often enough to be handed to a person.

Laws, for every order of events: the third error of one tool in a row, or the tenth of a run, *is*
the escalation; a success ends only its own tool's row; denials and cancelled calls change
nothing. Rows live with the session, the total with the run: :meth:`ErrorTracker.new_run`.
Every transition returns a new tracker. Source: seed 004, contradictions 35, 36, 42, 43 and 45.
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
    """What a call's end means to the counts; the one place that decides it.

    A call that never ran, was stopped, or whose end nobody knows says nothing about its tool.
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
    """Whether any call counts as an error; mostly none does, and there is no more to look at."""
    outcomes: set[Outcome] = {row.outcome for row in rows if isinstance(row, ToolMessage)}
    return not outcomes.isdisjoint(_ERRORS)


class ErrorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many errors end a run: ``consecutive`` of one tool, ``total`` of a run.

    The error whose count reaches a limit escalates, so 1 and 0 both mean the first one. None: no
    such limit.
    """

    consecutive: int | None = 3
    total: int | None = 10

    def __post_init__(self) -> None:
        for name, value in (("consecutive", self.consecutive), ("total", self.total)):
            if value is not None and value < 0:
                raise ValueError(f"errors.{name} must be at least 0 or absent, not {value}")


class Escalation(msgspec.Struct, frozen=True):
    """Which limit was reached, by what. ``count`` is the number of errors that reached it.

    Attributes:
        history: the errors of the run, the last one included (the newest 100).
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
    """Errors so far; ``escalation`` is set from the error that reaches a limit on.

    Attributes:
        rows: errors in a row by tool; tools whose last call succeeded are absent.
        total: errors of this run.
    """

    limits: ErrorLimits = ErrorLimits()
    rows: dict[str, int] = {}
    total: int = 0
    history: tuple[CompactError, ...] = ()
    escalation: Escalation | None = None

    def failed(self, error: CompactError) -> ErrorTracker:
        """An error is first put on record, then counted."""
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
        """The tracker of the session's next run: the rows stay, the total starts again."""
        return ErrorTracker(self.limits, self.rows)

    def forgiven(self) -> ErrorTracker:
        """The tracker after a person has answered an escalation: nothing is held against it."""
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


# The failed calls of a session, as its turn keeps them: counted, and answered with advice.
#
# Laws: results are taken in call order, and what is rebuilt from a transcript equals what was kept
# while it was made, so nothing has to be stored beside it. Source: errors specification section 4.


class Failures(msgspec.Struct, frozen=True):
    """What counts against the run that is going on; transitions return the next state."""

    tracker: ErrorTracker = ErrorTracker()
    repeated: RepeatedCalls = RepeatedCalls()

    def ended(
        self, call: Call, outcome: Outcome, text: str, kind: str = "", now: float = 0.0
    ) -> tuple[Failures, str]:
        """The state after a call, and the advice to add to its result, mostly none."""
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
    """The short form of a failed call, of the text that its result has in the transcript."""
    message, _ = parse_failure_text(text)
    return compact_error(tool, kind if _is_type(kind) else classify(message), message, now)


def failures_before(
    rows: Sequence[ChatMessage], limits: Limits, *, needs_review: bool = False
) -> Failures:
    """What a session's transcript counts against its next run.

    ``needs_review``: nobody has answered its last escalation. An answer forgives what was before.
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


# Which errors a model still sees: the open ones, the newest of them in full.
#
# Laws: a tool's success resolves its own open errors and no others, errors are told apart by number
# and never by their text, at most ``shown`` blocks are given, and the same errors give the same
# bytes. The event log keeps them all. Source: seed 004, contradictions 39 to 41.


SHOWN = 3


class OpenError(msgspec.Struct, frozen=True):
    """An error nobody has resolved. ``error_id`` names the whole one, where it was stored."""

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


# The failed calls of a transcript as a model is sent them: each error once, the older ones short.
#
# A new error is three lines, as it was told; once the model has answered it, the last three that
# nobody has resolved are blocks, older ones are one line with their number, and resolved ones one
# line that says so. Laws: rows keep their number, order and calls; only texts of failed calls
# change; the same rows give the same bytes; the transcript itself is never rewritten. The text of
# an error that was answered has at most :data:`SENT_LIMIT` code points, that of one no longer
# shown at most :data:`LINE_LIMIT`. Source: errors specification, sections 2 and 4.


RESOLVED = "[Failed; a later call of this tool succeeded]"
LINE_LIMIT = 80
SENT_LIMIT = MESSAGE_LIMIT + 300
"""Of a block: message, name, suggestion, id and the words around them."""


def with_error_blocks(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows of a request."""
    if not any_failed(rows):
        return tuple(rows)
    texts = _texts(rows)
    sent = list(rows)
    for at, text in texts.items():
        sent[at] = replace(sent[at], text=text)
    return tuple(sent)


def _texts(rows: Sequence[ChatMessage]) -> dict[int, str]:
    """The text of each failed call that has been answered, by its place."""
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
