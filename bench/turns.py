"""The cost of a whole turn: from input to answer on a fake model, each in a new session.

With tools, the model first makes four calls at once. In memory nothing outlives the process; on
disk every step is durable, and only the CPU time is counted, not the waiting for the disk. The
peers do a turn of the same shape, in :mod:`bench.peers`: those beside a turn in memory or 50 at
once store nothing, those beside a durable turn keep each step in SQLite as well.
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


def _agent(tools: bool) -> motet.Agent[None, str]:
    return motet.Agent("bench", model=FakeModel(tools), tools=[double] if tools else [])


async def _turns(
    count: int, where: str | None, tools: bool, at_once: int = 1, hooked: bool = False
) -> float:
    agent = _agent(tools)

    async def turns(numbers: range) -> None:
        for number in numbers:
            await host.run(agent, "hi", session=str(number))

    async with motet.open_host(where, agents=[agent]) as host:
        if hooked:
            _hook(host)
        await turns(range(-(count // 10), 0))  # warm-up
        watch = Watch()
        async with trio.open_nursery() as nursery:
            for first in range(at_once):
                nursery.start_soon(turns, range(first, count, at_once))
        return watch.seconds() / count * 1e6


def _hook(host: motet.Host) -> None:
    """Put a hook at each point that a turn with tools comes to."""

    async def allow(_: object) -> motet.Allow:
        return motet.Allow()

    async def observe(_: object) -> None:
        pass

    host.on("session_start")(observe)
    host.on("before_input")(allow)
    host.on("before_model")(allow)
    host.on("after_model")(observe)
    host.on("before_tool")(allow)
    host.on("after_tool")(observe)
    host.on("before_output")(allow)
    host.on("run_end")(observe)


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


def text_with_hooks(count: int) -> float:
    return trio.run(_turns, count, None, False, 1, True)


def tools_with_hooks(count: int) -> float:
    return trio.run(_turns, count, None, True, 1, True)


def text_of_returning(count: int) -> float:
    return trio.run(_returning, count)


async def _returning(count: int) -> float:
    """Each of ``count`` sessions comes back after the others, when its actor has been ended."""
    agent = _agent(False)
    async with motet.open_host(agents=[agent]) as host:
        for number in range(count):
            await host.run(agent, "hi", session=str(number))
        watch = Watch()
        for number in range(count):
            await host.run(agent, "hi", session=str(number))
        return watch.seconds() / count * 1e6


def text_of_400_rows(count: int) -> float:
    return trio.run(_long, count, 200)


def text_of_a_short_session(count: int) -> float:
    return trio.run(_long, count, 1)


async def _long(count: int, before: int) -> float:
    """Sessions of ``before`` turns have five more, in which their histories are in memory."""
    agent = _agent(False)
    spent, sessions = 0.0, max(1, count // 5)
    async with motet.open_host(agents=[agent]) as host:
        for session in map(str, range(sessions)):
            for _ in range(before):
                await host.run(agent, "hi", session=session)
            watch = Watch()
            for _ in range(5):
                await host.run(agent, "hi", session=session)
            spent += watch.seconds()
    return spent / (sessions * 5) * 1e6


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


def _row(name: str, function: str, goal: float, *peers: Case, count: int = 300) -> Row:
    """``count``: turns; more of 50 at once, since traces are flushed once a second."""
    cases = (Case(MOTET, __name__, function, count), *peers)
    return Row(name, "us", cases, peers[0].impl, goal, bounded=True)


def _openai(function: str, goal: float) -> Case:
    return _peer("openai-agents", "agents", "openai_agents", function, 100, goal)


def _among_peers(function: str, goal: float, autogen: float | None) -> tuple[Case, ...]:
    return (
        _openai(function, goal),
        _peer("langchain", "langchain", "langchain", function, 100),
        _peer("pydantic-ai", "pydantic_ai", "pydantic_ai", function, 100),
        _peer("agent-framework", "agent_framework", "framework", function, 300),
        _peer("autogen", "autogen_agentchat", "autogen", function, 150, autogen),
    )


def _durable(function: str) -> tuple[Case, ...]:
    return (
        Case("no turn at all", __name__, f"{function}_nothing", 1_000),
        _peer("langgraph", "langgraph.checkpoint.sqlite", "langgraph", function, 50),
        _peer("pydantic-ai, dbos", "dbos", "dbos", function, 30),
    )


def _beside(name: str, case: Case, other: Case, most: float | None = None) -> Row:
    """A row of motet beside motet: at most ``most`` times the cost."""
    return Row(name, "us", (case, other), other.impl, None if most is None else 1 / most)


ROWS = (
    _row("turn, text, in memory", "text_in_memory", 170, *_among_peers("text", 3.2, None)),
    _row("turn, text, durable", "text_on_disk", 450, *_durable("text")),
    _row("turn, text, durable, 50 at once", "text_of_50", 200, _openai("text", 2.8), count=1_500),
    _row(
        "turn, 4 tools, in memory",
        "tools_in_memory",
        430,
        *_among_peers("tools", 6, None),
        _peer("autogen, patched", "autogen_agentchat", "autogen", "tools_patched", 300),
    ),
    _row("turn, 4 tools, durable", "tools_on_disk", 850, *_durable("tools")),
    _row(
        "turn, 4 tools, durable, 50 at once",
        "tools_of_50",
        480,
        _openai("tools", 5.5),
        _peer("autogen", "autogen_agentchat", "autogen", "tools", 150, 2),
        count=1_500,
    ),
    _beside(
        "turn, text, 3,000 sessions",
        Case(MOTET, __name__, "text_in_memory", 3_000),
        Case("300 sessions", __name__, "text_in_memory", 300),
        1.1,
    ),
    _beside(
        "turn, text, a session comes back",
        Case(MOTET, __name__, "text_of_returning", 1_000),
        Case("new sessions", __name__, "text_in_memory", 1_000),
    ),
    _beside(
        "turn, text, a session of 400 rows",
        Case(MOTET, __name__, "text_of_400_rows", 25),
        Case("2 rows", __name__, "text_of_a_short_session", 25),
    ),
    _beside(
        "turn, text, 8 hooks",
        Case(MOTET, __name__, "text_with_hooks", 300),
        Case("none", __name__, "text_in_memory", 300),
        1.6,
    ),
    _beside(
        "turn, 4 tools, 8 hooks",
        Case(MOTET, __name__, "tools_with_hooks", 300),
        Case("none", __name__, "tools_in_memory", 300),
        1.6,
    ),
)
