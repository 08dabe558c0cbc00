"""Defects of other libraries are absent here: one test for each observation."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.chat import Call
from motet.protocols.messages import Message, Request
from motet.protocols.tools import CallResult
from motet.runtime import (
    Actor,
    ActorDead,
    AskTimeout,
    MailboxFull,
    MailboxSpec,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation, explore
from tests.actors.tools.batches import answering, run_batch
from tests.guarantees.worlds.looking import tasks_of


class Work(Request[str], frozen=True, tag="peers.work"):
    name: str
    seconds: float = 0.0
    clean_up: float = 0.0


class Note(Message, frozen=True, tag="peers.note"):
    seconds: float


class Worker(Actor[Work | Note]):
    """Writes down when its handlers begin and end."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @handles(Work)
    async def work(self, request: Work) -> str:
        self.log.append(f"{request.name} begins")
        try:
            await trio.sleep(request.seconds)
            return request.name
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(request.clean_up)
            self.log.append(f"{request.name} ends")

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.log.append("note begins")
        await trio.sleep(message.seconds)
        self.log.append("note ends")


async def _outcome(of: Awaitable[str], into: list[str]) -> None:
    try:
        into.append(await of)
    except (ActorDead, MailboxFull, AskTimeout) as error:
        into.append(type(error).__name__)


# ---------------------------------------------------------------- cancellation


async def test_cancelling_an_ask_ends_its_handler(autojump_clock: MockClock) -> None:
    """In AutoGen the asker gets CancelledError, and the handler runs on to its end."""
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Worker(log), name="worker")

        with trio.move_on_after(1):
            await ref.ask(Work("a", seconds=100))

        assert log == ["a begins", "a ends"]
        assert trio.current_time() == 1


async def test_an_ask_out_of_time_ends_its_handler(autojump_clock: MockClock) -> None:
    """In pykka the time-out is the asker's alone, and the handler runs on."""
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Worker(log), name="worker")

        with pytest.raises(AskTimeout):
            await ref.ask(Work("a", seconds=100), timeout=1)

        assert log == ["a begins", "a ends"]
        assert ref.statistics().running == 0


async def test_an_asker_waits_for_the_whole_clean_up_of_the_handler(
    autojump_clock: MockClock,
) -> None:
    """In tractor the wait is bounded: with three seconds of clean-up it resumed 2.4 s early."""
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Worker(log), name="worker")

        with trio.move_on_after(1):
            await ref.ask(Work("a", seconds=100, clean_up=3))

        assert trio.current_time() == 1 + 3
        assert log == ["a begins", "a ends"]


async def test_a_handlers_own_time_limit_is_not_taken_for_its_askers_cancellation(
    autojump_clock: MockClock,
) -> None:
    """pydantic-ai counts cancellations against each other to tell whose each is."""

    class Hasty(Worker):
        @handles(Work)
        async def work(self, request: Work) -> str:
            with trio.move_on_after(request.seconds):
                await trio.sleep_forever()
            return "the handler's limit"

    async with open_system() as system:
        ref = await system.start(lambda: Hasty([]), name="hasty")

        answer = ""
        with trio.move_on_after(1) as both_at_once:
            answer = await ref.ask(Work("a", seconds=0.5))
        assert (answer, both_at_once.cancelled_caught) == ("the handler's limit", False)
        with trio.move_on_after(1) as mine:
            await ref.ask(Work("b", seconds=100))
            await trio.lowlevel.checkpoint()
        assert mine.cancelled_caught


# ---------------------------------------------------------------- stop


async def test_a_stop_returns_with_no_task_alive_and_no_sender_waiting(
    autojump_clock: MockClock,
) -> None:
    """In AutoGen stop() returned with two live tasks, and their senders waited for ever."""
    log: list[str] = []
    outcomes: list[str] = []
    async with trio.open_nursery() as nursery, open_system() as system:
        ref = await system.start(lambda: Worker(log), name="worker")
        for name in ("running", "queued"):
            nursery.start_soon(_outcome, ref.ask(Work(name, seconds=100)), outcomes)
            await wait_all_tasks_blocked()

        await ref.stop(grace=1)
        assert list(tasks_of(ref.path)) == []
        await wait_all_tasks_blocked()

        assert outcomes == ["ActorDead", "ActorDead"]
        assert log == ["running begins", "running ends"]


async def test_a_stop_does_not_wait_behind_the_queue(autojump_clock: MockClock) -> None:
    """In pykka it took 1.50 s behind five messages of 0.3 s each."""
    async with open_system() as system:
        ref = await system.start(lambda: Worker([]), name="worker")
        for _ in range(5):
            ref.tell_nowait(Note(0.3))
        await wait_all_tasks_blocked()

        await ref.stop()

        assert trio.current_time() == pytest.approx(0.3)
        assert system.dead_letters.count == 4


async def test_no_sender_waits_for_a_dropped_message(autojump_clock: MockClock) -> None:
    """In AutoGen a message dropped by an intervention handler stays unfinished, and waiting until
    the runtime is idle never returns."""

    class Small(Worker):
        mailbox = MailboxSpec(capacity=1, overflow="drop_oldest")

    outcomes: list[str] = []
    async with trio.open_nursery() as nursery, open_system() as system:
        ref = await system.start(lambda: Small([]), name="small")
        for name in ("running", "dropped", "queued"):
            nursery.start_soon(_outcome, ref.ask(Work(name, seconds=2)), outcomes)
            await wait_all_tasks_blocked()
        assert outcomes == ["MailboxFull"]
        await trio.sleep(5)

        report = await system.stop(grace=100)

        assert trio.current_time() == 5
        assert report.complete
        assert outcomes == ["MailboxFull", "running", "queued"]
        seen = ref.statistics()
        assert seen.accepted == seen.handled + seen.dead_lettered == 3


# ---------------------------------------------------------------- turns and replies


async def test_five_messages_to_one_actor_are_handled_one_after_the_other(
    autojump_clock: MockClock,
) -> None:
    """In AutoGen they run five handlers at once."""
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Worker(log), name="worker")
        for _ in range(5):
            await ref.tell(Note(1))
        await trio.sleep(10)

    assert log == ["note begins", "note ends"] * 5


async def test_a_waiter_that_is_cancelled_does_not_take_the_turn_with_it(
    autojump_clock: MockClock,
) -> None:
    """In AutoGen's FIFO lock a waiter cancelled in the queue gets the lock, and keeps it."""

    class Narrow(Worker):
        mailbox = MailboxSpec(capacity=1)

    log: list[str] = []
    outcomes: list[str] = []
    async with trio.open_nursery() as nursery, open_system() as system:
        ref = await system.start(lambda: Narrow(log), name="narrow")
        nursery.start_soon(_outcome, ref.ask(Work("running", seconds=5)), outcomes)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as impatient:
            for name in ("queued", "before the mailbox"):
                impatient.start_soon(_outcome, ref.ask(Work(name)), outcomes)
                await wait_all_tasks_blocked()
            nursery.start_soon(_outcome, ref.ask(Work("patient")), outcomes)
            await wait_all_tasks_blocked()
            impatient.cancel_scope.cancel()
        await trio.sleep(10)

        assert outcomes == ["running", "patient"]
        assert await ref.ask(Work("after")) == "after"


async def test_an_ask_never_gets_the_reply_to_an_earlier_one(autojump_clock: MockClock) -> None:
    """In Thespian ask 2 returned the reply to ask 1, which had timed out."""
    async with open_system() as system:
        ref = await system.start(lambda: Worker([]), name="worker")

        with pytest.raises(AskTimeout):
            await ref.ask(Work("first", seconds=2), timeout=1)

        assert await ref.ask(Work("second", seconds=2), timeout=5) == "second"


def test_an_ask_made_while_the_actor_ends_always_has_an_outcome() -> None:
    """In pykka an ask that passed the check for life, but was put after the drain, has no reply for
    ever. Law: under every schedule of an asker and a stop, the ask ends."""
    seen: set[str] = set()

    async def world(sim: Simulation) -> None:
        outcomes: list[str] = []
        async with open_system() as system:
            sim.watch(system)
            ref = await system.start(lambda: Worker([]), name="worker")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ref.stop)
                nursery.start_soon(_outcome, ref.ask(Work("a")), outcomes)
        assert len(outcomes) == 1
        seen.update(outcomes)

    for outcome in explore(world, limit=3_000):
        outcome.check()
    assert seen == {"a", "ActorDead"}


# ---------------------------------------------------------------- fan-out


async def test_results_of_parallel_calls_come_in_the_order_of_the_calls(
    autojump_clock: MockClock,
) -> None:
    """smolagents orders them by sorted ids as strings: call_10 before call_2."""
    calls = [Call(f"call_{number}", "work", "{}") for number in range(1, 13)]

    async def last_one_first(index: int, call: Call) -> CallResult:
        await trio.sleep(len(calls) - index)
        return CallResult(call.id, call.name, str(index))

    async with answering(last_one_first) as tools:
        results = await run_batch(calls, tools, limit=12)

    assert [result.call_id for result in results] == [call.id for call in calls]
    assert [result.text for result in results] == [str(index) for index in range(12)]
