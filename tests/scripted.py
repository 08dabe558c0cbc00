"""A model that follows a script, for tests of what is around a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

import msgspec
import trio

from motet.protocols.chat import JsonObject
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)

Step = list[ModelEvent] | ModelFailure | None
"""What one request brings: events, a failure, or (None) nothing at all, for ever."""

USAGE = UsageReport(Usage(10, 5))


def say(*parts: str) -> Step:
    return [*(TextPart(part) for part in parts), USAGE, Finished("stop")]


def call(*calls: tuple[str, JsonObject], text: str = "") -> Step:
    """One answer with these calls; their ids are ``c0``, ``c1``, ..."""
    events: list[ModelEvent] = [TextPart(text)] if text else []
    for index, (name, args) in enumerate(calls):
        events.append(CallStart(index, f"c{index}", name))
        events.append(CallArguments(index, msgspec.json.encode(args).decode()))
    return [*events, USAGE, Finished("tool_calls")]


def cut(*parts: str) -> Step:
    """A stream that says something and then breaks."""
    return [TextPart(part) for part in parts]


class _Events:
    def __init__(self, events: list[ModelEvent]) -> None:
        self._events: Iterator[ModelEvent] = iter(events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise StopAsyncIteration


class Scripted:
    """Answers one step per request, in order; remembers the requests. More is a failure.

    ``asked`` is set by the first request.
    """

    def __init__(self, *steps: Step, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self.asked = trio.Event()
        self._steps = list(steps)

    def then(self, *steps: Step) -> None:
        """Add to the script."""
        self._steps += steps

    def forget(self) -> None:
        """Drop the rest of the script."""
        self._steps.clear()

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.requests.append(request)
        self.asked.set()
        assert self._steps, "the script is over, and the model was asked again"
        step = self._steps.pop(0)
        if isinstance(step, ModelFailure):
            raise step
        if step is None:
            await trio.sleep_forever()
        yield _Events(step or [])
