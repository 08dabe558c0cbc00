"""Several calls of one answer: in parallel or in order, and their record after a cancellation."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.tools.batch import RunningBatch, unknown
from motet.protocols.chat import Call
from motet.protocols.tools import CallResult, ExecuteCall
from tests.actors.tools.batches import Watched, answering, run_batch

CALLS = [Call(f"call_{index}", "work") for index in range(4)]


def outcomes(record: list[CallResult]) -> list[str]:
    return [result.outcome for result in record]


class Bench:
    """Calls that wait for a test to release them, and the number that run."""

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
    async with answering(Bench().execute) as tools:
        assert await run_batch([], tools, limit=8) == []


async def test_at_most_limit_calls_run_at_once_and_start_in_call_order() -> None:
    bench, watched = Bench(), Watched(CALLS)
    async with answering(bench.execute) as tools, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_batch(CALLS, tools, limit=2, watched=watched))
        for index in (1, 2, 3, 0):
            await wait_all_tasks_blocked()
            bench.gates[index].set()
    assert bench.order == [0, 1, 2, 3]
    assert bench.most == 2
    assert watched.ended == watched.told == [1, 2, 3, 0]


async def test_the_end_of_a_call_is_published_when_it_ends() -> None:
    bench, watched = Bench(), Watched(CALLS)
    async with answering(bench.execute) as tools, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_batch(CALLS, tools, limit=8, watched=watched))
        for number, index in enumerate((2, 0, 3, 1)):
            await wait_all_tasks_blocked()
            assert len(watched.told) == number
            bench.gates[index].set()
    assert watched.told == [2, 0, 3, 1]


async def test_a_serial_batch_runs_one_call_after_the_other() -> None:
    bench = Bench()
    for gate in bench.gates:
        gate.set()
    async with answering(bench.execute) as tools:
        results = await run_batch(CALLS, tools, limit=1)
    assert bench.most == 1
    assert [result.text for result in results] == ["text 0", "text 1", "text 2", "text 3"]


async def test_an_exception_of_one_call_settles_that_call_only() -> None:
    async def execute(index: int, call: Call) -> CallResult:
        if index == 1:
            raise ConnectionError("the executor is gone")
        return CallResult(call.id, call.name, "fine")

    async with answering(execute) as tools:
        results = await run_batch(CALLS, tools, limit=8)
    assert outcomes(results) == ["done", "unknown", "done", "done"]
    assert "the executor is gone" in results[1].text


async def test_a_call_that_cannot_begin_has_a_result() -> None:
    class Clumsy(Watched):
        async def begin(self, index: int) -> ExecuteCall:
            if index == 1:
                raise RuntimeError("no words for it")
            return await super().begin(index)

    bench = Bench()
    for gate in bench.gates:
        gate.set()
    async with answering(bench.execute) as tools:
        results = await run_batch(CALLS, tools, limit=8, watched=Clumsy(CALLS))
    assert outcomes(results) == ["done", "unknown", "done", "done"]


async def test_a_known_result_is_not_asked_for() -> None:
    class Resumed(Watched):
        async def begin(self, index: int) -> ExecuteCall | CallResult:  # type: ignore[override]
            known = CallResult(CALLS[index].id, "work", "from before")
            return known if index % 2 else await super().begin(index)

    bench = Bench()
    for gate in bench.gates:
        gate.set()
    async with answering(bench.execute) as tools:
        results = await run_batch(CALLS, tools, limit=1, watched=Resumed(CALLS))
    texts = ["text 0", "from before", "text 2", "from before"]
    assert [result.text for result in results] == texts


async def test_look_again_begins_a_call_whose_turn_has_come() -> None:
    """Like a call that waits for a person, and lets the next ones begin."""

    bench, watched, allowed = Bench(), Watched(CALLS), 0
    async with answering(bench.execute) as tools, trio.open_nursery() as nursery:
        batch = RunningBatch(
            CALLS, tools, watched, limit=4, may_begin=lambda index: index <= allowed
        )
        batch.look_again()  # before it runs there is nothing to look at
        nursery.start_soon(batch.run)
        for allowed in range(4):
            batch.look_again()
            await wait_all_tasks_blocked()
            assert bench.order == list(range(allowed + 1))
        for gate in bench.gates:
            gate.set()
    assert outcomes(batch.record) == ["done"] * 4


@pytest.mark.parametrize("serial", [False, True])
async def test_a_cancelled_batch_records_the_progress_of_every_call(serial: bool) -> None:
    bench, record, watched = Bench(), list[CallResult](), Watched(CALLS)
    bench.gates[0].set()
    limit = 1 if serial else 2
    async with answering(bench.execute) as tools:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    lambda: run_batch(CALLS, tools, limit=limit, record=record, watched=watched)
                )
                await wait_all_tasks_blocked()
                scope.cancel()
    assert scope.cancelled_caught
    running = ["cancelled_while_running"] * (1 if serial else 2)
    waiting = ["cancelled_before_start"] * (2 if serial else 1)
    assert outcomes(record) == ["done", *running, *waiting]
    assert sorted(watched.ended) == watched.begun == list(range(1 + len(running)))
    assert watched.told == [0]


async def test_a_call_that_finishes_in_spite_of_the_cancellation_keeps_its_result() -> None:
    record, watched = list[CallResult](), Watched(CALLS)
    scope = trio.CancelScope()

    async def execute(index: int, call: Call) -> CallResult:
        scope.cancel()
        return CallResult(call.id, call.name, f"finished {index}")

    async with answering(execute) as tools:
        with scope:
            await run_batch(CALLS, tools, limit=1, record=record, watched=watched)
    assert outcomes(record) == ["done", *["cancelled_before_start"] * 3]
    assert watched.told == [0]


async def test_the_time_of_a_call_is_measured(autojump_clock: MockClock) -> None:
    del autojump_clock

    async def execute(index: int, call: Call) -> CallResult:
        await trio.sleep(index + 1)
        return CallResult(call.id, call.name, "")

    async with answering(execute) as tools:
        results = await run_batch(CALLS, tools, limit=8)
    assert [round(result.ms) for result in results] == [1000, 2000, 3000, 4000]


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_nothing_starts_in_a_scope_that_is_cancelled(cancel_first: bool) -> None:
    started: list[int] = []

    async def execute(index: int, call: Call) -> CallResult:
        started.append(index)
        return CallResult(call.id, call.name, "")

    async with answering(execute) as tools:
        with trio.CancelScope() as scope:
            if cancel_first:
                scope.cancel()
            await run_batch(CALLS, tools, limit=8)
    assert started == ([] if cancel_first else [0, 1, 2, 3])


def test_the_error_of_a_call_without_an_answer_is_redacted_and_one_short_line() -> None:
    error = ValueError("no way to postgres://u:hunter2hunter2@h/db \ud800\n" + "x" * 1_000)
    text = unknown(Call("c", "t"), error).text
    assert "hunter2" not in text
    assert "[secret:" in text
    assert len(text.encode()) < 250
