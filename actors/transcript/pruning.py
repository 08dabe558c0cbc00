"""Pruning: old tool results are trimmed or cleared when a request fills too much of the window.

Pure. Laws: no row is added, removed or made longer; only results change, and none in the protected
zone: up to the first user's row, and the last assistant rows with their results. Equal rows give
equal bytes. Source: agent loop specification, section 5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from motet.actors.transcript.history import CHARS_PER_TOKEN, UNCALIBRATED, Calibration, estimate
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage

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


def head(text: str, size: int) -> str:
    return text[: max(size, 0)]


def tail(text: str, size: int) -> str:
    return text[-size:] if size > 0 else ""
