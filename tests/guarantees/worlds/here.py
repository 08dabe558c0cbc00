"""A world of requests that their askers may handle, and of all that may come between.

The simulator sends about half of them to the mailbox. Whatever way each takes, the outcomes are
those of a mailbox, the handlers of one type begin in the order in which they were asked, and what
is promised of any ask holds: the law is broken by a violation of any guarantee.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import attrs
import trio

from motet.protocols.messages import Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorPaused,
    ActorRef,
    AskCycle,
    AskTimeout,
    MailboxFull,
    MailboxSpec,
    Replies,
    StartFailed,
    Supervision,
    current_deadline,
    handles,
    open_system,
)
from motet.runtime.testing import Fault, FaultKind, Simulation
from tests.guarantees.law import ANY, Law, Search

PLACES = 2
ASKERS = 4
EACH = 3  # asks of one asker
SIZES = (2, 5)
LONGEST = 2.0  # seconds of a clean-up, and of a brief handler
LAST_STEP = 90  # of a fault


class Visit(Request[int], frozen=True, tag="here.visit"):
    """Handled in the asker's task or beside the turn; ``through``: it asks the other actor."""

    asker: int
    deadline: float
    through: bool = False


class Glance(Request[int], frozen=True, tag="here.glance"):
    """The same, and brief."""

    asker: int
    deadline: float


class Flow(StreamRequest[int, int], frozen=True, tag="here.flow"):
    """The same, with items first."""

    asker: int
    deadline: float


class Turn(Request[int], frozen=True, tag="here.turn"):
    """Handled in the turn of the other actor, which visits the first: a circle with ``through``."""

    asker: int
    through: bool


class Refused(Exception):
    """What a handler raises now and then; says whose request it was."""

    def __init__(self, asker: int) -> None:
        super().__init__(asker)
        self.asker = asker


@attrs.define
class Book:
    """What the askers and the handlers saw."""

    sim: Simulation
    kinds: Sequence[type[Visit | Glance | Flow]]  # few, so that they meet
    asked: dict[type, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    begun: dict[type, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    inside: Counter[type] = attrs.field(factory=Counter[type])
    stopped: bool = False  # it was ordered to
    suspended: bool = False
    numbers: int = 0

    def number(self) -> int:
        """A new name of a request."""
        self.numbers += 1
        return self.numbers

    def judge_order(self, path: str) -> None:
        """The handlers of a type began in the order in which they were asked."""
        for kind, begun in self.begun.items():
            places = [self.asked[kind].index(one) for one in begun]
            if places != sorted(set(places)):
                self.sim.violated("G4", path, f"{kind.__name__}: began in the order {places}")


Ref = ActorRef[Visit | Glance | Flow]


class Desk(Actor[Visit | Glance | Flow]):
    """Takes visitors, two of each kind at once."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.over = False

    async def on_stop(self) -> None:
        self.over = True
        await trio.sleep(self.book.sim.random.choice((0, 1)))

    @handles(Visit, concurrent=PLACES, here=True)
    async def visit(self, request: Visit) -> int:
        with self._begun(request):
            return await self._work(request)

    @handles(Glance, concurrent=PLACES, here=True, brief=True)
    async def glance(self, request: Glance) -> int:
        with self._begun(request):
            return await self._work(request)

    @handles(Flow, concurrent=PLACES, here=True)
    async def flow(self, request: Flow, replies: Replies[int]) -> int:
        with self._begun(request):
            await replies.send(request.asker)
            try:
                answer = await self._work(request)
            except BaseException:
                with suppress(trio.BrokenResourceError):  # nobody wants it any more
                    replies.send_nowait(request.asker)
                raise
            replies.send_nowait(answer)
            return answer

    @contextmanager
    def _begun(self, request: Visit | Glance | Flow) -> Generator[None]:
        book, kind = self.book, type(request)
        if current_deadline() != request.deadline:
            book.sim.violated("G1", self.path, "a handler does not know its asker's deadline")
        if self.over:
            book.sim.violated("G6", self.path, "a handler began in an incarnation that is over")
        book.begun[kind].append(request.asker)
        book.inside[kind] += 1
        if book.inside[kind] > PLACES:
            book.sim.violated("G5", self.path, f"{book.inside[kind]} handlers in {PLACES} places")
        try:
            with book.sim.asks.working(request.asker):
                yield
        finally:
            book.inside[kind] -= 1

    async def _work(self, request: Visit | Glance | Flow) -> int:
        await self._stay(request)
        if self.book.sim.random.random() < 0.2:
            raise Refused(request.asker)
        return request.asker

    async def _stay(self, request: Visit | Glance | Flow) -> None:
        chance = self.book.sim.random
        if isinstance(request, Glance):
            await trio.sleep(chance.choice((0, 1)))
            return
        try:
            if isinstance(request, Visit) and request.through:
                other = self.system.find("/system/other")
                assert other is not None
                with suppress(ActorDead):
                    await other.ask(Turn(request.asker, through=False))
            elif chance.random() < 0.7:
                await trio.sleep(chance.choice((0, 1, 30)))
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(chance.choice((0, 0, 1)))


class Other(Actor[Turn]):
    """Visits the desk in its turn; who visits it from there closes a circle."""

    def __init__(self, book: Book) -> None:
        self.book = book

    @handles(Turn)
    async def turn(self, request: Turn) -> int:
        desk = self.system.find("/system/desk")
        if request.through and desk is not None:
            number = self.book.number()
            self.book.asked[Visit].append(number)
            with suppress(ActorDead, MailboxFull, ActorPaused, Refused):
                try:
                    with self.book.sim.asks.asking(number):
                        await desk.ask(Visit(number, current_deadline(), through=True))
                    self.book.sim.violated("G11", self.path, "waits for itself")
                except AskCycle:
                    pass
        return request.asker


async def _ask(book: Book, ref: Ref, number: int) -> object:
    """Ask in one of five ways; the outcome has to be one that the way allows."""
    chance = book.sim.random
    allowed: list[type[Exception]] = [Refused, ActorDead, MailboxFull, ActorPaused]
    seconds = chance.choice((None, None, 1, 2))
    deadline = trio.current_effective_deadline()
    if seconds is not None:
        allowed.append(AskTimeout)
        deadline = min(deadline, trio.current_time() + seconds)
    kind = chance.choice(book.kinds)
    book.asked[kind].append(number)
    taken = list[int]()
    try:
        if kind is Flow and chance.random() < 0.7:
            fails = chance.random() < 0.3

            def take(item: int) -> None:
                taken.append(item)
                if trio.current_time() > deadline:
                    book.sim.violated("G3", ref.path, "an item is given to a cancelled asker")
                if fails:
                    raise Refused(number)

            answer = await ref.stream_to(Flow(number, deadline), take, timeout=seconds)
            if fails or taken != [number, number]:
                book.sim.violated("G3", ref.path, f"took {taken} and got {answer}")
            return answer
        return await ref.ask(kind(number, deadline), timeout=seconds)
    except Exception as error:
        if type(error) not in allowed:
            book.sim.violated("G3", ref.path, f"{kind.__name__} got {error!r}")
        if isinstance(error, ActorDead) and not (book.stopped or book.sim.struck):
            book.sim.violated("G3", ref.path, "is dead, though nobody ended it")
        return getattr(error, "asker", number)


async def _asker(book: Book, ref: Ref) -> None:
    sim = book.sim
    for _ in range(EACH):
        await trio.sleep(sim.random.choice((0, 0, 1, 3)))
        number = book.number()
        with sim.may_cancel(f"asker {number}"), sim.asks.asking(number):
            with trio.move_on_after(sim.random.choice((1, 5, math.inf, math.inf))):
                sim.asks.answered(number, await _ask(book, ref, number))


async def _disturb(book: Book, ref: Ref) -> None:
    """Suspend it for a while, or stop it; then nothing of it may run."""
    sim, chance = book.sim, book.sim.random
    await trio.sleep(chance.randrange(5))
    if chance.random() < 0.5:
        book.suspended = True
        ref.suspend(refuse=chance.random() < 0.5)
        begun = sum(map(len, book.begun.values()))
        await trio.sleep(2)
        if sum(map(len, book.begun.values())) > begun:
            sim.violated("G6", ref.path, "a handler began while it was suspended")
        ref.resume()
        book.suspended = False
    if chance.random() < 0.5:
        book.stopped = True
        report = await ref.stop(grace=chance.choice((0, 2)))
        if sum(book.inside.values()) and not report.still_running:
            sim.violated("G2", ref.path, "the stop leaves handlers, and does not say so")
        await trio.sleep(LONGEST)
        left = {kind.__name__: n for kind, n in book.inside.items() if n}
        if left:
            sim.violated("G2", ref.path, f"it was stopped, and these handlers run: {left}")


async def _inspect(book: Book, ref: Ref) -> None:
    """Between two seconds, when all who can take a step have taken it: nobody waits for nothing."""
    await trio.sleep(0.5)
    places = PLACES if len(book.kinds) == 1 else 1  # of one kind at least
    idle = False  # so it was a moment ago
    while True:
        now = ref.statistics()
        # A crash is not in the state until its handlers have ended.
        hit = any(fault.kind != "cancel" for fault in book.sim.struck)
        takes = now.state == "running" and not hit and not book.suspended
        was_idle, idle = idle, takes and now.stashed > 0 and now.running < places
        if idle and was_idle:
            book.sim.violated("G3", ref.path, f"{now.stashed} wait, and {now.running} are handled")
        # An asker that was cancelled in this very step asks again in steps like this one, so that
        # a worker may be about to take what it has asked: look again.
        await trio.sleep(0.125 if idle and not was_idle else 1)


async def here(sim: Simulation) -> None:
    """Askers of one actor that is suspended, stopped, killed, crashed, or asked in a circle."""
    book = Book(sim, sim.random.choice(((Visit,), (Flow,), (Visit, Glance, Flow))))

    class Sized(Desk):
        mailbox = MailboxSpec(sim.random.choice(SIZES), sim.random.choice(("wait", "fail")))

    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system, "/system/desk")
        try:
            other = await system.start(partial(Other, book), name="other")
            ref: Ref = await system.start(partial(Sized, book), name="desk")
        except StartFailed:
            return  # the fault was early
        async with trio.open_nursery() as inspection:
            inspection.start_soon(_inspect, book, ref)
            async with trio.open_nursery() as nursery:
                for _ in range(ASKERS):
                    nursery.start_soon(_asker, book, ref)
                nursery.start_soon(_disturb, book, ref)
                for _ in range(sim.random.randrange(2)):
                    await other.ask(Turn(0, through=True))
            inspection.cancel_scope.cancel()
    book.judge_order("/system/desk")


def hit_one(chance: random.Random) -> Sequence[Fault]:
    """An asker is cancelled at some step, or the actor crashes or is killed, or both."""
    found = list[Fault]()
    if chance.random() < 0.7:
        target = f"asker {chance.randrange(1, ASKERS * EACH + 1)}"
        found.append(Fault("cancel", chance.randrange(1, LAST_STEP), target))
    if chance.random() < 0.4:
        kinds: tuple[FaultKind, ...] = ("crash", "kill", "stop")
        kind, step = chance.choice(kinds), chance.randrange(1, LAST_STEP)
        found.append(Fault(kind, step, "/system/desk", grace=1.0))
    return found


AS_A_MAILBOX = Law(ANY, Search(ANY, here, hit_one))
