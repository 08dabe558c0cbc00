"""The events of runs: whole messages, the parts of the one being made, and warnings.

Invariants: messages of a run are numbered from 0 without gaps; what is streamed of one has its
number and its offset, so that a reader who misses a part notices; reasoning that a model puts into
its text, and a reply that shall not be heard, are not streamed. Streamed parts are published by a
plain call, since the task that reads a model must not wait. An event that cannot be published
never fails a run (seed 001).
"""

from __future__ import annotations

from typing import Protocol

from motet.actors.runs.run import Run
from motet.protocols import events
from motet.protocols.chat import AssistantMessage
from motet.protocols.events import AnyEvent
from motet.protocols.models import Queued, Retrying, Streamed, TextPart, ThinkingPart
from motet.protocols.sanitize import StreamFilter


class Outlet(Protocol):
    """Publishes events of runs; see :class:`RunEvents`."""

    def put(self, run: Run, event: AnyEvent) -> bool: ...
    async def emit(self, run: Run, event: AnyEvent) -> None: ...


class RunPublisher:
    """The messages and the streamed parts of one run.

    Attributes:
        partial: what was streamed of the answer being made.
        before: what there is of that message from answers that were cut off.
    """

    def __init__(self, run: Run, outlet: Outlet) -> None:
        self.partial = ""
        self.before = ""
        self._run = run
        self._outlet = outlet
        self._message = 0
        self._thought = 0
        self._filter: StreamFilter | None = None
        self._late: list[AnyEvent] = []

    @property
    def messages(self) -> int:
        """How many messages were told of."""
        return self._message

    def go_on(self, messages: int) -> None:
        """So many were told of before the run was suspended."""
        self._message = messages

    async def emit(self, event: AnyEvent) -> None:
        """Tell of something. Waits for room when it is durable."""
        while self._late:
            await self._outlet.emit(self._run, self._late.pop(0))
        if not self._outlet.put(self._run, event):
            await self._outlet.emit(self._run, event)

    async def say(self, role: events.Role, author: str, text: str) -> None:
        """A whole message."""
        for fix in self._run.carried.fixes if role == "assistant" else ():
            text = fix(AssistantMessage(text)).text
        event = events.MessageAdded(role, author, text, self._message)
        if self._late or not self._outlet.put(self._run, event):
            await self.emit(event)
        self._message += 1

    def part(self, part: Streamed) -> None:
        """More of the answer that a model is making, or its withdrawal."""
        match part:
            case TextPart(text=text):
                if self._filter is None:
                    self._filter = StreamFilter()
                self._show(self._filter.feed(text))
            case ThinkingPart(text=text):
                at = self._thought
                self._thought += len(text)
                self._tell(events.ThinkingDelta(self._message, at, text))
            case Retrying(attempt=attempt, delay=delay, reason=reason):
                withdrawn = bool(self.partial or self._thought)
                self.forget()
                ms = round(delay * 1000)
                self._tell(events.RunRetrying(attempt, ms, reason, self._message, withdrawn))
            case Queued(waits=True, position=position):
                self._tell(events.Activity("queued", position=position))
            case Queued():
                self._tell(events.Activity("waiting_model"))
            case _:
                pass

    def end(self) -> None:
        """The answer is complete: show what was held back, and begin the next one."""
        if self._filter is not None:
            self._show(self._filter.close())
        self.forget()

    def forget(self) -> None:
        """Whatever was streamed of an answer belongs to none any more."""
        self.partial, self._thought, self._filter = "", 0, None

    def _show(self, text: str) -> None:
        if text:
            at = len(self.before) + len(self.partial)
            self.partial += text
            self._tell(events.TextDelta(self._message, at, text))

    def _tell(self, event: AnyEvent) -> None:
        """As ``emit``, without waiting: what has to wait for room is told before the next event.

        Until then, deltas are lost: those of another attempt must not come before it is told of.
        """
        while self._late and self._outlet.put(self._run, self._late[0]):
            del self._late[0]
        told = not self._late and self._outlet.put(self._run, event)
        if not told and events.is_durable(event):
            self._late.append(event)
