"""Inline threads: in a simulation, functions for threads run in Trio's thread, in no time."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from motet.runtime.testing import Simulation, run
from motet.runtime.testing.guards import ALL_GUARDS, NotSimulated
from motet.runtime.testing.threads import WouldBlock, inline_threads

HERE = Path(__file__).name


async def test_a_function_runs_in_trios_own_thread_and_its_value_is_returned() -> None:
    with inline_threads():
        assert await trio.to_thread.run_sync(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await trio.to_thread.run_sync(divmod, 1, 0)
        assert await trio.Path(__file__).exists()
    assert await trio.to_thread.run_sync(threading.get_ident) != threading.get_ident()


async def test_other_threads_start_real_threads() -> None:
    async def elsewhere() -> tuple[int, int]:
        return threading.get_ident(), await trio.to_thread.run_sync(threading.get_ident)

    found: list[tuple[int, int]] = []
    with inline_threads():
        other = threading.Thread(target=lambda: found.append(trio.run(elsewhere)))
        other.start()
        other.join()
    assert found[0][0] != found[0][1]


async def test_the_limit_of_threads_holds(autojump_clock: MockClock) -> None:
    limiter = trio.CapacityLimiter(1)
    began: list[float] = []

    def work() -> None:
        assert limiter.borrowed_tokens == 1
        began.append(trio.current_time())

    with inline_threads():
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: trio.to_thread.run_sync(work, limiter=limiter))
            await trio.sleep(5)
            assert began == []
            limiter.release()
    assert began == [5.0, 5.0, 5.0]
    assert limiter.borrowed_tokens == 0


async def test_a_cancelled_task_starts_none_and_one_that_ran_is_delivered() -> None:
    ran: list[str] = []
    scope = trio.CancelScope()

    def cancels() -> str:
        scope.cancel()
        return "done all the same"

    with inline_threads():
        with trio.CancelScope() as before:
            before.cancel()
            await trio.to_thread.run_sync(ran.append, "never")
        with scope:
            ran.append(await trio.to_thread.run_sync(cancels))
    assert ran == ["done all the same"]


async def test_a_function_has_the_context_and_can_check_for_cancellation() -> None:
    name: ContextVar[str] = ContextVar("name")
    name.set("ann")

    def look() -> str:
        trio.from_thread.check_cancelled()
        return trio.from_thread.run_sync(name.get)

    with inline_threads():
        assert await trio.to_thread.run_sync(look) == "ann"


async def test_waiting_for_trio_is_refused_with_the_line() -> None:
    seen: list[NotSimulated] = []

    def waits() -> None:
        trio.from_thread.run(trio.sleep, 1)

    line = waits.__code__.co_firstlineno + 1
    with inline_threads(seen.append), pytest.raises(WouldBlock, match=f"{HERE}:{line} ") as refused:
        await trio.to_thread.run_sync(waits)
    assert seen == [refused.value]
    assert "async function" in str(refused.value)


def test_the_guards_hold_in_a_threads_function_too() -> None:
    def naps() -> None:
        time.sleep(60)

    async def world(_: Simulation) -> None:
        with inline_threads():
            await trio.to_thread.run_sync(naps)

    error = run(world, guards=ALL_GUARDS).error
    assert isinstance(error, NotSimulated)
    assert f"{HERE}:{naps.__code__.co_firstlineno + 1} (in naps)" in error.line


def test_threads_started_in_other_ways_are_refused() -> None:
    async def world(_: Simulation) -> None:
        with inline_threads():
            threading.Thread(target=int).start()

    assert isinstance(run(world).error, NotSimulated)


def test_the_same_seed_gives_the_same_trace_with_threads() -> None:
    async def world(sim: Simulation) -> None:
        async def job(number: int) -> None:
            await trio.to_thread.run_sync(int)
            sim.note(f"{number} is back")

        with inline_threads():
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(job, number)

    hashes = {run(world, seed=seed).hash for seed in [1, 1, 2, 3]}
    assert run(world, seed=1).check() is None
    assert 1 < len(hashes) <= 3
