"""A world of senders against one small mailbox, whose actor fails now and then (G4, G13).

The numbers of accepted and placed mail are judged after every step by the simulator. What only the
world can know is judged here: which message became what, and in which order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    Overflow,
    StartFailed,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, Search

SENDERS = 3
EACH = 6  # messages per sender
POLICIES: tuple[Overflow, ...] = ("wait", "fail", "drop_oldest", "drop_newest")


class Item(Message, frozen=True, tag="mail.item"):
    sender: int
    number: int
    fails: bool = False


class Check(Request[int], frozen=True, tag="mail.check"):
    sender: int
    number: int


class Aside(Request[int], frozen=True, tag="mail.aside"):
    sender: int
    number: int


Ref = ActorRef[Item | Check | Aside]


@attrs.define
class Ledger:
    """What the senders and the handlers saw."""

    sent: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])
    begun: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    done: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])


class Belt(Actor[Item | Check | Aside]):
    """Takes its time over every message; some make it fail."""

    def __init__(self, sim: Simulation, ledger: Ledger) -> None:
        self.sim = sim
        self.ledger = ledger

    @handles(Item)
    async def item(self, message: Item) -> None:
        self.ledger.begun[message.sender].append(message.number)
        await trio.sleep(self.sim.random.choice((0, 0, 1)))
        if message.fails:
            raise RuntimeError("bad item")
        self.ledger.done.add((message.sender, message.number))

    @handles(Check)
    async def check(self, request: Check) -> int:
        self.ledger.begun[request.sender].append(request.number)
        await trio.sleep(self.sim.random.choice((0, 1)))
        return request.number

    @handles(Aside, concurrent=2, here=True)
    async def aside(self, request: Aside) -> int:
        await trio.sleep(self.sim.random.choice((0, 1, 2)))
        return request.number


async def _send(sim: Simulation, ledger: Ledger, ref: Ref, sender: int) -> None:
    for number in range(EACH):
        try:
            with trio.move_on_after(sim.random.choice((0.5, 1, 100))):
                await _send_one(sim, ledger, ref, sender, number)
        except MailboxFull:
            await trio.sleep(1)
        except ActorDead:
            return
        await trio.sleep(sim.random.choice((0, 0, 1)))


async def _send_one(sim: Simulation, ledger: Ledger, ref: Ref, sender: int, number: int) -> None:
    item = Item(sender, number, fails=sim.random.random() < 0.15)
    match sim.random.randrange(5):
        case 0:
            await ref.ask(Check(sender, number))
        case 1:
            await ref.ask(Aside(sender, number))
        case 2:
            ref.tell_nowait(item)
            ledger.sent.add((sender, number))
        case _:
            await ref.tell(item)
            ledger.sent.add((sender, number))


def _judge(sim: Simulation, ledger: Ledger, path: str, letters: list[Item]) -> None:
    """After the end: what was sent was handled or is a dead letter, and in order."""
    dead = {(item.sender, item.number) for item in letters}
    lost = sorted(ledger.sent - ledger.done - dead)
    if lost:
        sim.violated("G4", path, f"neither handled nor dead letters: {lost}")
    twice = sorted(ledger.done & dead)
    if twice or len(dead) != len(letters):
        sim.violated("G4", path, f"counted twice: {twice}, {letters}")
    for sender, numbers in ledger.begun.items():
        if numbers != sorted(set(numbers)):
            sim.violated("G4", path, f"sender {sender}: handled in the order {numbers}")


async def mail(sim: Simulation, *, stops: bool = True) -> None:
    """Senders in every way, to an actor that fails, restarts, and may be stopped."""
    spec = MailboxSpec(sim.random.choice((1, 2, 5)), sim.random.choice(POLICIES))
    ledger = Ledger()

    class Bounded(Belt):
        mailbox = spec

    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system, "/system/belt")
        try:
            ref = await system.start(partial(Bounded, sim, ledger), name="belt")
        except StartFailed:
            return  # the crash was early
        async with trio.open_nursery() as nursery:
            for sender in range(SENDERS):
                nursery.start_soon(_send, sim, ledger, ref, sender)
            if stops and sim.random.random() < 0.4:
                await trio.sleep(sim.random.randrange(8))
                await ref.stop(grace=sim.random.choice((0, 2)))
    letters = [found.message for found in system.dead_letters]
    counted = ref.statistics().dead_lettered
    if system.dead_letters.count != counted:
        sim.violated("G4", ref.path, f"{system.dead_letters.count} dead letters, counted {counted}")
    _judge(sim, ledger, ref.path, [item for item in letters if isinstance(item, Item)])


def crash_it(chance: random.Random) -> Sequence[Fault]:
    """The actor crashes at some step, too."""
    return (Fault("crash", chance.randrange(1, 120), "/system/belt"),)


CONSERVATION = Law("G4", Search("G4", mail, crash_it))
