"""A world of actors that ask each other in circles: each circle is refused, and nothing else (G11).

The world keeps a graph of its own of who waits for whom, and says before every ask whether it
would close a circle. Nobody has a deadline: a circle that is not found leaves the world stuck.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import trio
from msgspec.structs import replace

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, AskCycle, handles, open_system
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, Search

ACTORS = 4
ASKERS = 4


class Forward(Request[None], frozen=True, tag="cycles.forward"):
    """Ask these actors, one through the other; a negative number asks two at once."""

    route: tuple[int, ...]
    edge: int = 0  # 0: asked from outside
    node: str = ""  # of the concurrent handler that will handle it


class Aside(Forward, frozen=True, tag="cycles.aside"):
    """The same, next to the turn: nothing waits for its end but its asker."""


class Waiting:
    """Who waits for whom, as the world sees it. A node is a path, or a path and a number."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.edges: dict[int, tuple[str, str]] = {}
        self._asides = 0
        self._asked = 0

    def aside(self, path: str) -> str:
        """A node of its own for a concurrent handler."""
        self._asides += 1
        return f"{path}#{self._asides}"

    def closes_a_circle(self, node: str, target: str) -> bool:
        """Whether ``target`` waits for ``node``, or is it."""
        reached = {target}
        while True:
            further = {to for who, to in self.edges.values() if who in reached}
            if further <= reached:
                return node in reached
            reached |= further

    async def ask(self, node: str, ref: ActorRef[Forward | Aside], message: Forward) -> None:
        """Ask, and compare what comes of it with what had to come.

        The asker waits until it is refused or cancelled, or the handler ends: see :meth:`over`.
        """
        target = message.node or ref.path
        circle = self.closes_a_circle(node, target)
        self._asked += 1
        edge = self._asked
        self.edges[edge] = node, target
        try:
            await ref.ask(replace(message, edge=edge))
        except AskCycle as refused:
            self._judge(node, circle, refused.chain)
        else:
            if circle:
                self.sim.violated("G11", node, f"asked {target}, which waits for it")
        finally:
            self.over(edge)

    def over(self, edge: int) -> None:
        """Nobody waits for this any more, also if the asker has not taken a step since."""
        self.edges.pop(edge, None)

    def _judge(self, node: str, circle: bool, chain: Sequence[str]) -> None:
        path = node.partition("#")[0]
        if not circle:
            self.sim.violated("G11", node, f"refused, though there is no circle: {chain}")
        known = {(who.partition("#")[0], to.partition("#")[0]) for who, to in self.edges.values()}
        if not (chain[0] == chain[-1] == path and known.issuperset(pairwise(chain))):
            self.sim.violated("G11", node, f"{chain} is not a circle from {path} to itself")


class Relay(Actor[Forward | Aside]):
    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting

    @handles(Forward)
    async def forward(self, request: Forward) -> None:
        await self._go_on(self.path, request)

    # More than there can be at once: a circle through the limit is not of single turns.
    @handles(Aside, concurrent=100, here=True)
    async def aside(self, request: Aside) -> None:
        await self._go_on(request.node, request)

    async def _go_on(self, node: str, request: Forward) -> None:
        route = request.route
        try:
            await trio.sleep(self.waiting.sim.random.choice((0, 0, 1)))
            async with trio.open_nursery() as nursery:
                if route:
                    nursery.start_soon(self._ask, node, abs(route[0]), route[1:])
                if route and route[0] < 0:
                    nursery.start_soon(self._ask, node, abs(route[0]) + 1, route[1:])
        finally:
            self.waiting.over(request.edge)

    async def _ask(self, node: str, number: int, route: tuple[int, ...]) -> None:
        ref = self.system.find(f"/system/{number % ACTORS}")
        assert ref is not None
        message = Forward(route)
        if self.waiting.sim.random.random() < 0.15:
            message = Aside(route, node=self.waiting.aside(ref.path))
        await self.waiting.ask(node, ref, message)


async def cycles(sim: Simulation) -> None:
    """Askers from outside send requests on random routes."""
    waiting = Waiting(sim)
    async with open_system() as system:
        sim.watch(system)
        for number in range(ACTORS):
            await system.start(partial(Relay, waiting), name=str(number))
        async with trio.open_nursery() as nursery:
            for asker in range(ASKERS):
                route = tuple(
                    sim.random.choice((-1, 1, 1, 1)) * sim.random.randrange(ACTORS)
                    for _ in range(sim.random.randrange(4))
                )
                ref = system.find(f"/system/{sim.random.randrange(ACTORS)}")
                assert ref is not None
                nursery.start_soon(_ask_from_outside, sim, asker, ref, route)


async def _ask_from_outside(
    sim: Simulation, asker: int, ref: ActorRef[Forward], route: tuple[int, ...]
) -> None:
    with sim.may_cancel(f"asker {asker}"):
        await ref.ask(Forward(route))


def cancel_one(chance: random.Random) -> Sequence[Fault]:
    """An asker is cancelled: what it made others wait for, they wait for no more."""
    return (Fault("cancel", chance.randrange(1, 90), f"asker {chance.randrange(ASKERS)}"),)


NO_SILENT_DEADLOCK = Law("G11", Search("G11", cycles, cancel_one))
