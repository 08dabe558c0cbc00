"""G6: a stop never waits for queued user mail."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message
from motet.runtime import Actor, MailboxSpec, Supervision, handles, open_system
from tests.guarantees.laws import holds, is_found, mutants_of


class Step(Message, frozen=True, tag="g6.step"):
    seconds: float


class Fail(Message, frozen=True, tag="g6.fail"):
    pass


class Queueing(Actor[Step | Fail]):
    mailbox = MailboxSpec(capacity=10_000)

    def __init__(self) -> None:
        self.handled = 0

    @handles(Step)
    async def step(self, message: Step) -> None:
        await trio.sleep(message.seconds)
        self.handled += 1

    @handles(Fail)
    async def fail(self, _: Fail) -> None:
        raise RuntimeError("told to")


class Parent(Queueing):
    """Is busy itself while its child fails."""

    async def on_start(self) -> None:
        await self.start_child(Queueing, name="child")


def test_no_order_waits_for_queued_mail() -> None:
    """Law: in all schedules a stop takes as long as the running handler, a kill takes no time, no
    message is handled after either, and a failed child is restarted while its parent is busy."""
    holds("G6", schedules=120)


@pytest.mark.parametrize("mutant", mutants_of("G6"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


@pytest.mark.parametrize("queued", [0, 1, 5_000])
async def test_a_stop_takes_as_long_as_the_running_handler_whatever_is_queued(
    queued: int, autojump_clock: MockClock
) -> None:
    async with open_system() as system:
        actor = Queueing()
        ref = await system.start(lambda: actor, name="queueing")
        for _ in range(1 + queued):
            ref.tell_nowait(Step(3))
        await wait_all_tasks_blocked()

        await ref.stop(grace=100)

        assert trio.current_time() == 3
        assert actor.handled == 1
        assert ref.statistics().dead_lettered == queued


async def test_a_kill_waits_for_no_handler(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        ref = await system.start(Queueing, name="queueing")
        for _ in range(100):
            ref.tell_nowait(Step(1000))
        await wait_all_tasks_blocked()

        await ref.stop(grace=0)

        assert trio.current_time() == 0


async def test_a_handler_that_never_waits_long_is_still_stopped() -> None:
    class Endless(Actor[Step]):
        @handles(Step)
        async def step(self, message: Step) -> None:
            self.ref.tell_nowait(message)

    async with open_system() as system:
        ref = await system.start(Endless, name="endless")
        ref.tell_nowait(Step(0))
        await trio.lowlevel.checkpoint()

        report = await ref.stop()

    assert report.complete


async def test_a_childs_failure_is_handled_while_its_parent_is_busy(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system:
        parent = await system.start(Parent, name="parent")
        for _ in range(50):
            parent.tell_nowait(Step(1000))
        child = system.find("/system/parent/child")
        assert child is not None

        child.tell_nowait(Fail())
        await wait_all_tasks_blocked()

        assert child.statistics().state == "running"
        assert child.statistics().restarts == 1
        await system.stop(0)


async def test_an_actor_may_end_itself_after_its_turn() -> None:
    class Once(Queueing):
        @handles(Step)
        async def step(self, message: Step) -> None:
            self.stop_soon()

    async with open_system(supervision=Supervision(intensity=0)) as system:
        ref = await system.start(Once, name="once", restart="transient")
        ref.tell_nowait(Step(0))
        ref.tell_nowait(Step(0))
        await wait_all_tasks_blocked()

        assert not ref.is_alive
        assert system.find("/system/once") is None
        assert ref.statistics().handled == 1
        assert ref.statistics().dead_lettered == 1
