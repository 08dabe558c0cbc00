"""Simulated loops: worlds that synchronous code drives, and that stand still in between."""

from __future__ import annotations

import gc
import random
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from motet.runtime import outside
from motet.runtime.testing import NotSimulated, Stuck
from motet.runtime.testing.loop import EPOCH, SimulatedLoop


async def drawn(count: int) -> list[str]:
    """Returns the schedule of five tasks, random numbers and ids."""
    seen: list[str] = []

    async def task(name: str) -> None:
        for _ in range(count):
            await trio.lowlevel.checkpoint()
            seen.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(task, name)
    return [*seen, str(random.random()), outside.fresh_hex(4)]


def test_a_call_returns_the_value_and_raises_the_error_of_its_function() -> None:
    async def fails() -> None:
        raise KeyError("mine")

    with SimulatedLoop() as loop:
        assert loop.call(drawn, 1)
        with pytest.raises(KeyError, match="mine"):
            loop.call(fails)
        assert loop.call(drawn, 1), "an error in a call is its caller's, and the world goes on"


def test_time_passes_only_in_the_world_and_only_while_it_is_driven() -> None:
    with SimulatedLoop() as loop:
        loop.call(trio.sleep, 3600)
        assert loop.now == 3600
        job = loop.start(trio.sleep, 60)
        assert loop.now == 3600
        loop.wait(job)
        assert loop.now == 3660
        assert not EPOCH <= outside.wall_time() <= EPOCH + 3660

        async def wall() -> float:
            return outside.wall_time()

        assert loop.call(wall) == EPOCH + 3660


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    def world(seed: int) -> tuple[list[str], str]:
        random.seed()  # the driver's chance is its own
        with SimulatedLoop(seed=seed) as loop:
            first = loop.call(drawn, 3)
            return first + loop.call(drawn, 3), loop.sim.trace.hash

    assert world(1) == world(1)
    assert world(1) != world(2)


def test_choices_of_zero_are_first_in_first_out() -> None:
    with SimulatedLoop(choices=()) as loop:
        assert loop.call(drawn, 2)[:10] == list("abcdeabcde")


def test_the_world_can_be_paused_after_any_number_of_steps() -> None:
    ticks: list[int] = []

    async def ticking() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            ticks.append(len(ticks))

    with SimulatedLoop(choices=()) as loop:
        loop.start(ticking)
        for held in range(1, 5):
            assert loop.steps(1) == 1
            assert len(ticks) == held - 1


def test_a_deadlocked_world_names_its_tasks_and_where_they_wait() -> None:
    with SimulatedLoop() as loop, pytest.raises(Stuck, match=r"sleep_forever|driver"):
        loop.call(trio.sleep_forever)


def test_a_call_that_never_ends_fails_and_the_world_continues() -> None:
    async def busy() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with SimulatedLoop(max_steps=500) as loop:
        with pytest.raises(Stuck, match="500 steps"):
            loop.call(busy)
        assert loop.call(drawn, 1)


async def _stubborn(log: list[str]) -> None:
    with trio.CancelScope(shield=True):
        try:
            await trio.sleep(1000)
        finally:
            log.append("left")
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)


def test_a_job_is_ended_in_no_time() -> None:
    log: list[str] = []
    with SimulatedLoop() as loop:
        job = loop.start(_stubborn, log)
        loop.steps(5)
        before = loop.now
        loop.end(job)
        assert job.over
        assert log == ["left"]
        assert loop.now == before


def test_a_job_that_swallows_its_cancellation_is_ended_too() -> None:
    async def swallows() -> None:
        while True:
            with suppress(trio.Cancelled):  # what no program may do
                await trio.sleep(1)

    with SimulatedLoop() as loop:
        job = loop.start(swallows)
        loop.steps(5)
        loop.end(job)
        assert job.over


@pytest.mark.parametrize(
    "real",
    [
        lambda: socket.socket(),
        lambda: subprocess.Popen([sys.executable, "-c", ""]),
        lambda: time.sleep(0),
        lambda: time.time(),
    ],
    ids=["socket", "process", "sleep", "clock"],
)
def test_real_resources_are_refused_in_the_world_and_allowed_outside(
    real: object,
) -> None:
    assert callable(real)

    async def swallows() -> None:
        try:
            real()
        except NotSimulated:
            await trio.lowlevel.checkpoint()

    with SimulatedLoop() as loop:
        time.time()
        with pytest.raises(NotSimulated, match=r"test_loop\.py:\d+ \(in "):
            loop.call(swallows)
        time.time()


async def test_the_driver_may_itself_be_in_a_run_of_trio() -> None:
    with SimulatedLoop(seed=3) as loop:
        inside = loop.call(drawn, 2)
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_task() is not None
        loop.call(trio.sleep, 10)
        await trio.lowlevel.checkpoint()
    with SimulatedLoop(seed=3) as loop:
        assert loop.call(drawn, 2) == inside


def test_there_is_one_world_at_a_time_and_a_world_ends_with_its_block() -> None:
    with SimulatedLoop() as loop:
        with pytest.raises(RuntimeError, match="one after the other"), SimulatedLoop():
            pass
        loop.start(trio.sleep_forever)
    with pytest.raises(RuntimeError, match="not open"):
        loop.start(trio.sleep_forever)
    with SimulatedLoop():
        pass


def test_real_resources_are_refused_while_the_world_ends() -> None:
    async def tidies() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with suppress(NotSimulated):
                time.sleep(1)

    def world() -> None:
        with SimulatedLoop() as loop:
            loop.start(tidies)
            loop.steps(3)

    with pytest.raises(NotSimulated, match=r"test_loop\.py:\d+ \(in tidies"):
        world()


def test_a_block_inside_of_the_world_is_one_visit() -> None:
    with SimulatedLoop(seed=3) as loop:
        state = random.getstate()
        with loop.inside():
            loop.call(trio.sleep, 1)
            inner = random.random()
            with loop.inside():
                loop.call(trio.sleep, 1)
            assert outside.wall_time() == EPOCH + 2
            with pytest.raises(NotSimulated):
                time.time()
        assert random.getstate() == state
        loop.refusal = None
    with SimulatedLoop(seed=3) as loop, loop.inside():
        loop.call(trio.sleep, 1)
        assert random.random() == inner


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is hidden from the garbage collector, as it is in the processes of the tests."""
    monkeypatch.setattr("motet.runtime.testing.loop._hidden_elsewhere", False)
    hidden = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if hidden:
        gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_what_was_there_before_a_world_is_hidden_from_the_garbage_collector() -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

    assert gc.get_freeze_count() == 0
    with SimulatedLoop() as loop:
        assert gc.get_freeze_count() > 1000

        async def leave_a_ring() -> weakref.ref[Ring]:
            return weakref.ref(Ring())

        left = loop.call(leave_a_ring)
        assert left() is not None
    assert left() is None, "the garbage of a world ends with it"
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("unfrozen")
def test_a_program_that_has_hidden_objects_itself_keeps_them_hidden() -> None:
    gc.freeze()
    hidden = gc.get_freeze_count()
    with SimulatedLoop():
        assert gc.get_freeze_count() > hidden / 2
    assert gc.get_freeze_count() > hidden / 2


def test_the_driver_is_asked_after_each_step() -> None:
    """Law: a pause after any step falls exactly there, though steps follow each other."""
    with SimulatedLoop() as loop:
        loop.start(drawn, 40)
        for count in (1, 2, 3, 5, 8, 13):
            before = loop.scheduler.steps
            loop.drive(lambda end=before + count: loop.scheduler.steps >= end)  # type: ignore[misc]
            assert loop.scheduler.steps == before + count
        struck: list[int] = []
        first = loop.scheduler.steps
        loop.at(first + 7, lambda: struck.append(loop.scheduler.steps))
        assert loop.steps(20) == 20
        assert struck == [first + 7]


def test_an_error_of_the_drivers_question_is_its_own() -> None:
    def fails() -> bool:
        if loop.scheduler.steps > 5:
            raise KeyError("mine")
        return False

    with SimulatedLoop() as loop:
        loop.start(drawn, 4)
        with pytest.raises(KeyError, match="mine"):
            loop.drive(fails)
        assert loop.call(drawn, 1)
