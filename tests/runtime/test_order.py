"""The order of mail: priorities, ages, the oldest message, a part of the stash, and drains."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    MailboxSpec,
    Supervision,
    WaitCycle,
    handles,
    open_system,
    start_pool,
)
from motet.runtime.order import Order
from motet.runtime.queues import Item, Queue


class Job(Message, frozen=True, tag="order.job"):
    number: int
    seconds: float = 0.0


class Aside(Message, frozen=True, tag="order.aside"):
    number: int


class Urgent(Message, frozen=True, tag="order.urgent"):
    number: int


class Look(Request[str], frozen=True, tag="order.look"):
    pass


class Worker(Actor[Job | Urgent | Look]):
    def __init__(self, done: list[str]) -> None:
        self.done = done

    @handles(Job, max_age=60)
    async def job(self, message: Job) -> None:
        if message.number < 0:
            raise ValueError("a bad job")
        await trio.sleep(message.seconds)
        self.done.append(f"job {message.number}")

    @handles(Urgent, priority=1)
    async def urgent(self, message: Urgent) -> None:
        self.done.append(f"urgent {message.number}")

    @handles(Look, priority=2)
    async def look(self, _: Look) -> str:
        return ", ".join(self.done)


# ---------------------------------------------------------------------- priorities and ages


async def test_a_priority_goes_first_and_keeps_its_own_order(autojump_clock: MockClock) -> None:
    done: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        worker = await system.start(Worker, done)
        await worker.tell(Job(0, seconds=1))
        await trio.sleep(0.5)
        for number in range(1, 3):
            await worker.tell(Job(number))
            await worker.tell(Urgent(number))
        seen: list[str] = []

        async def look() -> None:
            seen.append(await worker.ask(Look()))

        nursery.start_soon(look)
        await trio.sleep(1)
        assert seen == ["job 0"]
        assert done == ["job 0", "urgent 1", "urgent 2", "job 1", "job 2"]


async def test_an_actor_tells_itself_what_comes_next() -> None:
    """As OTP's ``next_event`` and ``handle_continue``: before all mail that waits."""

    class Starting(Worker):
        async def on_start(self) -> None:
            self.ref.tell_nowait(Urgent(1))

    done: list[str] = []

    class Parent(Actor[Look]):
        @handles(Look)
        async def look(self, _: Look) -> str:
            child = self.spawn_child(Starting, done)
            await child.tell(Job(1))  # before it has started
            return ""

    async with open_system() as system:
        await (await system.start(Parent)).ask(Look())
        await wait_all_tasks_blocked()
        assert done == ["urgent 1", "job 1"]


async def test_what_is_too_old_is_a_dead_letter(autojump_clock: MockClock) -> None:
    done: list[str] = []
    async with open_system() as system:
        worker = await system.start(Worker, done)
        await worker.tell(Job(1, seconds=61))
        await worker.tell(Job(2))
        await trio.sleep(10)
        await worker.tell(Job(3))
        await trio.sleep(60)
        assert done == ["job 1", "job 3"]
        (letter,) = system.dead_letters
        assert letter.message == Job(2)
        assert letter.reason == "it was older than 60 s when its turn came"
        assert worker.statistics().dead_lettered == 1


def test_wrong_orders_are_refused() -> None:
    with pytest.raises(ValueError, match="priority is 0 or more"):
        handles(Job, priority=-1)
    with pytest.raises(ValueError, match="handled concurrently"):
        handles(Job, priority=1, concurrent=2)
    with pytest.raises(ValueError, match="max_age is a number"):
        handles(Job, max_age=0)
    with pytest.raises(ValueError, match="its asker has a timeout"):
        handles(Look, max_age=1)


# ---------------------------------------------------------------------- the oldest


class Mixed(Actor[Job | Aside]):
    mailbox = MailboxSpec(capacity=3, overflow="drop_oldest")

    def __init__(self, done: list[str]) -> None:
        self.done = done

    @handles(Job)
    async def job(self, message: Job) -> None:
        self.done.append(f"job {message.number}")

    @handles(Aside, concurrent=2)
    async def aside(self, message: Aside) -> None:
        self.done.append(f"aside {message.number}")


async def test_the_oldest_of_all_queues_is_dropped() -> None:
    done: list[str] = []
    async with open_system() as system:
        mixed: ActorRef[Job | Aside] = await system.start(Mixed, done)
        mixed.suspend()
        for number in range(3):
            await mixed.tell(Aside(number))
        for number in range(2):
            await mixed.tell(Job(number))
        await mixed.tell(Aside(3))
        assert [letter.message for letter in system.dead_letters] == [Aside(0), Aside(1), Aside(2)]
        mixed.resume()
        await wait_all_tasks_blocked()
        assert sorted(done) == ["aside 3", "job 0", "job 1"]


class Model:
    """The order by its definition: every item with its arrival, searched through."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int, Job | Aside | Urgent]] = []  # priority, arrival, item

    def of(self, kinds: tuple[type, ...]) -> list[Job | Aside | Urgent]:
        own = [entry for entry in self.items if type(entry[2]) in kinds]
        return [item for _, _, item in sorted(own, key=lambda entry: (-entry[0], entry[1]))]

    def oldest(self) -> Job | Aside | Urgent:
        return min(self.items, key=lambda entry: (entry[0], entry[1]))[2]

    def remove(self, item: object) -> None:
        self.items = [entry for entry in self.items if entry[2] is not item]


def broken(order_class: type[Order], rounds: int = 60) -> str | None:
    """The first difference between the order and its model in random steps."""
    for seed in range(rounds):
        chance = random.Random(seed)
        order, model = order_class({Urgent: 1}, {}, 8), Model()
        turn = Queue()
        aside = Queue()
        for step in range(120):
            kind: type[Job | Aside | Urgent] = chance.choice((Job, Job, Aside, Urgent))
            act = chance.random()
            if act < 0.6:
                message = kind(step)
                order.put(aside if kind is Aside else turn, kind, message)
                model.items.append((int(kind is Urgent), step, message))
            elif act < 0.75 and (queue := chance.choice((turn, aside))):
                model.remove(queue.popleft())
            elif act < 0.85 and (queue := chance.choice((turn, aside))):
                index = chance.randrange(len(queue))
                model.remove(queue[index])
                del queue[index]
            elif model.items:
                _, item = order.take_oldest(turn)
                if item is not model.oldest():
                    return f"seed {seed}, step {step}: {item} and not {model.oldest()}"
                model.remove(item)
            if [*turn] != model.of((Job, Urgent)) or [*aside] != model.of((Aside,)):
                return f"seed {seed}, step {step}: {turn}, {aside}"
    return None


def test_the_order_is_that_of_its_model_in_random_steps() -> None:
    """Law: whatever comes, is taken and is withdrawn: higher priorities first, each in the order
    of arrival; the oldest is the one of the lowest priority that came first, in any queue."""
    assert broken(Order) is None


class BehindItsEquals(Order):
    __slots__ = ()

    def _place(self, queue: Queue, priority: int) -> int:
        del queue, priority
        return 0  # before them


class DropsUrgentOnes(Order):
    __slots__ = ()

    def take_oldest(self, own: Queue) -> tuple[Queue, Item | None]:
        return (own, own.take()) if own else super().take_oldest(own)


class KeepsNoOrder(Order):
    __slots__ = ()

    def put(self, queue: Queue, kind: type, item: Item) -> None:
        super().put(queue, kind, item)
        assert self._arrivals is not None
        self._arrivals.rotate(1)


@pytest.mark.parametrize("planted", [BehindItsEquals, DropsUrgentOnes, KeepsNoOrder])
def test_the_law_finds_an_order_that_is_wrong(planted: type[Order]) -> None:
    assert broken(planted) is not None


# ---------------------------------------------------------------------- a part of the stash


async def test_a_part_of_the_stash_is_handled_again_oldest_first() -> None:
    class Doors(Actor[Job | Urgent]):
        open = False

        def __init__(self) -> None:
            self.passed: list[int] = []
            self.left = 0

        @handles(Job)
        async def job(self, message: Job) -> None:
            if self.left:
                self.left -= 1
                self.passed.append(message.number)
            else:
                self.stash()

        @handles(Urgent)
        async def urgent(self, message: Urgent) -> None:
            self.left = message.number
            self.unstash(message.number)

    doors = Doors()
    async with open_system() as system:
        ref = await system.start(lambda: doors)
        for number in range(6):
            await ref.tell(Job(number))
        await ref.tell(Urgent(2))
        await wait_all_tasks_blocked()
        assert doors.passed == [0, 1]
        assert ref.statistics().stashed == 4
        await ref.tell(Urgent(9))
        await wait_all_tasks_blocked()
        assert doors.passed == [0, 1, 2, 3, 4, 5]
        with pytest.raises(ValueError, match="count is a number"):
            doors.unstash(-1)


# ---------------------------------------------------------------------- drains


async def test_a_drain_handles_what_was_accepted_and_nothing_else(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        worker = await system.start(Worker, done)
        for number in (1, -1, 2):  # the second crashes it
            await worker.tell(Job(number, seconds=1))
        reports: list[bool] = []

        async def drain() -> None:
            reports.append((await worker.drain()).complete)

        nursery.start_soon(drain)
        await trio.sleep(0.5)
        assert not worker.is_alive
        for send in (worker.tell(Job(3)), worker.ask(Look())):
            with pytest.raises(ActorDead, match="it is being drained"):
                await send
        await trio.sleep(5)
        assert done == ["job 1", "job 2"]
        assert reports == [True]
        assert [letter.message for letter in system.dead_letters] == [Job(-1, seconds=1)]


async def test_a_drain_ends_by_its_time_and_by_cancellation(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        for cancelled in (False, True):
            done: list[str] = []
            worker = await system.start(Worker, done, restart="temporary")
            for number in range(9):
                await worker.tell(Job(number, seconds=2))
            before = trio.current_time()
            with trio.move_on_after(5 if cancelled else 99):
                await worker.drain(timeout=99 if cancelled else 5)
            await worker.wait_terminated()
            assert trio.current_time() - before == 6  # the running one may end
            assert done == ["job 0", "job 1", "job 2"]


@pytest.mark.parametrize("timeout", [-1, math.nan])
async def test_a_drain_with_a_time_that_is_none_changes_nothing(timeout: float) -> None:
    done: list[str] = []
    async with open_system() as system:
        worker = await system.start(Worker, done)
        with pytest.raises(ValueError, match="timeout is a number of seconds, so >= 0"):
            await worker.drain(timeout=timeout)
        await worker.tell(Job(1))
        pool = await start_pool(system, lambda: Worker(done), name="pool", size=1)
        with pytest.raises(ValueError, match="timeout is a number of seconds, so >= 0"):
            await pool.drain(timeout=timeout)
        await pool.tell(Job(1))


async def test_senders_that_wait_for_room_are_refused_by_a_drain() -> None:
    class Small(Worker):
        mailbox = MailboxSpec(capacity=1)

    outcomes: list[str] = []

    async def send(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except ActorDead as error:
            outcomes.append(error.reason)

    async with open_system() as system, trio.open_nursery() as nursery:
        worker = await system.start(Small, list[str](), restart="temporary")
        worker.suspend()
        await worker.tell(Job(1))
        nursery.start_soon(send, lambda: worker.tell(Job(2)))
        nursery.start_soon(send, lambda: worker.ask(Look()))
        await wait_all_tasks_blocked()
        nursery.start_soon(worker.drain)
        await wait_all_tasks_blocked()
        assert outcomes == ["it is being drained"] * 2
        worker.resume()


async def test_a_handler_cannot_drain_its_own_actor() -> None:
    class Own(Actor[Look]):
        @handles(Look)
        async def look(self, _: Look) -> str:
            await self.ref.drain()
            return ""

    async with open_system() as system:
        own = await system.start(Own)
        with pytest.raises(WaitCycle):
            await own.ask(Look())
        assert own.is_alive


async def test_every_accepted_message_of_random_drains_is_handled(
    autojump_clock: MockClock,
) -> None:
    """Law: what a tell has returned for before the drain is handled once, or was the one that
    crashed its actor; what came later has raised."""
    for seed in range(40):
        chance = random.Random(seed)
        done: list[str] = []
        told: list[int] = []
        async with open_system(supervision=Supervision(intensity=99)) as system:
            worker = await system.start(Worker, done)

            async def sender(
                first: int, worker: ActorRef[Job], chance: random.Random, told: list[int]
            ) -> None:
                for number in range(first, first + 20):
                    try:
                        await worker.tell(Job(-number if number % 7 == 0 else number))
                    except ActorDead:
                        return
                    told.append(number)
                    await trio.sleep(chance.choice((0, 0.1)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender, 1, worker, chance, told)
                nursery.start_soon(sender, 100, worker, chance, told)
                await trio.sleep(chance.random())
                assert (await worker.drain()).complete
            good = [f"job {number}" for number in told if number % 7]
            assert sorted(done) == sorted(good), seed
            assert len(system.dead_letters) == len(told) - len(good)
