"""A world of many senders and little room: capacities hold, overflow is as declared (G13)."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxFull, MailboxSpec, Overflow, handles, open_system
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search

POLICIES: tuple[Overflow, ...] = ("wait", "fail", "drop_oldest", "drop_newest")
SENDERS = 4
EACH = 4


class Drop(Message, frozen=True, tag="crowd.drop"):
    sender: int
    number: int


class Sip(Request[int], frozen=True, tag="crowd.sip"):
    """Handled next to the turn, so that it waits aside while it waits."""

    sender: int


Ref = ActorRef[Drop | Sip]


class Bucket(Actor[Drop | Sip]):
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.seen: list[Drop] = []

    @handles(Drop)
    async def drop(self, message: Drop) -> None:
        self.seen.append(message)
        await trio.sleep(self.sim.random.choice((0, 1)))

    @handles(Sip, concurrent=1 + 1, here=True)
    async def sip(self, request: Sip) -> int:
        await trio.sleep(self.sim.random.choice((0, 1, 2)))
        return request.sender


class _Judge:
    """What the overflow policy promises to a sender, looked at around each sending."""

    def __init__(self, sim: Simulation, ref: Ref, spec: MailboxSpec) -> None:
        self.sim = sim
        self.ref = ref
        self.spec = spec

    def tell_nowait(self, message: Drop) -> None:
        """Nothing runs in between, so that what was full before says what has to happen."""
        before = self.ref.statistics()
        full = before.queued + before.stashed >= self.spec.capacity or before.waiting > 0
        try:
            self.ref.tell_nowait(message)
            refused = False
        except MailboxFull:
            refused = True
        after = self.ref.statistics()
        dropped = after.dead_lettered - before.dead_lettered
        drops = self.spec.overflow.startswith("drop") and full
        if refused != (full and not drops) or dropped != drops:
            self._found(f"full: {full}, refused: {refused}, dropped: {dropped}")

    async def tell(self, message: Drop) -> None:
        """A sender may have to wait, but is not refused unless that was declared."""
        before = self.ref.statistics().dead_lettered
        try:
            await self.ref.tell(message)
        except MailboxFull:
            if self.spec.overflow != "fail":
                self._found("a sender was refused")
        dropped = self.ref.statistics().dead_lettered - before
        if dropped and not self.spec.overflow.startswith("drop"):
            self._found(f"dropped: {dropped}")

    def _found(self, detail: str) -> None:
        self.sim.violated("G13", self.ref.path, f"{self.spec.overflow}: {detail}")


async def _send(sim: Simulation, ref: Ref, judge: _Judge, sender: int) -> None:
    for number in range(EACH):
        message = Drop(sender, number)
        match sim.random.randrange(4):
            case 0:
                judge.tell_nowait(message)
            case 1:
                with suppress(MailboxFull, TimeoutError):
                    await ref.ask(Sip(sender), timeout=sim.random.choice((1, 100)))
            case _:
                with trio.move_on_after(sim.random.choice((0, 1, 100))):
                    await judge.tell(message)
        if sim.random.random() < 0.3:
            await trio.sleep(sim.random.choice((0, 1)))


def _judge_drops(sim: Simulation, actor: Bucket, ref: Ref, overflow: Overflow) -> None:
    """``drop_oldest`` loses the oldest: whatever is still handled is newer than what was lost."""
    seen = [(drop.sender, drop.number) for drop in actor.seen]
    for sender in range(SENDERS):
        numbers = [number for who, number in seen if who == sender]
        if numbers != sorted(set(numbers)):
            sim.violated("G13", ref.path, f"{overflow}: sender {sender} was handled as {numbers}")


async def _drop_by_age(sim: Simulation, ref: Ref, actor: Bucket, spec: MailboxSpec) -> None:
    """Alone with the mailbox: fill it, send one more, and see which one is missing."""
    if not spec.overflow.startswith("drop"):
        return
    await trio.sleep(30)  # longer than all that may be queued takes
    actor.seen.clear()
    for number in range(spec.capacity + 1):
        ref.tell_nowait(Drop(-1, number))
    await trio.sleep(30)
    numbers = [drop.number for drop in actor.seen]
    first = 1 if spec.overflow == "drop_oldest" else 0
    if numbers != list(range(first, first + spec.capacity)):
        sim.violated("G13", ref.path, f"{spec.overflow}: of {spec.capacity + 1} kept {numbers}")


async def crowd(sim: Simulation) -> None:
    """Everybody at once, then the order in which mail is dropped."""
    spec = MailboxSpec(sim.random.choice((1, 2, 3)), sim.random.choice(POLICIES))

    class Small(Bucket):
        mailbox = spec

    actor = Small(sim)
    async with open_system() as system:
        sim.watch(system)
        ref = await system.start(lambda: actor, name="bucket")
        async with trio.open_nursery() as nursery:
            judge = _Judge(sim, ref, spec)
            for sender in range(SENDERS):
                nursery.start_soon(partial(_send, sim, ref, judge, sender))
        _judge_drops(sim, actor, ref, spec.overflow)
        await _drop_by_age(sim, ref, actor, spec)


BOUNDED_MEMORY = Law("G13", Search("G13", crowd))
