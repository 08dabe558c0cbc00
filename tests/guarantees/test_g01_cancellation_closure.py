"""G1: when an asker resumes, nobody works for it any more, and nobody will."""

from __future__ import annotations

import pytest
import trio

from motet.protocols.messages import Request, StreamRequest
from motet.runtime import Actor, ActorRef, AskTimeout, Replies, handles, open_system
from motet.runtime.testing.sweep import sweep
from tests.guarantees.laws import holds, is_found, mutants_of
from tests.guarantees.worlds.call_graph import call_graph


def test_an_asker_that_resumes_leaves_nobody_at_work_for_it() -> None:
    """Law: for all call graphs, schedules and cancellations, when an asker resumes, no handler
    works for it, and none begins to; nor does one begin after its asker's deadline."""
    holds("G1", schedules=120)


@pytest.mark.parametrize("seed", range(3))
def test_an_asker_is_cancelled_at_every_step(seed: int) -> None:
    """Law: the same, for every scheduler step of a call graph at which one asker is cancelled."""
    sweep(call_graph, "cancel", seeds=(seed,), targets=(f"asker {seed}",)).check()


@pytest.mark.parametrize("mutant", mutants_of("G1"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


# ---------------------------------------------------------------- told one by one


class Slow(Request[str], frozen=True, tag="g1.slow"):
    seconds: float
    clean_up: float = 0.0
    stubborn: bool = False


class Worker(Actor[Slow]):
    def __init__(self, log: list[tuple[str, float]], below: ActorRef[Slow] | None = None) -> None:
        self.log = log
        self.below = below

    @handles(Slow)
    async def slow(self, request: Slow) -> str:
        self.log.append((f"{self.name} begins", trio.current_time()))
        try:
            if request.stubborn:
                with trio.CancelScope(shield=True):
                    await trio.sleep(request.seconds)
            elif self.below is not None:
                await self.below.ask(request)
            else:
                await trio.sleep(request.seconds)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(request.clean_up)
            self.log.append((f"{self.name} ends", trio.current_time()))
        return "done"


async def test_the_asker_waits_for_the_clean_up_of_the_whole_chain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[tuple[str, float]] = []
    async with open_system() as system:
        leaf = await system.start(lambda: Worker(log), name="leaf")
        middle = await system.start(lambda: Worker(log, leaf), name="middle")
        began = trio.current_time()

        with trio.move_on_after(1) as scope:
            await middle.ask(Slow(100, clean_up=3))

        assert scope.cancelled_caught
        assert trio.current_time() - began == 1 + 3 + 3
        assert [name for name, _ in log][-2:] == ["leaf ends", "middle ends"]
        # Both actors go on: cancelling a request is no crash.
        assert await middle.ask(Slow(0)) == "done"
        assert middle.statistics().restarts == 0


async def test_a_handler_that_finishes_anyway_delivers_its_value(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_system() as system:
        worker = await system.start(lambda: Worker([]), name="worker")

        answer = ""
        with trio.move_on_after(1) as scope:
            answer = await worker.ask(Slow(5, stubborn=True))

        assert answer == "done"
        assert not scope.cancelled_caught
        assert await worker.ask(Slow(5, stubborn=True), timeout=1) == "done"


async def test_a_queued_request_is_withdrawn_and_its_handler_never_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[tuple[str, float]] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        worker = await system.start(lambda: Worker(log), name="worker")
        nursery.start_soon(worker.ask, Slow(10))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()

        with pytest.raises(AskTimeout, match=r"/system/worker did not answer Slow within 2 s"):
            await worker.ask(Slow(1), timeout=2)

        assert trio.current_time() - began == 2
        assert worker.statistics().withdrawn == 1
    assert [name for name, _ in log] == ["worker begins", "worker ends"]


async def test_a_timed_out_ask_resumes_after_the_clean_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_system() as system:
        worker = await system.start(lambda: Worker([]), name="worker")
        began = trio.current_time()

        with pytest.raises(TimeoutError):
            await worker.ask(Slow(100, clean_up=4), timeout=1)

        assert trio.current_time() - began == 5


class Burn(Request[None], frozen=True, tag="g1.burn"):
    pass


class Burner(Actor[Burn]):
    """Lets the clock run within one step, as a computation does."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self.clock = clock
        self.begun = 0

    @handles(Burn)
    async def burn(self, _: Burn) -> None:
        self.begun += 1
        self.clock.jump(10)


async def test_no_handler_begins_after_its_askers_deadline(
    mock_clock: trio.testing.MockClock,
) -> None:
    burner = Burner(mock_clock)
    outcomes: list[str] = []

    async def asker() -> None:
        try:
            await ref.ask(Burn(), timeout=5)
            outcomes.append("done")
        except AskTimeout:
            outcomes.append("too late")

    async with open_system() as system:
        ref = await system.start(lambda: burner, name="burner")
        # Given two requests in one batch, of which the first takes longer than the second has.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker)
            nursery.start_soon(asker)

    assert sorted(outcomes) == ["done", "too late"]
    assert burner.begun == 1


# ---------------------------------------------------------------- streams


class Numbers(StreamRequest[int, str], frozen=True, tag="g1.numbers"):
    count: int


class Counting(Actor[Numbers]):
    def __init__(self) -> None:
        self.ended = 0

    @handles(Numbers)
    async def numbers(self, request: Numbers, replies: Replies[int]) -> str:
        try:
            for number in range(request.count):
                await replies.send(number)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            self.ended += 1
        return "never"


async def test_leaving_a_stream_early_cancels_its_handler_and_waits_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counting()
    async with open_system() as system:
        ref = await system.start(lambda: counter, name="counter")
        began = trio.current_time()

        async with ref.stream(Numbers(100)) as items:
            async for number in items:
                if number == 3:
                    break

        assert trio.current_time() - began == 2
        assert counter.ended == 1


async def test_cancelling_the_reader_of_a_stream_waits_for_its_handler(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counting()
    async with open_system() as system:
        ref = await system.start(lambda: counter, name="counter")

        with trio.move_on_after(1) as scope:
            async with ref.stream(Numbers(1)) as items:
                async for _ in items:
                    await trio.sleep_forever()

        assert scope.cancelled_caught
        assert counter.ended == 1
