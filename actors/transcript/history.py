"""The rows of a transcript as a provider takes them: the last turns, whole, and well formed.

Nothing here changes what is stored. Laws: a limit cuts between turns; what :func:`sendable` gives
has one result for each call and no two rows of one role that meet; sendable rows stay as they are.
Source: agent loop specification, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.errors.tracker import counts_as
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.tools import ToolSpec

# How many tokens a request has: the provider's own count where there is one, else an estimate.
#
# Laws: the estimate of rows is the sum of the estimates of each, so that it can be kept row by row;
# more rows never count less. Source: agent loop specification, section 5.


CHARS_PER_TOKEN = 3


def chars_of(row: ChatMessage) -> int:
    """Code points of what a model is sent of a row: its text and the arguments of its calls."""
    if isinstance(row, AssistantMessage) and row.calls:
        return len(row.text) + sum([len(call.arguments) for call in row.calls])
    return len(row.text)


def estimate_text(text: str) -> int:
    return len(text) // CHARS_PER_TOKEN


def estimate(rows: Iterable[ChatMessage]) -> int:
    """Tokens of these rows, as far as characters tell."""
    return sum([chars_of(row) // CHARS_PER_TOKEN for row in rows])


def overhead(system: str, tools: Sequence[ToolSpec]) -> int:
    """The estimate of what stands around the rows of a request: its system prompt and tools."""
    shown = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return estimate_text(system) + shown // CHARS_PER_TOKEN


def usage_of(response: ModelResponse, prompt_tokens: int) -> Usage:
    """What an answer used: as its provider counted, or the estimate where that counts nothing."""
    if response.usage.total_tokens:
        return response.usage
    said = [response.text, response.thinking, *(call.arguments for call in response.calls)]
    answer = sum(map(len, said)) // CHARS_PER_TOKEN
    return replace(response.usage, input_tokens=prompt_tokens, output_tokens=answer)


class Calibration(msgspec.Struct, frozen=True):
    """What the provider counted for the last request, beside what was estimated of that one.

    Both are of one request, never sums over a run. A count of nothing says nothing.
    """

    estimated: int = 0
    actual: int = 0

    def tokens(self, estimated: int) -> int:
        """Tokens of a request with this estimate.

        What came since is added as estimated; what went since takes its share of the count along.
        """
        if self.estimated <= 0 or self.actual <= 0:
            return estimated
        if estimated >= self.estimated:
            return self.actual + estimated - self.estimated
        return self.actual * estimated // self.estimated


UNCALIBRATED = Calibration()


# Names in front of what is said where several speak, ``[alice] hi``: pure.
#
# Law: of a text that is made here, the lines that begin with a name in square brackets are as
# many as its messages, and the names are their authors': nobody can speak for another.


_BREAKS: Final = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN: Final = r"\s\u200b-\u200f\u2060\ufeff"
_FRONT: Final = re.compile(rf"((?:^|[{_BREAKS}])[{_UNSEEN}]*)(?=[\[\uff3b])")
_NO_NAME: Final = re.compile(rf"[\[\]\uff3b\uff3d\x00-\x1f\x7f{_BREAKS}]+")


def with_author(author: str, text: str) -> str:
    """What somebody says, with their name in front."""
    return f"{author_prefix(author)}{escape_author_prefixes(text)}"


def author_prefix(author: str) -> str:
    """A name as it stands in front."""
    return f"[{_NO_NAME.sub(' ', author)}] "


def escape_author_prefixes(text: str) -> str:
    """A text none of whose lines looks as if another had said it: ``\\[root] do it``."""
    return _FRONT.sub(r"\1\\", text)


# What a request must know of the rows it sends, worked out once for each row.
#
# Rows never change and come in behind, so that what is known of some holds for all that begin with
# them. Law: a scan of rows is the same in however many pieces they came.


class TranscriptScan(msgspec.Struct, frozen=True):
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

    def can_follow(self, row: ChatMessage) -> bool:
        """Whether the rows may stand behind this one, which has no calls."""
        return not self.rows or type(self.rows[0]) is not type(row)

    def extended_to(self, rows: tuple[ChatMessage, ...]) -> TranscriptScan:
        """Of other rows; where they begin with those known, only what is behind is looked at."""
        if rows is self.rows:
            return self
        known = len(self.rows)
        if rows[:known] != self.rows:
            return EMPTY_SCAN.extended_to(rows)
        return self._with(rows, rows[known:]) if len(rows) > known else self

    def _with(self, rows: tuple[ChatMessage, ...], new: Iterable[ChatMessage]) -> TranscriptScan:
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
        return TranscriptScan(rows, estimated, any_failed, is_sound, due)


EMPTY_SCAN = TranscriptScan()


MISSING = "[Tool result missing — session was compacted]"


def user_text(message: UserMessage) -> str:
    """The text as the model reads it: in a room every line of talk names its speaker."""
    return f"{message.author}: {message.text}" if message.author else message.text


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
    scan = EMPTY_SCAN.extended_to(tuple(rows))
    return scan.rows if scan.is_sendable else make_sendable(rows)


def make_sendable(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
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
