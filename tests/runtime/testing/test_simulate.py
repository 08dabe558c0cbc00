"""Runs: the same seed or choices give the same bytes, and every run ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from hypothesis import find, given, settings

from motet.runtime import open_system
from motet.runtime.testing import (
    DelayBounded,
    GuaranteeBroken,
    Pct,
    Policy,
    Simulation,
    SimulationError,
    Stuck,
    Uniform,
    explore,
    run,
)
from motet.runtime.testing.scheduler import Scheduler, many_runs
from motet.runtime.testing.strategies import schedules
from tests.runtime.testing.worlds import (
    Add,
    Node,
    counting,
    deadlocked,
    graph,
    lost_update,
    simultaneous,
    small,
)

ROOT = Path(__file__).parents[3]


# ---------------------------------------------------------------- determinism


def test_one_seed_gives_one_trace() -> None:
    assert len({run(graph, seed=3).hash for _ in range(50)}) == 1


def test_two_hundred_seeds_give_many_traces() -> None:
    assert len({run(graph, seed=seed).hash for seed in range(200)}) >= 195


async def _interrupted(sim: Simulation) -> None:
    """Between two steps: time that passes, calls from outside, and bytes on a real socket."""
    left, right = trio.socket.socketpair()
    token = trio.lowlevel.current_trio_token()

    async def busy(name: str) -> None:
        for number in range(8):
            await trio.lowlevel.checkpoint()
            sim.note(f"{name} {number}")
            if sim.random.random() < 0.2:
                sim.clock.jump(0.5)
            if sim.random.random() < 0.2:
                token.run_sync_soon(sim.note, f"called by {name}")

    async def patient() -> None:
        with trio.move_on_after(sim.random.choice((0.5, 1, 2))):
            await trio.sleep_forever()
        sim.note("too late")
        await left.send(b"x")

    sim.law("none", lambda: None)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(busy, name)
        nursery.start_soon(patient)
        await right.recv(1)
        sim.note("received")
    left.close()
    right.close()


@pytest.mark.parametrize("world", [graph, simultaneous, _interrupted])
def test_a_choice_between_two_passes_of_the_loop_is_that_of_the_next_pass(
    world: Callable[[Simulation], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: Trio's checks before a choice are left out only where they would change nothing."""

    def hashes() -> list[str]:
        return [run(world, seed=seed, guards=()).hash for seed in range(50)]

    def wait(_: Scheduler, __: trio.abc.Instrument) -> None:
        pass

    quick = hashes()
    monkeypatch.setattr(Scheduler, "go_on", wait)
    assert quick == hashes()


def test_most_choices_are_made_without_a_pass_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0
    shuffle = Scheduler.shuffle

    def counted(scheduler: Scheduler, batch: list[trio.lowlevel.Task]) -> None:
        nonlocal passes
        passes += 1
        shuffle(scheduler, batch)

    monkeypatch.setattr(Scheduler, "shuffle", counted)
    steps = run(graph, seed=3).steps

    assert passes < steps / 2


def test_many_runs_with_one_replacement_of_names_leave_the_same_traces() -> None:
    alone = [run(simultaneous, seed=seed).hash for seed in range(20)]
    with many_runs(), many_runs():
        assert [run(simultaneous, seed=seed).hash for seed in range(20)] == alone


@pytest.mark.parametrize(
    "seeds", [("0", "1", "random"), pytest.param(("0", *"23456789"), marks=pytest.mark.sweep)]
)
def test_processes_with_different_hash_seeds_give_one_trace(seeds: tuple[str, ...]) -> None:
    program = (
        "from motet.runtime.testing import run, Fault\n"
        "from tests.runtime.testing.worlds import graph, simultaneous\n"
        "crash = Fault('crash', 30, '/system/node1')\n"
        "print(run(graph, seed=5, faults=[crash]).hash, run(simultaneous, seed=5).hash)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    }
    assert len(printed) == 1


def test_simultaneous_cancellations_do_not_depend_on_addresses() -> None:
    ballast: list[object] = []
    answers = set[str]()
    for number in range(20):
        ballast.append([object() for _ in range(number * 7)])
        answers.add(run(simultaneous, seed=1).check())
    assert len(answers) == 1


@pytest.mark.parametrize("policy", [Uniform(), DelayBounded(5, 60), Pct(3, 60)])
def test_the_choices_of_a_run_repeat_it_without_its_policy(policy: Policy) -> None:
    """Law: run(seed, policy) and run(seed, its choices) have one trace."""
    for seed in range(10):
        outcome = run(graph, seed=seed, policy=policy)
        assert run(graph, seed=seed, choices=outcome.choices).hash == outcome.hash


def test_first_in_first_out_is_the_empty_list_of_choices() -> None:
    assert run(graph, choices=()).choices == ()
    assert run(graph, policy=DelayBounded(0)).hash == run(graph, choices=()).hash


@given(schedules(40))
@settings(max_examples=50)
def test_any_list_of_numbers_is_a_schedule(choices: tuple[int, ...]) -> None:
    """Law: for all choices the world of a correct kernel ends in order, with all guarantees."""
    assert run(small, choices=choices).check() == 2


def test_delay_bounded_runs_have_no_more_delays_than_their_bound() -> None:
    for seed in range(20):
        assert sum(run(graph, seed=seed, policy=DelayBounded(3)).choices) <= 3


def test_the_random_module_is_seeded_for_the_run_and_restored() -> None:
    async def world(sim: Simulation) -> float:
        return random.random()

    random.seed(99)
    state = random.getstate()
    assert run(world, seed=1).value == run(world, seed=1).value != run(world, seed=2).value
    assert random.getstate() == state


# ---------------------------------------------------------------- exploration


def test_every_interleaving_of_a_two_by_two_world_is_visited_exactly_once() -> None:
    """Law: the schedules explored are the interleavings, each once: (2 + 2)! / (2! 2!) of them."""
    seen: list[tuple[int, ...]] = []
    outcomes = list(explore(counting(2, 2, seen.append)))
    assert len(outcomes) == len(seen) == len(set(seen)) == 6
    assert seen[0] == (0, 1, 0, 1)


def test_three_tasks_of_two_steps_have_ninety_interleavings() -> None:
    seen: list[tuple[int, ...]] = []
    for outcome in explore(counting(2, 3, seen.append)):
        outcome.check()
    assert len(seen) == len(set(seen)) == 90


def test_an_exploration_that_is_not_exhaustive_is_an_error() -> None:
    with pytest.raises(SimulationError, match="more than 5 schedules"):
        list(explore(counting(2, 2, lambda _: None), limit=5))


def test_a_lost_update_is_found_and_shrunk_to_the_fewest_delays() -> None:
    found = find(
        schedules(32),
        lambda choices: run(lost_update, choices=choices).value == 1,
        settings=settings(max_examples=500, database=None, derandomize=True),
    )
    assert run(lost_update, choices=found).value == 1
    assert len(found) <= 8
    assert set(found) <= {0, 1}


def test_the_lost_update_needs_a_task_that_is_delayed_for_several_steps() -> None:
    assert run(lost_update, choices=()).value == 2
    values = [run(lost_update, seed=seed).value for seed in range(100)]
    assert set(values) == {1, 2}


def test_priorities_find_the_lost_update_too() -> None:
    policy = Pct(depth=2, horizon=12)
    assert 1 in [run(lost_update, seed=seed, policy=policy).value for seed in range(100)]


# ---------------------------------------------------------------- the end of a run


def test_virtual_hours_pass_at_once() -> None:
    async def world(sim: Simulation) -> str:
        await trio.sleep(3600)
        return "later"

    outcome = run(world)
    assert (outcome.check(), outcome.seconds) == ("later", 3600)


def test_the_error_of_a_world_is_unwrapped_and_raised_with_the_report() -> None:
    async def world(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fails)

    outcome = run(world)
    assert isinstance(outcome.error, LookupError)
    with pytest.raises(LookupError, match="of the world") as caught:
        outcome.check()
    assert "resumes in" in caught.value.__notes__[0]


async def _fails() -> None:
    await trio.lowlevel.checkpoint()
    raise LookupError("of the world")


def test_a_deadlock_is_ended_and_names_the_tasks_and_where_they_wait() -> None:
    outcome = run(deadlocked)
    assert isinstance(outcome.error, Stuck)
    assert len(outcome.error.tasks) == 2
    assert "waits_for_yours" in str(outcome.error)
    assert "worlds.py:" in str(outcome.error)


def test_a_deadlock_behind_a_shield_is_ended_too() -> None:
    async def world(sim: Simulation) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    assert isinstance(run(world).error, Stuck)


def test_a_world_that_never_stops_running_is_ended() -> None:
    async def world(sim: Simulation) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    outcome = run(world, max_steps=50)
    assert "still running after 50 steps" in str(outcome.error)
    assert outcome.steps < 60


def test_a_world_that_swallows_its_cancellation_is_dropped() -> None:
    async def world(sim: Simulation) -> None:
        while True:
            with contextlib.suppress(trio.Cancelled):
                await trio.sleep(1)

    outcome = run(world, max_steps=50)
    assert isinstance(outcome.error, Stuck)
    assert run(small).ok  # the next run is not touched


def test_a_law_of_the_world_is_checked_after_every_step() -> None:
    async def world(sim: Simulation) -> None:
        numbers: list[int] = []
        sim.law("few", lambda: f"{len(numbers)} numbers" if len(numbers) > 2 else None)
        for number in range(5):
            numbers.append(number)
            await trio.lowlevel.checkpoint()

    outcome = run(world)
    (violation,) = outcome.violations
    assert (violation.guarantee, violation.step, violation.detail) == ("few", 3, "3 numbers")
    with pytest.raises(GuaranteeBroken, match="few broken at step 3 by world: 3 numbers"):
        outcome.check()


def test_a_law_that_raises_is_the_error_of_the_run() -> None:
    async def world(sim: Simulation) -> None:
        def bad() -> str | None:
            raise LookupError("in the law")

        sim.law("bad", bad)
        await trio.lowlevel.checkpoint()

    assert isinstance(run(world).error, LookupError)


def test_a_source_of_choices_that_fails_makes_the_run_unsound() -> None:
    class Broken:
        def start(self, seed: int) -> object:
            def choose(ready: object) -> int:
                raise LookupError("no choice")

            return choose

    with pytest.raises(SimulationError) as caught:
        run(graph, policy=Broken())  # type: ignore[arg-type]  # pyright: ignore
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_simulation_in_a_simulation_is_refused() -> None:
    async def world(sim: Simulation) -> None:
        run(small)

    assert "one after the other" in str(run(world).error)


def test_the_log_goes_into_the_trace_and_garbage_collection_is_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def world(sim: Simulation) -> None:
        assert not gc.isenabled()
        logging.getLogger("motet.runtime").warning("crashed at %r", object())

    outcome = run(world)
    assert any("log: warning: crashed at <object>" in line for line in outcome.trace.lines())
    assert not caplog.records
    assert gc.isenabled()


def test_two_systems_are_watched_side_by_side() -> None:
    async def world(sim: Simulation) -> None:
        async with open_system("one") as one, open_system("two") as two:
            for system in (sim.watch(one), sim.watch(two)):
                ref = await system.start(lambda: Node(sim, None), name="node")
                await ref.tell(Add(1))

    outcome = run(world)
    outcome.check()
    lanes = {event.who for event in outcome.trace.events()}
    assert {"/one/node", "/two/node"} <= lanes
