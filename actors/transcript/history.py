"""Rows of a transcript made sendable to a provider, with token estimates and author prefixes. Pure.

The stored transcript never changes. Laws: a limit cuts between turns; :func:`sendable` rows have
one result for each call and no two neighbours of one role, and are left as they are; the estimate
of rows is the sum of the estimates of each row, so that it can be cached; more rows never count
less. Source: agent loop specification, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.errors.tracker import is_shortened
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.texts import escaped, plain_name
from motet.protocols.tools import ToolSpec

# Tokens: the provider's own count where there is one, else an estimate

CHARS_PER_TOKEN = 3


def chars_of(row: ChatMessage) -> int:
    """Code points of a row in a request: its text and the arguments of its calls."""
    if isinstance(row, AssistantMessage) and row.calls:
        return len(row.text) + sum([len(call.arguments) for call in row.calls])
    return len(row.text)


def estimate_text(text: str) -> int:
    return len(text) // CHARS_PER_TOKEN


def estimate(rows: Iterable[ChatMessage]) -> int:
    """Estimated tokens of these rows."""
    return sum([chars_of(row) // CHARS_PER_TOKEN for row in rows])


def overhead(system: str, tools: Sequence[ToolSpec]) -> int:
    """Estimated tokens of the system prompt and the tools of a request."""
    shown = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return estimate_text(system) + shown // CHARS_PER_TOKEN


def usage_of(response: ModelResponse, prompt_tokens: int) -> Usage:
    """The usage of an answer: the provider's count, or an estimate without one."""
    if response.usage.total_tokens:
        return response.usage
    said = [response.text, response.thinking, *(call.arguments for call in response.calls)]
    answer = sum(map(len, said)) // CHARS_PER_TOKEN
    return replace(response.usage, input_tokens=prompt_tokens, output_tokens=answer)


class Calibration(msgspec.Struct, frozen=True):
    """The provider's token count of the last request, and our estimate of the same request.

    Never sums over a run. Zeros mean that there is no count.
    """

    estimated: int = 0
    actual: int = 0

    def tokens(self, estimated: int) -> int:
        """Tokens of a request with this estimate.

        Growth since the last request is added as estimated; shrinkage scales the count down.
        """
        if self.estimated <= 0 or self.actual <= 0:
            return estimated
        if estimated >= self.estimated:
            return self.actual + estimated - self.estimated
        return self.actual * estimated // self.estimated


UNCALIBRATED = Calibration()

# Author prefixes where several people speak: ``[alice] hi``
#
# Law: in a text made here, exactly one line of each message begins with a name in square brackets,
# and the name is its author's: no author can imitate another.


def with_author(author: str, text: str) -> str:
    """A message with the prefix of its author; brackets at line starts are escaped."""
    return author_prefix(author) + escaped(text)


def is_from(text: str, sender: str) -> bool:
    """Whether an input of a group was said by this sender; any was, if that is empty."""
    return not sender or text.startswith(author_prefix(sender))


def begun_by(row: UserMessage, sender: str) -> bool:
    """Whether a turn of a group or a room was begun by this sender; any was, if that is empty."""
    return is_from(row.text, sender) if not (sender and row.sender) else row.sender == sender


def author_prefix(author: str) -> str:
    """``[name]`` without brackets or line breaks in the name."""
    return f"[{plain_name(author)}] "


class TranscriptScan(msgspec.Struct, frozen=True):
    """The facts about ``rows`` that a request needs, computed once for each row.

    Rows never change and are only appended, so that a scan can be extended. Law: the scan of rows
    does not depend on the steps in which it was extended.

    Attributes:
        estimated: tokens of all of them.
        any_failed: a call among them has failed, other than with an answer.
        any_refused: a turn among them was refused.
        is_sound: a provider accepts each row behind the one before it.
        due: calls of the last assistant row without a result.
    """

    rows: tuple[ChatMessage, ...] = ()
    estimated: int = 0
    any_failed: bool = False
    is_sound: bool = True
    due: tuple[str, ...] = ()
    any_refused: bool = False

    @property
    def is_sendable(self) -> bool:
        """Whether a provider accepts the rows as they are."""
        return self.is_sound and not self.due

    def can_follow(self, row: ChatMessage) -> bool:
        """Whether the rows may follow this one, which has no calls."""
        return not self.rows or type(self.rows[0]) is not type(row)

    def extended_to(self, rows: tuple[ChatMessage, ...]) -> TranscriptScan:
        """The scan of other rows; if they begin with the scanned ones, only the rest is new."""
        if rows is self.rows:
            return self
        known = len(self.rows)
        if rows[:known] != self.rows:
            return EMPTY_SCAN.extended_to(rows)
        return self._with(rows, rows[known:]) if len(rows) > known else self

    def _with(self, rows: tuple[ChatMessage, ...], new: Iterable[ChatMessage]) -> TranscriptScan:
        estimated, any_failed, any_refused = self.estimated, self.any_failed, self.any_refused
        is_sound, due = self.is_sound, self.due
        before = type(self.rows[-1]) if self.rows else None
        for row in new:
            estimated += chars_of(row) // CHARS_PER_TOKEN
            role = type(row)
            if isinstance(row, ToolMessage):
                any_failed = any_failed or is_shortened(row)
                is_sound = is_sound and due[:1] == (row.call_id,)
                due = due[1:]
            elif due or role is before:
                is_sound = False
            elif isinstance(row, AssistantMessage):
                due = tuple([call.id for call in row.calls])
                is_sound = is_sound and len(set(due)) == len(due)
                any_refused = any_refused or row.note == "refused"
            before = role
        return TranscriptScan(rows, estimated, any_failed, is_sound, due, any_refused)


EMPTY_SCAN = TranscriptScan()

MISSING = "[Tool result missing — session was compacted]"


def user_text(message: UserMessage) -> str:
    """The text for the model: in a room with the name of the speaker."""
    return f"{message.author}: {message.text}" if message.author else message.text


def begins_turn(row: ChatMessage) -> bool:
    """Whether a row begins a user's turn; follow-ups, hints and summaries do not."""
    return isinstance(row, UserMessage) and not row.note


def last_turns(rows: tuple[ChatMessage, ...], turns: int) -> tuple[ChatMessage, ...]:
    """The rows of the last ``turns`` user turns; 0 or less: all rows."""
    if turns <= 0:
        return rows
    first, left = 0, turns
    for at in reversed(range(len(rows))):
        if begins_turn(rows[at]):
            if left == 0:
                return rows[first:]
            first, left = at, left - 1
    return rows


REFUSED_REQUEST = "[A request that was refused is left out]"
NO_ANSWER = "[No answer: it was refused.]"


def without_refused(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows with two in place of each refused turn: the same request would be refused again.

    The second one names the tools that had been called.
    """
    kept: list[ChatMessage] = []
    for row in rows:
        if not (isinstance(row, AssistantMessage) and row.note == "refused"):
            kept.append(row)
            continue
        start = next((at for at in reversed(range(len(kept))) if begins_turn(kept[at])), 0)
        called = {
            call.name: None
            for one in kept[start:]
            if isinstance(one, AssistantMessage)
            for call in one.calls
        }
        note = f"{NO_ANSWER} It had called: {', '.join(called)}" if called else NO_ANSWER
        kept[start:] = [UserMessage(REFUSED_REQUEST), AssistantMessage(note)]
    return tuple(kept)


class Repaired(msgspec.Struct, frozen=True):
    """``dropped``: results that were left out, and missing ones that were added."""

    rows: tuple[ChatMessage, ...]
    dropped: int = 0


@attrs.define
class _Batch:
    """The calls of one row, their results, and users' rows between these."""

    calls: tuple[Call, ...]
    results: dict[str, ToolMessage] = attrs.field(factory=dict[str, ToolMessage])
    later: list[UserMessage] = attrs.field(factory=list[UserMessage])

    @property
    def open(self) -> set[str]:
        return {call.id for call in self.calls} - self.results.keys()

    def closed(self) -> list[ChatMessage]:
        """The results by call index, then the users' rows."""
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
    """Every call with its first result, and no result without its call.

    A user's row between the results of a batch moves behind them; a missing result becomes a note.
    """
    work = _Repair()
    for row in rows:
        work.take(row)
    work.close()
    return Repaired(tuple(work.kept), work.dropped)


def sendable(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows as a provider accepts them: repaired, with unique ids, rows of one role merged."""
    scan = EMPTY_SCAN.extended_to(tuple(rows))
    return scan.rows if scan.is_sendable else make_sendable(rows)


def make_sendable(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The same without a scan, for rows that are known not to be sendable."""
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
    """Drop calls with the id of an earlier call: they could have no result of their own."""
    if not isinstance(row, AssistantMessage) or len(row.calls) < 2:
        return row
    first = {call.id: call for call in reversed(row.calls)}
    if len(first) == len(row.calls):
        return row
    return replace(row, calls=tuple(call for call in row.calls if first[call.id] is call))


def _merged(before: ChatMessage, row: ChatMessage) -> ChatMessage | None:
    """Two rows of one role as one row; None for rows that may follow each other."""
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


def head(text: str, size: int) -> str:
    return text[: max(size, 0)]


def tail(text: str, size: int) -> str:
    return text[-size:] if size > 0 else ""
