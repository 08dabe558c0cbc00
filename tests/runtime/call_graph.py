"""A world of actors that ask each other at random, and a probe that strikes at a chosen step.

Shared by the tests of G1 and G3. Every request carries the id of the asker it works for; the world
knows at each moment how many handlers are working for whom.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import trio
from trio.testing import MockClock

from motet.protocols.messages import Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    AskTimeout,
    MailboxSpec,
    Replies,
    handles,
    open_system,
)

NODES = 4
ASKERS = 5


class Work(Request[int], frozen=True, tag="graph.work"):
    """Handled in the turn; ``route`` says by its bits which later nodes to ask, and how."""

    asker: int
    route: int


class Aside(Work, frozen=True, tag="graph.aside"):
    """The same, but two at once next to the turn."""


class Flow(StreamRequest[int, int], frozen=True, tag="graph.flow"):
    """The same, but with items first."""

    asker: int
    route: int


class Node(Actor[Work | Aside | Flow]):
    """Works a little, asks one later node, cleans up behind a shield."""

    mailbox = MailboxSpec(capacity=2)

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index

    @handles(Work)
    async def work(self, request: Work) -> int:
        return await self._work(request.asker, request.route)

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> int:
        return await self._work(request.asker, request.route)

    @handles(Flow)
    async def flow(self, request: Flow, replies: Replies[int]) -> int:
        await replies.send(request.asker)
        return await self._work(request.asker, request.route, replies)

    async def _work(self, asker: int, route: int, replies: Replies[int] | None = None) -> int:
        world = self.world
        world.enters(asker)
        try:
            await trio.sleep(world.random.choice((0, 1, 2)))
            later = [node for node in range(self.index + 1, NODES) if route >> node & 1]
            if later:
                await world.ask(later[0], asker, route)
            if replies is not None:
                await replies.send(asker)
            await trio.sleep(0)
            return asker
        finally:
            # Clean-up that takes time: the asker has to wait for it.
            with trio.CancelScope(shield=True):
                await trio.sleep(world.random.choice((0, 1, 3)))
            world.leaves(asker)


class World(trio.abc.Instrument):
    """One run: ``strike`` is called at scheduler step ``at``, if the run has that many."""

    def __init__(self, seed: int, at: int, strike: Callable[[World], None]) -> None:
        self.random = random.Random(seed)
        self.at = at
        self.strike = strike
        self.steps = 0
        self.working: Counter[int] = Counter()
        self.finished: set[int] = set()
        self.outcomes: dict[int, list[str]] = {asker: [] for asker in range(ASKERS)}
        self.violations: list[str] = []
        self.scopes: list[trio.CancelScope] = []
        self.nodes: list[ActorRef[Work | Aside | Flow]] = []
        self.routes = [self.random.randrange(1 << 8) for _ in range(ASKERS)]
        self.victim = self.random.randrange(ASKERS)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.strike(self)

    def enters(self, asker: int) -> None:
        if asker in self.finished:
            self.violations.append(f"a handler began for {asker}, which had resumed")
        self.working[asker] += 1

    def leaves(self, asker: int) -> None:
        self.working[asker] -= 1

    async def ask(self, node: int, asker: int, route: int) -> int:
        """Ask ``node`` in one of four ways, told by the high bits of the route."""
        ref = self.nodes[node]
        match route >> 4 & 3:
            case 0:
                return await ref.ask(Work(asker, route))
            case 1:
                return await ref.ask(Aside(asker, route))
            case 2:
                return await ref.ask(Work(asker, route), timeout=1 + (route >> 6 & 3))
            case _:
                async with ref.stream(Flow(asker, route)) as items:
                    async for _ in items:
                        if route >> 6 & 1:
                            return asker
                return items.result

    async def asker(self, asker: int, scope: trio.CancelScope) -> None:
        """Ask once, note the outcome; at that moment nobody may be working for this asker."""
        with scope:
            try:
                value = await self.ask(0, asker, self.routes[asker])
                self.outcomes[asker].append("value" if value == asker else f"stray {value}")
            except trio.Cancelled:
                self.outcomes[asker].append("cancelled")
                raise
            except (AskTimeout, ActorDead) as error:
                self.outcomes[asker].append(type(error).__name__)
            finally:
                self.finished.add(asker)
                if self.working[asker]:
                    self.violations.append(f"{asker} resumed before its handlers had ended")

    async def main(self) -> None:
        async with open_system() as system:
            for index in range(NODES):
                node = await system.start(partial(Node, self, index), name=str(index))
                self.nodes.append(node)
            async with trio.open_nursery() as nursery:
                for asker in range(ASKERS):
                    scope = trio.CancelScope()
                    self.scopes.append(scope)
                    nursery.start_soon(self.asker, asker, scope)

    def run(self) -> World:
        """Run to the end; an error that escapes is a violation too."""
        try:
            trio.run(self.main, clock=MockClock(autojump_threshold=0), instruments=[self])
        except Exception as error:
            self.violations.append(f"the world ended with {error!r}")
        for asker, outcomes in self.outcomes.items():
            if len(outcomes) != 1 or outcomes[0].startswith("stray"):
                self.violations.append(f"{asker} has the outcomes {outcomes}")
        return self


def cancel_victim(world: World) -> None:
    """Cancel one asker, if it has begun."""
    if world.victim < len(world.scopes):
        world.scopes[world.victim].cancel()


def nothing(world: World) -> None:
    """Strike not."""


def sweep(seed: int, strike: Callable[[World], None]) -> list[str]:
    """Run the world of ``seed`` undisturbed, then once per step with ``strike`` at that step."""
    undisturbed = World(seed, 0, nothing).run()
    found = list(undisturbed.violations)
    for at in range(1, undisturbed.steps + 1):
        if found:
            break
        found += [
            f"step {at}: {violation}" for violation in World(seed, at, strike).run().violations
        ]
    return found
