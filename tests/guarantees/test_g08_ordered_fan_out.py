"""G8: for parallel calls the result vector equals the sequential one up to time."""

from __future__ import annotations

import json
from typing import Literal

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.actors.tools.tool import tool
from motet.protocols.chat import Call
from motet.protocols.tools import CallResult, ExecuteCall
from tests.actors.tools.batches import Watched, answering, run_batch
from tests.actors.tools.stage import AGENT, Stage, on_stage
from tests.guarantees.laws import holds, is_found, mutants_of


def test_the_results_of_a_batch_of_asks_are_those_of_one_after_the_other() -> None:
    """Law: in all schedules entry i is the outcome of call i, whatever fails or is cancelled beside
    it; calls begin in order, no more at once than the limit; serial calls end in order."""
    holds("G8", schedules=120)


@pytest.mark.parametrize("mutant", mutants_of("G8"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


# ---------------------------------------------------------------- with the tool executor


@attrs.frozen
class Plan:
    """One call: how long it takes in virtual seconds and how it ends."""

    seconds: int
    ending: Literal["value", "raise", "timeout", "invalid"]


MOST = 7  # calls
PLANS = st.lists(
    st.builds(
        Plan, st.integers(0, 9), st.sampled_from(["value", "value", "raise", "timeout", "invalid"])
    ),
    max_size=MOST,
)


async def work(index: int, seconds: int, ending: str) -> str:
    await trio.sleep(seconds)
    if ending == "raise":
        raise ValueError(f"call {index} failed")
    if ending == "timeout":
        await trio.sleep_forever()
    return f"call {index} is done"


# One tool per call: a tool that failed too often in a row would be taken out.
WORK = [tool(work, name=f"work_{index}", timeout=20) for index in range(MOST)]


def calls_of(plans: list[Plan]) -> list[Call]:
    return [
        Call(
            f"call_{index}",
            WORK[index].name,
            "{" if plan.ending == "invalid" else json.dumps({"index": index, **attrs.asdict(plan)}),
        )
        for index, plan in enumerate(plans)
    ]


async def executed(stage: Stage, call: Call) -> CallResult:
    return await stage.executor.ask(ExecuteCall("run", "session", AGENT, "local", call))


def vector(results: list[CallResult]) -> list[tuple[str, str, str, str]]:
    """Everything but time and the stored error's id, which is given in order of ending."""
    return [(result.call_id, result.outcome, result.kind, result.text) for result in results]


@given(PLANS, st.integers(1, 8))
def test_any_completion_order_gives_the_sequential_vector(plans: list[Plan], limit: int) -> None:
    """Law: for all durations, endings and limits, parallel = serial, entry by entry."""

    async def main() -> None:
        async with on_stage(*WORK) as stage:
            calls = calls_of(plans)
            running: set[int] = set()

            async def execute(index: int, call: Call) -> CallResult:
                running.add(index)
                assert len(running) <= limit
                result = await executed(stage, call)
                running.remove(index)
                return result

            async with answering(execute) as tools:
                parallel = await run_batch(calls, tools, limit=limit)
            one_by_one = [await executed(stage, call) for call in calls]
            assert vector(parallel) == vector(one_by_one)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(PLANS)
def test_a_serial_batch_keeps_the_models_order(plans: list[Plan]) -> None:
    """Law: call i + 1 starts when call i has ended."""

    async def main() -> None:
        watched = Watched(calls_of(plans), AGENT)
        async with on_stage(*WORK) as stage:
            await run_batch(watched.calls, stage.executor, limit=1, watched=watched)
        assert watched.log == [
            (what, index) for index in range(len(plans)) for what in ("start", "end")
        ]

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(PLANS, st.integers(1, 8), st.integers(0, 60))
def test_a_batch_cut_at_any_time_accounts_for_every_call(
    plans: list[Plan], limit: int, seconds: int
) -> None:
    """Law: after a cut at t, entry i is the sequential result of call i if it had ended by t, else
    it says whether call i had started; each that starts ends, and its result is told."""

    async def main() -> None:
        async with on_stage(*WORK) as stage:
            calls, record = calls_of(plans), list[CallResult]()
            whole = [await executed(stage, call) for call in calls]
            watched = Watched(calls, AGENT)
            with trio.move_on_after(seconds + 0.5):
                await run_batch(calls, stage.executor, limit=limit, watched=watched, record=record)
            begun = watched.begun
            assert begun == sorted(begun) == sorted(watched.ended)
            assert sorted(watched.told) == sorted(watched.finished)
            for index, entry in enumerate(record):
                if index in watched.finished:
                    assert vector([entry]) == vector([whole[index]])
                else:
                    running = "cancelled_while_running"
                    waiting = "cancelled_before_start"
                    assert entry.outcome == (running if index in begun else waiting)
            assert len(record) == len(calls)

    trio.run(main, clock=MockClock(autojump_threshold=0))
