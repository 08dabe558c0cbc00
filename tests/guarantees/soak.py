"""Very many messages through very many actors that crash at random: each is accounted for (G4).

On Trio's own scheduler, without the simulator. The books are kept twice: by the kernel's counters,
and by the senders and handlers, who count what they did.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    Statistics,
    Supervision,
    handles,
    open_system,
)

__all__ = ["Books", "soak"]

SENDERS = 50
CRASHES = 0.005  # share of the messages that make their actor fail


class Tick(Message, frozen=True, tag="soak.tick"):
    number: int
    fails: bool


class Tock(Request[int], frozen=True, tag="soak.tock"):
    number: int


Ref = ActorRef[Tick | Tock]


@attrs.define
class Books:
    """What senders and handlers did. ``problems`` is empty if it agrees with the counters."""

    sent: int = 0
    refused: int = 0
    cancelled: int = 0
    done: int = 0
    failed: int = 0
    blocks_before: int = 0
    blocks_after: int = 0
    problems: list[str] = attrs.field(factory=list[str])

    def check(self, what: str, left: int, right: int) -> None:
        if left != right:
            self.problems.append(f"{what}: {left} is not {right}")


class Worker(Actor[Tick | Tock]):
    mailbox = MailboxSpec(capacity=4)

    def __init__(self, books: Books) -> None:
        self.books = books

    @handles(Tick)
    async def tick(self, message: Tick) -> None:
        if message.number % 16 == 0:
            await trio.lowlevel.checkpoint()
        if message.fails:
            self.books.failed += 1
            raise RuntimeError("told to fail")
        self.books.done += 1

    @handles(Tock)
    async def tock(self, request: Tock) -> int:
        if request.number % 4 == 0:
            await trio.lowlevel.checkpoint()
        self.books.done += 1
        return request.number


async def _send(books: Books, refs: list[Ref], chance: random.Random, count: int) -> None:
    for number in range(count):
        ref = refs[int(chance.random() * len(refs))]
        dice = chance.random()
        books.sent += 1
        if dice < 0.1:
            await _ask(books, ref, number, cancelled=dice < 0.02)
        elif dice < 0.2:
            try:
                ref.tell_nowait(Tick(number, chance.random() < CRASHES))
            except MailboxFull:
                books.refused += 1
        else:
            await ref.tell(Tick(number, chance.random() < CRASHES))


async def _ask(books: Books, ref: Ref, number: int, *, cancelled: bool) -> None:
    with trio.CancelScope() as scope:
        if cancelled:
            scope.cancel()
        if await ref.ask(Tock(number)) != number:
            books.problems.append(f"ask {number} has the answer of another")
    books.cancelled += scope.cancelled_caught


async def _round(books: Books, refs: list[Ref], chance: random.Random, messages: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(_send, books, refs, chance, messages // SENDERS)
    await wait_all_tasks_blocked()


async def _soak(books: Books, messages: int, actors: int, seed: int) -> None:
    chance = random.Random(seed)
    often = Supervision(intensity=messages, period=0.1)
    async with open_system(supervision=often) as system:
        refs = [
            await system.start(partial(Worker, books), name=str(number)) for number in range(actors)
        ]
        await _round(books, refs, chance, messages // 5)  # until all that is kept is there
        books.blocks_before = _blocks()
        await _round(books, refs, chance, messages - messages // 5)
        books.blocks_after = _blocks()
        seen = [ref.statistics() for ref in refs]
        letters = system.dead_letters.count
    _compare(books, seen, letters)


def _compare(books: Books, seen: list[Statistics], letters: int) -> None:
    accepted = sum(one.accepted for one in seen)
    handled = sum(one.handled for one in seen)
    withdrawn = sum(one.withdrawn for one in seen)
    dead = sum(one.dead_lettered for one in seen)
    queued = sum(one.queued + one.stashed + one.running + one.waiting for one in seen)
    books.check("accepted, and handled + withdrawn + dead", accepted, handled + withdrawn + dead)
    # An ask that is cancelled before there was room for it is neither accepted nor withdrawn.
    never = books.cancelled - withdrawn
    books.check("sent, and accepted or refused", books.sent, accepted + books.refused + never)
    books.check("handled, and done by the handlers", handled, books.done)
    books.check("dead letters, and failures of the handlers", dead, books.failed)
    books.check("dead letters of the actors and of the system", dead, letters)
    books.check("left over", queued, 0)
    books.check("restarts, and failures", sum(one.restarts for one in seen), books.failed)


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@contextmanager
def _quiet() -> Generator[None]:
    """The log of thousands of crashes that were asked for."""
    log = logging.getLogger("motet.runtime")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def soak(messages: int, actors: int, seed: int = 0) -> Books:
    """Send ``messages``, a fifth of them to warm up; the books say whether all is well."""
    books = Books()
    with _quiet():
        trio.run(_soak, books, messages, actors, seed)
    grown = books.blocks_after - books.blocks_before
    # Caches differ by some hundreds, and numbers above 256 are objects: a few for each actor. A
    # leak would have a block per message.
    if grown > 2_000 + 8 * actors:
        books.problems.append(f"{grown} blocks of memory more after {messages} messages")
    return books
