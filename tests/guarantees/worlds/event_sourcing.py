"""A world of event-sourced actors whose journal fails, is slow, and does not say what it has done.

Every stream has two actors at once, of two kinds, as where two processes serve one identity. They
crash, are passivated and stopped, and their askers give up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import trio

from motet.protocols.domain_events import StoredEvent
from motet.protocols.messages import Message, Request
from motet.runtime import (
    ActorDead,
    DomainEvent,
    EventSourced,
    JournalConflict,
    Kind,
    MemoryJournal,
    MotetRuntimeError,
    Persistence,
    Supervision,
    handles,
    open_system,
)
from motet.runtime import event_sourced as module
from motet.runtime.testing import Simulation
from motet.runtime.testing.scheduler import patched
from tests.guarantees.law import ANY, Search

KEYS = "ab"
RULES = Supervision(intensity=1_000, period=0.1, jitter=0)


class Noted(DomainEvent, frozen=True, tag="world.noted"):
    number: int


class All(DomainEvent, frozen=True, tag="world.all"):
    numbers: list[int]


class Put(Request[int], frozen=True, tag="world.put"):
    number: int


class PutBeside(Request[int], frozen=True, tag="world.put-beside"):
    number: int


class Crash(Message, frozen=True, tag="world.crash"):
    pass


class Numbers(Request[list[int]], frozen=True, tag="world.numbers"):
    pass


class TroubledJournal(MemoryJournal):
    """Fails before or after it has stored; takes its time, and may be cancelled, at both places.

    ``log`` has all events that were ever stored, also those behind snapshots.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim
        self.log: dict[str, list[int]] = defaultdict(list)
        self.quiet = False

    async def _trouble(self) -> None:
        for _ in range(self.sim.random.randrange(3)):
            await trio.lowlevel.checkpoint()
        if not self.quiet and self.sim.random.random() < 0.05:
            await trio.sleep(0.7)  # longer than some askers wait
        if not self.quiet and self.sim.random.random() < 0.1:
            raise OSError("the disk is full")

    async def append(self, stream: str, after: int, events: Sequence[StoredEvent], /) -> None:
        await self._trouble()
        await super().append(stream, after, events)
        self.log[stream] += [Notes.__motet_events__.event(stream, one).number for one in events]
        await self._trouble()

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        found = await super().read(stream, after, min(limit, 500))
        await trio.lowlevel.checkpoint()
        return found

    async def keep(self, stream: str, snapshot: StoredEvent, forget: int, /) -> None:
        await self._trouble()
        await super().keep(stream, snapshot, forget)


class Notes(EventSourced[Put | PutBeside | Crash | Numbers, Noted | All]):
    """Stores a number, or the number and its negative, in one write."""

    persistence = Persistence(snapshot_every=3, retain=2)

    def __init__(self, journal: TroubledJournal, key: str) -> None:
        super().__init__(journal, key)
        self.journal = journal
        self.numbers: list[int] = []

    def apply(self, event: Noted | All) -> None:
        match event:
            case Noted(number):
                self.numbers.append(number)
            case All(numbers):
                self.numbers = [*numbers]

    def snapshot(self) -> All:
        return All(self.numbers)

    @handles(Put)
    async def put(self, request: Put) -> int:
        return await self._put(request.number)

    @handles(PutBeside, concurrent=2)
    async def put_beside(self, request: PutBeside) -> int:
        return await self._put(request.number)

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise RuntimeError("it was told to crash")

    @handles(Numbers)
    async def all_numbers(self, _: Numbers) -> list[int]:
        return self.numbers

    async def _put(self, number: int) -> int:
        self._compare()
        pair = (Noted(number), Noted(-number)) if number % 3 == 0 else (Noted(number),)
        try:
            last = await self.persist(*pair)
        except trio.Cancelled:
            if number in self.journal.log[self.stream] and number not in self.numbers:
                self.journal.sim.violated("events", self.path, f"{number} is stored, not applied")
            raise
        self._compare()
        return last

    def _compare(self) -> None:
        # Another may have written since, so a beginning of what is stored.
        stored = self.journal.log[self.stream]
        if stored[: len(self.numbers)] != self.numbers or self.event_number != len(self.numbers):
            self.journal.sim.violated(
                "events", self.path, f"it has applied {self.numbers}, stored are {stored}"
            )


class SlowJournal(TroubledJournal):
    """Some of its pages take so long that a recovery exceeds the time of a start."""

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        if not self.quiet:
            await trio.sleep(self.sim.random.choice((0, 0.3, 0.6, 1.2)))
        return await super().read(stream, after, limit)


class TimedNotes(Notes):
    """Has two seconds for its recovery, and no message before it is whole."""

    persistence = Persistence(snapshot_every=12)
    start_timeout = 2.0

    def __init__(self, journal: TroubledJournal, key: str) -> None:
        super().__init__(journal, key)
        self.began = trio.current_time()
        self.replayed = False

    def apply(self, event: Noted | All) -> None:
        if not self.replayed and trio.current_time() > self.began + self.start_timeout:
            self.journal.sim.violated("events", self.path, f"applied {event} after its time")
        super().apply(event)

    async def on_replayed(self) -> None:
        self.replayed = True

    def _compare(self) -> None:
        if not self.replayed:
            self.journal.sim.violated("events", self.path, "handles a message before it is whole")
        super()._compare()


Notebook = Kind[Put | PutBeside | Crash | Numbers]


class _Client:
    def __init__(self, sim: Simulation, kinds: list[Notebook], first: int) -> None:
        self.sim = sim
        self.kinds = kinds
        self.numbers = range(first, first + 5)
        self.answered: dict[str, list[int]] = defaultdict(list)

    async def run(self) -> None:
        for number in self.numbers:
            chance, key = self.sim.random, self.sim.random.choice(KEYS)
            ref = chance.choice(self.kinds).ref(key)
            scope = self.sim.may_cancel(f"ask {number}")
            try:
                with scope, trio.move_on_after(chance.choice([0.5, 1, 100])):
                    if chance.random() < 0.15:
                        await ref.tell(Crash())
                    if chance.random() < 0.1:
                        await ref.stop()
                    await ref.ask(Put(number) if chance.random() < 0.5 else PutBeside(number))
                    self.answered[key].append(number)
            except (OSError, MotetRuntimeError, JournalConflict):
                pass
            await trio.sleep(chance.choice([0, 0, 0.4, 3]))


async def event_sourced(sim: Simulation) -> None:
    """Play, then judge the log by the answers, and the state of a new incarnation by the log."""
    await _played(sim, TroubledJournal(sim), Notes)


async def timed(sim: Simulation) -> None:
    """The same with pages of two events, many of which are slow, and a time for each start."""
    with patched([(module, "PAGE", 2)]):
        await _played(sim, SlowJournal(sim), TimedNotes)


async def _played(sim: Simulation, journal: TroubledJournal, make: type[Notes]) -> None:
    async with open_system(chance=lambda: 0.5) as system:
        kinds = [
            await system.registry.kind(
                name, lambda key: make(journal, key), idle_after=1, supervision=RULES
            )
            for name in ("here", "there")
        ]
        clients = [_Client(sim, kinds, 1 + 100 * place) for place in range(3)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run)
        journal.quiet = True
        for place, key in enumerate(KEYS):
            if not await _goes_on(kinds, key, 1_000 + 10 * place):
                sim.violated("events", key, "it stores nothing more, though its journal works")
            await kinds[1].ref(key).stop()
            try:
                async with trio.open_nursery() as nursery:
                    for number in (2_000, 2_002, 2_005):  # of one actor, so none is a conflict
                        nursery.start_soon(kinds[0].ref(key).ask, PutBeside(number + 10 * place))
            except* JournalConflict:
                sim.violated("events", key, "concurrent handlers of one actor are in conflict")
            await kinds[0].ref(key).stop()
            try:
                numbers = await kinds[0].ref(key).ask(Numbers())
            except ActorDead as error:
                sim.violated("events", key, f"it cannot be read: {error}")
                continue
            if numbers != journal.log[key]:
                sim.violated("events", key, f"read are {numbers}, stored {journal.log[key]}")
    for key in KEYS:
        _judge(sim, key, journal.log[key], clients)


async def _goes_on(kinds: list[Notebook], key: str, number: int) -> bool:
    """Whether both actors of a stream can write, the first last; one conflict is no surprise."""
    for kind in reversed(kinds):
        for attempt in (1, 2):
            try:
                await kind.ref(key).ask(Put(number + attempt))
            except (MotetRuntimeError, JournalConflict):
                continue
            break
        else:
            return False
        number += 2
    return True


def _judge(sim: Simulation, key: str, log: list[int], clients: list[_Client]) -> None:
    twice = [number for number, times in Counter(log).items() if times > 1]
    if twice:
        sim.violated("events", key, f"stored twice: {twice} in {log}")
    torn = [n for n in log if n > 0 and n % 3 == 0 and log[log.index(n) + 1 :][:1] != [-n]]
    if torn:
        sim.violated("events", key, f"stored in part: {torn} in {log}")
    for client in clients:
        answered = client.answered[key]
        if [number for number in log if number in answered] != answered:
            sim.violated("events", key, f"answered were {answered}, stored is {log}")


SEARCH = Search(ANY, event_sourced)
TIMED = Search(ANY, timed)
