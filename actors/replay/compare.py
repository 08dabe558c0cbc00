"""How a replay differs from the run: rows and events as lines, without what always differs. Pure.

Left out are ids, times, prices and the texts that the host adds to a run that was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

import attrs
import msgspec

from motet.actors.errors.advice import canonical
from motet.actors.replay.journal import SAID
from motet.actors.replay.played import CUT, STOPPED
from motet.protocols import events as ev
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import RunStatus

CONTEXT = 3
"""Lines that are shown on both sides of a difference."""

_ERROR_ID = re.compile(r"\berr_\d{8}_\d{6}_[0-9a-f]{6}\b")

Mark: TypeAlias = Literal[" ", "-", "+"]


class Change(msgspec.Struct, frozen=True):
    """One line: of both, of then only (``-``) or of now only (``+``)."""

    mark: Mark
    line: str


@attrs.frozen
class Comparison:
    """The lines of then and those of now."""

    then: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.then == self.now

    def changes(self) -> Iterator[Change]:
        """All lines in order, what was then before what is now."""
        matcher = SequenceMatcher(None, self.then, self.now, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                yield from (Change(" ", line) for line in self.then[a:b])
            else:
                yield from (Change("-", line) for line in self.then[a:b])
                yield from (Change("+", line) for line in self.now[c:d])


def near(changes: tuple[Change, ...], context: int = CONTEXT) -> Iterator[Change | None]:
    """The differences with some lines around each; None stands for lines that are left out."""
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
    """The rows of a run, and how it ended."""
    end = "stopped" if status in STOPPED else status
    return (*(line for row in rows for line in _row(row)), f"end {end}")


def _row(row: ChatMessage) -> Iterator[str]:
    match row:
        case UserMessage():
            who = row.note or "user"
            yield from (f"{who}: {line}" for line in row.text.splitlines() or [""])
        case AssistantMessage() if row.note in SAID:
            yield from (f"assistant: {line}" for line in row.text.splitlines())
            yield from (f"call {c.name} {canonical(c.arguments)}" for c in row.calls)
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
    """The events that a replay has as well: not retries, children, waits, warnings.

    ``rows`` are those of the same run: what the host wrote into them is left out here, too.
    """
    own = {row.text for row in rows if isinstance(row, AssistantMessage) and row.note not in SAID}
    lines: list[tuple[int, str]] = []
    group = 0
    for event in events:
        line = _event(event)
        if line is None or (isinstance(event, ev.MessageAdded) and event.text in own):
            continue
        # Calls of one batch begin in any order.
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
        case ev.RunCompleted() | ev.RunFailed() | ev.RunEscalated():
            return name
        case ev.RunCancelled() | ev.RunInterrupted():
            return "run stopped"
        case _:
            return None
