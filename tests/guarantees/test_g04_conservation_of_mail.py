"""G4: no message is lost and none is counted twice, at any step, whatever crashes or stops."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    Overflow,
    Statistics,
    Supervision,
    handles,
    open_system,
)


class Item(Message, frozen=True, tag="g4.item"):
    sender: int
    number: int
    fails: bool = False


class Check(Request[int], frozen=True, tag="g4.check"):
    sender: int
    number: int


class Aside(Request[int], frozen=True, tag="g4.aside"):
    sender: int
    number: int


class Belt(Actor[Item | Check | Aside]):
    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Item)
    async def item(self, message: Item) -> None:
        self.world.handled.append((message.sender, message.number))
        await trio.sleep(self.world.chance.choice((0, 0, 1)))
        if message.fails:
            raise RuntimeError("bad item")

    @handles(Check)
    async def check(self, request: Check) -> int:
        self.world.handled.append((request.sender, request.number))
        await trio.sleep(self.world.chance.choice((0, 1)))
        return request.number

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> int:
        await trio.sleep(self.world.chance.choice((0, 1, 2)))
        return request.number


def balance(seen: Statistics) -> int:
    """Zero, if the law holds."""
    return seen.accepted - (
        seen.handled
        + seen.withdrawn
        + seen.dead_lettered
        + seen.stashed
        + seen.queued
        + seen.running
    )


class World(trio.abc.Instrument):
    """Senders against one actor that fails now and then; the law is looked at after every step."""

    def __init__(self, seed: int, overflow: Overflow) -> None:
        self.chance = random.Random(seed)
        self.spec = MailboxSpec(capacity=self.chance.choice((1, 2, 5)), overflow=overflow)
        self.handled: list[tuple[int, int]] = []
        self.ref: ActorRef[Item | Check | Aside] | None = None
        self.checked = 0
        self.violations: list[str] = []

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.ref is None:
            return
        self.checked += 1
        seen = self.ref.statistics()
        if balance(seen) != 0:
            self.violations.append(f"unbalanced: {seen}")
        if seen.queued + seen.stashed > self.spec.capacity:
            self.violations.append(f"over capacity: {seen}")

    async def send(self, sender: int) -> None:
        assert self.ref is not None
        for number in range(12):
            try:
                await self._send_one(self.ref, sender, number)
            except MailboxFull:
                await trio.sleep(1)
            except ActorDead:
                return

    async def _send_one(
        self, ref: ActorRef[Item | Check | Aside], sender: int, number: int
    ) -> None:
        fails = self.chance.random() < 0.15
        with trio.move_on_after(self.chance.choice((0.5, 1, 100))):
            match self.chance.randrange(4):
                case 0:
                    await ref.ask(Check(sender, number))
                case 1:
                    await ref.ask(Aside(sender, number))
                case 2:
                    ref.tell_nowait(Item(sender, number, fails))
                case _:
                    await ref.tell(Item(sender, number, fails))
        await trio.sleep(self.chance.choice((0, 0, 1)))

    async def main(self) -> None:
        spec = self.spec

        class Bounded(Belt):
            mailbox = spec

        many = Supervision(intensity=1000)
        async with open_system(supervision=many) as system:
            self.ref = await system.start(lambda: Bounded(self), name="belt")
            async with trio.open_nursery() as nursery:
                for sender in range(4):
                    nursery.start_soon(self.send, sender)
                if self.chance.random() < 0.5:
                    await trio.sleep(self.chance.randrange(8))
                    await self.ref.stop(grace=self.chance.choice((0, 2)))
        letters = system.dead_letters.count
        final = self.ref.statistics()
        if final.queued or final.stashed or final.running or final.waiting:
            self.violations.append(f"not settled: {final}")
        if letters != final.dead_lettered:
            self.violations.append(f"dead letters: {letters}, {final}")

    def run(self) -> None:
        trio.run(self.main, clock=MockClock(autojump_threshold=0), instruments=[self])


@pytest.mark.parametrize("overflow", ["wait", "fail", "drop_oldest", "drop_newest"])
@pytest.mark.parametrize("seed", range(25))
def test_accepted_mail_is_always_somewhere(seed: int, overflow: Overflow) -> None:
    """Law: accepted = handled + withdrawn + dead-lettered + stashed + queued + running."""
    world = World(seed, overflow)
    world.run()

    assert world.violations == []
    assert world.checked > 20
    # Order per sender is kept across restarts: what was handled in the turn is ascending.
    for sender in range(4):
        numbers = [number for who, number in world.handled if who == sender]
        assert numbers == sorted(numbers)


async def test_a_crash_costs_only_the_failing_message(autojump_clock: MockClock) -> None:
    world = World(0, "wait")
    async with open_system() as system:
        ref = await system.start(lambda: Belt(world), name="belt")

        for number in range(6):
            await ref.tell(Item(0, number, fails=number == 2))
        await ref.ask(Check(0, 6))

        assert [number for _, number in world.handled] == [0, 1, 2, 3, 4, 5, 6]
        assert [letter.message for letter in system.dead_letters] == [Item(0, 2, fails=True)]
        assert "bad item" in system.dead_letters.last[0].reason
        assert ref.statistics().restarts == 1


async def test_mail_sent_while_an_actor_waits_for_its_restart_is_kept(
    autojump_clock: MockClock,
) -> None:
    world = World(0, "wait")
    async with open_system(supervision=Supervision(backoff=10, jitter=0)) as system:
        ref = await system.start(lambda: Belt(world), name="belt")
        await ref.tell(Item(0, 0, fails=True))
        await trio.sleep(5)

        assert ref.statistics().state == "suspended"
        assert ref.is_alive
        assert await ref.ask(Check(0, 1)) == 1


async def test_a_sender_waits_for_room_and_the_others_policies_do_not() -> None:
    class Stuck(Belt):
        mailbox = MailboxSpec(capacity=2)

        @handles(Item)
        async def item(self, message: Item) -> None:
            await trio.sleep_forever()

    world = World(0, "wait")
    async with open_system() as system:
        ref = await system.start(lambda: Stuck(world), name="stuck")
        for number in range(3):
            await ref.tell(Item(0, number))
            await trio.testing.wait_all_tasks_blocked()

        with pytest.raises(MailboxFull, match=r"/system/stuck is full \(2 messages\)"):
            ref.tell_nowait(Item(0, 3))
        with trio.move_on_after(0) as scope:
            await ref.tell(Item(0, 3))

        assert scope.cancelled_caught
        assert ref.statistics().accepted == 3
        await ref.stop(grace=0)
        assert [letter.message for letter in system.dead_letters] == [
            Item(0, 1),
            Item(0, 2),
            Item(0, 0),
        ]
