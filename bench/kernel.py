"""The cost of the kernel: motet's side of the kernel rows, and the table of these rows.

The peers do the least equivalent work; they are in :mod:`bench.peers`.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import partial

import trio

from bench import kernel_many
from bench.clock import Watch, resident
from bench.rows import MOTET, RATE, Case, Row
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, MailboxSpec, handles, open_system

__all__ = ["ROWS"]


class Note(Message, frozen=True, tag="bench.note"):
    number: int


class Echo(Request[int], frozen=True, tag="bench.echo"):
    number: int


class EchoHere(Request[int], frozen=True, tag="bench.echo_here"):
    number: int


class EchoBrief(Request[int], frozen=True, tag="bench.echo_brief"):
    number: int


class EchoAside(Request[int], frozen=True, tag="bench.echo_aside"):
    number: int


class Sink(Actor[Note | Echo]):
    """Counts tells and echoes asks."""

    def __init__(self) -> None:
        self.seen = 0

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.seen += message.number

    @handles(Echo)
    async def echo(self, request: Echo) -> int:
        return request.number


class Echoes(Actor[EchoHere | EchoBrief | EchoAside]):
    """Echoes asks beside its turn: a sink with these handlers would have workers."""

    @handles(EchoAside, concurrent=8)
    async def echo_aside(self, request: EchoAside) -> int:
        return request.number

    @handles(EchoHere, concurrent=8, here=True)
    async def echo_here(self, request: EchoHere) -> int:
        return request.number

    @handles(EchoBrief, concurrent=8, here=True, brief=True)
    async def echo_brief(self, request: EchoBrief) -> int:
        return request.number


class Clocks:
    """A minimal meter: it counts, sums up times and keeps the longest."""

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.times: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def count(self, name: str, path: str) -> None:
        self.counts[name, path] += 1

    def record(self, name: str, path: str, value: float) -> None:
        times = self.times[name, path]
        times[0] += value
        if value > times[1]:
            times[1] = value


def tell(count: int) -> float:
    return trio.run(_tell, count, None)


def tell_with_clocks(count: int) -> float:
    return trio.run(_tell, count, Clocks())


async def _tell(count: int, clocks: Clocks | None) -> float:
    async with open_system(telemetry=clocks) as system:
        ref = await system.start(Sink, name="sink")
        note = Note(1)
        watch = Watch()
        for number in range(count):
            await ref.tell(note)
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
        await ref.ask(Echo(0))
        return watch.rate(count)


def ask(count: int) -> float:
    return trio.run(_ask, count, None)


def ask_with_deadline(count: int) -> float:
    return trio.run(_ask, count, 60.0)


def ask_here(count: int) -> float:
    return trio.run(_ask_beside, count, EchoHere(1))


def ask_here_brief(count: int) -> float:
    return trio.run(_ask_beside, count, EchoBrief(1))


def ask_aside(count: int) -> float:
    return trio.run(_ask_beside, count, EchoAside(1))


async def _ask_beside(count: int, echo: EchoHere | EchoBrief | EchoAside) -> float:
    async with open_system() as system:
        ref = await system.start(Echoes, name="echoes")
        watch = Watch()
        for _ in range(count):
            await ref.ask(echo)
        return watch.rate(count)


async def _ask(count: int, timeout: float | None) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        echo = Echo(1)
        watch = Watch()
        for _ in range(count):
            await ref.ask(echo, timeout=timeout)
        return watch.rate(count)


def ask_100(count: int) -> float:
    return trio.run(_ask_100, count)


async def _ask_100(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        echo = Echo(1)

        async def asker() -> None:
            for _ in range(count // 100):
                await ref.ask(echo)

        watch = Watch()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(asker)
        return watch.rate(count // 100 * 100)


class Token(Message, frozen=True, tag="bench.token"):
    hops: int


class Link(Actor[Token]):
    """A member of a ring: passes the token on until it has made all its hops."""

    def __init__(self, ring: list[ActorRef[Token]], place: int, done: trio.Event) -> None:
        self.ring = ring
        self.next = place + 1
        self.done = done

    @handles(Token)
    async def token(self, message: Token) -> None:
        if message.hops:
            await self.ring[self.next % len(self.ring)].tell(Token(message.hops - 1))
        else:
            self.done.set()


def ring(count: int) -> float:
    return trio.run(_ring, count)


async def _ring(count: int) -> float:
    async with open_system() as system:
        links: list[ActorRef[Token]] = []
        done = trio.Event()
        for place in range(100):
            links.append(await system.start(partial(Link, links, place, done), name=str(place)))
        watch = Watch()
        await links[0].tell(Token(count))
        await done.wait()
        return watch.rate(count)


def start_stop(count: int) -> float:
    return trio.run(_start_stop, count)


async def _start_stop(count: int) -> float:
    async with open_system() as system:
        watch = Watch()
        for number in range(count):
            ref = await system.start(Sink, name=str(number))
            await ref.stop()
        return watch.seconds() / count * 1e6


def idle(count: int) -> float:
    return trio.run(_idle, count)


async def _idle(count: int) -> float:
    async with open_system() as system:
        before = resident()
        refs = [await system.start(Sink, name=str(number)) for number in range(count)]
        return (resident() - before) / len(refs) / 1000


class Wait(Request[None], frozen=True, tag="bench.wait"):
    pass


class Waiter(Actor[Wait]):
    """Works on a hundred requests at once, each until it is cancelled."""

    @handles(Wait, concurrent=100)
    async def wait(self, request: Wait) -> None:  # noqa: ARG002 (the protocol's signature)
        await trio.sleep_forever()


def stop_running(count: int) -> float:
    return trio.run(_stop_running, count)


async def _stop_running(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Waiter, name="waiter")
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(ref.ask, Wait())
            while ref.statistics().running < count:
                await trio.lowlevel.checkpoint()
            watch = Watch()
            nursery.cancel_scope.cancel()
        return watch.seconds() * 1000


class Busy(Actor[Wait]):
    """Works on one request, while all others wait."""

    mailbox = MailboxSpec(capacity=100_000)

    @handles(Wait)
    async def wait(self, request: Wait) -> None:  # noqa: ARG002 (the protocol's signature)
        await trio.sleep_forever()


def stop_pending(count: int) -> float:
    return trio.run(_stop_pending, count)


async def _stop_pending(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Busy, name="busy")

        async def asker() -> None:
            with suppress(ActorDead):
                await ref.ask(Wait())

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(asker)
            while ref.statistics().accepted < count:
                await trio.lowlevel.checkpoint()
            watch = Watch()
            await ref.stop(grace=0)
        return watch.seconds() * 1000


def _row(
    name: str,
    function: str,
    counts: tuple[int, int, int, int, int],
    goal: float,
    *,
    unit: str = RATE,
    autogen_goal: float | None = None,
) -> Row:
    """A row of all peers; a count of 0 omits a peer."""
    motet, bare, asyncio, pykka, autogen = counts
    trio_module = "bench.peers.trio_channel"
    cases = (
        Case(MOTET, __name__, function, motet),
        Case("trio", trio_module, function.partition("_with_")[0], bare),
        Case("asyncio", "bench.peers.asyncio_queue", function, asyncio),
        Case("pykka", "bench.peers.pykka_actor", function, pykka, "pykka"),
        Case(
            "autogen-core",
            "bench.peers.autogen_agent",
            function,
            autogen,
            "autogen_core",
            autogen_goal,
        ),
    )
    kept = tuple(case for case in cases if case.count)
    return Row(name, unit, kept, "trio" if bare else None, goal, bounded=unit != RATE)


def _in_place(name: str, function: str, goal: float) -> Row:
    """A row of asks that their asker handles, beside the same handler behind its mailbox."""
    here = Case(MOTET, __name__, function, 60_000)
    return Row(name, RATE, (here, Case("mailbox", __name__, "ask_aside", 30_000)), "mailbox", goal)


ROWS = (
    _row("tell", "tell", (200_000, 100_000, 200_000, 100_000, 3_000), 5),
    _row("tell with clocks", "tell_with_clocks", (200_000, 100_000, 0, 0, 0), 4),
    _row("ask", "ask", (30_000, 30_000, 30_000, 5_000, 2_000), 0.9, autogen_goal=8),
    _row("ask with deadline", "ask_with_deadline", (30_000, 30_000, 30_000, 5_000, 0), 0.9),
    _in_place("ask, here", "ask_here", 1.2),
    _in_place("ask, here, brief", "ask_here_brief", 3),
    _row("ask, 100 at once", "ask_100", (50_000, 50_000, 50_000, 10_000, 3_000), 1.5),
    _row("ring of 100, hop", "ring", (50_000, 50_000, 50_000, 10_000, 2_000), 1.2),
    _row("start + stop", "start_stop", (4_000, 4_000, 4_000, 1_000, 0), 60, unit="us"),
    _row("idle", "idle", (10_000, 10_000, 10_000, 1_000, 5_000), 5.5, unit="KB"),
    _row("stop of 100 running", "stop_running", (100, 100, 100, 0, 0), 25, unit="ms"),
    _row("stop of 10,000 pending", "stop_pending", (10_000, 0, 0, 0, 0), 1500, unit="ms"),
    *kernel_many.ROWS,
)
