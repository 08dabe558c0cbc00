"""Tasks beside the turn and spawned children, with a fault at every step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, NameTaken, Supervision, handles, open_system
from motet.runtime.testing import FaultKind, Simulation
from motet.runtime.testing.scheduler import Patch, patched
from motet.runtime.testing.sweep import sweep
from motet.runtime.workers import Workers
from tests.guarantees.worlds.looking import tasks_of


class Begin(Message, frozen=True, tag="beside.begin"):
    pass


class Turn(Request[int], frozen=True, tag="beside.turn"):
    asker: int


class Aside(Request[int], frozen=True, tag="beside.aside"):
    asker: int


Ref = ActorRef[Begin | Turn | Aside]


class Busy(Actor[Begin | Turn | Aside]):
    """Has tasks of all kinds; each takes some time for its clean-up, and starts another there."""

    supervision = Supervision(intensity=1000)

    def __init__(self, sim: Simulation, there: list[str], all_of_it: list[Busy]) -> None:
        self.sim = sim
        self.there = there
        all_of_it.append(self)

    async def on_start(self) -> None:
        self._nobody("a new life begins")
        await trio.sleep(self.sim.random.choice((0, 1)))
        self.start_soon(self._live, "from the start", 50)

    async def on_stop(self) -> None:
        self._nobody("the clean-up begins")

    @handles(Begin)
    async def begin(self, _: Begin) -> None:
        self.start_soon(self._live, "background", self.sim.random.choice((0, 1, 50)))

    @handles(Turn)
    async def turn(self, request: Turn) -> int:
        with self.sim.asks.working(request.asker):
            await self._live("turn", self.sim.random.choice((0, 1)))
        return request.asker

    @handles(Aside, concurrent=3)
    async def aside(self, request: Aside) -> int:
        with self.sim.asks.working(request.asker):
            await self._live("aside", self.sim.random.choice((0, 1)))
        return request.asker

    async def _live(self, name: str, seconds: float) -> None:
        self.there.append(name)
        try:
            await trio.sleep(seconds)
        finally:
            if name == "background":
                self.start_soon(self._live, "late", 50)
            with trio.CancelScope(shield=True):
                await trio.sleep(self.sim.random.choice((0, 0, 1)))
            self.there.remove(name)

    def _nobody(self, when: str) -> None:
        if self.there:
            self.sim.violated("G2", self.path, f"{when} while {self.there} are there")


async def beside(sim: Simulation) -> None:
    """Two tasks send an actor all kinds of messages; a third has it spawn children."""
    there: list[str] = []
    parents: list[Busy] = []
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        ref = await system.start(lambda: Busy(sim, there, parents), name="busy")
        sim.watch(system, ref.path)
        async with trio.open_nursery() as nursery:
            for asker in (1, 2):
                nursery.start_soon(_send, sim, ref, asker)
            nursery.start_soon(_spawn, sim, parents)
        await trio.sleep(1)
        report = await ref.stop(grace=20)
        if not report.complete or there or list(tasks_of(ref.path)):
            sim.violated("G2", ref.path, f"{report}, but {there}, {list(tasks_of(ref.path))}")


async def _send(sim: Simulation, ref: Ref, asker: int) -> None:
    with suppress(ActorDead):
        await ref.tell(Begin())
    for kind, number in ((Aside, asker), (Turn, asker + 10), (Aside, asker + 20)):
        with sim.may_cancel(f"ask {number}"), sim.asks.asking(number), suppress(ActorDead):
            sim.asks.answered(number, await ref.ask(kind(number)))


async def _spawn(sim: Simulation, parents: list[Busy]) -> None:
    for number in range(3):
        there: list[str] = []
        try:
            # Of whichever life is the last one now; it may be over, too.
            ref = parents[-1].spawn_child(
                lambda there=there: Busy(sim, there, []),  # type: ignore[misc]
                name=str(number % 2),
                restart="temporary",
            )
        except (ActorDead, NameTaken):
            await trio.sleep(sim.random.choice((0, 1)))
            continue
        with suppress(ActorDead), sim.asks.asking(100 + number):
            sim.asks.answered(100 + number, await ref.ask(Aside(100 + number)))
        if sim.random.random() < 0.5:
            await ref.stop(grace=20)
            if there:
                sim.violated("G2", ref.path, f"it was stopped, but {there} are there")


@pytest.mark.parametrize("fault", ["cancel", "crash", "kill", "stop", "delay"])
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.sweep)])
def test_no_task_outlives_its_incarnation_and_every_ask_is_settled(
    fault: FaultKind, every: int
) -> None:
    # Whom a cancellation may hit are many more.
    sweep(beside, fault, seeds=(1,), every=5 * every if fault == "cancel" else every).check()


def _end_without_waiting() -> Patch:
    async def end(workers: Workers) -> None:
        workers.cancel_at(float("-inf"))

    return (Workers, "end", end)


def _forget_the_time_of_the_end() -> Patch:
    cancel_at = Workers.cancel_at

    def forget(workers: Workers, when: float) -> None:
        cancel_at(workers, when)
        workers._until = float("inf")  # pyright: ignore[reportPrivateUsage]  # a defect

    return (Workers, "cancel_at", forget)


@pytest.mark.parametrize("defect", [_end_without_waiting, _forget_the_time_of_the_end])
def test_a_planted_defect_is_found(defect: Callable[[], Patch]) -> None:
    with patched([defect()]):
        assert sweep(beside, "crash", seeds=range(20)).findings
