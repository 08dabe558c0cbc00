"""The context window of a run: the rows of each request, and when a summary replaces some. Pure.

The rows go through limit, pruning and repair for each request. A compaction during the run puts a
summary in place of old rows; the stored transcript does not change. Laws: prepared rows are valid
for a provider if the rows are a valid transcript; a compaction makes them shorter or reports that
it made no progress; the system prompt and the request of the running turn are never summarised; a
cut never separates a call from its results, leaves at least ``keep_rows`` rows behind it and takes
more than one; equal rows are cut at the same place. Source: agent loop specification, sections 4
to 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from motet.actors.errors.tracker import with_error_blocks
from motet.actors.transcript.history import (
    EMPTY_SCAN,
    UNCALIBRATED,
    Calibration,
    TranscriptScan,
    begins_turn,
    chars_of,
    estimate,
    last_turns,
    make_sendable,
)
from motet.actors.transcript.pruning import PRUNING, Pruning, prune
from motet.actors.transcript.summary import (
    extractive_summary,
    summary_of,
    summary_request,
    summary_rows,
)
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelRequest, ModelResponse

WORTH = 0.2
"""Share of the wanted part that a cut between turns must reach; else the cut is in a turn."""


class Compacting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When and how far a conversation is compacted.

    Attributes:
        share: of the window; reached during a run, or exceeded after one.
        rows: more than these are compacted after a run, whatever their size.
        keep_share: of the rows, which stay as they are.
        keep_rows: at least these stay.
        least: fewer rows are never compacted.
    """

    share: float = 0.75
    rows: int = 50
    keep_share: float = 0.3
    keep_rows: int = 4
    least: int = 6

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"compacting.share is above 0 and up to 1, not {self.share}")
        if not 0 <= self.keep_share < 1:
            raise ValueError(f"compacting.keep_share is from 0 to below 1, not {self.keep_share}")
        if min(self.rows, self.keep_rows, self.least) < 1:
            raise ValueError("compacting.rows, keep_rows and least must be at least 1")


COMPACTING = Compacting()


def due_in_run(tokens: int, window: int, how: Compacting = COMPACTING) -> bool:
    """Whether the next request would take ``share`` of the window; 0 is an unknown window."""
    return window > 0 and tokens >= how.share * window


def due_after_run(rows: int, tokens: int, window: int, how: Compacting = COMPACTING) -> bool:
    return rows > how.rows or (window > 0 and tokens > how.share * window)


def cut(rows: Sequence[ChatMessage], how: Compacting = COMPACTING) -> int | None:
    """How many rows to summarise; None when a summary would save nothing.

    The cut is the nearest place between turns or plain rows before the wanted one. Where that would
    leave almost nothing to summarise, one long turn is the problem, and the cut is between two
    batches of that turn.
    """
    keep = max(how.keep_rows, int(len(rows) * how.keep_share))
    wanted = len(rows) - keep
    if len(rows) < how.least or wanted < 2:
        return None
    at = walk_back(rows, wanted)
    if at > 1 and _size(rows[:at]) >= WORTH * _size(rows[:wanted]):
        return at
    batches = (at for at in range(wanted, 1, -1) if isinstance(rows[at], AssistantMessage))
    return next(batches, at if at > 1 else None)


def walk_back(rows: Sequence[ChatMessage], at: int) -> int:
    """The nearest place at or before ``at`` whose row is neither a result nor a row with calls."""
    at = min(at, len(rows))
    while 0 < at < len(rows) and _bound(rows[at]):
        at -= 1
    return at


def request_before(rows: Sequence[ChatMessage], at: int) -> UserMessage | None:
    """The user's row of a turn that the cut divides; None when a turn begins there."""
    if at >= len(rows) or begins_turn(rows[at]):
        return None
    turns = (row for row in reversed(rows[:at]) if isinstance(row, UserMessage) and not row.note)
    return next(turns, None)


def _bound(row: ChatMessage) -> bool:
    return isinstance(row, ToolMessage) or (isinstance(row, AssistantMessage) and bool(row.calls))


def _size(rows: Sequence[ChatMessage]) -> int:
    return sum(map(chars_of, rows))


WINDOW = 200_000
PROGRESS = 0.95
"""A compaction that leaves more than this share of a request made no progress."""
PATIENCE = 2
"""Compactions without progress that end a run."""


class PreparedRows(msgspec.Struct, frozen=True):
    """The rows of a request.

    Attributes:
        tokens: of the whole request: the estimate, calibrated.
        scan: of the conversation's rows from which they were prepared.
    """

    messages: tuple[ChatMessage, ...]
    estimated: int
    tokens: int
    scan: TranscriptScan


class Plan(msgspec.Struct, frozen=True):
    """A compaction to be done: the summary of ``rows`` takes their place.

    Attributes:
        rows: to summarise.
        previous: the current summary; the new one covers it too.
        covered: rows of the conversation that the new summary covers.
        pinned: the request of the divided turn; it is still sent.
    """

    rows: tuple[ChatMessage, ...]
    previous: str
    covered: int
    pinned: UserMessage | None
    window: int

    def request(self, model: str) -> ModelRequest:
        return summary_request(model, self.rows, self.previous, self.window)


class ContextWindow(msgspec.Struct, frozen=True):
    """The conversation as a model sees it. Immutable; a compaction gives a new window.

    The ``rows`` of the methods are those of the running turn; they follow ``history``.

    Attributes:
        history: stored rows before the run, from the session's start pointer on.
        summary: of the rows before the visible ones.
        window: tokens that the model accepts; 0: unknown.
        turns: the most user turns in a request; 0: all.
        covered: rows of the history and the turn that the summary covers too.
        stalled: compactions in a row without progress.
        scan: of rows with which the next request probably begins.
    """

    history: tuple[ChatMessage, ...] = ()
    summary: str = ""
    window: int = WINDOW
    turns: int = 0
    pruning: Pruning = PRUNING
    compacting: Compacting = COMPACTING
    calibration: Calibration = UNCALIBRATED
    covered: int = 0
    pinned: UserMessage | None = None
    stalled: int = 0
    scan: TranscriptScan = EMPTY_SCAN

    @property
    def stuck(self) -> str:
        """Why the run must end; empty while it may go on."""
        if self.stalled < PATIENCE:
            return ""
        return (
            f"the conversation does not fit in the model's window of {self.window} tokens, and "
            f"{self.stalled} compactions made it no shorter: reset the session, use a model with "
            "a larger window, or have tools return less"
        )

    def rebased(
        self, history: tuple[ChatMessage, ...], summary: str, scan: TranscriptScan = EMPTY_SCAN
    ) -> ContextWindow:
        """The window over the stored conversation of now, to which other runs may have added.

        After a compaction only a history that extends the known one is taken over. ``scan``: of the
        rows with which it begins.
        """
        if not self.covered:
            return replace(self, history=history, summary=summary, scan=scan.extended_to(history))
        goes_on = history[: len(self.history)] == self.history
        return replace(self, history=history) if goes_on and self._is_whole else self

    @property
    def _is_whole(self) -> bool:
        """Whether no row of the running turn is covered."""
        return self.covered <= len(self.history)

    def visible(self, rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """The conversation behind the summary, with errors as blocks."""
        return self._behind(with_error_blocks((*self.history, *rows)))

    def _behind(self, rows: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
        """The rows of a conversation behind the summary."""
        shown = rows[self.covered :]
        return (self.pinned, *shown) if self.pinned else shown

    def count(self, rows: Sequence[ChatMessage]) -> int:
        """The number of visible rows."""
        return (1 if self.pinned else 0) + len(self.history) + len(rows) - self.covered

    def prepare(
        self, rows: Sequence[ChatMessage], around: int = 0, idle: float | None = None
    ) -> PreparedRows:
        """The rows of the next request. ``around``: estimated tokens of system prompt and tools.

        ``idle``: seconds since the last request, for the provider's cache; None: there was none.
        """
        scan = self.scan.extended_to(last_turns(self._behind((*self.history, *rows)), self.turns))
        limited, estimated, as_they_are = scan.rows, scan.estimated, scan.is_sendable
        if scan.any_failed:
            limited = last_turns(self.visible(rows), self.turns)
            estimated = estimate(limited)
        if self.summary:
            before = summary_rows(self.summary)
            limited, estimated = (*before, *limited), estimated + estimate(before)
            as_they_are = as_they_are and scan.can_follow(before[-1])
        estimated += around
        pruned = prune(
            limited,
            self.window,
            calibration=self.calibration,
            how=self.pruning,
            idle=idle,
            estimated=estimated,
        )
        messages = tuple(pruned) if as_they_are else make_sendable(pruned)
        if messages is not limited:
            estimated = estimate(messages) + around
        return PreparedRows(messages, estimated, self.calibration.tokens(estimated), scan)

    def calibrated(self, sent: PreparedRows, input_tokens: int) -> ContextWindow:
        """Calibrate with the provider's count of this very request."""
        if input_tokens <= 0:
            return self
        return replace(self, calibration=Calibration(sent.estimated, input_tokens))

    def plan(
        self, sent: PreparedRows, rows: Sequence[ChatMessage], *, overflow: bool = False
    ) -> Plan | None:
        """The compaction that is due before this request, if it is due and possible.

        ``overflow``: the provider has refused the request as too long.
        """
        if not overflow and not due_in_run(sent.tokens, self.window, self.compacting):
            return None
        shown = self.visible(rows)
        at = cut(shown, self.compacting)
        if at is None:
            return None
        return Plan(
            rows=shown[:at],
            previous=self.summary,
            covered=self.covered + at - (1 if self.pinned else 0),
            pinned=request_before(shown, at),
            window=self.window,
        )

    def compacted(
        self,
        plan: Plan,
        response: ModelResponse | None,
        rows: Sequence[ChatMessage],
        around: int = 0,
    ) -> ContextWindow:
        """The window after ``plan``; ``response`` None: the model failed."""
        before = self.prepare(rows, around).estimated
        written = summary_of(response, plan.rows, plan.previous)
        for text in (written, extractive_summary(plan.rows, plan.previous)):
            after = replace(self, summary=text, covered=plan.covered, pinned=plan.pinned)
            left = after.prepare(rows, around).estimated
            if left <= PROGRESS * before:
                return replace(after, stalled=0)
            if left < before:
                return after.without_progress()
        return self.without_progress()

    def without_progress(self) -> ContextWindow:
        """The window after a compaction without progress, which it counts."""
        return replace(self, stalled=self.stalled + 1)
