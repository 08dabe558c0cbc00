"""Seed 001's flow as a table: for each point and each way it ends, exactly what the run comes to.

Only the declared variants of ``AgentError`` ever leave a run; a tool, the event bus and the stores
never end one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias, cast, get_args

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.storage.connection import Connection
from motet.actors.telemetry.subscription import subscribe
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import Outcome, ToolMessage
from motet.protocols.hooks import AnyDecision, AnyHookEvent, BeforeModel, OnError, Point
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest
from motet.protocols.storage import Statement, Transact
from tests.faulty import FaultyMemory
from tests.scripted import Scripted, Step, call, say

Spoil: TypeAlias = Callable[[motet.Host, Path], AbstractAsyncContextManager[None]]
"""What goes wrong while a run goes on; it is mended afterwards."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience with a lock is real time: shorten it."""
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.05)


@asynccontextmanager
async def nothing(_host: motet.Host, _state: Path) -> AsyncGenerator[None]:
    """All is well."""
    yield


def hook(
    point: Point,
    decision: AnyDecision | None,
    on_error: OnError | None = None,
    *,
    hangs: bool = False,
) -> Spoil:
    """A hook that decides so, or that fails when there is nothing to decide."""

    @asynccontextmanager
    async def spoil(host: motet.Host, _state: Path) -> AsyncGenerator[None]:
        async def decide(_event: AnyHookEvent) -> AnyDecision:
            if hangs:
                await trio.sleep_forever()
            if decision is None:
                raise RuntimeError("the hook is broken")
            return decision

        # The table gives each point only what fits it.
        register = cast("Callable[[object], object]", host.on(point, on_error=on_error))
        register(decide)
        yield

    return spoil


def refusing(table: str, when: str = "true") -> Spoil:
    """A store that takes no more rows of this table."""

    @asynccontextmanager
    async def spoil(_host: motet.Host, state: Path) -> AsyncGenerator[None]:
        other = Connection(str(state / "motet.db"))
        other.run(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN {when} "
            "BEGIN SELECT raise(ABORT, 'refused'); END"
        )
        other.close()
        yield

    return spoil


@asynccontextmanager
async def locked(host: motet.Host, state: Path) -> AsyncGenerator[None]:
    """From its first request on, another process has the lock of the database."""
    other = Connection(str(state / "motet.db"))
    other.set_busy_timeout(5_000)

    async def lock(event: BeforeModel) -> motet.Allow:
        if event.iteration == 1:
            other.run("BEGIN IMMEDIATE")
        return motet.Allow()

    host.on("before_model")(lock)
    yield
    other.run("ROLLBACK")
    other.close()


@asynccontextmanager
async def full(host: motet.Host, _state: Path) -> AsyncGenerator[None]:
    """From its first request on, the disk has no page left."""

    async def fill(_event: BeforeModel) -> motet.Allow:
        await pages(host, 1)
        return motet.Allow()

    host.on("before_model")(fill)
    yield
    await pages(host, 100_000)


async def pages(host: motet.Host, most: int) -> None:
    database = host.system.find("/host/database")
    assert database is not None
    await database.ask(Transact((Statement(f"PRAGMA max_page_count = {most}"),)))


@asynccontextmanager
async def stuck(host: motet.Host, _state: Path) -> AsyncGenerator[None]:
    """A subscriber that never takes an event."""
    async with subscribe(host.events, "session:s"):
        yield


@attrs.frozen
class Row:
    """One line of the table. ``calls`` are the outcomes of the calls, ``tells`` what is warned.

    ``watched``: somebody has subscribed to the events.
    """

    name: str
    spoil: Spoil = nothing
    tool: str = "works"
    steps: tuple[Step, ...] = ()
    error: type[motet.AgentError] | None = None
    calls: tuple[Outcome, ...] = ("done",)
    text: str = ""
    tells: str = ""
    memory: FaultyMemory | None = None
    watched: bool = True


ABORT, DENY = motet.Abort("no"), motet.Deny("no")
FAILS = ModelFailure("bad key", kind="auth", status=401)
GONE = OSError("the memory is gone")

TABLE = (
    Row("nothing goes wrong"),
    # Gates: what they decide
    *(
        Row(f"{point} aborts", hook(point, ABORT), calls=(), error=motet.Aborted)
        for point in ("session_start", "before_input", "before_model", "after_model")
    ),
    Row("before_input denies", hook("before_input", DENY), calls=(), error=motet.InputValidation),
    Row("before_output aborts", hook("before_output", ABORT), error=motet.Aborted),
    Row("before_tool aborts", hook("before_tool", ABORT), calls=("denied",), text="no"),
    Row("before_tool denies", hook("before_tool", DENY), calls=("denied",), text="no"),
    Row("after_tool aborts", hook("after_tool", ABORT), text="withheld"),
    # Gates: what their own failure means
    *(
        Row(f"{point} fails closed", hook(point, None, "block"), calls=(), tells="hook",
            error=motet.Aborted)
        for point in ("session_start", "before_input", "before_model", "after_model")
    ),
    *(
        Row(f"{point} fails open", hook(point, None, "continue"), tells="hook")
        for point in (
            "session_start", "before_input", "before_model", "after_model", "before_tool",
            "after_tool", "before_output",
        )
    ),
    Row("run_end fails open: its mark comes after the end", hook("run_end", None, "continue")),
    Row("before_tool fails closed", hook("before_tool", None, "block"), calls=("denied",),
        text="Permission denied", tells="hook"),
    Row("before_output fails closed", hook("before_output", None, "block"), tells="hook",
        error=motet.Aborted),
    Row("before_tool hangs, closed", hook("before_tool", None, "block", hangs=True),
        calls=("denied",), text="Permission denied", tells="hook"),
    Row("before_model hangs, closed", hook("before_model", None, "block", hangs=True),
        calls=(), error=motet.Aborted, tells="hook"),
    Row("before_model hangs, open", hook("before_model", None, "continue", hangs=True),
        tells="hook"),
    # Memory: without it the context is empty, and nothing else changes
    Row("all is well with the memory", memory=FaultyMemory()),
    Row("the memory cannot be read", memory=FaultyMemory(read_fault=GONE), tells="memory"),
    Row("the memory cannot be written", memory=FaultyMemory(observe_fault=GONE), tells="memory"),
    Row("reading the memory hangs", memory=FaultyMemory(read_fault="hangs"), tells="memory"),
    Row("writing the memory hangs", memory=FaultyMemory(observe_fault="hangs"), tells="memory"),
    Row("a search of the memory fails", memory=FaultyMemory(search_fault=GONE),
        steps=(call(("memory_search", {"query": "q"})), say("answered")), calls=("failed",),
        text="the memory is gone"),
    # The model
    Row("the model fails", steps=(FAILS,), error=motet.Llm, calls=()),
    Row("the model fails after a call", steps=(call(("works", {})), FAILS), error=motet.Llm),
    # Tools
    Row("the tool is missing", tool="wroks", calls=("failed",), text="Available tools"),
    Row("the tool fails", tool="fails", calls=("failed",), text="Error ID: err_"),
    Row("the tool asks for another try", tool="retries", calls=("failed",), text="ask otherwise"),
    Row("the tool takes too long", tool="hangs", calls=("failed",), text="no result within 1 s"),
    Row("the arguments are wrong", tool="picky", calls=("failed",), text="nothing was done"),
    Row("the tool exits", tool="exits", calls=("failed",), text="Error ID: err_"),
    # Stores: the run goes on, and the user is told
    Row("the error store refuses", refusing("agent_errors"), tool="fails", calls=("failed",),
        text="Error ID: err_"),
    Row("the result store refuses", refusing("results"), tool="talks",
        text="could not be stored", tells="results"),
    Row("the transcript cannot be stored", refusing("messages"), tells="transcript"),
    Row("the calls cannot be journalled", refusing("steps"), calls=("failed",),
        text="storage_unavailable: not run", tells="transcript"),
    Row("calls that only read cannot be journalled", refusing("steps"), tool="reads",
        tells="transcript"),
    Row("the events cannot be journalled", refusing("events", "NEW.event <> 'run.completed'")),
    Row("the database is locked", locked, tool="hurries", calls=("failed",),
        text="storage_unavailable: not run", tells="storage"),
    Row("the database is locked at an error", locked, tool="fails", calls=("failed",),
        text="Error ID: err_", tells="transcript"),
    Row("the disk is full at an error", full, tool="fails_at_length", calls=("failed",),
        text="Error ID: err_"),
    Row("the disk is full at a result", full, tool="talks", text="could not be stored",
        tells="results"),
    # Events
    Row("nobody has subscribed", watched=False),
    Row("a subscriber is stuck", stuck),
)  # fmt: skip


def agent_for(row: Row) -> motet.Agent[None]:
    steps = row.steps or (call((row.tool, {})), say("answered"))
    agent = motet.Agent("a", model=Scripted(*steps), memory=row.memory is not None)

    @agent.tool
    def works() -> str:
        return "fine"

    @agent.tool(effects="read")
    def reads() -> str:
        return "fine"

    @agent.tool(timeout=2)
    def hurries() -> None:
        raise AssertionError

    @agent.tool(effects="read")
    def fails() -> None:
        raise RuntimeError("broken")

    @agent.tool
    def fails_at_length() -> None:
        raise RuntimeError("broken\n" + "x" * 200_000)

    @agent.tool
    def retries() -> None:
        raise motet.ToolRetry("ask otherwise")

    @agent.tool(timeout=1)
    async def hangs() -> None:
        await trio.sleep_forever()

    @agent.tool
    def picky(needed: int) -> None:
        raise AssertionError(needed)

    @agent.tool
    def exits() -> None:
        raise SystemExit(3)

    @agent.tool
    def talks() -> str:
        return "word " * 10_000

    return agent


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
async def test_each_failure_comes_to_what_is_declared(
    row: Row, tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    # A host on a disk waits in threads, during which the clock must not jump to its time-outs.
    autojump_clock.autojump_threshold = 0.2
    agent = agent_for(row)
    seen: list[events.AnyEvent] = []
    async with (
        motet.open_host(tmp_path, memory=row.memory) as host,
        row.spoil(host, tmp_path),
    ):
        if row.watched:
            async with host.stream(agent, "go", session="s") as run:
                async for event in run:
                    seen.append(event)
            result = run.result
        else:
            result = await host.run(agent, "go", session="s", check=False)
    assert type(result.error) is (row.error or type(None))
    assert (result.status, result.output) == (
        ("failed", "") if row.error else ("completed", "answered")
    )
    results = [one for one in result.rows if isinstance(one, ToolMessage)]
    assert tuple(one.outcome for one in results) == row.calls
    assert all(row.text in one.text for one in results)
    assert violations(result.rows) == ()
    told = [e.source for e in seen if isinstance(e, events.Warned)]
    told += [events.event_name(event) for event in seen]
    assert not row.tells or row.tells in told
    assert row.tells or not [e for e in seen if isinstance(e, events.Warned)]
    assert not row.tells or caplog.records, "what degraded is logged too"


DECLARED = (
    motet.InputValidation, motet.Llm, motet.Aborted, motet.OutputSerialization, motet.Internal,
)  # fmt: skip
RAISED = (
    KeyError("k"),
    OSError(28, "no space left on device"),
    TimeoutError(),
    trio.BrokenResourceError(),
    ExceptionGroup("two", [ValueError("a"), OSError("b")]),
    ModelFailure("refused", kind="auth", status=401),
    motet.ToolRetry("ask otherwise"),
    motet.NotFound("error", "err_x"),
)


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("point", ["model", "tool", "memory", *get_args(Point)])
async def test_only_declared_variants_leave_a_run(
    point: str, raised: Exception, autojump_clock: MockClock
) -> None:
    """Law: whatever is raised, and wherever, a run's error is none or one of the five."""
    memory = FaultyMemory(raised, raised, raised, raised) if point == "memory" else FaultyMemory()
    steps = [call(("raises", {})), say("answered")]
    model = Broken(raised) if point == "model" else Scripted(*steps)
    agent = motet.Agent("a", model=model, memory=True)

    @agent.tool
    def raises() -> str:
        if point == "tool":
            raise raised
        return "fine"

    async def fail(_event: AnyHookEvent) -> AnyDecision:
        raise raised

    async with motet.open_host(memory=memory) as host:
        if point in get_args(Point):
            # Registered as each point's default has it, so that both policies occur.
            cast("Callable[[object], object]", host.on(cast("Point", point)))(fail)
        result = await host.run(agent, "go", check=False)
    assert result.error is None or type(result.error) in DECLARED
    assert (result.status == "failed") == (result.error is not None)


class Broken:
    """A model whose requests raise."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def request(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        raise self.error


async def test_a_bug_is_internal_and_keeps_its_cause() -> None:
    agent = motet.Agent("a", model=Broken(KeyError("a bug")))
    async with motet.open_host() as host:
        with pytest.raises(motet.Internal) as raised:
            await host.run(agent, "go")
    assert isinstance(raised.value.__cause__, KeyError)
