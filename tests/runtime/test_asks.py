"""Many asks of one task: ordered, isolated, each as good as an ask of its own (G1, G3, G8, G11)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    AskCycle,
    Asks,
    Cut,
    Done,
    Failed,
    MailboxSpec,
    MotetRuntimeError,
    Settled,
    StartFailed,
    Supervision,
    ask_each,
    current_deadline,
    handles,
    open_system,
)
from motet.runtime.testing import FaultKind, Simulation
from motet.runtime.testing.sweep import sweep


class Square(Request[int], frozen=True, tag="asks.square"):
    number: int
    seconds: float = 0.0
    fails: bool = False
    stubborn: bool = False


class Slowly(Square, frozen=True, tag="asks.slowly"):
    """The same, one at a time."""


class Each(Request[list[str]], frozen=True, tag="asks.each"):
    """Asks the actor below for squares."""

    numbers: int
    seconds: float = 0.0


@attrs.define
class Log:
    running: int = 0
    most: int = 0
    started: list[int] = attrs.field(factory=list[int])
    ended: list[int] = attrs.field(factory=list[int])


class Squarer(Actor[Square | Slowly | Each]):
    mailbox = MailboxSpec(capacity=20)

    def __init__(self, log: Log, below: list[ActorRef[Square | Slowly | Each]]) -> None:
        self.log = log
        self.below = below

    @handles(Square, concurrent=20)
    async def square(self, request: Square) -> int:
        return await self._square(request)

    @handles(Slowly)
    async def slowly(self, request: Slowly) -> int:
        return await self._square(request)

    async def _square(self, request: Square) -> int:
        log = self.log
        log.started.append(request.number)
        log.running += 1
        log.most = max(log.most, log.running)
        try:
            with trio.CancelScope(shield=request.stubborn):
                await trio.sleep(request.seconds)
            if request.fails:
                raise ValueError(request.number)
            return request.number**2
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0)
            log.running -= 1
            log.ended.append(request.number)

    @handles(Each)
    async def each(self, request: Each) -> list[str]:
        requests = [Slowly(number, request.seconds) for number in range(request.numbers)]
        return _shown(await ask_each(self.below[0], requests, limit=2))


Ref = ActorRef[Square | Slowly | Each]


def _shown(results: Sequence[Settled[int]]) -> list[str]:
    return [repr(r.error) if isinstance(r, Failed) else repr(r) for r in results]


_CALLS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12)


@given(calls=_CALLS, limit=st.integers(1, 6), in_turn=st.booleans())
def test_results_are_those_of_sequential_asks(
    calls: list[tuple[int, bool]], limit: int, in_turn: bool
) -> None:
    """Law: entry i is the outcome of request i in any order of ends, and at most k run."""
    kind = Slowly if in_turn else Square
    requests = [kind(index, seconds, fails) for index, (seconds, fails) in enumerate(calls)]

    async def alone(ref: Ref, request: Square) -> Settled[int]:
        try:
            return Done(await ref.ask(request))
        except ValueError as error:
            return Failed(error)

    async def main() -> tuple[list[str], list[str], Log]:
        log = Log()
        async with open_system() as system:
            ref = await system.start(lambda: Squarer(log, []), name="squarer")
            together = await ask_each(ref, requests, limit=limit)
            seen = Log(0, log.most, log.started.copy(), log.ended.copy())
            return [*_shown([await alone(ref, r) for r in requests])], _shown(together), seen

    sequential, together, log = trio.run(main, clock=MockClock(autojump_threshold=0))

    assert together == sequential
    assert log.most <= limit
    assert log.started == list(range(len(calls)))


async def test_outcomes_come_in_the_order_of_their_ends_and_more_asks_may_begin_meanwhile(
    autojump_clock: MockClock,
) -> None:
    log, given_first = Log(), list[tuple[int, Settled[int]]]()
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(log, []), name="squarer")

        async with Asks[int]() as asks:
            assert [asks.begin(ref, Square(n, 5 - n)) for n in range(3)] == [0, 1, 2]
            assert (len(asks), asks.results) == (3, [Cut(started=False)] * 3)
            async for index, became in asks:
                given_first.append((index, became))
                if len(given_first) == 1:
                    assert asks.begin(ref, Square(9, 0.5)) == 3

    assert given_first == [(2, Done(4)), (3, Done(81)), (1, Done(1)), (0, Done(0))]
    assert asks.results == [Done(0), Done(1), Done(4), Done(81)]


async def test_the_asker_is_resumed_once_for_outcomes_of_the_same_step() -> None:
    class Steps(trio.abc.Instrument):
        count = tasks = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += task is asker

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.tasks += "ask_each" in task.name

    asker, steps = trio.lowlevel.current_task(), Steps()
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")
        await ask_each(ref, [Square(n) for n in range(4)], limit=4)
        trio.lowlevel.add_instrument(steps)
        await ask_each(ref, [Square(n) for n in range(4)], limit=4)
        trio.lowlevel.remove_instrument(steps)

    assert steps.count == 1
    assert steps.tasks == 0


async def test_leaving_the_block_early_cuts_the_asks_under_way(autojump_clock: MockClock) -> None:
    log = Log()
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(log, []), name="squarer")

        asks = Asks[int]()
        with pytest.raises(KeyError, match="mine"):  # noqa: PT012
            async with asks:
                for request in (Square(0), Square(1, 9), Square(2, 2, stubborn=True), Slowly(3, 9)):
                    asks.begin(ref, request)
                asks.begin(ref, Slowly(4))
                async for _ in asks:
                    raise KeyError("mine")

        assert trio.current_time() == 2
        assert log.running == 0
        assert 4 not in log.started
        assert asks.results == [Done(0), Cut(True), Done(4), Cut(True), Cut(False)]


async def test_unseen_outcomes_can_be_read_after_the_block(autojump_clock: MockClock) -> None:
    log = Log()
    seen: list[tuple[int, Settled[int]]] = []
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(log, []), name="squarer")
        asks = Asks[int]()
        with trio.move_on_after(1):
            async with asks:
                for request in (Slowly(0, 2, stubborn=True), Slowly(1), Square(2, 9)):
                    asks.begin(ref, request)
                async for _ in asks:
                    pytest.fail("none has ended")

        seen = [pair async for pair in asks]
        with pytest.raises(MotetRuntimeError, match="in the block"):
            asks.begin(ref, Slowly(3))

    assert seen == [(1, Cut(False)), (2, Cut(True)), (0, Done(0))]
    assert len(asks) == 0


async def test_another_task_can_pause_the_iteration(autojump_clock: MockClock) -> None:
    rounds: list[list[int]] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")

        async def pause(asks: Asks[int], seconds: float) -> None:
            await trio.sleep(seconds)
            asks.pause()

        async with Asks[int]() as asks:
            for seconds in (2, 4):
                asks.begin(ref, Square(0, seconds))
            for seconds in (1, 3):
                nursery.start_soon(pause, asks, seconds)
            while len(asks):
                rounds.append([index async for index, _ in asks])

    assert rounds == [[], [0], [1]]


async def test_a_deadline_cuts_running_and_waiting_asks(autojump_clock: MockClock) -> None:
    log = Log()
    requests = [Slowly(0, 1), Slowly(1, 2, stubborn=True), Slowly(2, 1), Slowly(3, 1)]
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(log, []), name="squarer")

        results = await ask_each(ref, requests, limit=3, deadline=2)

        assert results == [Done(0), Done(1), Cut(False), Cut(False)]
        assert log.started == [0, 1]
        assert trio.current_time() == 3
        assert await ask_each(ref, requests, limit=3, deadline=3) == [Cut(False)] * 4
        running = await ask_each(ref, [Square(0, 9), Square(1)], limit=2, deadline=4)
        assert running == [Cut(True), Done(1)]
        assert ref.statistics().queued == 0


async def test_a_cancelled_asker_leaves_nothing_under_way(autojump_clock: MockClock) -> None:
    log = Log()
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(log, []), name="squarer")

        with trio.move_on_after(2) as scope:
            await ask_each(ref, [Slowly(n, 1.5) for n in range(4)], limit=3)

        assert scope.cancelled_caught
        assert (log.started, log.running) == ([0, 1], 0)
        counted = ref.statistics()
        assert (counted.queued, counted.withdrawn, counted.handled) == (0, 2, 2)


async def test_each_kind_of_refusal_is_an_outcome() -> None:
    async with open_system() as system:
        gone = await system.start(lambda: Squarer(Log(), []), name="gone")
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")
        await gone.stop()

        async with Asks[int]() as asks:
            asks.begin(gone, Square(1))
            asks.begin(ref, "two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            asks.begin(ref, Square(3))
            indexes = {index async for index, _ in asks}

        assert indexes == {0, 1, 2}
        assert "does not accept str" in repr(asks.results[1])
        assert [type(result) for result in asks.results] == [Failed, Failed, Done]
        assert isinstance(asks.results[0], Failed)
        assert isinstance(asks.results[0].error, ActorDead)


async def test_the_end_of_an_actor_settles_every_ask_with_an_error(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")
        nursery.start_soon(lambda: ref.stop(grace=0))

        results = await ask_each(ref, [Slowly(n, 9) for n in range(3)], limit=2)

    assert [type(result) for result in results] == [Failed] * 3


async def test_a_cycle_is_refused() -> None:
    below: list[Ref] = []
    async with open_system() as system:
        below.append(await system.start(lambda: Squarer(Log(), below), name="squarer"))

        assert [AskCycle.__name__ in text for text in await below[0].ask(Each(2))] == [True] * 2


async def test_asks_of_a_handler_inherit_its_deadline(autojump_clock: MockClock) -> None:
    """Given two asks, one of which waits in the mailbox when the asker's deadline passes."""
    log, below = Log(), list[Ref]()
    async with open_system() as system:
        below.append(await system.start(lambda: Squarer(log, []), name="below"))
        ref = await system.start(lambda: Squarer(log, below), name="ref")

        with pytest.raises(TimeoutError):
            await ref.ask(Each(2, seconds=3), timeout=2)

        assert trio.current_time() == 2
        assert (log.started, log.running) == ([0], 0)


async def test_a_deadline_that_was_moved_in_time_has_not_passed(mock_clock: MockClock) -> None:
    """Given a handler that lets the clock pass it, and an asker whose deadline is moved then."""

    class Clock(Actor[Slowly]):
        @handles(Slowly)
        async def slowly(self, request: Slowly) -> int:
            if request.number == 0:
                mock_clock.jump(10)
                scope.deadline = math.inf
            return int(current_deadline() == math.inf)

    async with open_system() as system:
        ref = await system.start(Clock, name="clock")
        results: list[Settled[int]] = []
        with trio.CancelScope(deadline=5) as scope:
            results = await ask_each(ref, [Slowly(n) for n in range(3)], limit=3)

    assert results[1:] == [Done(1), Done(1)]


async def test_a_snapshot_shows_the_asks_under_way(autojump_clock: MockClock) -> None:
    below: list[Ref] = []
    async with open_system("s") as system, trio.open_nursery() as nursery:
        below.append(await system.start(lambda: Squarer(Log(), []), name="below"))
        ref = await system.start(lambda: Squarer(Log(), below), name="ref")
        nursery.start_soon(ref.ask, Each(2, 5))
        await wait_all_tasks_blocked()

        waits = {info.path: info.waiting_on for info in system.snapshot()}

        assert waits["/s/ref"] == "answer of /s/below; answer of /s/below"
        nursery.cancel_scope.cancel()


async def test_a_trace_has_each_ask_with_its_outcome(autojump_clock: MockClock) -> None:
    below: list[Ref] = []
    async with open_system() as system:
        below.append(await system.start(lambda: Squarer(Log(), []), name="below"))
        ref = await system.start(lambda: Squarer(Log(), below), name="ref")
        with system.trace("/system/ref") as events:
            with trio.move_on_after(4):
                await ref.ask(Each(3, 3))
        seen = [(event.kind, event.detail) async for event in events]

    asked = [line for line in seen if line[0] in ("asked", "settled")]
    assert asked == [
        ("asked", ""),
        ("asked", ""),
        ("settled", ""),
        ("asked", ""),
        ("settled", "cancelled"),
        ("settled", "cancelled"),
    ]


async def test_a_limit_below_one_is_refused() -> None:
    async with open_system() as system:
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")
        with pytest.raises(ValueError, match=">= 1, not 0"):
            await ask_each(ref, [], limit=0)
        assert await ask_each(ref, [], limit=1) == []


async def test_a_paused_iteration_ends_and_another_goes_on(autojump_clock: MockClock) -> None:
    """Another task has more to begin while this one iterates."""
    del autojump_clock
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Squarer(Log(), []), name="squarer")
        seen: list[int] = []
        async with Asks[int]() as asks:
            asks.begin(ref, Square(2, 5.0))

            async def pause() -> None:
                await trio.sleep(1)
                asks.pause()

            nursery.start_soon(pause)
            async for index, _ in asks:
                seen.append(index)
            assert (seen, len(asks)) == ([], 1)
            asks.begin(ref, Square(3, 1.0))
            async for index, _ in asks:
                seen.append(index)
        assert seen == [1, 0]
        assert asks.results == [Done(4), Done(9)]


class Work(Request[None], frozen=True, tag="asks.work"):
    seconds: int


class Aside(Work, frozen=True, tag="asks.aside"):
    """The same, two at once."""


class Worker(Actor[Work | Aside]):
    mailbox = MailboxSpec(capacity=2)

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    @handles(Work)
    async def work(self, request: Work) -> None:
        with self.sim.asks.working("asker"):
            try:
                await trio.sleep(request.seconds)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> None:
        await self.work(request)


async def fan(sim: Simulation) -> None:
    """Eight asks: some wait before the mailbox, some in it, and some run."""
    requests = [(Work, Aside)[number % 2](number % 3) for number in range(8)]
    async with open_system() as system:
        sim.watch(system)
        ref = await system.start(lambda: Worker(sim), name="worker")
        with sim.may_cancel("asker"), sim.asks.asking("asker"):
            assert await ask_each(ref, requests, limit=6) == [Done(None)] * 8


def test_cancelling_the_asker_of_many_at_every_step() -> None:
    """Law: at whatever step it is cancelled, no handler works for it after it has resumed (G1)."""
    report = sweep(fan, "cancel", seeds=range(2))

    report.check()
    assert report.struck > 50


@pytest.mark.parametrize("fault", ["crash", "kill", "stop"])
def test_a_fault_of_the_asked_actor_at_every_step(fault: FaultKind) -> None:
    """Law: every ask still has its outcome, and the asker continues (G3)."""

    async def world(sim: Simulation) -> None:
        async with open_system(supervision=Supervision(intensity=1000)) as system:
            sim.watch(system)
            sim.may_hit("/system/worker")
            try:
                ref = await system.start(lambda: Worker(sim), name="worker")
            except StartFailed:
                return  # the fault was early
            with sim.asks.asking("asker"):
                results = await ask_each(ref, [Work(1), Aside(2), Work(0), Aside(1)], limit=3)
            assert len(results) == 4
            assert all(isinstance(result, Done | Failed) for result in results)

    sweep(world, fault, seeds=range(2)).check()
