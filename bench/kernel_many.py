"""The cost of what stands on single actors: pools, topics, machines, threads, 20,000 actors.

motet's side of these rows of the group ``kernel``; the peers are in :mod:`bench.peers`. A peer
without the feature has no case: pykka and AutoGen have no pools, pykka and plain Trio no topics but
a list, and only this kernel has state machines, beside the same in a plain task.
"""

from __future__ import annotations

from typing import Any

import trio

from bench.clock import Watch
from bench.rows import MOTET, RATE, Case, Row
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, Group, Machine, State, handles, open_system, start_pool

__all__ = ["ROWS"]

WORKERS = 8
MEMBERS = 100
ROUNDS = 3  # asks of each of many actors


class Note(Message, frozen=True, tag="bench.many.note"):
    number: int


class Seen(Request[int], frozen=True, tag="bench.many.seen"):
    pass


class Sink(Actor[Note | Seen]):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.seen = 0

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.seen += message.number

    @handles(Seen)
    async def report(self, request: Seen) -> int:  # noqa: ARG002 (the protocol's signature)
        return self.seen


def pool(count: int) -> float:
    return trio.run(_pool, count)


async def _pool(count: int) -> float:
    async with open_system() as system:
        workers = await start_pool(system, Sink, size=WORKERS, route="least_loaded")
        note = Note(1)
        watch = Watch()
        for number in range(count):
            await workers.tell(note)
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
        seen = [await worker.ask(Seen()) for worker in workers.workers]
        rate = watch.rate(count)
        assert sum(seen) == count
        return rate


def topic(count: int) -> float:
    return trio.run(_topic, count)


async def _topic(count: int) -> float:
    """``count`` deliveries, to a hundred members each time."""
    async with open_system() as system:
        group: Group[Note] = Group("notes")
        members = [await system.start(Sink) for _ in range(MEMBERS)]
        for member in members:
            group.join(member)
        note = Note(1)
        times = max(1, count // MEMBERS)
        watch = Watch()
        for _ in range(times):
            group.publish(note)
            await trio.lowlevel.checkpoint()
        seen = [await member.ask(Seen()) for member in members]
        rate = watch.rate(times * MEMBERS)
        assert sum(seen) == times * MEMBERS
        return rate


class Turn(Message, frozen=True, tag="bench.many.turn"):
    pass


class Turnstile(Machine[Turn | Seen]):
    """Goes from one state to the other with each message."""

    turned = 0

    async def initial(self) -> State[Any, Turnstile]:
        return Locked()

    @handles(Seen)
    async def report(self, request: Seen) -> int:  # noqa: ARG002 (the protocol's signature)
        return self.turned


class Locked(State[Turn, Turnstile]):
    @handles(Turn)
    async def turn(self, message: Turn) -> None:  # noqa: ARG002 (the protocol's signature)
        self.machine.turned += 1
        self.become(Unlocked())


class Unlocked(State[Turn, Turnstile]):
    @handles(Turn)
    async def turn(self, message: Turn) -> None:  # noqa: ARG002 (the protocol's signature)
        self.machine.turned += 1
        self.become(Locked())


def machine(count: int) -> float:
    return trio.run(_machine, count)


async def _machine(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Turnstile)
        turn = Turn()
        watch = Watch()
        for number in range(count):
            await ref.tell(turn)
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
        assert await ref.ask(Seen()) == count
        return watch.rate(count)


def thread_tell(count: int) -> float:
    return trio.run(_thread_tell, count)


async def _thread_tell(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Sink)
        outside = ref.threadsafe()
        note = Note(1)

        def tell_all() -> None:
            for _ in range(count):
                outside.tell(note)

        watch = Watch()
        await trio.to_thread.run_sync(tell_all)
        assert await ref.ask(Seen()) == count
        return watch.rate(count)


def thread_ask(count: int) -> float:
    return trio.run(_thread_ask, count)


async def _thread_ask(count: int) -> float:
    async with open_system() as system:
        outside = (await system.start(Sink)).threadsafe()

        def ask_all() -> None:
            for _ in range(count):
                outside.ask_sync(Seen())

        watch = Watch()
        await trio.to_thread.run_sync(ask_all)
        return watch.rate(count)


def crowd(count: int) -> tuple[float, float, float]:
    return trio.run(_crowd, count)


async def _crowd(count: int) -> tuple[float, float, float]:
    """Microseconds of an ask, of a start and of a stop, with ``count`` actors."""
    refs: list[ActorRef[Note | Seen]] = []
    async with open_system() as system:
        watch = Watch()
        for number in range(count):
            refs.append(await system.start(Sink, name=str(number)))
        start = watch.seconds()
        seen = Seen()
        watch = Watch()
        for _ in range(ROUNDS):
            for ref in refs:
                await ref.ask(seen)
        ask = watch.seconds() / ROUNDS
        watch = Watch()
    return ask / count * 1e6, start / count * 1e6, watch.seconds() / count * 1e6


_TRIO, _ASYNCIO = "bench.peers.trio_channel", "bench.peers.asyncio_queue"
_PYKKA, _AUTOGEN = "bench.peers.pykka_actor", "bench.peers.autogen_agent"


def _row(
    name: str,
    function: str,
    counts: tuple[int, int, int, int, int],
    goal: float,
    *,
    unit: str = RATE,
    figure: int = 0,
) -> Row:
    """A row of all peers; a count of 0 omits a peer."""
    motet, bare, asyncio, pykka, autogen = counts
    cases = (
        Case(MOTET, __name__, function, motet, figure=figure),
        Case("trio", _TRIO, function, bare, figure=figure),
        Case("asyncio", _ASYNCIO, function, asyncio, figure=figure),
        Case("pykka", _PYKKA, function, pykka, "pykka", figure=figure),
        Case("autogen-core", _AUTOGEN, function, autogen, "autogen_core", figure=figure),
    )
    return Row(name, unit, tuple(case for case in cases if case.count), "trio", goal)


_CROWD = (20_000, 20_000, 20_000, 0, 5_000)
_ENDS = (20_000, 20_000, 20_000, 0, 0)  # an agent of AutoGen has no task that could be ended

ROWS = (
    _row("pool of 8, tell", "pool", (100_000, 100_000, 100_000, 0, 0), 2),
    _row("topic of 100, delivery", "topic", (200_000, 200_000, 200_000, 100_000, 20_000), 1.5),
    _row("machine, transition", "machine", (50_000, 50_000, 50_000, 0, 0), 2),
    _row("tell from a thread", "thread_tell", (50_000, 50_000, 50_000, 50_000, 0), 2),
    _row("ask from a thread", "thread_ask", (3_000, 3_000, 3_000, 3_000, 0), 0.8),
    _row("20,000 actors, ask", "crowd", _CROWD, 0.83, unit="us"),
    _row("20,000 actors, start", "crowd", _CROWD, 1.2, unit="us", figure=1),
    _row("20,000 actors, stop", "crowd", _ENDS, 2, unit="us", figure=2),
)
