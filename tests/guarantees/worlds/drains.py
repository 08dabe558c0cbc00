"""A world of mail that gets old, is stashed, and is drained in the end.

Senders tell jobs that nobody needs after a while, messages that wait behind a door, and keys that
let some of them through; the mailbox is small, handlers take their time, some crash their actor. At
some moment the actor is drained, while senders go on.

The law: a job begins in time, or is a dead letter when it is too old, and not before. A key lets
as many through as it says, those that have waited longest, before all other mail. A drain refuses
what comes after it, ends no handler, and leaves nothing of what was accepted but the stash. All
that was accepted is begun once, or is a dead letter.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from functools import partial

import attrs
import trio

from motet.protocols.messages import Message
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    DeadLetter,
    Feed,
    MailboxFull,
    MailboxSpec,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import ANY, Search

__all__ = ["SEARCH"]

AGE = 3.0
SENDERS = 2
MESSAGES = 14  # of each sender
PATH = "/system/desk"


class Job(Message, frozen=True, tag="drains.job"):
    """Nobody needs it after ``AGE`` seconds."""

    number: int
    seconds: float
    fails: bool


class Wait(Message, frozen=True, tag="drains.wait"):
    """Is stashed, until a key lets it through."""

    number: int


class Key(Message, frozen=True, tag="drains.key"):
    number: int
    count: int


@attrs.define
class World:
    sim: Simulation
    told: dict[int, float] = attrs.field(factory=dict[int, float])  # with the time it was accepted
    begun: list[int] = attrs.field(factory=list[int])  # all but those that were stashed
    stash: deque[int] = attrs.field(factory=deque[int])
    next: deque[int] = attrs.field(factory=deque[int])  # what a key has put before all other mail
    drained: bool = False  # the drain has been called
    at_work: int | None = None

    def broken(self, what: str) -> None:
        self.sim.violated("drain", PATH, what)

    def begin(self, number: int) -> bool:
        """Note what a handler begins with; whether a key has let it through."""
        passes = bool(self.next)
        if passes and self.next.popleft() != number:
            self.broken(f"{number} came before what a key had let through")
        return passes


class Desk(Actor[Job | Wait | Key]):
    mailbox = MailboxSpec(capacity=6)

    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Job, max_age=AGE)
    async def job(self, message: Job) -> None:
        world = self.world
        world.begin(message.number)
        world.begun.append(message.number)
        # Its sender notes the time of its return, which may come after this; it is the same moment.
        age = trio.current_time() - world.told.get(message.number, trio.current_time())
        if age > AGE:
            world.broken(f"job {message.number} began after {age:g} s")
        world.at_work = message.number
        await trio.sleep(message.seconds)
        world.at_work = None
        if message.fails:
            raise RuntimeError("a bad job")

    @handles(Wait)
    async def wait(self, message: Wait) -> None:
        if not self.world.begin(message.number):
            with suppress(MailboxFull):  # the last place is never the stash's: then it passes
                self.stash()
                self.world.stash.append(message.number)
                return
        self.world.begun.append(message.number)

    @handles(Key)
    async def key(self, message: Key) -> None:
        world = self.world
        world.begin(message.number)
        world.begun.append(message.number)
        self.unstash(message.count)
        through = min(message.count, len(world.stash))
        world.next.extendleft(reversed([world.stash.popleft() for _ in range(through)]))


async def drains(sim: Simulation) -> None:
    world = World(sim)
    chance = sim.random

    def drawn(number: int) -> Job | Wait | Key:
        roll = chance.random()
        if roll < 0.25:
            return Wait(number)
        if roll < 0.45:
            return Key(number, chance.choice((0, 1, 2, 9)))
        return Job(number, chance.choice((0, 0, 1, 2, 7)), chance.random() < 0.1)

    async def send(ref: ActorRef[Job | Wait | Key], first: int) -> None:
        for number in range(first, first + MESSAGES):
            late = world.drained
            try:
                await ref.tell(drawn(number))
            except ActorDead:
                if not world.drained:
                    world.broken(f"{number} was refused before the drain")
                return
            world.told[number] = trio.current_time()
            if late:
                world.broken(f"{number} was accepted by an actor that is drained")
            await trio.sleep(chance.choice((0, 0, 0, 1, 2)))

    letters: list[tuple[int, float, str]] = []
    async with open_system(supervision=Supervision(intensity=1_000)) as system:
        sim.watch(system, PATH)
        ref = await system.start(partial(Desk, world), name="desk")
        with system.dead_letters.follow() as feed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_note, feed, letters)
                async with trio.open_nursery() as sending:
                    for sender in range(SENDERS):
                        sending.start_soon(send, ref, sender * 100)
                    await trio.sleep(chance.choice((0, 1, 3, 6, 12)))
                    at_work, world.drained = world.at_work, True
                    report = await ref.drain()
                    if not report.complete or world.at_work is not None:
                        world.broken(f"{report} with {world.at_work} at work, {at_work} before")
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
    _judge(world, letters)


async def _note(feed: Feed[DeadLetter], letters: list[tuple[int, float, str]]) -> None:
    async for letter in feed:
        assert isinstance(letter.message, Job | Wait | Key)
        letters.append((letter.message.number, trio.current_time(), letter.reason))


def _judge(world: World, letters: list[tuple[int, float, str]]) -> None:
    for number, at, reason in letters:
        if "older than" in reason:
            if at - world.told[number] <= AGE:
                world.broken(f"job {number} was too old after {at - world.told[number]:g} s")
        elif "its handler failed" not in reason and number not in world.stash:
            world.broken(f"{number} is lost: {reason}")
    # A job that has crashed its actor has begun, and is a dead letter.
    ended = Counter(world.begun)
    ended.update(number for number, _, reason in letters if "its handler failed" not in reason)
    if ended != Counter([*world.told]):
        world.broken(f"accepted {sorted(world.told)}, begun or buried {sorted(ended.items())}")


SEARCH = Search(ANY, drains)
