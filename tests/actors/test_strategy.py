"""Seed 001's flow as a table: for each point and each way it ends, exactly what the run comes to.

Only the declared variants of ``AgentError`` ever leave a run; a tool, the event bus and the stores
never end one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.agent.transcript import violations
from motet.actors.storage.connection import Connection
from motet.protocols import events
from motet.protocols.chat import Outcome, ToolMessage
from motet.protocols.hooks import AnyDecision, AnyHookEvent, OnError, Point
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest
from tests.scripted import Scripted, Step, call, say

Spoil: TypeAlias = Callable[[motet.Host, Path], None]
"""What goes wrong, prepared before the run."""


def nothing(_host: motet.Host, _state: Path) -> None:
    """All is well."""


def hook(point: Point, decision: AnyDecision | None, on_error: OnError | None = None) -> Spoil:
    """A hook that decides so, or that fails when there is nothing to decide."""

    def spoil(host: motet.Host, _state: Path) -> None:
        async def decide(_event: AnyHookEvent) -> AnyDecision:
            if decision is None:
                raise RuntimeError("the hook is broken")
            return decision

        # The table gives each point only what fits it.
        register = cast("Callable[[object], object]", host.on(point, on_error=on_error))
        register(decide)

    return spoil


def refusing(table: str, when: str = "true") -> Spoil:
    """A disk that takes no more rows of this table."""

    def spoil(_host: motet.Host, state: Path) -> None:
        other = Connection(str(state / "motet.db"))
        other.run(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN {when} "
            "BEGIN SELECT raise(ABORT, 'database or disk is full'); END"
        )
        other.close()

    return spoil


@attrs.frozen
class Row:
    """One line of the table. ``calls`` are the outcomes of the calls, ``tells`` what is warned."""

    name: str
    spoil: Spoil = nothing
    tool: str = "works"
    steps: tuple[Step, ...] = ()
    error: type[motet.AgentError] | None = None
    calls: tuple[Outcome, ...] = ("done",)
    text: str = ""
    tells: str = ""


ABORT, DENY = motet.Abort("no"), motet.Deny("no")
FAILS = ModelFailure("bad key", kind="auth", status=401)

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
        text="Error: broken", tells="error_store.failed"),
    Row("the result store refuses", refusing("results"), tool="talks",
        text="could not be stored", tells="results"),
    Row("the transcript cannot be stored", refusing("messages"), tells="transcript"),
    Row("the calls cannot be journalled", refusing("steps"), tells="transcript"),
    Row("the events cannot be journalled", refusing("events", "NEW.event <> 'run.completed'")),
)  # fmt: skip


def agent_for(row: Row) -> motet.Agent[None]:
    steps = row.steps or (call((row.tool, {})), say("answered"))
    agent = motet.Agent("a", model=Scripted(*steps))

    @agent.tool
    def works() -> str:
        return "fine"

    @agent.tool
    def fails() -> None:
        raise RuntimeError("broken")

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
    row: Row, tmp_path: Path, autojump_clock: MockClock
) -> None:
    # A host on a disk waits in threads, during which the clock must not jump to its time-outs.
    autojump_clock.autojump_threshold = 0.2
    agent = agent_for(row)
    seen: list[events.AnyEvent] = []
    async with motet.open_host(tmp_path) as host:
        row.spoil(host, tmp_path)
        async with host.stream(agent, "go", session="s") as run:
            async for event in run:
                seen.append(event)
    result = run.result
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


async def test_a_run_without_subscribers_is_the_same_run() -> None:
    agent = agent_for(Row("alone"))
    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert result.output == "answered"


async def test_a_bug_is_internal_and_keeps_its_cause() -> None:
    class Broken:
        name = "broken"

        def request(
            self, request: ModelRequest
        ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
            raise KeyError("a bug")

    agent = motet.Agent("a", model=Broken())
    async with motet.open_host() as host:
        with pytest.raises(motet.Internal) as raised:
            await host.run(agent, "go")
    assert isinstance(raised.value.__cause__, KeyError)
