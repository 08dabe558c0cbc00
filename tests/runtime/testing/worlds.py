"""Small worlds for the simulator's own tests, at module level, so that replays can find them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    AskTimeout,
    MailboxFull,
    MailboxSpec,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation, World


class Add(Message, frozen=True, tag="worlds.add"):
    amount: int


class Total(Request[int], frozen=True, tag="worlds.total"):
    asker: int
    route: int = 0


class Node(Actor[Add | Total]):
    """Adds the told numbers; asks the next node, if there is one, before it answers."""

    mailbox = MailboxSpec(capacity=3)
    cleanup_budget = 1.0

    def __init__(self, sim: Simulation, later: ActorRef[Add | Total] | None) -> None:
        self.sim = sim
        self.later = later
        self.total = 0

    @handles(Add)
    async def add(self, message: Add) -> None:
        with self.sim.turns.taking(self.path):
            before = self.total
            await trio.sleep(self.sim.random.choice((0, 0, 1)))
            self.total = before + message.amount

    @handles(Total)
    async def answer(self, request: Total) -> int:
        with self.sim.turns.taking(self.path), self.sim.asks.working(request.asker):
            try:
                await trio.sleep(self.sim.random.choice((0, 1)))
                if self.later is not None:
                    await self.later.ask(Total(request.asker))
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0)
            return request.asker


async def graph(sim: Simulation, nodes: int = 5, askers: int = 4) -> int:
    """A chain of actors under mail, asks with equal deadlines, crashes and stops: all at once."""
    async with open_system(supervision=Supervision(intensity=100)) as system:
        sim.watch(system)
        refs: list[ActorRef[Add | Total]] = []
        for index in range(nodes):
            later = refs[-1] if refs else None
            name = f"node{index}"
            try:
                ref = await system.start(partial(Node, sim, later), name=name)
            except Exception as error:
                sim.note(f"{name} did not start: {type(error).__name__}")
                return 0
            refs.append(ref)
            sim.may_hit(ref.path)
        async with trio.open_nursery() as nursery:
            for number in range(askers):
                nursery.start_soon(_ask, sim, number, refs[-1 - number % 2])
                nursery.start_soon(_tell, sim, refs[number % nodes])
    return nodes


async def _ask(sim: Simulation, number: int, ref: ActorRef[Add | Total]) -> None:
    with sim.may_cancel(f"asker {number}"), sim.asks.asking(number):
        try:
            answer = await ref.ask(Total(number), timeout=2)
            sim.asks.answered(number, answer)
        except (AskTimeout, ActorDead) as error:
            sim.note(f"asker {number} got {type(error).__name__}")


async def _tell(sim: Simulation, ref: ActorRef[Add | Total]) -> None:
    for amount in range(3):
        try:
            with trio.move_on_after(2):
                await ref.tell(Add(amount))
        except (ActorDead, MailboxFull):
            return
        await trio.sleep(0)


async def small(sim: Simulation) -> int:
    """Two actors, one ask through both, in a scope that may be cancelled; both may be hit."""
    return await graph(sim, nodes=2, askers=1)


async def lost_update(sim: Simulation) -> int:
    """Two tasks add to one number, but read it four checkpoints before they write."""
    number = 0

    async def hesitant() -> None:
        nonlocal number
        await trio.lowlevel.checkpoint()
        seen = number
        await trio.lowlevel.checkpoint()
        number = seen + 1

    async def patient() -> None:
        nonlocal number
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        number += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hesitant)
        nursery.start_soon(patient)
    return number


def counting(steps: int, tasks: int, seen: Callable[[tuple[int, ...]], None]) -> World[None]:
    """A world of ``tasks`` tasks that take ``steps`` steps each; ``seen`` gets who stepped when."""

    async def world(sim: Simulation) -> None:
        order: list[int] = []

        async def one(number: int) -> None:
            for left in reversed(range(steps)):
                order.append(number)
                if left:
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(one, number)
        seen(tuple(order))

    return world


async def deadlocked(sim: Simulation) -> None:
    """Two tasks that wait for each other."""
    mine, yours = trio.Event(), trio.Event()

    async def waits_for_yours() -> None:
        await yours.wait()
        mine.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_for_yours)
        await mine.wait()


async def simultaneous(sim: Simulation) -> str:
    """The order in which twenty tasks with one deadline, and twenty in one scope, resume."""
    gone: list[str] = []
    parked: dict[int, trio.lowlevel.Task] = {}

    async def waiter(number: int, seconds: float) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            gone.append(str(number))
            return trio.lowlevel.Abort.SUCCEEDED

        parked[number] = trio.lowlevel.current_task()
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_task_rescheduled(abort)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(waiter, number, 1)
            nursery.start_soon(waiter, 100 + number, 100)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    sim.note(" ".join(gone))
    return " ".join(gone)
