"""A world of askers whose answers come later: from another handler, a task, or another actor."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    Asks,
    Done,
    Failed,
    MotetRuntimeError,
    ReplyTo,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import ANY, Search

RULES = Supervision(intensity=1_000, period=0.1, jitter=0)


class Order(Request[int], frozen=True, tag="replies.order"):
    number: int


class Answer(Message, frozen=True, tag="replies.answer"):
    """Answer the oldest order, in one way or the other."""

    way: int


class Plain(Request[int], frozen=True, tag="replies.plain"):
    number: int


class Refused(Exception):
    """An answer that is an error."""


class World:
    """The records of one run: each number's answers that were taken, and the work for it."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.taken: Counter[int] = Counter()
        self.working: Counter[int] = Counter()

    async def work(self, number: int) -> int:
        self.working[number] += 1
        try:
            await trio.sleep(self.sim.random.choice((0, 0.5, 1)))
            if number % 7 == 3:
                raise Refused(number)
        finally:
            self.working[number] -= 1
        return number


class Kitchen(Actor[Plain]):
    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Plain, concurrent=2)
    async def plain(self, request: Plain) -> int:
        return await self.world.work(request.number)


class Waiter(Actor[Order | Answer | Plain]):
    """Takes orders, and answers them when it is told so."""

    def __init__(self, world: World, kitchen: ActorRef[Plain]) -> None:
        self.world = world
        self.kitchen = kitchen
        self.orders: list[tuple[int, ReplyTo[int]]] = []

    @handles(Order, later=True)
    async def order(self, request: Order) -> int | ReplyTo[int]:
        token = self.reply_later(request)
        match self.world.sim.random.randrange(6):
            case 0:
                return await self.world.work(request.number)
            case 1:
                self.serve(request.number, token, 0)  # before the handler has ended
                await self.world.work(request.number)
            case _:
                self.orders.append((request.number, token))
        return token

    @handles(Answer)
    async def answer(self, message: Answer) -> None:
        if message.way == 5:
            raise RuntimeError("it was told to crash")
        if self.orders:
            self.serve(*self.orders.pop(0), message.way)

    @handles(Plain, concurrent=2)
    async def plain(self, request: Plain) -> int:
        return await self.world.work(request.number)

    def serve(self, number: int, token: ReplyTo[int], way: int) -> None:
        was_open = token.is_open
        match way:
            case 0:
                took = token.send(number)  # and its handler may be cancelled before it ends
            case 1:
                took = token.send(number)
                self.world.taken[number] += took
            case 2:
                took = token.fail(Refused(number))
            case 3:
                self.start_soon(token.run, self.world.work, number)
                return
            case _:
                took = self.kitchen.forward(Plain(number), token)
        if took != was_open or token.is_open or token.send(-1):
            self.world.sim.violated("replies", self.path, f"{number} was answered twice")


class _Asker:
    def __init__(self, world: World, waiter: ActorRef[Order | Answer | Plain], first: int) -> None:
        self.world = world
        self.waiter = waiter
        self.numbers = iter(range(first, first + 8))

    async def run(self) -> None:
        random = self.world.sim.random
        for number in self.numbers:
            if random.random() < 0.3:
                await self._ask_two(number, next(self.numbers, number + 1_000))
            else:
                await self._ask(number)
            await self.waiter.tell(Answer(random.randrange(6) if random.random() < 0.3 else 1))

    async def _ask(self, number: int) -> None:
        sim = self.world.sim
        given: int | None = None
        patience, timeout = sim.random.choice((0.2, 1, math.inf)), sim.random.choice((1, None))
        scope = sim.may_cancel(f"ask {number}")
        with scope, trio.move_on_after(patience), suppress(MotetRuntimeError, Refused):
            given = await self.waiter.ask(Order(number), timeout=timeout)
        self._judge(number, given)

    async def _ask_two(self, *numbers: int) -> None:
        random = self.world.sim.random
        asks = Asks[int](deadline=trio.current_time() + random.choice((0.2, 2)))
        with trio.move_on_after(random.choice((0.2, 1, 3))):
            async with asks:
                for number in numbers:
                    asks.begin(self.waiter, Order(number))
                async for _, entry in asks:
                    if isinstance(entry, Failed):
                        assert isinstance(entry.error, MotetRuntimeError | Refused), entry
        for index, number in enumerate(numbers):
            last = asks.results[index] if index < len(asks.results) else None
            self._judge(number, last.value if isinstance(last, Done) else None)

    def _judge(self, number: int, given: int | None) -> None:
        """The asker goes on: nobody works for it, and it got its own answer if one was taken."""
        world = self.world
        if given not in (None, number):
            world.sim.violated("replies", "asker", f"{number} was answered with {given}")
        if world.taken[number] > 1 or (world.taken[number] and given is None):
            world.sim.violated("replies", "asker", f"the answer to {number} was lost")
        if world.working[number]:
            world.sim.violated("replies", "asker", f"somebody still works for {number}")


async def replies(sim: Simulation) -> None:
    """Askers of one waiter, which crashes and is stopped: each ask ends, with its own outcome."""
    world = World(sim)
    async with open_system(supervision=RULES) as system:
        sim.watch(system)
        kitchen = await system.start(lambda: Kitchen(world), name="kitchen")
        waiter = await system.start(lambda: Waiter(world, kitchen), name="waiter")

        async def answer() -> None:
            while True:
                await trio.sleep(0.3)
                await waiter.tell(Answer(1))

        async with trio.open_nursery() as outer:
            outer.start_soon(answer)
            async with trio.open_nursery() as nursery:
                for place in range(3):
                    nursery.start_soon(_Asker(world, waiter, 100 * place).run)
                await trio.sleep(sim.random.choice((1, 3, 9)))
                if sim.random.random() < 0.3:
                    await kitchen.stop()
            outer.cancel_scope.cancel()
        left = waiter.statistics().deferred
        await waiter.stop()
        if left and not sim.violations:
            sim.violated("replies", "/system/waiter", f"{left} answers are due for nobody")


SEARCH = Search(ANY, replies)
