"""A world of handlers that run beside each other in one actor, some of which fail (G4).

Told messages and requests, in the turn and beside it, each for a while; some fail, some take
longer than the grace that their actor declares. Nobody is stopped, and nothing crashes but by a
handler.

The law: a crash costs its own message and no other. Whoever began before it and takes no longer
than the grace is done, once; an asker gets its answer; and the next incarnation begins within the
grace.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, Supervision, handles, open_system
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search

__all__ = ["BESIDE", "NAME"]

NAME = "G4 beside"
MESSAGES = 14
GRACE = 4.0
TIMES = (0.0, 0.0, 1.0, 2.0, 3.0, 20.0)


class Plan(Message, frozen=True):
    """The number of a message, the seconds that its handler takes, and whether it fails then."""

    number: int
    seconds: float
    fails: bool


class InTurn(Plan, frozen=True, tag="beside.in-turn"):
    pass


class Aside(Plan, frozen=True, tag="beside.aside"):
    pass


class Asked(Request[int], frozen=True, tag="beside.asked"):
    number: int
    seconds: float
    fails: bool


class Broken(Exception):
    """A handler was told to fail."""


@attrs.define
class Ledger:
    """What the handlers and the askers saw."""

    begun: list[int] = attrs.field(factory=list[int])
    done: list[int] = attrs.field(factory=list[int])
    failed: list[int] = attrs.field(factory=list[int])
    cut: list[int] = attrs.field(factory=list[int])
    answered: list[int] = attrs.field(factory=list[int])
    too_long: set[int] = attrs.field(factory=set[int])
    crashed_at: float | None = None
    waited: float = 0.0  # from a crash to the next incarnation, at most


class Desk(Actor[InTurn | Aside | Asked]):
    """Does several things at once."""

    stop_grace = GRACE

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def on_start(self) -> None:
        if self.ledger.crashed_at is not None:
            self.ledger.waited = max(
                self.ledger.waited, trio.current_time() - self.ledger.crashed_at
            )
        self.ledger.crashed_at = None

    @handles(InTurn)
    async def in_turn(self, message: InTurn) -> None:
        await self._do(message, crashes=True)

    @handles(Aside, concurrent=3)
    async def aside(self, message: Aside) -> None:
        await self._do(message, crashes=True)

    @handles(Asked, concurrent=2, here=True)
    async def asked(self, request: Asked) -> int:
        await self._do(request, crashes=False)
        return request.number

    async def _do(self, plan: InTurn | Aside | Asked, *, crashes: bool) -> None:
        ledger = self.ledger
        ledger.begun.append(plan.number)
        try:
            await trio.sleep(plan.seconds)
        except trio.Cancelled:
            ledger.cut.append(plan.number)
            raise
        if plan.fails:
            ledger.failed.append(plan.number)
            if crashes and ledger.crashed_at is None:
                ledger.crashed_at = trio.current_time()
            raise Broken
        ledger.done.append(plan.number)


async def _ask(ledger: Ledger, ref: ActorRef[InTurn | Aside | Asked], request: Asked) -> None:
    try:
        await ref.ask(request)
    except Broken:
        assert request.fails
    except ActorDead:
        assert request.seconds > GRACE  # it was cut
    else:
        ledger.answered.append(request.number)


async def _beside(sim: Simulation) -> None:
    ledger = Ledger()
    chance = sim.random
    asked: set[int] = set()
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system, "/system/desk")
        ref = await system.start(partial(Desk, ledger), name="desk")
        async with trio.open_nursery() as nursery:
            for number in range(MESSAGES):
                seconds, fails = chance.choice(TIMES), chance.random() < 0.3
                if seconds > GRACE:
                    ledger.too_long.add(number)
                match chance.randrange(3):
                    case 0:
                        await ref.tell(InTurn(number, seconds, fails))
                    case 1:
                        await ref.tell(Aside(number, seconds, fails))
                    case _:
                        asked.add(number)
                        nursery.start_soon(_ask, ledger, ref, Asked(number, seconds, fails))
                await trio.sleep(chance.choice((0, 0, 1)))
        await trio.sleep(1_000)  # all is handled
        left = ref.statistics()
    _judge(sim, ledger, asked, left.queued + left.stashed + left.running)


def _judge(sim: Simulation, ledger: Ledger, asked: set[int], left: int) -> None:
    """After the end: who was cut was too long, each message began once, and none is left."""
    path = "/system/desk"
    if innocent := sorted(set(ledger.cut) - ledger.too_long):
        sim.violated("G4", path, f"cut by the crash of another: {innocent}")
    if left or sorted(ledger.begun) != [*range(MESSAGES)]:
        sim.violated("G4", path, f"begun {sorted(ledger.begun)}, {left} are left")
    ended = sorted([*ledger.done, *ledger.failed, *ledger.cut])
    if ended != [*range(MESSAGES)]:
        sim.violated("G4", path, f"ended {ended}")
    if unanswered := sorted(asked.intersection(ledger.done) - {*ledger.answered}):
        sim.violated("G3", path, f"done, and not answered: {unanswered}")
    if ledger.waited > GRACE:
        sim.violated("G4", path, f"the next incarnation began after {ledger.waited:g} s")


BESIDE = Law(NAME, Search("G4", _beside))
