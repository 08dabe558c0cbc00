"""A world that follows restarts of actors that are suspended, stopped, and wait out a back-off.

Two actors that are supervised one by one, and a group of two that restarts together, each with a
back-off. They crash by what they are told, are suspended and resumed at any time, and stopped at
any time, also while they wait for their restart. One reader follows the restarts of the system.

The law: each crash of an actor that is not being stopped is one decision, and each decision is one
event for each actor that it restarts, or gives up, with its number, its cause and its delay; the
next incarnation begins after that delay, neither earlier nor later, unless the actor is stopped or
its restart decided on anew before; none begins after a stop or a decision to give up. A suspended
actor begins no handler, in whatever incarnation, and handles what it was told when it is resumed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import attrs
import trio

from motet.protocols.messages import Message
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    Feed,
    RestartEvent,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search

__all__ = ["FOLLOWED"]

NAME = "G9 events"
GROUP = ("/system/group/d", "/system/group/e")
PATHS = ("/system/a", "/system/b", *GROUP)
ROUNDS = 16
# The actors one by one are given up alone; nobody gives the group up.
ALONE = Supervision(
    intensity=2, period=10, backoff=1, backoff_factor=2, backoff_max=4, jitter=0, give_up="child"
)
TOGETHER = Supervision(strategy="one_for_all", intensity=1_000, backoff=2, backoff_max=2, jitter=0)


class Job(Message, frozen=True, tag="follow.job"):
    number: int
    fails: bool


@attrs.define
class World:
    sim: Simulation
    begun: dict[str, list[float]] = attrs.field(factory=lambda: {path: [] for path in PATHS})
    # The times of those that have to be decided on.
    crashes: dict[str, list[float]] = attrs.field(factory=lambda: {path: [] for path in PATHS})
    suspended: set[str] = attrs.field(factory=set[str])
    stopped: dict[str, float] = attrs.field(factory=dict[str, float])
    events: dict[str, list[tuple[float, RestartEvent]]] = attrs.field(
        factory=lambda: {path: [] for path in PATHS}
    )
    told: Counter[str] = attrs.field(factory=Counter[str])
    handled: Counter[str] = attrs.field(factory=Counter[str])

    def broken(self, path: str, what: str) -> None:
        self.sim.violated("G9", path, what)


class Part(Actor[Job]):
    def __init__(self, world: World) -> None:
        self.world = world

    async def on_start(self) -> None:
        self.world.begun[self.path].append(trio.current_time())
        await trio.lowlevel.checkpoint()

    @handles(Job)
    async def job(self, message: Job) -> None:
        world = self.world
        if self.path in world.suspended:
            world.broken(self.path, f"began {message} while it is suspended")
        world.handled[self.path] += 1
        await trio.sleep(world.sim.random.choice((0, 0.5)))
        if message.fails:
            if self.path not in world.stopped:
                world.crashes[self.path].append(trio.current_time())
            raise RuntimeError(f"job {message.number}")


class Pair(Actor[Job]):
    supervision = TOGETHER

    def __init__(self, world: World) -> None:
        self.world = world

    async def on_start(self) -> None:
        for path in GROUP:
            await self.start_child(Part, self.world, name=path.rsplit("/", 1)[-1])

    @handles(Job)
    async def job(self, _: Job) -> None:
        raise AssertionError("nobody tells the parent")


async def _follow(sim: Simulation) -> None:
    world = World(sim)
    async with open_system(supervision=ALONE) as system:
        sim.watch(system)
        for path in PATHS[:2]:
            await system.start(Part, world, name=path.rsplit("/", 1)[-1])
        await system.start(Pair, world, name="group")
        found = {path: system.find(path) for path in PATHS}
        refs: dict[str, ActorRef[Job]] = {path: ref for path, ref in found.items() if ref}
        with system.restarts.follow() as feed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_note, feed, world)
                for number in range(ROUNDS):
                    await _act(world, refs, number)
                    await trio.sleep(sim.random.choice((0, 0, 0.5, 1, 3, 12)))
                for path in world.suspended.copy():
                    world.suspended.discard(path)
                    refs[path].resume()
                await trio.sleep(60)
                nursery.cancel_scope.cancel()
        seen = sum(event.kind == "restart" for path in PATHS for _, event in world.events[path])
        if system.restarts.count != seen or feed.missed:
            world.broken("/system", f"{system.restarts.count} restarts, {seen} events")
        for path, ref in refs.items():
            _judge(world, path, ref)


async def _note(feed: Feed[RestartEvent], world: World) -> None:
    async for event in feed:
        world.events[event.path].append((trio.current_time(), event))


async def _act(world: World, refs: dict[str, ActorRef[Job]], number: int) -> None:
    chance = world.sim.random
    path = chance.choice(PATHS)
    ref, roll = refs[path], chance.random()
    if roll < 0.6:
        with suppress(ActorDead):
            await ref.tell(Job(number, chance.random() < 0.6))
            world.told[path] += 1
    elif roll < 0.75:
        if ref.is_alive:
            world.suspended.add(path)
            ref.suspend()
    elif roll < 0.92:
        world.suspended.discard(path)
        ref.resume()
    else:
        world.stopped.setdefault(path, trio.current_time())
        await ref.stop(grace=1)


def _judge(world: World, path: str, ref: ActorRef[Job]) -> None:
    events = world.events[path]
    if any(event.kind == "escalate" for _, event in events):
        world.broken(path, "escalated")
    end = world.stopped.get(path, trio.current_time())
    restarts = [(at, event) for at, event in events if event.kind == "restart"]
    given_up = [at for at, event in events if event.kind == "give_up"]
    # A sibling may crash before the restart of its group has come to this actor: then that restart
    # is decided on anew, and has the same number.
    last: dict[int, float] = {}
    for at, event in restarts:
        if event.restarts != len(last) + 1 and (event.restarts not in last or event.by == path):
            world.broken(path, f"the numbers of its restarts are those of {restarts}")
        last[event.restarts] = at + event.delay
    # What an event says is what happens: `begun` has the first start, too.
    due, begun = [*last.values()], world.begun[path][1:]
    # In the very step of its beginning it may be stopped, or restart because of a sibling.
    cut = {end, *(at for at, event in events if event.by != path)}
    missing = [at for at in due if at not in begun and at < end and at not in cut]
    if (
        missing
        or not {*begun} <= {*due}
        or len({*begun}) < len(begun)
        or max(begun, default=0) > end
    ):
        world.broken(path, f"began at {begun}, and should at {due}, stopped at {end}")
    own = [at for at, event in events if event.by == path]
    # A stop in the step of the crash comes before the decision, and there is none.
    crashes = [at for at in world.crashes[path] if at < end or at in own]
    if path in GROUP:  # who fails while it ends for its group is not decided on alone
        undecided = [at for at in crashes if not any(at - 1 <= other <= at for other, _ in events)]
        undecided += [at for at in own if at not in crashes]
    else:
        undecided = [] if own == crashes else crashes
    if undecided:
        world.broken(path, f"crashed at {undecided} without a decision: {events}")
    for _, event in events:
        together = {event.by, path} <= {*GROUP}
        if event.by != path and not together:
            world.broken(path, f"restarts because of {event.by}")
        if event.error is None or "job" not in event.error:
            world.broken(path, f"restarts because of {event.error}")
    if given_up and (len(given_up) > 1 or ref.is_alive or events[-1][1].kind != "give_up"):
        world.broken(path, f"was given up, and that was not its end: {events}")
    if path in world.stopped and ref.is_alive:
        world.broken(path, "was stopped, and lives")
    if ref.is_alive and world.handled[path] != world.told[path]:
        world.broken(path, f"told {world.told[path]} jobs, handled {world.handled[path]}")


FOLLOWED = Law(NAME, Search("G9", _follow))
