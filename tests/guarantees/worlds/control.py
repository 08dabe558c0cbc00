"""A world in which actors with queued mail are stopped, killed, and lose a child (G6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from motet.protocols.messages import Message
from motet.runtime import Actor, ActorDead, ActorRef, MailboxSpec, Supervision, handles, open_system
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search
from tests.guarantees.worlds.looking import tasks_of

LONGEST = 3.0  # seconds that a handler takes at most


class Step(Message, frozen=True, tag="control.step"):
    seconds: float


class Fail(Message, frozen=True, tag="control.fail"):
    pass


class Busy(Actor[Step | Fail]):
    """Handles one step after the other; may have a child."""

    mailbox = MailboxSpec(capacity=100)
    supervision = Supervision(intensity=1000)

    def __init__(self, sim: Simulation, children: int) -> None:
        self.sim = sim
        self.planned = children
        self.busy_until = 0.0

    async def on_start(self) -> None:
        for number in range(self.planned):
            await self.start_child(partial(Busy, self.sim, 0), name=str(number))

    @handles(Step)
    async def step(self, message: Step) -> None:
        with self.sim.turns.taking(self.path):
            self.busy_until = trio.current_time() + message.seconds
            await trio.sleep(message.seconds)

    @handles(Fail)
    async def fail(self, _: Fail) -> None:
        raise RuntimeError("told to")


def _queue_up(sim: Simulation, ref: ActorRef[Step | Fail]) -> None:
    for _ in range(sim.random.randrange(9)):
        ref.tell_nowait(Step(sim.random.choice((0, 1, LONGEST))))


async def _end(sim: Simulation, actor: Busy, ref: ActorRef[Step | Fail]) -> None:
    """Stop or kill: the one waits for the running handler, the other for nobody."""
    patient = sim.random.random() < 0.5
    handled = ref.statistics().handled + ref.statistics().running
    now = trio.current_time()
    running = ref.statistics().running
    limit = max(0.0, actor.busy_until - now) if patient and running else 0.0
    await ref.stop(grace=100 if patient else 0)
    took = trio.current_time() - now
    if took > limit:
        sim.violated("G6", ref.path, f"its end took {took} s, the running handler only {limit} s")
    await trio.testing.wait_all_tasks_blocked()
    left = list(tasks_of(ref.path))
    if left:
        sim.violated("G6", ref.path, f"it was to end by then, but there are {left}")
    after = ref.statistics().handled
    if after > handled:
        sim.violated("G6", ref.path, f"{after - handled} messages were handled after the order")


async def _fail_child(sim: Simulation, child: ActorRef[Step | Fail]) -> None:
    """Its supervisor acts when the child's own handler has ended, whatever its parent does."""
    before = child.statistics()
    if before.queued or before.running:
        return
    child.tell_nowait(Fail())
    await trio.sleep(0.1)
    if child.statistics().restarts == before.restarts:
        sim.violated("G6", child.path, "its restart waits for its parent's mail")


def _the(actor: Busy) -> Callable[[], Busy]:
    return lambda: actor


async def control(sim: Simulation) -> None:
    """Queue mail, and while it is worked on fail a child and end the actors one by one."""
    chance = sim.random
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system)
        for number in range(2):
            actor = Busy(sim, chance.randrange(2))
            ref = await system.start(_the(actor), name=str(number))
            _queue_up(sim, ref)
            await trio.sleep(chance.choice((0, 0.5, 1.5)))
            for _ in range(chance.randrange(4)):
                await trio.lowlevel.checkpoint()
            child = system.find(f"{ref.path}/0")
            if child is not None and chance.random() < 0.5:
                await _fail_child(sim, child)
            try:
                _queue_up(sim, ref)
            except ActorDead:
                continue
            await _end(sim, actor, ref)


CONTROL_OVERTAKES = Law("G6", Search("G6", control))
