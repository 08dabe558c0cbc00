"""A world of actors that ask each other at random, in every way there is.

Every request says for which asker it is, in the end, so that the world knows at each moment how
many handlers work for whom. Whoever asks may be cancelled, and every node may be hit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from motet.protocols.messages import Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    Asks,
    AskTimeout,
    Failed,
    MailboxSpec,
    Replies,
    StartFailed,
    Supervision,
    current_deadline,
    handles,
    open_system,
)
from motet.runtime.testing import Fault, FaultKind, Simulation
from tests.guarantees.law import Law, Search

NODES = 3
ASKERS = 4
LAST_STEP = 75  # of a fault; the worlds take about as many


class Work(Request[int], frozen=True, tag="graph.work"):
    """Handled in the turn; the bits of ``route`` say whom to ask next, and how."""

    asker: int
    route: int
    deadline: float = math.inf


class Aside(Work, frozen=True, tag="graph.aside"):
    """The same, but two at once next to the turn."""


class Flow(StreamRequest[int, int], frozen=True, tag="graph.flow"):
    """The same, but with items first."""

    asker: int
    route: int
    deadline: float = math.inf


class Refused(Exception):
    """What a handler raises now and then; says whose request it was."""

    def __init__(self, asker: int) -> None:
        super().__init__(asker)
        self.asker = asker


Ref = ActorRef[Work | Aside | Flow]


class Node(Actor[Work | Aside | Flow]):
    """Works a little, asks later nodes, cleans up behind a shield."""

    mailbox = MailboxSpec(capacity=2)

    def __init__(self, sim: Simulation, later: Sequence[Ref]) -> None:
        self.sim = sim
        self.later = later

    @handles(Work)
    async def work(self, request: Work) -> int:
        self._begin(request.deadline)
        return await self._work(request)

    @handles(Aside, concurrent=2, here=True)
    async def aside(self, request: Aside) -> int:
        self._begin(request.deadline)
        return await self._work(request)

    @handles(Flow)
    async def flow(self, request: Flow, replies: Replies[int]) -> int:
        self._begin(request.deadline)
        try:
            await replies.send(request.asker)
            answer = await self._work(Work(request.asker, request.route, request.deadline))
            await replies.send(answer)
            return answer
        finally:
            with suppress(trio.BrokenResourceError):  # nobody wants it any more
                replies.send_nowait(request.asker)

    def _begin(self, deadline: float) -> None:
        if trio.current_time() > deadline:
            self.sim.violated("G1", self.path, "a handler began after its asker's deadline")
        if current_deadline() != deadline:
            self.sim.violated("G1", self.path, "a handler does not know its asker's deadline")

    async def _work(self, request: Work) -> int:
        sim, chance = self.sim, self.sim.random
        asker, route = request.asker, request.route
        with sim.asks.working(asker):
            try:
                await trio.sleep(chance.choice((0, 1, 2)))
                if chance.random() < 0.1:
                    raise Refused(asker)
                await self._ask_later(asker, route, request.deadline)
                return asker
            finally:
                # Clean-up that takes time: the asker has to wait for it.
                with trio.CancelScope(shield=True):
                    await trio.sleep(chance.choice((0, 0, 1)))
                    if chance.random() < 0.2:
                        sim.clock.jump(2)  # a computation: time passes within one step

    async def _ask_later(self, asker: int, route: int, deadline: float) -> None:
        chosen = [node for index, node in enumerate(self.later) if route >> index & 1]
        if route >> 9 & 1:
            await ask_all(chosen, asker, route, deadline)
        elif route >> 8 & 1 and len(chosen) > 1:
            async with trio.open_nursery() as nursery:
                for node in chosen:
                    nursery.start_soon(ask, self.sim, node, asker, route, deadline)
        elif chosen:
            await ask(self.sim, chosen[0], asker, route, deadline)


async def ask(
    sim: Simulation, ref: Ref, asker: int, route: int, inherited: float = math.inf
) -> int:
    """Ask in one of five ways, told by higher bits of the route."""
    deadline = min(trio.current_effective_deadline(), inherited)
    match route >> 4 & 3:
        case 0:
            return await ref.ask(Work(asker, route, deadline))
        case 1:
            return await ref.ask(Aside(asker, route, deadline))
        case 2:
            seconds = 1 + (route >> 6 & 3)
            deadline = min(deadline, trio.current_time() + seconds)
            return await ref.ask(Work(asker, route, deadline), timeout=seconds)
        case _ if route >> 7 & 1:
            with Taking(sim, asker, fails=bool(route >> 6 & 1)) as taking:
                return await ref.stream_to(Flow(asker, route, deadline), taking.take)
        case _:
            async with ref.stream(Flow(asker, route, deadline)) as items:
                async for _ in items:
                    if route >> 6 & 1:
                        return asker
            return items.result


async def ask_all(refs: Sequence[Ref], asker: int, route: int, inherited: float) -> None:
    """Ask all of them twice, in one task; raise what fails first."""
    deadline = min(trio.current_effective_deadline(), inherited)
    kind = Aside if route >> 4 & 1 else Work
    async with Asks[int]() as asks:
        for ref in (*refs, *refs):
            asks.begin(ref, kind(asker, route & 0x1F, deadline))
        async for _, became in asks:
            if isinstance(became, Failed):
                raise became.error


class Taking:
    """One who takes items by a call while its ask lasts, and may fail at the first."""

    def __init__(self, sim: Simulation, asker: int, *, fails: bool) -> None:
        self.sim = sim
        self.asker = asker
        self.fails = fails
        self.failed = False
        self.over = False

    def __enter__(self) -> Taking:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.over = True
        if self.failed and not isinstance(error, Refused):
            self.sim.violated("G3", f"asker {self.asker}", f"took and failed, but got {error!r}")

    def take(self, item: int) -> None:
        if self.over or self.failed:
            self.sim.violated("G3", f"asker {self.asker}", "an item is given after the outcome")
        self.sim.asks.answered(self.asker, item)
        if self.fails:
            self.failed = True
            raise Refused(self.asker)


async def _asker(sim: Simulation, asker: int, ref: Ref) -> None:
    """Ask once; at the moment of the outcome nobody may be working for this asker."""
    await trio.sleep(sim.random.choice((0, 0, 0, 3)))
    with sim.may_cancel(f"asker {asker}"), sim.asks.asking(asker):
        with trio.move_on_after(sim.random.choice((2, 5, math.inf))):
            try:
                route = sim.random.randrange(1 << 10)
                sim.asks.answered(asker, await ask(sim, ref, asker, route))
            except* Refused as refused:  # several, from a handler that asked several
                for error in _leaves(refused):
                    sim.asks.answered(asker, error.asker)
            except* (AskTimeout, ActorDead):
                pass


def _leaves(group: ExceptionGroup[Refused]) -> list[Refused]:
    leaves: list[Refused] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, ExceptionGroup) else [error]
    return leaves


async def call_graph(sim: Simulation) -> None:
    """Askers at the first nodes of a random graph of calls."""
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system)
        refs: list[Ref] = []
        for index in range(NODES):
            name = f"node{index}"
            sim.may_hit(f"/system/{name}")
            later = tuple(reversed(refs))
            try:
                refs.append(await system.start(partial(Node, sim, later), name=name))
            except StartFailed:
                return  # the fault was early
        async with trio.open_nursery() as nursery:
            for asker in range(ASKERS):
                nursery.start_soon(_asker, sim, asker, refs[-1 - asker % 2])


def cancel_one(chance: random.Random) -> Sequence[Fault]:
    """An asker is cancelled at some step."""
    target = f"asker {chance.randrange(ASKERS)}"
    return (Fault("cancel", chance.randrange(1, LAST_STEP), target),)


def hit_one(chance: random.Random) -> Sequence[Fault]:
    """A node crashes, is killed or is stopped at some step, and an asker may be cancelled too."""
    kinds: tuple[FaultKind, ...] = ("crash", "kill", "stop")
    target = f"/system/node{chance.randrange(NODES)}"
    hit = Fault(chance.choice(kinds), chance.randrange(1, LAST_STEP), target, grace=1.0)
    return (hit, *cancel_one(chance)) if chance.random() < 0.5 else (hit,)


CANCELLATION_CLOSURE = Law("G1", Search("G1", call_graph, cancel_one))
ONE_OUTCOME = Law("G3", Search("G3", call_graph, hit_one))
