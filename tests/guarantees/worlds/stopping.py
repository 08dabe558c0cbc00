"""A world of random trees under load, one part of which is stopped with a random grace (G2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from motet.protocols.messages import Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    StartFailed,
    StopReport,
    Supervision,
    System,
    handles,
    open_system,
)
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, Search
from tests.guarantees.worlds.looking import tasks_of

BUDGET = 2.0
STEPS = 60  # within which something crashes


class Job(Request[None], frozen=True, tag="stopping.job"):
    seconds: float


class Unit(Actor[Job]):
    """Has children, a background task, and a clean-up that may take longer than it declares."""

    cleanup_budget = BUDGET
    supervision = Supervision(intensity=1000)

    def __init__(self, sim: Simulation, children: int) -> None:
        self.sim = sim
        self.planned = children

    async def on_start(self) -> None:
        if self.sim.random.random() < 0.5:
            self.start_soon(self._beat)
        for number in range(self.planned):
            await self.start_child(partial(Unit, self.sim, 0), name=str(number))

    async def on_stop(self) -> None:
        await trio.sleep(self.sim.random.choice((0, 0, 1, 100)))

    @handles(Job)
    async def job(self, request: Job) -> None:
        await trio.sleep(request.seconds)

    async def _beat(self) -> None:
        try:
            while True:
                await trio.sleep(1)
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()


async def _load(ref: ActorRef[Job], seconds: float) -> None:
    with suppress(ActorDead):
        await ref.ask(Job(seconds))


async def _stopped(sim: Simulation, system: System, ref: ActorRef[Job] | None) -> None:
    """Stop ``ref``, or the whole system, and judge what is left."""
    grace = sim.random.choice((0.0, 1.0, 3.0, 30.0))
    path = "/system" if ref is None else ref.path
    need = BUDGET * sum(f"{info.path}/".startswith(f"{path}/") for info in system.snapshot())
    began = trio.current_time()
    report = await (system.stop(grace) if ref is None else ref.stop(grace=grace))
    took = trio.current_time() - began

    def found(detail: str) -> None:
        sim.violated("G2", path, detail)

    if took > grace:
        found(f"the stop took {took} s, its grace was {grace} s")
    actors = [name for name in tasks_of(path) if not name.endswith(" (supervisor)")]
    if actors and not report.still_running:
        found("the stop leaves tasks, and does not say so")
    # Whose turn it is next is not the kernel's affair: everyone who can take a step takes it.
    await trio.testing.wait_all_tasks_blocked()
    left = list(tasks_of(path))
    if left and trio.current_time() <= began + grace:
        found(f"the stop has returned, and these tasks remain: {left}")
    # For an actor between two incarnations no time can be reserved: it has no clean-up yet.
    if grace >= 2 * need and not sim.struck:
        _judge_cuts(report, found)


def _judge_cuts(report: StopReport, found: Callable[[str], None]) -> None:
    """With so much time every clean-up has its whole budget."""
    for gone in report.abandoned:
        if not gone.what.endswith(f" {BUDGET:g} s"):
            found(f"{gone.path} declared {BUDGET} s, but: {gone.what}")


async def stopping(sim: Simulation) -> None:
    """Start, load, wait, stop one of the trees or all, and then what is left."""
    chance = sim.random
    async with trio.open_nursery() as nursery, open_system() as system:
        sim.watch(system)
        units: list[ActorRef[Job]] = []
        for number in range(chance.randrange(1, 3)):
            unit = partial(Unit, sim, chance.randrange(3))
            try:
                units.append(await system.start(unit, name=str(number)))
            except StartFailed:
                return  # the crash was early
        for info in system.snapshot():
            ref = system.find(info.path)
            assert ref is not None
            for _ in range(chance.randrange(3)):
                nursery.start_soon(_load, ref, chance.choice((0, 2, 100)))
        await trio.sleep(chance.choice((0, 0, 1, 2)))
        await _stopped(sim, system, chance.choice([None, *units]))


def crash_one(chance: random.Random) -> Sequence[Fault]:
    """An actor may crash at some step, also during the stop."""
    target = f"/system/{chance.randrange(2)}{chance.choice(('', '/0', '/1'))}"
    return (Fault("crash", chance.randrange(1, STEPS), target),)


STOP_IS_BOUNDED = Law("G2", Search("G2", stopping, crash_one))
