"""A world in which children exit as a random case says: the tree has to do what the model says."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message
from motet.runtime import Actor, ActorRef, RestartLimitExceeded, handles, open_system
from motet.runtime.supervision import ExitKind
from motet.runtime.system import System
from motet.runtime.testing import Simulation
from tests.guarantees.exits import CHANCE, Case, Model, random_case
from tests.guarantees.law import Law, Search


class Exit(Message, frozen=True, tag="supervision.exit"):
    kind: ExitKind


class Child(Actor[Exit]):
    """Does as it is told, and writes down when it starts and stops."""

    def __init__(self, sim: Simulation, log: list[str]) -> None:
        self.sim = sim
        self.log = log

    async def on_start(self) -> None:
        for _ in range(self.sim.random.randrange(3)):
            await trio.lowlevel.checkpoint()
        self.log.append(f"+{self.name}")

    async def on_stop(self) -> None:
        for _ in range(self.sim.random.randrange(3)):
            await trio.lowlevel.checkpoint()
        self.log.append(f"-{self.name}")

    @handles(Exit)
    async def exit(self, message: Exit) -> None:
        if message.kind == "crashed":
            raise RuntimeError(f"{self.name} was told to crash")
        self.stop_soon()


async def _play(sim: Simulation, case: Case, model: Model, log: list[str]) -> None:
    async with open_system(supervision=case.supervision, chance=lambda: CHANCE) as system:
        sim.watch(system)
        refs: list[ActorRef[Exit]] = []
        for name, restart in zip(case.names, case.restarts, strict=True):
            child = partial(Child, sim, log)
            refs.append(await system.start(child, name=name, restart=restart))
        for later, index, kind in case.exits:
            await trio.sleep(later)
            await wait_all_tasks_blocked()
            model.advance(trio.current_time())
            if refs[index].path.rpartition("/")[2] in model.up:
                model.exit(case.names[index], kind, trio.current_time())
                refs[index].tell_nowait(Exit(kind))
                await wait_all_tasks_blocked()
            _compare(sim, system, model, log)
        model.stop(model.order)


def _compare(sim: Simulation, system: System, model: Model, log: list[str]) -> None:
    alive = {info.path.rpartition("/")[2] for info in system.snapshot() if info.state == "running"}
    if alive != model.up:
        sim.violated("G9", "/system", f"{sorted(alive)} run, the model has {sorted(model.up)}")
    _compare_logs(sim, model, log)


def _compare_logs(sim: Simulation, model: Model, log: list[str]) -> None:
    expected = [entry.replace("!", "-") for entry in model.log]
    if log != expected:
        sim.violated("G9", "/system", f"the tree did {log}, the model {expected}")


async def supervised(sim: Simulation) -> None:
    """Play a case, and compare to the end, whether that is a stop or an escalation."""
    case = random_case(sim.random)
    model = Model(case)
    log: list[str] = []
    escalated = False
    try:
        await _play(sim, case, model, log)
    except RestartLimitExceeded:
        escalated = True
    if escalated != model.given_up:
        sim.violated("G9", "/system", f"escalated: {escalated}, the model: {model.given_up}")
    _compare_logs(sim, model, log)


SUPERVISION = Law("G9", Search("G9", supervised))
