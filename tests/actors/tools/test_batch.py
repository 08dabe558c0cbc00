"""Several calls of one answer: side by side or in order, and what is known when they are cut."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.tools.batch import run_batch
from motet.protocols.chat import Call
from motet.protocols.tools import CallResult

CALLS = [Call(f"call_{index}", "work") for index in range(4)]


def outcomes(record: list[CallResult]) -> list[str]:
    return [result.outcome for result in record]


class Bench:
    """Calls that wait until they are let go, and an account of how many run."""

    def __init__(self) -> None:
        self.gates = [trio.Event() for _ in CALLS]
        self.running: set[int] = set()
        self.most = 0
        self.order: list[int] = []

    async def execute(self, index: int, call: Call) -> CallResult:
        self.running.add(index)
        self.order.append(index)
        self.most = max(self.most, len(self.running))
        try:
            await self.gates[index].wait()
        finally:
            self.running.discard(index)
        return CallResult(call.id, call.name, f"text {index}")


async def test_no_calls_give_no_results() -> None:
    assert await run_batch([], Bench().execute, limit=8, serial=False) == []


async def test_at_most_limit_calls_run_at_once_and_start_in_call_order() -> None:
    bench, ended = Bench(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: run_batch(
                CALLS,
                bench.execute,
                limit=2,
                serial=False,
                on_end=lambda index, _: ended.append(index),
            )
        )
        for index in (1, 2, 3, 0):
            await wait_all_tasks_blocked()
            bench.gates[index].set()
    assert bench.order == [0, 1, 2, 3]
    assert bench.most == 2
    assert ended == [1, 2, 3, 0]


async def test_a_serial_batch_runs_one_call_after_the_other() -> None:
    bench = Bench()
    for gate in bench.gates:
        gate.set()
    results = await run_batch(CALLS, bench.execute, limit=8, serial=True)
    assert bench.most == 1
    assert [result.text for result in results] == ["text 0", "text 1", "text 2", "text 3"]


async def test_an_exception_of_one_call_is_its_own_result() -> None:
    async def execute(index: int, call: Call) -> CallResult:
        if index == 1:
            raise ConnectionError("the executor is gone")
        return CallResult(call.id, call.name, "fine")

    results = await run_batch(CALLS, execute, limit=8, serial=False)
    assert outcomes(results) == ["done", "unknown", "done", "done"]
    assert "ConnectionError" in results[1].text


@pytest.mark.parametrize("serial", [False, True])
async def test_a_cancelled_batch_says_of_every_call_how_far_it_came(serial: bool) -> None:
    bench, record, begun, ended = Bench(), list[CallResult](), list[int](), list[int]()
    bench.gates[0].set()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_batch(
                    CALLS,
                    bench.execute,
                    limit=2,
                    serial=serial,
                    record=record,
                    on_start=lambda index, _: begun.append(index),
                    on_end=lambda index, _: ended.append(index),
                )
            )
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    running = ["cancelled_while_running"] * (1 if serial else 2)
    waiting = ["cancelled_before_start"] * (2 if serial else 1)
    assert outcomes(record) == ["done", *running, *waiting]
    assert sorted(ended) == begun == list(range(1 + len(running)))


async def test_a_call_that_finishes_in_spite_of_the_cancellation_keeps_its_result() -> None:
    record: list[CallResult] = []
    with trio.CancelScope() as scope:

        async def execute(index: int, call: Call) -> CallResult:
            scope.cancel()
            return CallResult(call.id, call.name, f"finished {index}")

        await run_batch(CALLS, execute, limit=1, serial=True, record=record)
    assert outcomes(record) == ["done", *["cancelled_before_start"] * 3]


async def test_the_time_of_a_call_is_measured(autojump_clock: MockClock) -> None:
    del autojump_clock

    async def execute(index: int, call: Call) -> CallResult:
        await trio.sleep(index + 1)
        return CallResult(call.id, call.name, "")

    results = await run_batch(CALLS, execute, limit=8, serial=False)
    assert [round(result.ms) for result in results] == [1000, 2000, 3000, 4000]


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_nothing_starts_in_a_scope_that_is_cancelled(cancel_first: bool) -> None:
    started: list[int] = []

    async def execute(index: int, call: Call) -> CallResult:
        started.append(index)
        return CallResult(call.id, call.name, "")

    with trio.CancelScope() as scope:
        if cancel_first:
            scope.cancel()
        await run_batch(CALLS, execute, limit=8, serial=False)
    assert started == ([] if cancel_first else [0, 1, 2, 3])
