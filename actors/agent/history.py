"""The rows of a transcript as a provider takes them: the last turns, whole, and well formed.

Nothing here changes what is stored. Laws: a limit cuts between turns; what :func:`sendable` gives
has one result for each call and no two rows of one role that meet; sendable rows stay as they are.
Source: agent loop specification, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.agent.survey import NOTHING
from motet.actors.models.wire import user_text
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    ToolMessage,
    UserMessage,
)

MISSING = "[Tool result missing — session was compacted]"


def begins_turn(row: ChatMessage) -> bool:
    """Whether a row is a user's turn: follow-ups, hints and summaries belong to another's."""
    return isinstance(row, UserMessage) and not row.note


def last_turns(rows: tuple[ChatMessage, ...], turns: int) -> tuple[ChatMessage, ...]:
    """The last ``turns`` user turns and all that belongs to them; 0 and less keeps all."""
    if turns <= 0:
        return rows
    first, left = 0, turns
    for at in reversed(range(len(rows))):
        if begins_turn(rows[at]):
            if left == 0:
                return rows[first:]
            first, left = at, left - 1
    return rows


class Repaired(msgspec.Struct, frozen=True):
    """``dropped`` counts the results that were left out and those that had to be made up."""

    rows: tuple[ChatMessage, ...]
    dropped: int = 0


@attrs.define
class _Batch:
    """The calls of one row, the results they have got, and users' rows that came in between."""

    calls: tuple[Call, ...]
    results: dict[str, ToolMessage] = attrs.field(factory=dict[str, ToolMessage])
    later: list[UserMessage] = attrs.field(factory=list[UserMessage])

    @property
    def open(self) -> set[str]:
        return {call.id for call in self.calls} - self.results.keys()

    def closed(self) -> list[ChatMessage]:
        """The results by call index, then what had to wait for them."""
        ids = dict.fromkeys(call.id for call in self.calls)
        names = {call.id: call.name for call in self.calls}
        made_up = {id: ToolMessage(id, names[id], MISSING, "unknown") for id in ids}
        return [*({**made_up, **self.results}[id] for id in ids), *self.later]


@attrs.define
class _Repair:
    kept: list[ChatMessage] = attrs.field(factory=list[ChatMessage])
    batch: _Batch = attrs.field(factory=lambda: _Batch(()))
    dropped: int = 0

    def take(self, row: ChatMessage) -> None:
        batch = self.batch
        match row:
            case ToolMessage() if row.call_id in batch.open:
                batch.results[row.call_id] = row
            case ToolMessage():
                self.dropped += 1
            case UserMessage() if batch.open:
                batch.later.append(row)
            case _:
                self.close()
                self.kept.append(row)
                self.batch = _Batch(row.calls if isinstance(row, AssistantMessage) else ())

    def close(self) -> None:
        self.dropped += len(self.batch.open)
        self.kept += self.batch.closed()


def repair(rows: Sequence[ChatMessage]) -> Repaired:
    """Every call with one result, the first it got, and no result without its call.

    A user's row between the results of a batch comes after them; a missing result is said to be.
    """
    work = _Repair()
    for row in rows:
        work.take(row)
    work.close()
    return Repaired(tuple(work.kept), work.dropped)


def sendable(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows as a provider takes them: repaired, ids told apart, rows of one role merged."""
    survey = NOTHING.over(tuple(rows))
    return survey.rows if survey.is_sendable else made_sendable(rows)


def made_sendable(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """What :func:`sendable` gives, of any rows; those that a provider takes stay as they are."""
    merged: list[ChatMessage] = []
    for row in repair(rows).rows:
        row = _distinct(row)
        both = _merged(merged[-1], row) if merged else None
        if both is None:
            merged.append(row)
        else:
            merged[-1] = both
    return tuple(merged)


def _distinct(row: ChatMessage) -> ChatMessage:
    """A second call with the id of a first could have no result of its own."""
    if not isinstance(row, AssistantMessage) or len(row.calls) < 2:
        return row
    first = {call.id: call for call in reversed(row.calls)}
    if len(first) == len(row.calls):
        return row
    return replace(row, calls=tuple(call for call in row.calls if first[call.id] is call))


def _merged(before: ChatMessage, row: ChatMessage) -> ChatMessage | None:
    """Two rows of one role as one; None for rows that may follow each other."""
    match before, row:
        case UserMessage(), UserMessage():
            note = before.note if before.note == row.note else ""
            if before.author == row.author:
                return UserMessage(_joined(before.text, row.text), row.author, note)
            return UserMessage(_joined(user_text(before), user_text(row)), None, note)
        case AssistantMessage(calls=()), AssistantMessage():
            return replace(row, text=_joined(before.text, row.text))
        case _:
            return None


def _joined(first: str, second: str) -> str:
    return "\n\n".join(filter(None, (first, second)))
