"""A world of links of identities, which are passivated, and what other threads do to them (G9).

A hub that is always there, and identities that link to it and to each other. They are told by
tasks and by threads to crash, to end, to link; they are stopped; and when nobody needs them, they
are passivated. Meanwhile threads wait for answers of theirs.

The law is that of ``linked.py``, and: a passivation is no failure, and takes the links of its actor
with it, so that the next actor of that identity has none; the future of a thread has one outcome,
and it is the answer unless its actor, or one that it is linked to, has failed or was stopped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import trio

from motet.protocols.messages import Message
from motet.runtime import (
    ActorDead,
    ActorRef,
    Kind,
    LoopFuture,
    Supervision,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search
from tests.guarantees.worlds.doors import as_thread
from tests.guarantees.worlds.linked import Crash, End, Join, Linked, Model, Work, links_of

__all__ = ["TIES"]

NAME = "G9 links of identities"
HUB = "/system/hub"
KEYS = "abc"
PATHS = (HUB, *(f"/system/node/{key}" for key in KEYS))
ROUNDS = 14
IDLE_AFTER = 60.0
RULES = Supervision(intensity=1_000)


@attrs.define
class World:
    sim: Simulation
    hub: ActorRef[Any]
    kind: Kind[Any]
    model: Model
    asked: list[tuple[str, LoopFuture[str]]] = attrs.field(
        factory=list[tuple[str, LoopFuture[str]]]
    )

    used: dict[str, float] = attrs.field(factory=dict[str, float])
    """When each was made or got a message; that others look at it is no use of it."""

    def broken(self, path: str, what: str) -> None:
        self.sim.violated("G9", path, what)

    def live(self) -> dict[str, ActorRef[Any]]:
        found = {path: self.kind.find(path.rsplit("/", 1)[-1]) for path in PATHS[1:]}
        return {HUB: self.hub, **{path: ActorRef(cell) for path, cell in found.items() if cell}}

    def present(self, path: str) -> ActorRef[Any]:
        """The actor at ``path``, made if there is none."""
        if path == HUB:
            return self.hub
        self.model.restarts.setdefault(path, 0)
        key = path.rsplit("/", 1)[-1]
        if self.kind.find(key) is None:
            self.used[path] = trio.current_time()
        return self.kind.present(key, key)

    async def send(self, path: str, message: Message) -> None:
        """Tell it, as a task or as a thread does; that may also wait for an answer of its."""
        ref = self.present(path)
        self.used[path] = trio.current_time()
        if self.sim.random.random() < 0.5:
            await ref.tell(message)
            return
        safe = ref.threadsafe()
        if self.sim.random.random() < 0.5:
            self.asked.append((path, as_thread(partial(safe.ask, Work()))))
        as_thread(partial(safe.tell_nowait, message))


async def _ties(sim: Simulation) -> None:
    chance = sim.random
    reasons: list[tuple[str, str]] = []
    async with open_system(supervision=RULES) as system:
        sim.watch(system)
        hub = await system.start(partial(Linked, reasons), name="hub")
        kind = await system.registry.kind(
            "node", lambda _: Linked(reasons), idle_after=IDLE_AFTER, supervision=RULES
        )
        world = World(sim, hub, kind, Model(restarts={HUB: 0}))
        for _ in range(ROUNDS):
            burst = chance.choice((1, 1, 1, 2, 4))
            for _ in range(burst):
                await _act(world)
            await trio.sleep(chance.choice((10, 100)))
            _judge(world, known=burst == 1)
            for path, other in reasons:
                if path == other:
                    world.broken(path, "failed by itself")


async def _act(world: World) -> None:
    """One of them is told something, or stopped; the model learns of it."""
    chance, model = world.sim.random, world.model
    path, roll = chance.choice(PATHS), chance.random()
    if roll < 0.6:
        other = chance.choice(PATHS)
        if roll < 0.5 and chance.random() < 0.7:
            world.present(other)
        message: Message = Join(other, undone=roll > 0.52)
    elif roll < 0.85 or path == HUB:
        message = Crash()
    elif roll < 0.93:
        message = End()
    else:
        await world.present(path).stop()
        model.after(path, None)
        return
    await world.send(path, message)
    # An identity that ends by itself is gone, as one that is stopped.
    model.after(path, None if isinstance(message, End) else message)


def _judge(world: World, *, known: bool) -> None:
    model, live = world.model, world.live()
    for path in [path for path in model.restarts if path not in live]:
        if known and trio.current_time() - world.used[path] < IDLE_AFTER:
            world.broken(path, "was passivated while it was used")
        model.part([path])
        del model.restarts[path]
    restarts = {path: ref.statistics().restarts for path, ref in live.items()}
    links = links_of(world.sim, live)
    if known:
        if restarts != model.restarts:
            world.broken(HUB, f"restarts {restarts}, expected {model.restarts}")
        if links != model.links:
            world.broken(HUB, f"links {links}, expected {model.links}")
    for path, future in world.asked:
        if not future.done():
            world.broken(path, "the future of a thread has no outcome")
        elif isinstance(future.exception(), ActorDead):
            if known:
                world.broken(path, f"did not answer a thread: {future.exception()!r}")
        elif future.result() != path:
            world.broken(path, f"answered as {future.result()}")
    world.asked.clear()
    model.links, model.restarts = links, restarts


TIES = Law(NAME, Search("G9", _ties))
