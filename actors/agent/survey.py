"""What a request must know of the rows it sends, worked out once for each row.

Rows never change and come in behind, so that what is known of some holds for all that begin with
them. Law: a survey of rows is the same in however many pieces they came.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from motet.actors.agent.tokens import CHARS_PER_TOKEN, chars_of
from motet.actors.errors.tracker import counts_as
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage


class Survey(msgspec.Struct, frozen=True):
    """Of ``rows``.

    Attributes:
        estimated: tokens of all of them.
        any_failed: a call among them counts as an error.
        is_sound: each row may stand behind the one before it, as a provider takes them.
        due: calls of the last assistant row that have no result yet.
    """

    rows: tuple[ChatMessage, ...] = ()
    estimated: int = 0
    any_failed: bool = False
    is_sound: bool = True
    due: tuple[str, ...] = ()

    @property
    def is_sendable(self) -> bool:
        """Whether a provider takes the rows as they are."""
        return self.is_sound and not self.due

    def may_follow(self, row: ChatMessage) -> bool:
        """Whether the rows may stand behind this one, which has no calls."""
        return not self.rows or type(self.rows[0]) is not type(row)

    def over(self, rows: tuple[ChatMessage, ...]) -> Survey:
        """Of other rows; where they begin with those known, only what is behind is looked at."""
        if rows is self.rows:
            return self
        known = len(self.rows)
        if rows[:known] != self.rows:
            return NOTHING.over(rows)
        return self._with(rows, rows[known:]) if len(rows) > known else self

    def _with(self, rows: tuple[ChatMessage, ...], new: Iterable[ChatMessage]) -> Survey:
        estimated, any_failed = self.estimated, self.any_failed
        is_sound, due = self.is_sound, self.due
        before = type(self.rows[-1]) if self.rows else None
        for row in new:
            estimated += chars_of(row) // CHARS_PER_TOKEN
            role = type(row)
            if isinstance(row, ToolMessage):
                any_failed = any_failed or counts_as(row.outcome) == "error"
                is_sound = is_sound and due[:1] == (row.call_id,)
                due = due[1:]
            elif due or role is before:
                is_sound = False
            elif isinstance(row, AssistantMessage):
                due = tuple([call.id for call in row.calls])
                is_sound = is_sound and len(set(due)) == len(due)
            before = role
        return Survey(rows, estimated, any_failed, is_sound, due)


NOTHING = Survey()
