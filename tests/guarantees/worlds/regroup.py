"""A world of groups that restart while their members wait for each other (G9, G11).

Random programs as in ``waits.py``, with crashes: three members of a group, each of which restarts
the group or the rest of it, and two actors outside that ask them and are asked. No handler takes
any time, so what takes time is a wait that only the end of a stop's grace has ended.

The law has two halves. A group restarts in no time: whoever waits for a member, and has to end
before that is started again, learns of the failure at once. And nobody is refused in vain: in a
kernel that refuses no wait, the same program on the same schedule takes time or hangs. The second
half is for programs without concurrent handlers, whose waits a crash in the turn may end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec
import trio

from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    MailboxSpec,
    Strategy,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.system import System
from motet.runtime.testing import Outcome, Simulation, Stuck
from tests.guarantees.law import Law, Search
from tests.guarantees.worlds.waits import (
    Aside,
    Book,
    Do,
    Here,
    Player,
    Step,
    Turn,
    What,
    refusing_nothing,
    send,
)

__all__ = ["NAME", "REGROUPING"]

NAME = "G9 groups"
MEMBERS, OTHERS = 3, 2
CAPACITIES = (1, 2, 50)
IN_TURN: Sequence[What] = ("tell", "ask", "ask", "ask", "stop", "sleep", "crash", "crash")
ALL: Sequence[What] = (*IN_TURN, "aside", "aside", "here")
ALONE: Sequence[What] = ("stop", "sleep", "crash")  # no message is sent

Ref = ActorRef[Do | Turn | Aside | Here]


class Broken(Exception):
    """A handler was told to fail."""


class Ended(msgspec.Struct, frozen=True):
    """The refusals of a program, the seconds it took, and whether all its handlers are in turns."""

    refused: Sequence[str]
    took: float
    in_turn: bool


class Member(Player):
    """Takes the steps of its messages, of which any may fail."""

    @handles(Do)
    async def do(self, message: Do) -> None:
        try:
            await self._take(message.steps)
        finally:
            self.book.done()

    async def on_start(self) -> None:
        """Another member that is asked may have to start after this one."""
        if self.ref.statistics().restarts and random.random() < 0.3:
            await sent(self.book, self.system, Step("ask", random.randrange(MEMBERS)))

    async def on_stop(self) -> None:
        """Its budget leaves half of the grace to the handlers."""

    async def _step(self, step: Step) -> None:
        match step.what:
            case "crash":
                raise Broken
            case "stop":
                self.stop_soon()
            case "sleep":
                await trio.lowlevel.checkpoint()
            case _:
                await sent(self.book, self.system, step)


class Group(Actor[Do]):
    """The parent of the members."""

    def __init__(self, member: type[Member], book: Book) -> None:
        self.member = member
        self.book = book

    async def on_start(self) -> None:
        for number in range(MEMBERS):
            await self.start_child(partial(self.member, self.book), name=str(number))

    @handles(Do)
    async def do(self, message: Do) -> None:
        """Is never told."""


async def sent(book: Book, system: System, step: Step) -> None:
    """Send the message of a step. Failures of the other are none of the sender."""
    path = f"/system/group/{step.to}" if step.to < MEMBERS else f"/system/{step.to}"
    ref = system.find(path)
    assert ref is not None
    try:
        await send(book, cast("Ref", ref), step)
    except* Broken:
        pass
    except* ActorDead as group:
        book.refused += [str(one) for one in group.exceptions if "starts again" in str(one)]


def steps(chance: random.Random, whats: Sequence[What], depth: int) -> tuple[Step, ...]:
    """Random steps of a handler, and of those below it. Nothing is beside a crash."""
    made: list[Step] = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3)) if depth else 0):
        what = chance.choice(whats)
        below = () if what in ALONE else steps(chance, whats, depth - 1)
        alone = "crash" in (what, made[-1].what if made else "crash")
        beside = not alone and chance.random() < 0.25
        made.append(Step(what, chance.randrange(MEMBERS + OTHERS), below, beside))
    return tuple(made)


async def _play(chance: random.Random, whats: Sequence[What], book: Book) -> None:
    begun = [steps(chance, whats, 4) for _ in range(chance.choice((1, 2, 3, 4)))]
    strategies: Sequence[Strategy] = ("one_for_all", "one_for_all", "rest_for_one")
    strategy = chance.choice(strategies)

    class Small(Member):
        mailbox = MailboxSpec(chance.choice(CAPACITIES))

    class OfMembers(Group):
        supervision = Supervision(strategy=strategy, intensity=1000)

    async with open_system(supervision=Supervision(intensity=1000)) as system:
        for number in range(MEMBERS, MEMBERS + OTHERS):
            await system.start(partial(Small, book), name=str(number))
        await system.start(lambda: OfMembers(Small, book), name="group")
        async with trio.open_nursery() as nursery:
            for step in (step for made in begun for step in made):
                if step.what not in ALONE:
                    nursery.start_soon(sent, book, system, step)
        while book.open:
            book.idle = trio.Event()
            await book.idle.wait()
        for number in range(MEMBERS + OTHERS):  # then all are there
            await sent(book, system, Step("ask", number))


async def _world(sim: Simulation) -> Ended:
    book = Book()
    whats = sim.random.choice((ALL, IN_TURN))
    began = trio.current_time()
    await _play(sim.random, whats, book)
    return Ended(book.refused, trio.current_time() - began, whats is IN_TURN)


class _AtOnce(Search):
    """Broken also if it took time, or if something was refused in vain."""

    def judged(self, outcome: Outcome[object]) -> str | None:
        if (how := super().judged(outcome)) is not None:
            return how
        ended = cast("Ended", outcome.value)
        if ended.took:
            return f"it took {ended.took:g} s, though no handler takes any"
        if not ended.refused or not ended.in_turn:
            return None
        return self._in_vain(outcome.seed, ended.refused[0])

    def _in_vain(self, number: int, refusal: str) -> str | None:
        with refusing_nothing():
            again = self.run(number, traced=False)
        if isinstance(again.error, Stuck) or cast("Ended", again.value).took:
            return None
        return f"refused, though the program ends without it: {refusal}"


REGROUPING = Law(NAME, _AtOnce("G9", _world))
