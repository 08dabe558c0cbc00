"""A world of a pool whose workers crash, and which grows, shrinks and ends meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    MailboxSpec,
    MotetRuntimeError,
    Pool,
    Route,
    Supervision,
    handles,
    open_system,
    start_pool,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import ANY, Search

RULES = Supervision(intensity=1_000, period=0.1, jitter=0)
ROUTES: tuple[Route, ...] = get_args(Route)
KEYS = 3


class Job(Message, frozen=True, tag="pools.job"):
    number: int
    key: int
    crashes: bool


class Compute(Request[int], frozen=True, tag="pools.compute"):
    number: int
    key: int


class World:
    """The records of one run, for its judge."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.begun: Counter[int] = Counter()
        self.workers_of: dict[int, list[str]] = {}  # by key, in the order of handling
        self.accepted: dict[int, bool] = {}  # by number: whether it crashes its worker
        self.still = True  # no worker has come or gone
        self.running: Counter[int] = Counter()


class Worker(Actor[Job | Compute]):
    mailbox = MailboxSpec(capacity=2)
    supervision = RULES

    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Job)
    async def job(self, message: Job) -> None:
        self._begin(message.number, message.key)
        await trio.sleep(self.world.sim.random.choice((0, 0, 1)))
        if message.crashes:
            raise RuntimeError("a bad job")

    @handles(Compute)
    async def compute(self, request: Compute) -> int:
        self._begin(request.number, request.key)
        self.world.running[request.number] += 1
        try:
            await trio.sleep(self.world.sim.random.choice((0, 1)))
        finally:
            self.world.running[request.number] -= 1
        return request.number

    def _begin(self, number: int, key: int) -> None:
        self.world.begun[number] += 1
        self.world.workers_of.setdefault(key, []).append(self.path)


async def _send(world: World, pool: Pool[Job | Compute], first: int) -> None:
    random = world.sim.random
    for number in range(first, first + 6):
        key, crashes = random.randrange(KEYS), random.random() < 0.2
        try:
            with trio.move_on_after(random.choice((0.5, 100))):
                match random.randrange(5):
                    case 0:
                        if await pool.ask(Compute(number, key)) != number:
                            world.sim.violated("pool", pool.path, f"a wrong answer to {number}")
                    case 2:
                        await pool.ask_first(Compute(number, len(ROUTES)))
                        if world.running[number]:
                            world.sim.violated("pool", pool.path, f"{number} is still computed")
                    case 1:
                        pool.tell_nowait(Job(number, key, crashes))
                        world.accepted[number] = crashes
                    case _:
                        await pool.tell(Job(number, key, crashes))
                        world.accepted[number] = crashes
        except ActorDead as error:
            if pool.is_alive:
                world.sim.violated("pool", pool.path, f"{number} was refused: {error}")
        except MotetRuntimeError:
            pass
        await trio.sleep(random.choice((0, 0, 0.3)))


async def _resize(world: World, pool: Pool[Job | Compute]) -> None:
    random = world.sim.random
    for _ in range(random.randrange(3)):
        await trio.sleep(random.choice((0, 0.4, 1)))
        size = random.choice((1, 2, 3))
        world.still = world.still and size == len(pool)
        try:
            with trio.move_on_after(1):
                await pool.resize(size)
                if len(pool) != size:
                    world.sim.violated("pool", pool.path, f"{len(pool)} workers, not {size}")
        except ActorDead:
            if pool.is_alive:
                world.sim.violated("pool", pool.path, "it was not resized")


async def pools(sim: Simulation) -> None:
    """Play, drain, and judge: each accepted job was begun once, and only bad ones are lost."""
    world = World(sim)
    route = sim.random.choice(ROUTES)
    hashed = route == "consistent_hash"
    async with open_system(chance=sim.random.random) as system:
        sim.watch(system)
        pool = await start_pool(
            system,
            lambda: Worker(world),
            name="pool",
            size=sim.random.choice((1, 2, 3)),
            route=route,
            key=(lambda message: str(message.key)) if hashed else None,
            supervision=RULES,
        )
        async with trio.open_nursery() as nursery:
            for sender in range(3):
                nursery.start_soon(_send, world, pool, 10 * sender)
            nursery.start_soon(_resize, world, pool)
            if sim.random.random() < 0.5:
                await trio.sleep(sim.random.choice((0.3, 1, 2)))
                await pool.drain()
        await pool.drain()
        try:
            await pool.tell(Job(99, 0, False))
            sim.violated("pool", pool.path, "it takes messages after it was drained")
        except ActorDead:
            pass
        lost = [one.message for one in system.dead_letters]
        _judge(world, pool, lost, hashed=hashed)


def _judge(world: World, pool: Pool[Job | Compute], letters: list[object], *, hashed: bool) -> None:
    lost = Counter(one.number for one in letters if isinstance(one, Job))
    for number, crashes in world.accepted.items():
        if world.begun[number] != 1 or lost[number] != crashes:
            what = f"begun {world.begun[number]} times, lost {lost[number]}, bad: {crashes}"
            world.sim.violated("pool", pool.path, f"job {number} was {what}")
    for key, paths in world.workers_of.items():
        # `ask_first` asks all of them, with a key of its own.
        if hashed and world.still and key < KEYS and len(set(paths)) > 1:
            world.sim.violated("pool", pool.path, f"key {key} went to {sorted(set(paths))}")


SEARCH = Search(ANY, pools)
