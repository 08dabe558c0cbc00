"""G3: every ask has exactly one outcome, its own, and none is missing."""

from __future__ import annotations

import signal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    Replies,
    handles,
    open_system,
)
from motet.runtime.testing import FaultKind
from motet.runtime.testing.sweep import sweep
from tests.guarantees.laws import holds, is_found, mutants_of
from tests.guarantees.worlds.call_graph import call_graph


def test_every_ask_has_exactly_one_outcome_and_its_own() -> None:
    """Law: whatever is stopped, killed, crashed or cancelled at whatever step, every ask ends once,
    with its own answer, its own handler's error, a time-out, a cancellation, or a dead actor."""
    holds("G3", schedules=120)


@pytest.mark.parametrize("kind", ["stop", "kill", "crash"])
def test_an_actor_is_hit_at_every_step(kind: FaultKind) -> None:
    """Law: the same, for every scheduler step of a call graph at which one of its actors is hit."""
    sweep(call_graph, kind, seeds=(1,), targets=("/system/node1",)).check()


@pytest.mark.parametrize("mutant", mutants_of("G3"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


# ---------------------------------------------------------------- told one by one


class Divide(Request[float], frozen=True, tag="g3.divide"):
    by: float


class Hang(Request[None], frozen=True, tag="g3.hang"):
    pass


class Boom(Message, frozen=True, tag="g3.boom"):
    pass


class Many(StreamRequest[int, None], frozen=True, tag="g3.many"):
    pass


class Calculator(Actor[Divide | Hang | Boom | Many]):
    mailbox = MailboxSpec(capacity=1, overflow="fail")

    @handles(Divide)
    async def divide(self, request: Divide) -> float:
        return 1 / request.by

    @handles(Hang)
    async def hang(self, _: Hang) -> None:
        await trio.sleep_forever()

    @handles(Boom)
    async def boom(self, _: Boom) -> None:
        raise RuntimeError("boom")

    @handles(Many)
    async def many(self, _: Many, replies: Replies[int]) -> None:
        await replies.send(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail)


async def _fail() -> None:
    await trio.lowlevel.checkpoint()
    raise KeyError("from a nursery")


async def test_a_handlers_error_is_raised_at_the_asker_and_the_actor_goes_on() -> None:
    async with open_system() as system:
        ref = await system.start(Calculator, name="calculator")

        with pytest.raises(ZeroDivisionError):
            await ref.ask(Divide(0))

        assert await ref.ask(Divide(2)) == 0.5
        assert ref.statistics().restarts == 0


async def test_the_single_error_of_a_handlers_nursery_arrives_unwrapped_with_its_group() -> None:
    async with open_system() as system:
        ref = await system.start(Calculator, name="calculator")
        seen: list[int] = []

        with pytest.raises(KeyError) as caught:
            async with ref.stream(Many()) as items:
                seen += [item async for item in items]

        assert isinstance(caught.value.__cause__, ExceptionGroup)
        assert await ref.ask(Divide(4)) == 0.25


async def test_asking_a_stopped_actor_raises_at_once() -> None:
    async with open_system() as system:
        ref = await system.start(Calculator, name="calculator")
        await ref.stop()

        with pytest.raises(ActorDead, match="/system/calculator"):
            await ref.ask(Divide(1))
        with pytest.raises(ActorDead):
            await ref.tell(Boom())
        with pytest.raises(ActorDead):
            ref.tell_nowait(Boom())
        with pytest.raises(ActorDead):
            async with ref.stream(Many()):
                pass


async def _outcome(ref: ActorRef[Hang], into: list[str]) -> None:
    try:
        await ref.ask(Hang())
        into.append("value")
    except Exception as error:
        into.append(type(error).__name__)


async def test_running_and_queued_asks_learn_that_the_actor_died(
    autojump_clock: MockClock,
) -> None:
    outcomes: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(Calculator, name="calculator")
        for _ in range(2):
            nursery.start_soon(_outcome, ref, outcomes)
            await wait_all_tasks_blocked()

        with pytest.raises(MailboxFull, match=r"full \(1 messages\)"):
            await ref.ask(Hang())
        await ref.stop(grace=1)

    assert outcomes == ["ActorDead", "ActorDead"]


async def test_ctrl_c_in_a_handler_ends_the_system_and_settles_the_ask() -> None:
    outcomes: list[str] = []

    class Interrupted(Actor[Hang]):
        @handles(Hang)
        async def hang(self, _: Hang) -> None:
            signal.raise_signal(signal.SIGINT)

    async def asker(ref: ActorRef[Hang]) -> None:
        try:
            await ref.ask(Hang())
        except ActorDead:
            outcomes.append("dead")

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (the block is what is tested)
        async with open_system() as system, trio.open_nursery() as nursery:
            ref = await system.start(Interrupted, name="interrupted")
            nursery.start_soon(asker, ref)

    assert outcomes == ["dead"]
