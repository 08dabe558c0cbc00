"""The demo model: tries out motet without a key, a network or a language model."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

import msgspec
import trio

from motet.actors.models.demo_plan import Plan, plan
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)

CHARS_PER_TOKEN = 4
PAUSE_BETWEEN_DOTS = 1.0


class DemoModel:
    """Answers by rule and calls real tools; see :mod:`motet.actors.models.demo_plan`.

    Deterministic: equal requests give equal events. ``pace``: seconds between two words.
    Cancelling it ends it at the next word.
    """

    def __init__(self, *, pace: float = 0.01):
        self._pace = pace

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def name(self) -> str:
        return "demo"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        yield _Paced(timed_events(request, self._pace))


class _Paced:
    """Events, each after its pause."""

    def __init__(self, timed: Iterator[tuple[float, ModelEvent]]):
        self._timed = timed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        for pause, event in self._timed:
            await trio.sleep(pause)
            return event
        raise StopAsyncIteration


def timed_events(request: ModelRequest, pace: float) -> Iterator[tuple[float, ModelEvent]]:
    """The events of the answer, each with the seconds to wait before it."""
    planned = plan(request.messages, request.tools)
    yield from dots(planned.wait)
    for word in re.findall(r"\S+\s*|\s+", planned.text):
        yield pace, TextPart(word)
    for index, call in enumerate(planned.calls):
        yield pace, CallStart(index, call.id, call.name)
        yield pace, CallArguments(index, call.arguments)
    yield 0.0, UsageReport(usage_of(request, planned))
    yield 0.0, Finished("tool_calls" if planned.calls else "stop")


def dots(seconds: float) -> Iterator[tuple[float, ModelEvent]]:
    """One dot a second for as long as it is to wait."""
    whole, rest = divmod(seconds, PAUSE_BETWEEN_DOTS)
    for _ in range(int(whole)):
        yield PAUSE_BETWEEN_DOTS, TextPart(".")
    if seconds:
        yield rest, TextPart(" ")


def usage_of(request: ModelRequest, planned: Plan) -> Usage:
    """Tokens by the rule of thumb of four characters each."""
    said = len(planned.text) + sum(len(call.arguments) for call in planned.calls)
    heard = len(msgspec.json.encode((request.system, request.messages, request.tools)))
    return Usage(heard // CHARS_PER_TOKEN, -(-said // CHARS_PER_TOKEN), cost=0.0)
