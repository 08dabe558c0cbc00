"""The journal of one run, and its comparison with that of its replay. Pure.

The comparison leaves out everything that always differs: ids, times, prices, and the texts that the
host adds to a run that was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

import attrs
import msgspec

from motet.protocols import events as ev
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError
from motet.protocols.events import AnyEvent, RunStarted
from motet.protocols.sessions import FINAL, HistoryRow, RunInfo, RunStatus
from motet.protocols.stable_json import in_order

BEFORE = 1_000
"""Rows before the run that are kept: a session may be years long."""
SAID = frozenset({"", "silent"})
"""Notes of the rows that a model wrote; the host wrote rows with other notes."""
CUT = frozenset({"cancelled_before_start", "cancelled_while_running", "unknown"})
"""Outcomes of calls that were cut off by the end of their run."""
STOPPED = frozenset({"cancelled", "interrupted"})
"""Ends that come from outside the run: a replay is stopped from outside at the same place."""


@attrs.frozen
class RunJournal:
    """One run that has ended.

    Attributes:
        before: the newest rows that its session had before, since the last reset.
        rows: those it added, its input first.
        events: the durable ones; empty when they were pruned.
    """

    info: RunInfo
    before: tuple[ChatMessage, ...]
    rows: tuple[ChatMessage, ...]
    events: tuple[AnyEvent, ...] = ()

    @property
    def agent(self) -> str:
        """The agent that it began with; a handoff may have changed it."""
        started = (event.agent for event in self.events if isinstance(event, RunStarted))
        return next(started, self.info.agent)

    @property
    def text(self) -> str:
        """The input, as the gates let it pass."""
        first = self.rows[0]
        return first.text if isinstance(first, UserMessage) else self.info.text

    @property
    def answers(self) -> tuple[AssistantMessage, ...]:
        """The model's answers, without the rows that the host wrote itself."""
        found = (row for row in self.rows if isinstance(row, AssistantMessage))
        return tuple(row for row in found if row.note in SAID)

    @property
    def results(self) -> tuple[ToolMessage, ...]:
        return tuple(row for row in self.rows if isinstance(row, ToolMessage))

    def steered(self, answer: AssistantMessage) -> tuple[str, ...]:
        """The texts that entered the run after this answer and its results."""
        texts: list[str] = []
        at = next(place for place, row in enumerate(self.rows) if row is answer)
        for row in self.rows[at + 1 :]:
            if isinstance(row, AssistantMessage):
                break
            if isinstance(row, UserMessage) and row.note == "injected":
                texts.append(row.text)
        return tuple(texts)


def require_ended(info: RunInfo) -> None:
    """Raises ``ConfigError`` for a live run."""
    if info.status not in FINAL:
        raise ConfigError(f"run {info.run_id} is {info.status}: replay it when it has ended")


def journal_of(
    info: RunInfo,
    own: Sequence[HistoryRow],
    shown: Iterable[HistoryRow],
    events: tuple[AnyEvent, ...],
) -> RunJournal:
    """The journal from a run's ``own`` rows, and those that are shown of its session.

    Raises ``ConfigError`` when it never began.
    """
    if not own:
        raise ConfigError(f"run {info.run_id} is {info.status} and has no rows: it never began")
    before = [row.row for row in shown if row.pos < own[0].pos]
    return RunJournal(info, _from_a_turn(before[-BEFORE:]), tuple(row.row for row in own), events)


def _from_a_turn(before: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows from the first turn on, so that no result lacks its call."""
    for place, row in enumerate(before):
        if isinstance(row, UserMessage) and not row.note:
            return tuple(before[place:])
    return ()


# The comparison of two runs


CONTEXT = 3
"""Lines shown before and after a difference."""

_ERROR_ID = re.compile(r"\berr_\d{8}_\d{6}_[0-9a-f]{6}\b")

Mark: TypeAlias = Literal[" ", "-", "+"]


class Change(msgspec.Struct, frozen=True):
    """One line: of both, of the run only (``-``) or of the replay only (``+``)."""

    mark: Mark
    line: str


@attrs.frozen
class Comparison:
    """The lines of a run, and those of its replay."""

    then: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.then == self.now

    def changes(self) -> Iterator[Change]:
        """All lines in order, removed ones before added ones."""
        matcher = SequenceMatcher(None, self.then, self.now, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                yield from (Change(" ", line) for line in self.then[a:b])
            else:
                yield from (Change("-", line) for line in self.then[a:b])
                yield from (Change("+", line) for line in self.now[c:d])


def excerpt(changes: tuple[Change, ...], context: int = CONTEXT) -> Iterator[Change | None]:
    """The differences with some lines around each; None stands for omitted lines."""
    marked = [place for place, change in enumerate(changes) if change.mark != " "]
    kept = {
        place
        for mark in marked
        for place in range(max(0, mark - context), min(len(changes), mark + context + 1))
    }
    last = -1
    for place in sorted(kept):
        if place > last + 1:
            yield None
        yield changes[place]
        last = place
    if last < len(changes) - 1:
        yield None


def row_lines(rows: Iterable[ChatMessage], status: RunStatus) -> tuple[str, ...]:
    """The rows of a run, and its end."""
    end = "stopped" if status in STOPPED else status
    return (*(line for row in rows for line in _row(row)), f"end {end}")


def _row(row: ChatMessage) -> Iterator[str]:
    match row:
        case UserMessage():
            who = row.note or "user"
            yield from (f"{who}: {line}" for line in row.text.splitlines() or [""])
        case AssistantMessage() if row.note in SAID:
            yield from (f"assistant: {line}" for line in row.text.splitlines())
            yield from (f"call {c.name} {in_order(c.arguments)}" for c in row.calls)
        case AssistantMessage():
            yield "host: the run was cut off" if row.note != "limited" else "host: limited"
        case ToolMessage():
            if row.outcome in CUT:
                yield f"result {row.name} (cut off)"
                return
            head = f"result {row.name} ({row.outcome})"
            text = _ERROR_ID.sub("err_…", row.text)
            yield from (f"{head} {line}" for line in text.splitlines() or [""])


def event_lines(events: Sequence[ev.AnyEvent], rows: Iterable[ChatMessage] = ()) -> tuple[str, ...]:
    """The events that a replay has, too: not retries, children, waits, warnings.

    ``rows`` are those of the same run: texts that the host wrote into them are left out.
    """
    own = {row.text for row in rows if isinstance(row, AssistantMessage) and row.note not in SAID}
    lines: list[tuple[int, str]] = []
    group = 0
    for event in events:
        line = _event(event)
        if line is None or (isinstance(event, ev.MessageAdded) and event.text in own):
            continue
        # Calls of one batch begin in any order: they are sorted within it.
        group += not (isinstance(event, ev.ToolCall) and lines and "tool.call" in lines[-1][1])
        lines.append((group, line))
    return tuple(line for _, line in sorted(lines))


def _event(event: ev.AnyEvent) -> str | None:
    name = ev.event_name(event)
    match event:
        case ev.RunStarted():
            return f"{name} {event.agent}"
        case ev.MessageAdded():
            return f"{name} {event.role}: {' '.join(event.text.split())}"
        case ev.ToolCall():
            return f"{name} {event.index} {event.name}"
        case ev.RunLimited():
            return f"{name} {event.limit}"
        case ev.RunCompleted() | ev.RunFailed() | ev.RunEscalated() | ev.RunRefused():
            return name
        case ev.RunCancelled() | ev.RunInterrupted():
            return "run stopped"
        case _:
            return None
