"""A world of machines that are identities, are drained, and get their mail from other threads.

The simulator has no threads. A sender here is a task that does in one step what a thread does
between two steps of the loop: it puts a message into the inbox of the machine. A task in place of
Trio's calls the loop's half of it, at any later step. What two threads do to each other within one
step is in ``tests/runtime/test_threads_of_identities.py``, on real threads.

The law: each message is noted once, in the order of its sender, unless it crashed its machine, or
its machine was drained: then what was accepted before the drain is a dead letter only if it was
postponed to the end. What is postponed has a place, unless others that are have all but the last.
Passivation loses nothing, and each future has one outcome.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    ActorDead,
    ActorRef,
    Kind,
    LoopFuture,
    Machine,
    MailboxFull,
    MailboxSpec,
    State,
    Supervision,
    System,
    handles,
    open_system,
)
from motet.runtime.cell import Cell
from motet.runtime.kernel import HomeLoop
from motet.runtime.mailbox import Item, Mailbox
from motet.runtime.ref import cell_of
from motet.runtime.testing import Simulation
from motet.runtime.testing.scheduler import Patch, patched
from tests.guarantees.law import ANY, Search

__all__ = ["SEARCH"]

T = TypeVar("T")

SENDERS = 3
MESSAGES = 14  # of each sender
CAPACITY = 5
IDLE_AFTER = 1.0
RULES = Supervision(intensity=1_000, period=0.1, jitter=0)
STOPPED = "it was stopped"
DRAINED = "it is being drained"
NO_PLACE = "no place was left to postpone it"


class Note(Message, frozen=True, tag="doors.note"):
    """Is noted by an open door, and postponed by a closed one; a bad one crashes an open one."""

    sender: int
    number: int
    bad: bool = False


class Go(Request[bool], frozen=True, tag="doors.go"):
    """Open the door, or close it; the answer is whether it is open."""

    open: bool
    sender: int = 0
    after: int | None = None  # the number that its sender has told this actor before


class Kick(Message, frozen=True, tag="doors.kick"):
    """Crashes the machine in any state."""


@attrs.define
class World:
    sim: Simulation
    system: System
    found: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    told: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    drained: set[Cell] = attrs.field(factory=set[Cell])  # by this world
    met: set[Cell] = attrs.field(factory=set[Cell])

    def broken(self, path: str, what: str) -> None:
        self.sim.violated("doors", path, what)

    def lost(self) -> set[tuple[int, int]]:
        notes = [one.message for one in self.system.dead_letters if isinstance(one.message, Note)]
        return {(note.sender, note.number) for note in notes}


class Door(Machine[Note | Go | Kick]):
    mailbox = MailboxSpec(capacity=CAPACITY)  # not enough for all that is postponed

    def __init__(self, world: World) -> None:
        self.world = world

    async def initial(self) -> State[Any, Door]:
        await trio.lowlevel.checkpoint()
        return Closed()

    @handles(Kick)
    async def kick(self, _: Kick) -> None:
        raise RuntimeError("kicked")

    async def on_stop(self) -> None:
        await trio.sleep(self.world.sim.random.choice((0, 0.5)))


class Closed(State[Go, Door]):
    postpones = (Note,)

    @handles(Go)
    async def go(self, request: Go) -> bool:
        if request.open:
            self.become(Opened())
        return request.open


class Opened(State[Note | Go, Door]):
    @handles(Note)
    async def note(self, message: Note) -> None:
        world = self.machine.world
        await trio.sleep(world.sim.random.choice((0, 0, 0.25)))
        if message.bad:
            raise RuntimeError("a bad note")
        world.found.append((message.sender, message.number))

    @handles(Go)
    async def go(self, request: Go) -> bool:
        world, before = self.machine.world, (request.sender, request.after)
        if request.after is not None and before not in world.found and before not in world.lost():
            world.broken(self.machine.path, f"{request} came before {before}")
        if not request.open:
            self.become(Closed())
        return request.open


def as_thread(function: Callable[[], T]) -> T:
    """Call it as if in a thread that the loop does not know."""

    def no_task(_: HomeLoop) -> bool:
        return False

    with patched([(HomeLoop, "in_task", no_task)]):
        return function()


def _checked(sim: Simulation) -> list[Patch]:
    """A mailbox that is looked at where it loses messages."""
    put_aside, close = Mailbox.put_aside, Mailbox.close

    def checked_put_aside(self: Mailbox, item: Item) -> None:
        had_room, before = self.stash.items + 1 < CAPACITY, self.dead_lettered
        put_aside(self, item)
        if had_room and self.closed is None and self.dead_lettered > before:
            sim.violated("doors", self.path, f"{item} was not postponed, though there was room")

    def checked_close(self: Mailbox, reason: str) -> None:
        cell = self.holder if isinstance(self.holder, Cell) else None
        door = None if cell is None or cell.incarnation is None else cell.incarnation.actor
        # An open door has handled all that was accepted before its drain, and is stopped after it.
        if isinstance(door, Door) and isinstance(door.__motet_state__, Opened):
            left = self.queue.items + self.stash.items
            if left:
                sim.violated("doors", self.path, f"an open door is stopped with {left} messages")
        close(self, reason)

    return [(Mailbox, "put_aside", checked_put_aside), (Mailbox, "close", checked_close)]


async def doors(sim: Simulation) -> None:
    """The world, in a loop that looks late at what threads have posted to it."""
    posts, receiver = trio.open_memory_channel[Callable[[], object]](math.inf)

    def post(_: HomeLoop, call: Callable[[], object]) -> None:
        posts.send_nowait(call)

    async def serve() -> None:
        async for call in receiver:
            call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with patched([*_checked(sim), (HomeLoop, "post", post)]):
            await _doors(sim)
        nursery.cancel_scope.cancel()


async def _doors(sim: Simulation) -> None:
    chance = sim.random
    futures: list[LoopFuture[bool]] = []
    pace = chance.choice(((0, 0, 0, 1), (0, 0, 0, 4), (4, 5)))
    async with open_system() as system:
        sim.watch(system)
        world = World(sim, system)
        kind = await system.registry.kind(
            "door", lambda _: Door(world), idle_after=IDLE_AFTER, supervision=RULES
        )

        def present(key: str) -> ActorRef[Note | Go | Kick]:
            ref = kind.present(key, key)
            world.met.add(cell_of(ref))
            return ref

        async def send(sender: int) -> None:
            key = "ab"[sender % 2]  # one for each sender, so that its order can be judged
            before: tuple[Cell, int] | None = None
            for number in range(MESSAGES):
                ref = present(key)
                safe = ref.threadsafe()
                # Of the times at which the kind looks for idle actors.
                await trio.sleep(IDLE_AFTER / 4 * chance.choice(pace))
                for _ in range(chance.randrange(3)):
                    await trio.lowlevel.checkpoint()
                with suppress(ActorDead, MailboxFull):  # it is passivated, or has been drained
                    roll = chance.random()
                    if roll < 0.7:
                        bad = chance.random() < 0.05
                        as_thread(partial(safe.tell_nowait, Note(sender, number, bad)))
                        if not bad:
                            world.told.append((sender, number))
                            before = cell_of(ref), number
                    elif roll < 0.73:
                        as_thread(partial(safe.tell_nowait, Kick()))
                    else:
                        same = before is not None and before[0] is cell_of(ref)
                        after = before[1] if same and before is not None else None
                        request = Go(chance.random() < 0.6, sender, after)
                        futures.append(as_thread(partial(safe.ask, request)))

        async def drain() -> None:
            for _ in range(3):
                await trio.sleep(chance.choice((0.4, 1, 2, 3)))
                cell = kind.find(chance.choice("ab"))
                if cell is not None:
                    world.drained.add(cell)
                    with suppress(ActorDead):
                        await ActorRef[Any](cell).drain()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            for sender in range(SENDERS):
                nursery.start_soon(send, sender)
        for key in "ab":
            while not await _emptied(kind, key):
                await trio.sleep(5)
        await trio.sleep(10)
        if not all(future.done() for future in futures):
            world.broken("/system/door", "a future has no outcome")
        _judge(world)


async def _emptied(kind: Kind[Note | Go | Kick], key: str) -> bool:
    """Whether the door was open, and nothing is left that it has postponed."""
    with suppress(ActorDead):
        ref = kind.present(key, key)
        await ref.ask(Go(open=True))
        await trio.sleep(5)  # a crash closes it again
        return not ref.statistics().stashed
    return False


def _judge(world: World) -> None:
    for letter in world.system.dead_letters:
        match letter.message:
            case Note(bad=False) as note if letter.reason not in (STOPPED, DRAINED, NO_PLACE):
                world.broken(letter.path, f"{note} was lost: {letter.reason}")
            case _:
                pass
    for cell in world.met - world.drained:
        mailbox = cell.mailbox
        if mailbox.dead_lettered > mailbox.lost:
            world.broken(cell.path, f"passivation lost {mailbox.dead_lettered - mailbox.lost}")
    known = {*world.found, *world.lost()}
    wrong = [f"{one} twice" for one, times in Counter(world.found).items() if times > 1]
    wrong += [f"{one} is nowhere" for one in world.told if one not in known]
    for sender in range(SENDERS):
        numbers = [number for one, number in world.found if one == sender]
        if numbers != sorted(numbers):
            wrong.append(f"sender {sender}: {numbers}")
    for what in wrong:
        world.broken("/system/door", what)


SEARCH = Search(ANY, doors)
