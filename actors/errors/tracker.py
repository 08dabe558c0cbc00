"""When a run has failed often enough to be handed to a person.

Laws, for every order of events: the third error of one tool in a row, or the tenth of a run, *is*
the escalation; a success ends only its own tool's row; denials and cancelled calls change
nothing. Rows live with the session, the total with the run: :meth:`ErrorTracker.new_run`.
Every transition returns a new tracker. Source: seed 004, contradictions 35, 36, 42, 43 and 45.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from motet.protocols.chat import ChatMessage, JsonObject, Outcome, ToolMessage
from motet.protocols.errors import CompactError

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

    def as_result(self) -> JsonObject:
        """The end of the run as data, in the seed's keys."""
        return {
            "status": "escalated",
            "reason": self.reason,
            "cause": self.limit,
            "last_error": self.last_error.message,
            "error_history": [msgspec.to_builtins(error) for error in self.history],
        }


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
