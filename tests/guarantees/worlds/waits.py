"""A world of random programs whose every wait is an edge of the wait-for graph (G11).

A program is a tree of messages between actors with tiny mailboxes: tells that wait for room, asks
of the turn and of a few places for concurrent handlers, waits for an end, normal ends of an
incarnation, actors that are suspended for a while. Nobody has a deadline, and no answer depends on
who is refused what.

The law has two halves. A program never hangs: each message that was sent is handled, or its sender
was refused. And nothing is refused in vain: in a kernel that refuses no wait, the same program on
the same schedule hangs, for the first refused wait and all that it waits for could never go on. The
simulator repeats the schedule up to there, so this is exact, and needs no graph of its own.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, cast

import attrs
import msgspec
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    MailboxSpec,
    Supervision,
    System,
    WaitCycle,
    handles,
    mailbox,
    monitors,
    open_system,
    waits,
)
from motet.runtime.testing import Outcome, Simulation, Stuck
from motet.runtime.testing.scheduler import patched
from tests.guarantees.law import Law, Search

__all__ = ["EVERY_WAIT", "NAME", "Book", "play", "refusing_nothing"]

NAME = "G11 waits"
ACTORS = 3
CAPACITIES = (1, 1, 2)

What = Literal["tell", "ask", "aside", "here", "end", "stop", "sleep", "crash"]
ALONE: Sequence[What] = ("sleep", "stop", "end")  # no message is sent
WHATS: Sequence[What] = ("tell", "ask", "ask", "aside", "aside", "here", "stop", "sleep")


class Step(msgspec.Struct, frozen=True):
    """One step of a handler: ``then`` are the steps of the handler that it sends a message to.

    ``beside``: it is taken at the same time as the step before it.
    """

    what: What
    to: int = 0
    then: tuple[Step, ...] = ()
    beside: bool = False


class Do(Message, frozen=True, tag="waits.do"):
    steps: tuple[Step, ...]


class Turn(Request[None], frozen=True, tag="waits.turn"):
    steps: tuple[Step, ...]


class Aside(Request[None], frozen=True, tag="waits.aside"):
    steps: tuple[Step, ...]


class Here(Request[None], frozen=True, tag="waits.here"):
    steps: tuple[Step, ...]


@attrs.define(eq=False)
class Book:
    """The messages that were sent and neither handled nor refused; the refusals."""

    open: int = 0
    refused: list[str] = attrs.field(factory=list[str])
    idle: trio.Event = attrs.field(factory=trio.Event)

    def sent(self) -> None:
        self.open += 1

    def done(self) -> None:
        self.open -= 1
        if not self.open:
            self.idle.set()

    @contextmanager
    def may_be_refused(self) -> Generator[None]:
        try:
            yield
        except WaitCycle as error:
            if error.chain[0] != error.chain[-1]:
                raise AssertionError(f"{error.chain} is no cycle") from error
            self.refused.append(str(error))


class Player(Actor[Do | Turn | Aside | Here]):
    """Takes the steps of the messages that it gets."""

    def __init__(self, book: Book) -> None:
        self.book = book

    @handles(Do)
    async def do(self, message: Do) -> None:
        await self._take(message.steps)
        self.book.done()

    @handles(Turn)
    async def turn(self, request: Turn) -> None:
        await self._take(request.steps)

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> None:
        await self._take(request.steps)

    @handles(Here, concurrent=2, here=True)
    async def here(self, request: Here) -> None:
        await self._take(request.steps)

    async def _take(self, steps: Sequence[Step]) -> None:
        while steps:
            count = next((i for i, one in enumerate(steps) if i and not one.beside), len(steps))
            now, steps = steps[:count], steps[count:]
            if count == 1:  # in the same step of Trio as the end of the handler before, maybe
                await self._step(now[0])
                continue
            async with trio.open_nursery() as nursery:
                for step in now:
                    nursery.start_soon(self._step, step)

    async def _step(self, step: Step) -> None:
        match step.what:
            case "sleep":
                await trio.sleep(step.to)
            case "stop":
                self.stop_soon()
            case "end":  # which would never come
                with self.book.may_be_refused():
                    await self.ref.wait_terminated()
            case _:
                await send(self.book, found(self.system, step.to), step)


def found(system: System, number: int) -> ActorRef[Do | Turn | Aside | Here]:
    ref = system.find(f"/system/{number}")
    assert ref is not None
    return ref


async def send(book: Book, ref: ActorRef[Do | Turn | Aside | Here], step: Step) -> None:
    """Take a step that sends a message, and note what comes of it."""
    with book.may_be_refused():
        match step.what:
            case "tell":
                book.sent()
                try:
                    await ref.tell(Do(step.then))
                except BaseException:
                    book.done()
                    raise
            case "ask":
                await ref.ask(Turn(step.then))
            case "aside":
                await ref.ask(Aside(step.then))
            case _:
                await ref.ask(Here(step.then))


def steps(chance: random.Random, depth: int) -> tuple[Step, ...]:
    """Random steps of a handler, and of those below it."""
    made: list[Step] = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3)) if depth else 0):
        what: What = "end" if chance.random() < 0.02 else chance.choice(WHATS)
        below = () if what in ALONE else steps(chance, depth - 1)
        made.append(Step(what, chance.randrange(ACTORS), below, chance.random() < 0.25))
    return tuple(made)


async def play(chance: random.Random, book: Book) -> None:
    """Play a random program to its end: until every message is handled or refused."""
    begun = [steps(chance, 4) for _ in range(chance.choice((1, 2, 3, 4)))]

    class Small(Player):
        mailbox = MailboxSpec(chance.choice(CAPACITIES))

    async with open_system(supervision=Supervision(intensity=1000)) as system:
        for number in range(ACTORS):
            await system.start(partial(Small, book), name=str(number))
        async with trio.open_nursery() as nursery:
            for step in (step for made in begun for step in made):
                if step.what not in ALONE:
                    nursery.start_soon(send, book, found(system, step.to), step)
            if chance.random() < 0.3:
                nursery.start_soon(_suspend, found(system, chance.randrange(ACTORS)))
        while book.open:
            book.idle = trio.Event()
            await book.idle.wait()


async def _suspend(ref: ActorRef[Do | Turn | Aside | Here]) -> None:
    ref.suspend()
    await trio.sleep(1)
    ref.resume()


# ---------------------------------------------------------------------- the law


@contextmanager
def refusing_nothing() -> Generator[None]:
    """A kernel that lets everything wait that can never go on."""
    with patched(
        (
            (waits, "cycle_of", _none),
            (mailbox, "cycle_of", _none),
            (monitors, "refuse_own_end", _none),
        )
    ):
        yield


def _none(*_: object) -> None:
    return None


async def _world(sim: Simulation) -> Sequence[str]:
    book = Book()
    await play(sim.random, book)
    return book.refused


class _InVain(Search):
    """Broken also if something was refused, and the same schedule ends without a refusal."""

    def judged(self, outcome: Outcome[object]) -> str | None:
        if (how := super().judged(outcome)) is not None:
            return how
        refused = cast("Sequence[str]", outcome.value)
        return self._in_vain(outcome.seed, refused[0]) if refused else None

    def _in_vain(self, number: int, refusal: str) -> str | None:
        with refusing_nothing():
            again = self.run(number, traced=False)
        if isinstance(again.error, Stuck):
            return None
        return f"refused, though the program ends without it: {refusal}"


EVERY_WAIT = Law(NAME, _InVain("G11", _world))
