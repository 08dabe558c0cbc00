"""When a conversation is too long for its model, and which part of it a summary replaces.

Laws: a cut never stands between a call and its results; behind it there are at least ``keep_rows``
rows, in front of it more than one; equal rows are cut at the same place. Source: agent loop
specification, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from motet.actors.agent.history import begins_turn
from motet.actors.agent.tokens import chars_of
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage

WORTH = 0.2
"""Share of the wanted part that a cut before the turn must reach; below, it cuts into the turn."""


class Compacting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When and how far a conversation is compacted.

    Attributes:
        share: of the window; reached during a run, or passed after one.
        rows: more than these after a run are compacted, whatever they weigh.
        keep_share: of the rows, which stay as they are.
        keep_rows: the fewest rows that stay.
        least: fewer rows than these are never compacted.
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
    """How many rows in front are to be summarised; None when there is nothing to win.

    It walks back to a place between turns or plain rows. Where (next to) nothing would be in front
    of that, one long turn is the problem: then it cuts between two batches of this turn.
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
    """The nearest place at or before ``at`` whose row is no result and no row with calls."""
    at = min(at, len(rows))
    while 0 < at < len(rows) and _bound(rows[at]):
        at -= 1
    return at


def request_before(rows: Sequence[ChatMessage], at: int) -> UserMessage | None:
    """The user's row whose turn goes on behind the cut; None when a turn begins there."""
    if at >= len(rows) or begins_turn(rows[at]):
        return None
    turns = (row for row in reversed(rows[:at]) if isinstance(row, UserMessage) and not row.note)
    return next(turns, None)


def _bound(row: ChatMessage) -> bool:
    return isinstance(row, ToolMessage) or (isinstance(row, AssistantMessage) and bool(row.calls))


def _size(rows: Sequence[ChatMessage]) -> int:
    return sum(map(chars_of, rows))
