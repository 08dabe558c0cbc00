"""A world of users of one actor: one turn at a time, and messages stay as they were sent (G5)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, StartFailed, Supervision, handles, open_system
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, Search

ASIDE = 2  # handlers that may run next to the turn


class Count(Request[int], frozen=True, tag="turns.count"):
    by: int


class Note(Message, frozen=True, tag="turns.note"):
    numbers: list[int]
    total: int


class Look(Request[None], frozen=True, tag="turns.look"):
    """Handled next to the turn."""


Ref = ActorRef[Count | Note | Look]


class Tally(Actor[Count | Note | Look]):
    """Reads its state, waits, and writes it: wrong as soon as two handlers do that at once."""

    def __init__(self, sim: Simulation, inside: Counter[str]) -> None:
        self.sim = sim
        self.inside = inside
        self.total = 0

    @handles(Count)
    async def count(self, request: Count) -> int:
        with self.sim.turns.taking(self.path):
            before = self.total
            await trio.sleep(self.sim.random.choice((0, 0, 1)))
            self.total = before + request.by
            return self.total

    @handles(Note)
    async def note(self, message: Note) -> None:
        with self.sim.turns.taking(self.path):
            await trio.sleep(self.sim.random.choice((0, 1)))
            if sum(message.numbers) != message.total:
                self.sim.violated("G5", self.path, f"a message changed under it: {message}")

    @handles(Look, concurrent=ASIDE, here=True)
    async def look(self, _: Look) -> None:
        self.inside["aside"] += 1
        if self.inside["aside"] > ASIDE:
            self.sim.violated("G5", self.path, f"{self.inside['aside']} of {ASIDE} run aside")
        try:
            await trio.sleep(self.sim.random.choice((0, 1, 2)))
        finally:
            self.inside["aside"] -= 1


async def _use(sim: Simulation, ref: Ref) -> None:
    for _ in range(3):
        try:
            with trio.move_on_after(sim.random.choice((1, 100))):
                await _use_once(sim, ref)
        except ActorDead:
            return


async def _use_once(sim: Simulation, ref: Ref) -> None:
    match sim.random.randrange(3):
        case 0:
            await ref.ask(Count(1))
        case 1:
            await ref.ask(Look())
        case _:
            numbers = [1, 2]
            await ref.tell(Note(numbers, sum(numbers)))
            await trio.sleep(0)
            numbers.append(3)  # the sender goes on with what is its own


async def turns(sim: Simulation) -> None:
    """Five users of one actor that may crash."""
    many = Supervision(intensity=1000)
    async with open_system(supervision=many, check_messages=True) as system:
        sim.watch(system, "/system/counter")
        inside = Counter[str]()
        try:
            ref = await system.start(partial(Tally, sim, inside), name="counter")
        except StartFailed:
            return  # the crash was early
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(_use, sim, ref)


def crash_it(chance: random.Random) -> Sequence[Fault]:
    """Its next incarnation must not meet the handlers of the last one."""
    return (Fault("crash", chance.randrange(1, 80), "/system/counter"),)


TURN_ISOLATION = Law("G5", Search("G5", turns, crash_it))
