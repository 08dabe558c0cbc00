"""The cost of a whole turn: from input to answer on a fake model, each in a new session.

With tools, the model first makes four calls at once. In memory nothing outlives the process; on
disk every step is durable, and only the CPU time is counted, not the waiting for the disk. The
peers do a turn of the same shape without storing anything: they are in :mod:`bench.peers`.
"No turn at all" is the part of a durable turn that any implementation has: the checkpoints of the
model, and commits, by the bare library, of an input before its acknowledgement, of calls before
their start and of an answer before its delivery.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import trio

import motet
from bench.clock import Watch
from bench.rows import MOTET, Case, Row
from motet.actors.storage.location import Location
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


async def _turns(count: int, where: str | None, tools: bool, at_once: int = 1) -> float:
    model = FakeModel(tools)
    agent = motet.Agent("bench", model=model, tools=[double] if tools else [])

    async def turns(numbers: range) -> None:
        for number in numbers:
            await host.run(agent, "hi", session=str(number))

    async with motet.open_host(where, agents=[agent]) as host:
        await turns(range(-(count // 10), 0))  # warm-up
        watch = Watch()
        async with trio.open_nursery() as nursery:
            for first in range(at_once):
                nursery.start_soon(turns, range(first, count, at_once))
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


def text_of_50(count: int) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        return trio.run(_turns, count, folder, False, 50)


def tools_of_50(count: int) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        return trio.run(_turns, count, folder, True, 50)


def text_nothing(count: int) -> float:
    return trio.run(_nothing, count, False)


def tools_nothing(count: int) -> float:
    return trio.run(_nothing, count, True)


async def _nothing(count: int, tools: bool) -> float:
    stored = ("hi", "four calls", "hello world")
    with (
        TemporaryDirectory(prefix="motet-bench-") as folder,
        Location.directory(folder) as location,
    ):
        connection = location.connect()
        connection.run("CREATE TABLE kept (number INTEGER PRIMARY KEY, body TEXT)")
        watch = Watch()
        for _turn in range(count):
            for body in stored if tools else stored[::2]:
                connection.run("INSERT INTO kept (body) VALUES (?)", (body,))
            for events in (CALLS, ANSWER) if tools else (ANSWER,):
                async for _ in _events(events):
                    pass
        cost = watch.seconds() / count * 1e6
        connection.close()
    return cost


def _peer(
    impl: str, package: str, module: str, function: str, count: int, goal: float | None = None
) -> Case:
    return Case(impl, f"bench.peers.{module}_turn", function, count, package, goal)


def _row(name: str, function: str, goal: float | None, *peers: Case) -> Row:
    cases = (Case(MOTET, __name__, function, 300), *peers)
    reference = peers[0].impl if peers else None
    return Row(name, "us", cases, reference, goal, bounded=True)


TEXT_PEERS = (
    _peer("openai-agents", "agents", "openai_agents", "text", 300, 4),
    _peer("langchain", "langchain", "langchain", "text", 300),
    _peer("pydantic-ai", "pydantic_ai", "pydantic_ai", "text", 150),
    _peer("autogen", "autogen_agentchat", "autogen", "text", 1_000),
    Case("no turn at all", __name__, "text_nothing", 1_000),
)
TOOL_PEERS = (
    _peer("autogen", "autogen_agentchat", "autogen", "tools", 150, 3.5),
    _peer("autogen, patched", "autogen_agentchat", "autogen", "tools_patched", 300, 1),
    _peer("openai-agents", "agents", "openai_agents", "tools", 100, 8),
    _peer("langchain", "langchain", "langchain", "tools", 100, 8),
    _peer("pydantic-ai", "pydantic_ai", "pydantic_ai", "tools", 100, 8),
    Case("no turn at all", __name__, "tools_nothing", 1_000),
)

ROWS = (
    _row("turn, text, in memory", "text_in_memory", None),
    _row("turn, text, durable", "text_on_disk", 200, *TEXT_PEERS),
    _row("turn, text, durable, 50 at once", "text_of_50", 200),
    _row("turn, 4 tools, in memory", "tools_in_memory", None),
    _row("turn, 4 tools, durable", "tools_on_disk", 400, *TOOL_PEERS),
    _row("turn, 4 tools, durable, 50 at once", "tools_of_50", 400),
)
