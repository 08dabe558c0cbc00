"""Faults inside of tools and hooks, at each of their awaits, and what such code leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

import motet
from motet import testing as mt
from motet.protocols.chat import ToolMessage
from motet.testing.stories.acts import Act

agent = motet.Agent("worker")
log: list[str] = []
lock = trio.Lock()


class Client:
    """A client of the project."""

    async def get(self) -> str:
        await trio.sleep(1)
        return "an answer"

    async def get_in_turn(self) -> str:
        async with lock:
            await trio.lowlevel.checkpoint()
        return "an answer"


client = Client()


@agent.tool
async def walk(n: int) -> str:
    """Three lines with waits between them."""
    for line in "abc":
        log.append(line)
        await trio.sleep(1)
    return "walked"


@agent.tool
async def fetch(n: int) -> str:
    """Ask a client, twice."""
    await trio.sleep(1)
    try:
        await client.get_in_turn()
        await client.get()
    except ConnectionError as error:
        log.append(f"{error}")
        raise
    return "fetched"


@agent.tool
async def queue_up(n: int) -> str:
    """Wait for a lock that another task has; a wait that fails keeps no place in its queue."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hold)
        await trio.sleep(1)
        try:
            async with lock:
                log.append("mine")
        except ConnectionError as error:
            log.append(f"{error}, {lock.statistics().tasks_waiting} wait")
        async with lock:
            return "it was free"


async def _hold() -> None:
    async with lock:
        await trio.sleep(2)


@agent.tool
async def tidy(n: int) -> str:
    """Wait in a clean-up that nothing may cut short."""
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5)
    return "tidy"


@agent.tool
async def stubborn(n: int) -> str:
    """Go on when it is cancelled."""
    try:
        await trio.sleep(10)
    except BaseException:
        log.append("never mind")
    return "done"


@agent.tool
async def patient(n: int) -> str:
    """Stop waiting by a scope of its own, which is no cancellation of the call."""
    with trio.move_on_after(1):
        await trio.sleep_forever()
    return "done"


@agent.tool
async def careless(n: int) -> str:
    """Leave a task behind for half a second."""
    trio.lowlevel.spawn_system_task(trio.sleep, 0.5)
    return "done"


@agent.tool
async def prompt(n: int) -> str:
    """Cancel its task at the end, and wait for nothing."""
    scope = trio.CancelScope()

    async def tick() -> None:
        with scope:
            while True:
                await trio.sleep(0.25)

    trio.lowlevel.spawn_system_task(tick)
    try:
        await trio.sleep(1)
    finally:
        scope.cancel()
    return "done"


@agent.tool
async def careful(n: int) -> str:
    """Wait for the end of its task."""
    over = trio.Event()

    async def work() -> None:
        await trio.sleep(0.5)
        over.set()

    trio.lowlevel.spawn_system_task(work)
    with trio.CancelScope(shield=True):
        await over.wait()
    return "done"


def played(
    tool: str,
    *mishaps: mt.Mishap,
    steps: Sequence[Act] = (),
    setup: Callable[[motet.Host], None] | None = None,
) -> tuple[str, float, list[str]]:
    """The result of a call, the virtual seconds until then, and what has gone wrong."""
    log.clear()
    hello = mt.Send("ann", "ann/1: hello", session="ann")
    program = mt.Program([hello, *steps], {"worker": [mt.call(tool, n=1)]}, mishaps)
    with mt.simulated_host(setup=setup) as host:
        try:
            program.execute(host, agent)
            mt.check(host)
        except mt.InvariantBroken as broken:
            return "", host.now(), [f"{one.invariant}: {one.sentence}" for one in broken.violations]
        results = [
            row.text for row in mt.snapshot(host).rows("ann") if isinstance(row, ToolMessage)
        ]
        return "".join(results).partition("\n")[0], round(host.now(), 6), []


STOP: list[Act] = [mt.Wait(0.5), mt.Stop("ann", session="ann")]


@pytest.mark.parametrize(
    ("tool", "mishap", "result", "seconds", "lines"),
    [
        ("walk", mt.Mishap(1), "walked", 3, ["a", "b", "c"]),
        ("walk", mt.Mishap(1, late=50, at=2), "walked", 53, ["a", "b", "c"]),
        ("walk", mt.Mishap(1, late=50, at=9), "walked", 3, ["a", "b", "c"]),
        (
            "walk",
            mt.Mishap(1, cancelled=True, at=2),
            "Tool 'walk' failed: planned to fail: a time-out struck",
            1,
            ["a", "b"],
        ),
        (
            "walk",
            mt.Mishap(1, fails="planned to fail", at=2),
            "Tool 'walk' failed: planned to fail",
            1,
            ["a", "b"],
        ),
        (
            "fetch",
            mt.Mishap(1, fails="planned to fail", at=2),
            "Tool 'fetch' failed: planned to fail",
            1,
            ["planned to fail"],
        ),
        (
            "queue_up",
            mt.Mishap(1, fails="planned to fail", at=2),
            "it was free",
            2,
            ["planned to fail, 0 wait"],
        ),
        ("tidy", mt.Mishap(1, fails="planned to fail", at=2), "tidy", 1.5, []),
        ("patient", mt.Mishap(1), "done", 1, []),
        ("careful", mt.Mishap(1, late=3, at=1), "done", 3.5, []),
    ],
)
def test_a_fault_strikes_at_an_await_inside_of_a_tool(
    tool: str, mishap: mt.Mishap, result: str, seconds: float, lines: list[str]
) -> None:
    assert played(tool, mishap) == (result, seconds, [])
    assert log == lines


def test_an_await_that_is_late_is_cancelled_as_any_other() -> None:
    result, seconds, wrong = played("walk", mt.Mishap(1, late=50, at=1), steps=STOP)
    assert (wrong, seconds) == ([], 0.5)
    assert result.startswith("Cancelled while it was running")
    crash: list[Act] = [mt.Wait(9), mt.Crash()]
    assert played("walk", mt.Mishap(1, late=50, at=1), steps=crash)[2] == []


@pytest.mark.parametrize("steps", [STOP, []])
def test_a_tool_that_swallows_its_cancellation_is_named(steps: Sequence[Act]) -> None:
    mishaps = [] if steps else [mt.Mishap(1, cancelled=True, at=1)]
    wrong = played("stubborn", *mishaps, steps=steps)[2]
    assert any("'stubborn'" in one and "went on as if it was not" in one for one in wrong), wrong
    assert log == ["never mind"]


def test_a_task_that_outlives_its_tool_is_named() -> None:
    wrong = played("careless", steps=[mt.Wait(5)])[2]
    assert any("trio.sleep" in one or "sleep" in one for one in wrong), wrong
    assert any("outlives its call" in one or "has ended" in one for one in wrong), wrong


def test_a_task_that_a_schedule_holds_back_while_it_ends_is_no_finding() -> None:
    """Its call has cancelled it, and it takes no step before all others have come to rest."""
    calls = mt.call("prompt", n=1) + mt.call("prompt", n=1)
    hold = mt.Schedule("places", places=((0, 0, 0),))
    sends = [mt.Send("ann", f"ann/{n}: hello", session="ann") for n in (1, 2)]
    with mt.simulated_host() as host:
        mt.Program(sends, {"worker": [calls]}, schedule=hold).execute(host, agent)
        mt.check(host)


def stubborn_gate(host: motet.Host) -> None:
    @host.on("before_tool")
    async def gate(event: motet.BeforeTool) -> motet.Allow:
        try:
            await trio.sleep(1)
        except BaseException:
            log.append("allowed all the same")
        return motet.Allow()


def slow_gate(host: motet.Host) -> None:
    @host.on("before_tool")
    async def gate(event: motet.BeforeTool) -> motet.Allow:
        await trio.sleep(1)
        return motet.Allow()


def test_a_gate_that_swallows_its_cancellation_is_named() -> None:
    wrong = played("patient", steps=STOP, setup=stubborn_gate)[2]
    assert wrong[0].startswith("code_behaves: the hook ")
    assert log == ["allowed all the same"]
    assert played("patient", steps=STOP, setup=slow_gate)[2] == []


@pytest.mark.parametrize("at", [0, 1])
def test_a_hook_takes_longer_but_not_as_long_as_it_may(at: int) -> None:
    late = mt.Mishap(1, late=400, at=at, of="hook")
    assert played("patient", late, setup=slow_gate) == ("done", 3.25, [])


def test_a_failing_hook_is_no_finding_if_the_program_has_planned_it() -> None:
    fails = mt.Mishap(1, fails="planned to fail", of="hook")
    result, _, wrong = played("patient", fails, setup=slow_gate)
    assert not wrong
    assert "failed" in result
