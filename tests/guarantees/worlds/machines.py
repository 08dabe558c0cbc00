"""A world of a machine with three states, timers in them, and askers that leave in the middle."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Machine,
    MotetRuntimeError,
    State,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import ANY, Search

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)

RULES = Supervision(intensity=1_000, period=0.1, jitter=0)


class Go(Request[int], frozen=True, tag="machines.go"):
    """Change the state; the answer is the number of the visit."""

    fails: bool


class Job(Message, frozen=True, tag="machines.job"):
    """Is postponed by the one, refused by the other, and done in the third state."""

    sender: int
    number: int


class Late(Message, frozen=True, tag="machines.late"):
    """Of a timer, with the visit that has set it."""

    visit: int


class Again(Message, frozen=True, tag="machines.again"):
    """Of a timer with a key: only the last set is handled."""

    number: int


class World:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.visit = 0  # of the state that was entered last
        self.left = True
        self.answered: list[int] = []
        self.done: dict[int, list[int]] = {}  # jobs, by sender
        self.again = 0  # the number set last, by the machine

    def broken(self, what: str) -> None:
        self.sim.violated("machine", "/system/machine", what)


class Walker(Machine[Go | Job | Late | Again]):
    def __init__(self, world: World) -> None:
        self.world = world

    async def initial(self) -> Start:
        await trio.sleep(0)
        self.world.left = True  # a crash leaves no state
        return Start(self.world)

    def unhandled(self, message: Message) -> None:
        if not isinstance(message, Job):
            self.world.broken(f"{message} came to nobody")

    @handles(Again)
    async def again(self, message: Again) -> None:
        if message.number != self.world.again:
            self.world.broken(f"timer {message.number} came after {self.world.again} was set")


class Base(State[P_contra, Walker], Generic[P_contra]):
    def __init__(self, world: World) -> None:
        self.world = world
        self.visit = 0
        self.returned = False

    def on_enter(self) -> None:
        if not self.world.left:
            self.world.broken("a state was entered before the last was left")
        self.world.left = False
        self.world.visit += 1
        self.visit = self.world.visit
        self.timers.once(self.world.sim.random.choice((0, 0.5, 1)), Late(self.visit))
        self.world.again += 1
        self.machine.timers.once(0.5, Again(self.world.again), key="again")

    def on_leave(self) -> None:
        if self.world.left or self.visit != self.world.visit:
            self.world.broken("a state was left twice")
        if not self.returned:
            self.world.broken("a state was left by a handler that failed")
        self.world.left = True

    @handles(Late)
    async def late(self, message: Late) -> None:
        if message.visit != self.visit:
            self.world.broken(f"a timer of visit {message.visit} was handled in {self.visit}")

    @handles(Go)
    async def go(self, request: Go) -> int:
        before = self.world.visit
        self.become(self.next())
        await trio.sleep(self.world.sim.random.choice((0, 0.5)))
        if self.world.visit != before or self.machine.state is not self:
            self.world.broken("the state changed before its handler had returned")
        if request.fails:
            raise LookupError("no way")
        self.returned = True
        return self.world.visit

    def next(self) -> Base[Any]:
        return Start(self.world)


class Start(Base[Go | Late]):
    postpones = (Job,)

    def next(self) -> Base[Any]:
        return self.world.sim.random.choice((Middle, End))(self.world)


class Middle(Base[Go | Late]):
    """Takes no jobs."""


class End(Base[Go | Late | Job]):
    @handles(Job)
    async def job(self, message: Job) -> None:
        done = self.world.done.setdefault(message.sender, [])
        if done and done[-1] >= message.number:
            self.world.broken(f"job {message} came after {done}")
        done.append(message.number)
        if message.number % 5 == 4:
            raise RuntimeError("a bad job")


async def machines(sim: Simulation) -> None:
    """Walk through the states by asks that fail, are cancelled, and overtake timers."""
    world = World(sim)
    async with open_system(supervision=RULES) as system:
        sim.watch(system)
        machine = await system.start(lambda: Walker(world), name="machine")

        async def walk(sender: int) -> None:
            for number in range(6):
                await machine.tell(Job(sender, number))
                before = world.visit
                fails = sim.random.random() < 0.2
                scope = sim.may_cancel(f"go {sender} {number}")
                limit = trio.move_on_after(sim.random.choice((0.2, 9)))
                with scope, limit, suppress(LookupError, MotetRuntimeError):
                    visit = await machine.ask(Go(fails))
                    if visit < before or visit in world.answered:
                        world.broken(f"visit {visit} was left twice: {world.answered}")
                    world.answered.append(visit)
                await trio.sleep(sim.random.choice((0, 0.3, 0.5)))

        async with trio.open_nursery() as nursery:
            for sender in range(2):
                nursery.start_soon(walk, sender)
        await trio.sleep(10)


SEARCH = Search(ANY, machines)
