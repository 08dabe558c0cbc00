"""G2: a stop ends everything below within its grace, and names what it could not end."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Request
from motet.runtime import Actor, StopReport, Supervision, handles, open_system
from tests.guarantees.laws import holds, is_found, mutants_of


class Run(Request[None], frozen=True, tag="g2.run"):
    seconds: float
    shielded: bool = False


class Unit(Actor[Run]):
    """Works for as long as it is told, then cleans up for as long as it was made to."""

    cleanup_budget = 4.0

    def __init__(self, log: list[str], clean_up: float = 0.0, children: int = 0) -> None:
        self.log = log
        self.clean_up = clean_up
        self.planned = children

    async def on_start(self) -> None:
        for number in range(self.planned):
            await self.start_child(lambda: Unit(self.log, self.clean_up), name=str(number))

    async def on_stop(self) -> None:
        await trio.sleep(self.clean_up)
        self.log.append(self.path)

    @handles(Run)
    async def run(self, request: Run) -> None:
        with trio.CancelScope(shield=request.shielded):
            await trio.sleep(request.seconds)
        self.log.append(f"{self.path} ran")


async def _ignore_death(ask: object) -> None:
    try:
        await ask  # type: ignore[misc]
    except Exception:
        return


async def test_children_stop_before_their_parent_in_reverse_start_order(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system("s") as system:
        await system.start(lambda: Unit(log, children=2), name="a")
        await system.start(lambda: Unit(log, children=1), name="b")

        report = await system.stop()

    order = ["/s/b/0", "/s/b", "/s/a/1", "/s/a/0", "/s/a"]
    assert log == order
    assert report == StopReport(ended=tuple(order))
    assert report.complete


async def test_the_running_handler_may_finish_within_the_grace(autojump_clock: MockClock) -> None:
    log: list[str] = []
    async with open_system("s") as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Unit(log, clean_up=1), name="a")
        nursery.start_soon(ref.ask, Run(3))
        await wait_all_tasks_blocked()

        await ref.stop(grace=8)

        assert trio.current_time() == 3 + 1
        assert log == ["/s/a ran", "/s/a"]


async def test_a_handler_is_cancelled_early_enough_for_the_declared_clean_up(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system("s") as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Unit(log, clean_up=3), name="a")
        nursery.start_soon(_ignore_death, ref.ask(Run(1000)))
        await wait_all_tasks_blocked()

        report = await ref.stop(grace=10)

        # Four of the ten seconds are declared for the clean-up, which needs three of them.
        assert trio.current_time() == 10 - 4 + 3
        assert log == ["/s/a"]
        assert report.complete


async def test_a_clean_up_over_its_budget_is_cut_and_named(autojump_clock: MockClock) -> None:
    async with open_system("s") as system:
        ref = await system.start(lambda: Unit([], clean_up=1000), name="a")

        report = await ref.stop(grace=30)

        assert trio.current_time() == 4
        assert [left.path for left in report.abandoned] == ["/s/a"]
        assert "clean-up cut after 4 s" in report.abandoned[0].what


async def test_the_clean_up_of_an_actor_that_waits_for_its_restart_has_its_time_too(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []

    class Flaky(Unit):
        async def run(self, request: Run) -> None:
            self.start_soon(self._crash)

        async def _crash(self) -> None:
            raise OSError("gone for a while")

    class Busy(Actor[Run]):
        @handles(Run)
        async def run(self, request: Run) -> None:
            await trio.sleep(request.seconds)

    class Parent(Busy):
        supervision = Supervision(backoff=1, jitter=0)

        async def on_start(self) -> None:
            await self.start_child(lambda: Flaky(log, clean_up=3), name="flaky")

    async with open_system("s") as system, trio.open_nursery() as nursery:
        await system.start(Parent, name="parent")
        busy = await system.start(Busy, name="busy")
        nursery.start_soon(_ignore_death, busy.ask(Run(1000)))
        flaky = system.find("/s/parent/flaky")
        assert flaky is not None
        await flaky.ask(Run(0))
        await trio.sleep(3.5)
        assert flaky.statistics().state == "suspended"

        # It is restarted while the busy one, which is stopped first, still uses its grace.
        report = await system.stop(grace=10)

        assert flaky.statistics().restarts == 1
        assert trio.current_time() == 3.5 + 10 - 4 + 3
        assert report == StopReport(ended=("/s/busy", "/s/parent/flaky", "/s/parent"))


async def test_a_stop_of_an_actor_whose_children_are_ending_bounds_its_own_clean_up(
    autojump_clock: MockClock,
) -> None:
    class Crashing(Unit):
        async def run(self, request: Run) -> None:
            self.start_soon(self._crash)

        async def _crash(self) -> None:
            raise OSError("gone")

    async with open_system("s") as system:
        ref = await system.start(lambda: Crashing([], clean_up=3, children=1), name="a")
        await ref.ask(Run(0))
        await wait_all_tasks_blocked()

        # Given its end began by itself, and its child's clean-up is under way.
        report = await ref.stop(grace=1)

        assert trio.current_time() == 1
        assert [left.path for left in report.abandoned] == ["/s/a/0", "/s/a"]


async def test_a_failing_clean_up_is_named_and_the_stop_goes_on() -> None:
    class Clumsy(Unit):
        async def on_stop(self) -> None:
            raise OSError("disk on fire")

    async with open_system("s") as system:
        await system.start(lambda: Unit([]), name="a")
        await system.start(lambda: Clumsy([]), name="b")

        report = await system.stop()

    assert report.ended == ("/s/b", "/s/a")
    assert "disk on fire" in report.abandoned[0].what


async def test_what_ignores_cancellation_is_left_and_named_with_its_stack(
    autojump_clock: MockClock,
) -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Unit([]), name="a")
        nursery.start_soon(_ignore_death, ref.ask(Run(1000, shielded=True)))
        await wait_all_tasks_blocked()

        report = await system.stop(grace=5)

        assert trio.current_time() == 5
        assert [left.path for left in report.still_running] == ["/s/a"]
        assert "trio.sleep(request.seconds)" in report.still_running[0].stack
    # Only the block itself waits without limit: nothing may outlive it.
    assert trio.current_time() == 1000


async def test_a_thread_that_cannot_be_cancelled_is_named() -> None:
    release = threading.Event()

    class Threaded(Actor[Run]):
        @handles(Run)
        async def run(self, request: Run) -> None:
            await trio.to_thread.run_sync(release.wait)

    async with open_system("s") as system, trio.open_nursery() as nursery:
        ref = await system.start(Threaded, name="a")
        nursery.start_soon(_ignore_death, ref.ask(Run(0)))
        await wait_all_tasks_blocked()

        report = await ref.stop(grace=0)
        release.set()

    assert "to_thread" in report.still_running[0].stack


async def test_background_tasks_end_with_their_actor_before_its_clean_up() -> None:
    log: list[str] = []

    class Busy(Unit):
        async def on_start(self) -> None:
            self.start_soon(self.tick)

        async def tick(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                log.append("tick ended")

    async with open_system("s") as system:
        await system.start(lambda: Busy(log), name="a")

    assert log == ["tick ended", "/s/a"]


async def test_cancelling_the_block_runs_every_clean_up_in_order_within_its_budget(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    with trio.move_on_after(1):
        async with open_system("s") as system:
            await system.start(lambda: Unit(log, clean_up=2, children=1), name="a")
            await system.start(lambda: Unit(log, clean_up=1000), name="b")
            await trio.sleep_forever()

    assert log == ["/s/a/0", "/s/a"]
    assert trio.current_time() == 1 + 4 + 2 + 2


async def test_an_error_in_the_block_comes_out_as_it_is_after_the_clean_ups() -> None:
    log: list[str] = []

    with pytest.raises(ValueError, match="mine"):  # noqa: PT012 (the block is what is tested)
        async with open_system("s") as system:
            await system.start(lambda: Unit(log), name="a")
            raise ValueError("mine")

    assert log == ["/s/a"]


async def test_a_stop_whose_caller_is_cancelled_goes_on(autojump_clock: MockClock) -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Unit([], clean_up=2), name="a")
        nursery.start_soon(_ignore_death, ref.ask(Run(1000)))
        await wait_all_tasks_blocked()

        with trio.move_on_after(1):
            await ref.stop(grace=10)
        await trio.sleep(9)

        assert system.find("/s/a") is None


def test_a_stop_returns_in_time_and_leaves_no_task() -> None:
    """Law: for all trees, loads, graces, crashes and schedules, ``stop`` returns within its grace;
    whoever may still take a step then has ended; what remains is named; and with twice the time
    that the clean-ups declare, each has all of its own."""
    holds("G2", schedules=120)


@pytest.mark.parametrize("mutant", mutants_of("G2"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
