"""What a whole turn costs: from input to answer on a fake model, each in a new session.

With tools, the model first makes four calls at once. In memory nothing outlives the process; on
disk every step is durable, and only the CPU time is counted, not the waiting for the disk.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import trio

import motet
from bench.clock import Watch
from bench.rows import MOTET, Case, Row
from motet.protocols.chat import UserMessage
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

__all__ = ["ROWS"]

_USAGE = UsageReport(Usage(10, 5))
ANSWER: list[ModelEvent] = [TextPart("hello world"), _USAGE, Finished("stop")]
CALLS: list[ModelEvent] = [
    *(CallStart(index, f"c{index}", "double") for index in range(4)),
    *(CallArguments(index, f'{{"x": {index}}}') for index in range(4)),
    _USAGE,
    Finished("tool_calls"),
]


class FakeModel:
    """Answers at once; with ``tools``, it calls them before it answers."""

    name = "fake"

    def __init__(self, tools: bool) -> None:
        self.tools = tools

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        first = isinstance(request.messages[-1], UserMessage)
        yield _events(CALLS if self.tools and first else ANSWER)


async def _events(events: list[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    for event in events:
        await trio.lowlevel.checkpoint()
        yield event


async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


async def _turns(count: int, where: str | None, tools: bool) -> float:
    model = FakeModel(tools)
    agent = motet.Agent("bench", model=model, tools=[double] if tools else [])
    async with motet.open_host(where, agents=[agent]) as host:
        watch = Watch()
        for number in range(count):
            await host.run(agent, "hi", session=str(number))
        return watch.seconds() / count * 1e6


def text_in_memory(count: int) -> float:
    return trio.run(_turns, count, None, False)


def tools_in_memory(count: int) -> float:
    return trio.run(_turns, count, None, True)


def text_on_disk(count: int) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        return trio.run(_turns, count, folder, False)


def tools_on_disk(count: int) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        return trio.run(_turns, count, folder, True)


def _row(name: str, function: str, goal: float | None) -> Row:
    return Row(name, "us", (Case(MOTET, __name__, function, 300),), goal=goal, bounded=True)


ROWS = (
    _row("turn, text, in memory", "text_in_memory", None),
    _row("turn, text, durable", "text_on_disk", 200),
    _row("turn, 4 tools, in memory", "tools_in_memory", None),
    _row("turn, 4 tools, durable", "tools_on_disk", 400),
)
