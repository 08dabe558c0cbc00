"""Errors that are no ``Exception``, out of the code of others, at each place that calls it.

The law: the host lives, another session answers meanwhile, the error is stored and can be found,
and the run ends as it would after any other exception at that place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeAlias, cast

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.tools.mcp import server as mcp_server
from motet.actors.tools.mcp.stdio import End, Listing
from motet.protocols import events
from motet.protocols.chat import ChatMessage, Outcome, ToolMessage
from motet.protocols.events import EventRecord
from motet.protocols.hooks import OnError, Point
from motet.protocols.mcp import McpTool
from motet.protocols.memory import Memory as Remembering
from motet.protocols.memory import Remembered
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.policy import Ruling, Subject, ToolFacts
from motet.protocols.run import RunResult
from tests import forks
from tests.scripted import Scripted, call, say
from tests.stray import ERRORS, MakeError

Agent: TypeAlias = "motet.Agent[None]"


class Trouble:
    """Raises the error of the case, once in each run: what comes after it works."""

    def __init__(self) -> None:
        self.make: MakeError | None = None

    def __call__(self) -> None:
        make, self.make = self.make, None
        if make is not None:
            raise make()


@attrs.frozen
class Place:
    """A place where code of others runs, and what a run comes to whose code fails there.

    ``stored``: the beginning of the name under which the error is stored. ``not_for``: errors that
    have another meaning there.
    """

    name: str
    agent: Callable[[str, Trouble], Agent]
    prepare: Callable[[motet.Host, Trouble], None] = lambda _host, _trouble: None
    memory: Callable[[Trouble], Remembering] | None = None
    status: str = "completed"
    outcome: Outcome | None = None
    stored: str = ""
    not_for: tuple[str, ...] = ()


# ---------------------------------------------------------------------- tools


def calling(name: str, tool: motet.Tool) -> Agent:
    model = Scripted(call((tool.name, {})), say("done"), name=name)
    return motet.Agent(name, model=model, tools=[tool])


def async_tool(name: str, trouble: Trouble) -> Agent:
    async def fails() -> str:
        trouble()
        return "fine"

    return calling(name, motet.tool(fails, name=f"of_{name}"))


def tool_in_thread(name: str, trouble: Trouble) -> Agent:
    def fails() -> str:
        trouble()
        return "fine"

    return calling(name, motet.tool(fails, name=f"of_{name}"))


def tool_with_a_block(name: str, trouble: Trouble) -> Agent:
    @contextmanager
    def block() -> Generator[None]:
        try:
            yield
        finally:
            trouble()

    async def fails() -> str:
        with trio.CancelScope(shield=True), block():
            await trio.lowlevel.checkpoint()
        return "fine"

    return calling(name, motet.tool(fails, name=f"of_{name}"))


def talker(name: str, _: Trouble) -> Agent:
    return motet.Agent(name, model=Scripted(say("done"), name=name))


def worker(name: str, _: Trouble) -> Agent:
    async def works() -> str:
        return "fine"

    return calling(name, motet.tool(works, name=f"of_{name}"))


# ---------------------------------------------------------------------- hooks


def hook(point: Point, on_error: OnError | None) -> Callable[[motet.Host, Trouble], None]:
    def prepare(host: motet.Host, trouble: Trouble) -> None:
        async def decide(_event: object) -> object:
            trouble()
            return None if point in OBSERVED else motet.Allow()

        register = cast("Callable[..., Callable[[object], object]]", host.on)
        register(point, on_error=on_error, name="gate")(decide)

    return prepare


OBSERVED = ("session_end", "after_child", "after_compact", "run_end", "error", "warning")
GATES: tuple[Point, ...] = (
    "session_start", "before_input", "before_model", "after_model", "before_tool", "after_tool",
    "before_output",
)  # fmt: skip
AT_TOOLS = ("before_tool", "after_tool")


# ---------------------------------------------------------------------- models and memory


class Adapter:
    """A model that fails at one point of its answer."""

    def __init__(self, name: str, where: str, trouble: Trouble) -> None:
        self.name = name
        self._where, self._trouble = where, trouble

    def at(self, where: str) -> None:
        if where == self._where:
            self._trouble()

    def request(self, request: ModelRequest) -> Any:
        self.at("call")
        return self._answer(request)

    @asynccontextmanager
    async def _answer(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.at("enter")
        await trio.to_thread.run_sync(self.at, "thread")
        async with Scripted(say("an", "swer")).request(request) as answer:
            yield Parts(self, answer)
        self.at("leave")


class Parts:
    def __init__(self, model: Adapter, answer: AsyncIterator[ModelEvent]) -> None:
        self._model, self._answer = model, answer
        self._given = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        self._given += 1
        self._model.at(f"part {self._given}")
        return await anext(self._answer)


def modelled(where: str) -> Callable[[str, Trouble], Agent]:
    return lambda name, trouble: motet.Agent(name, model=Adapter(name, where, trouble))


@attrs.frozen
class FailingMemory:
    where: str
    trouble: Trouble

    def _at(self, where: str) -> None:
        if where == self.where:
            self.trouble()

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        self._at("read")
        return ()

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        self._at("observe")

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        self._at("search")
        return ()

    async def write(self, text: str, session: str) -> None:
        self._at("write")


def remembers(where: str) -> Callable[[Trouble], Remembering]:
    return lambda trouble: FailingMemory(where, trouble)


def remembering(name: str, _: Trouble) -> Agent:
    return motet.Agent(name, model=Scripted(say("done"), name=name), memory=True)


def searching(name: str, _: Trouble) -> Agent:
    steps = (call(("memory_search", {"query": "q"})), say("done"))
    return motet.Agent(name, model=Scripted(*steps, name=name), memory=True)


# ---------------------------------------------------------------------- the rest


def subscriber(host: motet.Host, trouble: Trouble) -> None:
    def sink(_record: EventRecord) -> None:
        trouble()

    for number in range(len(ERRORS)):
        host.events.attach(f"session:s{number}", sink)


class Connection:
    """A connection to an MCP server, whose SDK fails in each call."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self.end, self.listing = End(), Listing()

    async def tools(self) -> tuple[McpTool, ...]:
        return (McpTool("echo", "", {"type": "object", "properties": {}}, False, ""),)

    async def call(self, _tool: str, _arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        self._trouble()
        raise AssertionError

    async def watch(self) -> None:
        await trio.sleep_forever()


def served(name: str, _: Trouble) -> Agent:
    steps = (call(("mcp__it__echo", {})), say("done"))
    return motet.Agent(name, model=Scripted(*steps, name=name), tools=["mcp:it"])


TOOLS = {
    "an async tool": async_tool,
    "a tool in a thread": tool_in_thread,
    "a block of a tool": tool_with_a_block,
}
MODEL = ("call", "enter", "thread", "part 1", "part 2", "leave")

PLACES = (
    *(Place(name, make, outcome="failed", stored="of_") for name, make in TOOLS.items()),
    *(
        Place(f"{point}, fails open", worker, hook(point, "continue"), stored="hook gate")
        for point in GATES
    ),
    *(
        Place(
            f"{point}, fails closed",
            worker,
            hook(point, "block"),
            status="completed" if point in AT_TOOLS else "failed",
            outcome="denied" if point == "before_tool" else None,
            stored="hook gate",
        )
        for point in GATES
    ),
    Place("an observer of the end", talker, hook("run_end", None), stored="hook gate"),
    *(
        Place(
            f"a model: {where}",
            modelled(where),
            status="failed",
            stored="runtime",
            not_for=("StopAsyncIteration",) if "part" in where else (),
        )
        for where in MODEL
    ),
    *(
        Place(
            f"memory: {where}",
            remembering,
            memory=remembers(where),
            stored="memory",
        )
        for where in ("read", "observe")
    ),
    Place(
        "memory: search",
        searching,
        memory=remembers("search"),
        outcome="failed",
        stored="memory_search",
    ),
    Place("a subscriber", talker, subscriber, stored="subscriber"),
    Place("an MCP client", served, outcome="failed", stored="mcp__it__echo"),
)


COMMON = (
    "asyncio.CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "own class",
    "trio.Cancelled", "StopAsyncIteration", "group", "group with a Cancelled", "unreadable",
)  # fmt: skip

each_place = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)


@each_place
async def test_no_error_of_foreign_code_ends_the_host(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: as the module says, for each class of errors."""
    await holds(place, COMMON, monkeypatch)


@pytest.mark.sweep
@each_place
async def test_no_error_at_all_ends_the_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await holds(place, tuple(ERRORS), monkeypatch)


async def holds(place: Place, kinds: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trouble, goes_on = Trouble(), trio.Event()

    @asynccontextmanager
    async def connected(
        _server: object, _log: object, _end: object
    ) -> AsyncGenerator[tuple[Connection, tuple[McpTool, ...]]]:
        connection = Connection(trouble)
        yield connection, await connection.tools()

    async def waits() -> str:
        await goes_on.wait()
        return "fine"

    monkeypatch.setattr(mcp_server, "open_connection", connected)
    memory = place.memory(trouble) if place.memory is not None else None
    servers = {"it": motet.McpServer(command=["true"])}
    async with motet.open_host(memory=memory, mcp=servers) as host, trio.open_nursery() as nursery:
        neighbour = calling("neighbour", motet.tool(waits))
        answers: list[RunResult[Any]] = []

        async def answers_meanwhile() -> None:
            answers.append(await host.run(neighbour, "go", session="neighbour"))

        nursery.start_soon(answers_meanwhile)
        await wait_all_tasks_blocked()
        place.prepare(host, trouble)
        for number, kind in enumerate(kinds):
            if kind not in place.not_for:
                trouble.make = ERRORS[kind]
                await meet(place, host, place.agent(f"a{number}", trouble), f"s{number}", kind)
                assert trouble.make is None, "the code that fails was called"
        goes_on.set()
    assert [answer.status for answer in answers] == ["completed"]


async def meet(place: Place, host: motet.Host, agent: Agent, session: str, kind: str) -> None:
    result = await host.run(agent, "go", session=session, check=False)
    assert result.status == place.status, (kind, result)
    outcomes = {row.outcome for row in result.rows if isinstance(row, ToolMessage)}
    assert place.outcome is None or outcomes == {place.outcome}, kind
    stored = await host.errors(session=session)
    if not stored:  # of a subscriber, which no run waits for
        await wait_all_tasks_blocked()
        stored = await host.errors(session=session)
    assert [error.tool_name.startswith(place.stored) for error in stored] == [True], kind


# ---------------------------------------------------------------------- edges without an id


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
async def test_a_condition_that_fails_asks_a_person_and_a_policy_that_fails_denies(
    make: MakeError, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(*_: object) -> bool:
        raise make()

    class Engine:
        def decide(self, _subject: Subject, facts: ToolFacts) -> Ruling:
            if facts.name == "refused":
                raise make()
            return Ruling("allow", "engine")

    async def works() -> str:
        return "fine"

    asked, refused = (
        motet.tool(works, name="asked", approval=decide),
        motet.tool(works, name="refused"),
    )
    model = Scripted(call(("asked", {}), ("refused", {})), say("done"))
    agent = motet.Agent("a", model=model, tools=[asked, refused])
    async with (
        motet.open_host(policy=Engine()) as host,
        host.stream(agent, "go", session="s") as run,
    ):
        async for event in run:
            if isinstance(event, events.ApprovalRequested):
                await host.approve(event.id, "allow-once")
    rows = [row for row in run.result.rows if isinstance(row, ToolMessage)]
    assert [row.outcome for row in rows] == ["done", "denied"]


# ---------------------------------------------------------------------- what goes on


async def test_a_stop_a_time_out_and_a_shutdown_end_tools_that_fail_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """Law: no kind of error in the clean-up of a cancelled tool changes the end of its run."""
    ends: dict[str, list[str]] = {"late": [], "stopped": [], "cut": [], "shut": []}
    async with trio.open_nursery() as nursery, motet.open_host() as host:

        async def runs(how: str, number: int, timeout: float) -> None:
            session = f"{how}{number}"
            agent = failing_late(session, ERRORS[COMMON[number]], timeout)
            result = await host.run(agent, "go", session=session, check=False)
            ends[how].append(" ".join([result.status, *(one.outcome for one in result.errors)]))

        async def is_cut(number: int) -> None:
            with trio.move_on_after(1) as scope:
                await runs("cut", number, 1_000)
            assert scope.cancelled_caught

        for number in range(len(COMMON)):
            nursery.start_soon(runs, "late", number, 1)
            nursery.start_soon(runs, "stopped", number, 1_000)
            nursery.start_soon(runs, "shut", number, 1_000)
            nursery.start_soon(is_cut, number)
        await trio.sleep(2)
        for number in range(len(COMMON)):
            await host.stop(session=f"stopped{number}")
        await wait_all_tasks_blocked()
        assert not ends["shut"]
    count = len(COMMON)
    assert ends["late"] == ["completed failed"] * count
    assert ends["stopped"] == ends["shut"] == ["cancelled"] * count
    assert not ends["cut"]


def failing_late(name: str, make: MakeError, timeout: float) -> Agent:
    """An agent whose tool waits for ever, and fails when it is cancelled."""

    async def fails() -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise make()

    return calling(name, motet.tool(fails, name=f"of_{name}", timeout=timeout))


TOOLS_THAT_PRESS = {
    "at a checkpoint": "async def shell(command: str) -> None:\n"
    "    os.kill(os.getpid(), signal.SIGINT)\n"
    "    await trio.sleep_forever()",
    "in a thread": "def shell(command: str) -> None:\n    os.kill(os.getpid(), signal.SIGINT)",
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS_THAT_PRESS.values(), ids=TOOLS_THAT_PRESS)
def test_ctrl_c_ends_the_host_also_out_of_a_tool(tool: str) -> None:
    program = f"""
import os, signal, threading, motet, trio
agent = motet.Agent("a", model="demo")
@agent.tool
{tool}
async def main():
    async with motet.open_host() as host:
        try:
            await host.run(agent, "run it")
        finally:
            print("ended", flush=True)
try:
    trio.run(main)
except* KeyboardInterrupt:
    print("interrupted")
"""
    ran = forks.ran("-W", "error", "-c", program, timeout=60)
    assert ran.stdout == "ended\ninterrupted\n", ran.stderr


@pytest.mark.slow
def test_sigterm_ends_the_host_though_its_handler_raises_in_a_tool() -> None:
    ran = forks.ran(
        "-c",
        """
import signal, sys, motet, trio
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
agent = motet.Agent("a", model="demo")
@agent.tool
async def shell(command: str) -> None:
    signal.raise_signal(signal.SIGTERM)
async def main():
    async with motet.open_host() as host:
        await host.run(agent, "run it")
try:
    trio.run(main)
except* SystemExit:
    print("ended")
""",
        timeout=60,
    )
    assert ran.stdout == "ended\n", ran.stderr
