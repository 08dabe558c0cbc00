"""The context window of a run: the rows of each request, pruned or replaced by a summary. Pure.

The rows go through limit, pruning and repair for each request. Pruning trims or clears old tool
results, and shortens errors, when the request fills too much of the window; until then a request
begins with the one before it, which the provider has cached. A compaction during the run puts a
summary in place of old rows; the stored transcript does not change. Laws: prepared rows are valid
for a provider if the rows are a valid transcript; a compaction makes them shorter or reports that
it made no progress; the system prompt and the request of the running turn are never summarised; a
cut never separates a call from its results, leaves at least ``keep_rows`` rows behind it and takes
more than one; equal rows are cut at the same place. Pruning adds, removes and lengthens no row, and
changes only results outside of the protected zone: up to the first user's row, and the last
assistant rows with their results. Source: agent loop specification, sections 4 to 6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from motet.actors.errors.tracker import short_errors, with_error_blocks
from motet.actors.transcript.history import (
    CHARS_PER_TOKEN,
    EMPTY_SCAN,
    UNCALIBRATED,
    Calibration,
    TranscriptScan,
    begins_turn,
    chars_of,
    estimate,
    head,
    last_turns,
    make_sendable,
    tail,
    without_refused,
)
from motet.actors.transcript.summary import (
    extractive_summary,
    summary_of,
    summary_request,
    summary_rows,
)
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelRequest, ModelResponse

# Pruning

CLEARED = "[Old tool result content cleared]"
TAIL_LOOKED_AT = 500
IMPORTANT_SHARE = 0.7

_IMPORTANT = re.compile(
    r"(?:error|exception|failed|fatal|traceback|panic|stack trace|exit code"
    r"|total|summary|result|complete|finished|done)\b",
    re.IGNORECASE,
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_TTL = re.compile(f"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


class Pruning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When and how far results are pruned; characters are code points.

    Attributes:
        enabled: False: no result is pruned.
        trim_at: share of the window from which long results are trimmed.
        clear_at: share from which whole results are cleared, the oldest first.
        clear_chars: the sum of the prunable results from which some are cleared.
        long: longer results are trimmed to ``head`` and ``tail``.
        keep_assistants: assistant rows at the end that are protected.
        cleared: the text in place of a cleared result; empty: none is cleared.
        cache_ttl: how long the provider keeps a prompt, such as ``5m``. While it does, results are
            not trimmed, which would invalidate that cache; None: they are trimmed at any time.
    """

    enabled: bool = True
    trim_at: float = 0.3
    clear_at: float = 0.5
    clear_chars: int = 50_000
    long: int = 4_000
    head: int = 1_500
    tail: int = 1_500
    keep_assistants: int = 3
    cleared: str = CLEARED
    cache_ttl: str | None = None

    def __post_init__(self) -> None:
        for name in ("trim_at", "clear_at"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"pruning.{name} is a share above 0 and up to 1")
        for name in ("clear_chars", "long", "head", "tail", "keep_assistants"):
            if getattr(self, name) < 0:
                raise ValueError(f"pruning.{name} must not be below 0")
        if self.cache_ttl is not None:
            seconds_of(self.cache_ttl)

    def waits(self, share: float, idle: float | None) -> bool:
        """Whether to keep the provider's cache instead of trimming; ``idle``: see :func:`prune`."""
        if self.cache_ttl is None or idle is None or share >= self.clear_at:
            return False
        return idle < seconds_of(self.cache_ttl)


def seconds_of(ttl: str) -> float:
    """``5m``, ``1h30m`` in seconds; empty: five minutes, which is what most providers have.

    Raises ``ValueError`` for any other text, and for no time at all.
    """
    parts = _TTL.fullmatch(ttl or "5m")
    numbers = [float(part or 0) for part in parts.groups()] if parts else [0.0]
    seconds = sum(number * unit for number, unit in zip(numbers, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ValueError(f"pruning.cache_ttl is a time such as '5m' or '1h30m', not {ttl!r}")
    return seconds


PRUNING = Pruning()


def prune(
    rows: Sequence[ChatMessage],
    window: int,
    *,
    around: int = 0,
    calibration: Calibration = UNCALIBRATED,
    how: Pruning = PRUNING,
    idle: float | None = None,
    estimated: int | None = None,
) -> Sequence[ChatMessage]:
    """The rows of a request, pruned as far as its share of the window demands.

    ``around``: estimated tokens of the system prompt and the tools; ``window`` 0: unknown;
    ``idle``: seconds since the last request, None when there was none; ``estimated``: tokens of
    the whole request, if known.
    """
    if not how.enabled or window <= 0:
        return rows
    estimated = estimate(rows) + around if estimated is None else estimated
    share = calibration.tokens(estimated) / window
    if share < how.trim_at or how.waits(share, idle):
        return rows
    work = _Work(rows, window, estimated, calibration)
    places = prunable(rows, how.keep_assistants)
    for at in places:
        work.shorten(at, trimmed(rows[at].text, how))
    if how.cleared and work.share >= how.clear_at:
        sizes = sum(len(work.text(at)) for at in places)
        for at in places if sizes >= how.clear_chars else ():
            if work.share < how.clear_at:
                break
            work.shorten(at, how.cleared)
    # Errors change only when another result is pruned, which costs the provider's cache anyway: so
    # only rows up to the last pruned one decide which errors are resolved.
    last = max(work.texts, default=-1)
    short = short_errors(rows[: last + 1])
    for at in places:
        work.shorten(at, short.get(at, rows[at].text))
    return work.pruned()


class _Work:
    def __init__(
        self, rows: Sequence[ChatMessage], window: int, estimated: int, calibration: Calibration
    ) -> None:
        self.rows = rows
        self.window = window
        self.estimated = estimated
        self.calibration = calibration
        self.texts: dict[int, str] = {}

    @property
    def share(self) -> float:
        return self.calibration.tokens(self.estimated) / self.window

    def text(self, at: int) -> str:
        return self.texts.get(at, self.rows[at].text)

    def shorten(self, at: int, text: str) -> None:
        before = self.text(at)
        if len(text) < len(before):
            self.texts[at] = text
            self.estimated -= len(before) // CHARS_PER_TOKEN - len(text) // CHARS_PER_TOKEN

    def pruned(self) -> Sequence[ChatMessage]:
        return [
            replace(row, text=self.texts[at]) if at in self.texts else row
            for at, row in enumerate(self.rows)
        ]


def prunable(rows: Sequence[ChatMessage], keep: int) -> list[int]:
    """The indexes of the results outside the protected zone, oldest first."""
    cutoff = assistant_cutoff(rows, keep)
    first = next((at for at, row in enumerate(rows) if isinstance(row, UserMessage)), None)
    if cutoff is None or first is None:
        return []
    return [at for at in range(first + 1, cutoff) if isinstance(rows[at], ToolMessage)]


def assistant_cutoff(rows: Sequence[ChatMessage], keep: int) -> int | None:
    """The index of the ``keep``-th last assistant row; None when there are fewer."""
    places = [at for at, row in enumerate(rows) if isinstance(row, AssistantMessage)]
    if keep <= 0:
        return len(rows)
    return places[-keep] if len(places) >= keep else None


def trimmed(text: str, how: Pruning = PRUNING) -> str:
    """The beginning and the end of a long text, with a note on the cut; a short text as it is."""
    if len(text) <= how.long:
        return text
    front, back = how.head, how.tail
    if important_tail(text):
        room = front + back
        back = int(room * IMPORTANT_SHARE)
        front = room - back
    short = (
        f"{head(text, front)}\n...\n{tail(text, back)}\n\n"
        f"[Tool result trimmed: kept first {front} chars and last {back} chars "
        f"of {len(text)} chars.]"
    )
    return short if len(short) < len(text) else text


def important_tail(text: str) -> bool:
    """Whether the end of a text looks like the outcome of something."""
    return _IMPORTANT.search(tail(text, TAIL_LOOKED_AT)) is not None


# Compaction

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
        is_whole = self.covered <= len(self.history)  # no row of the running turn is covered
        goes_on = history[: len(self.history)] == self.history
        return replace(self, history=history) if is_whole and goes_on else self

    def visible(self, rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """The conversation behind the summary, with errors as blocks: for a compaction."""
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
        if scan.any_refused:
            limited = without_refused(limited)
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
