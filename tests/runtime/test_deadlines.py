"""Deadlines: asks of a handler inherit the deadline of the request it handles."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorRef,
    Asks,
    AskTimeout,
    Done,
    Replies,
    System,
    ask_each,
    current_deadline,
    handles,
    open_system,
)


class Deadline(Request[float], frozen=True, tag="deadline.deadline"):
    """Returns the deadline that the last actor reads; each asks the next with this limit."""

    limit: float | None = None


class Aside(Request[float], frozen=True, tag="deadline.aside"):
    """The same, next to the turn."""


class Flow(StreamRequest[float, float], frozen=True, tag="deadline.flow"):
    """The same, as a stream."""


class Told(Message, frozen=True, tag="deadline.told"):
    pass


class Hold(Request[None], frozen=True, tag="deadline.hold"):
    seconds: float


class Late(Request[float], frozen=True, tag="deadline.late"):
    """Sleeps, and then asks the next."""

    seconds: float


class Shielded(Request[float], frozen=True, tag="deadline.shielded"):
    """Sleeps until it is cancelled, then asks as clean-up, with a limit."""

    limit: float


class Line(Actor[Deadline | Aside | Flow | Told | Hold | Late | Shielded]):
    def __init__(
        self, log: list[float], below: ActorRef[Deadline | Aside | Flow] | None = None
    ) -> None:
        self.log = log
        self.below = below

    @handles(Deadline)
    async def deadline(self, request: Deadline) -> float:
        self.log.append(current_deadline())
        if self.below is None:
            return current_deadline()
        return await self.below.ask(request, timeout=request.limit)

    @handles(Aside, concurrent=2)
    async def aside(self, _: Aside) -> float:
        return current_deadline() if self.below is None else await self.below.ask(Aside())

    @handles(Flow)
    async def flow(self, _: Flow, replies: Replies[float]) -> float:
        await replies.send(current_deadline())
        if self.below is None:
            return current_deadline()
        async with self.below.stream(Flow()) as items:
            async for item in items:
                await replies.send(item)
        return items.result

    @handles(Told)
    async def told(self, _: Told) -> None:
        self.log.append(current_deadline())
        self.start_soon(self._note)

    async def _note(self) -> None:
        self.log.append(current_deadline())

    @handles(Hold)
    async def hold(self, request: Hold) -> None:
        await trio.sleep(request.seconds)

    @handles(Late)
    async def late(self, request: Late) -> float:
        assert self.below is not None
        await trio.sleep(request.seconds)
        return await self.below.ask(Deadline())

    @handles(Shielded)
    async def shielded(self, request: Shielded) -> float:
        assert self.below is not None
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                self.log.append(current_deadline())
                self.log.append(await self.below.ask(Deadline(), timeout=request.limit))
        return 0


Ref = ActorRef[Deadline | Aside | Flow | Told | Hold | Late | Shielded]


async def _line(system: System, log: list[float]) -> tuple[Ref, Ref]:
    """Two actors, of which the first asks the last."""
    last: Ref = await system.start(lambda: Line(log), name="last")
    first: Ref = await system.start(lambda: Line(log, last), name="first")
    return first, last


async def test_a_handler_can_read_the_deadline_of_its_asker(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        _, last = await _line(system, [])
        assert await last.ask(Deadline()) == math.inf
        assert await last.ask(Deadline(), timeout=3) == 3
        with trio.fail_after(2):
            assert await last.ask(Deadline(), timeout=3) == 2
        assert await last.ask(Deadline()) == math.inf
        assert current_deadline() == math.inf


async def test_an_ask_of_a_handler_has_the_earliest_of_all_deadlines(
    autojump_clock: MockClock,
) -> None:
    log: list[float] = []
    async with open_system() as system:
        first, _ = await _line(system, log)
        assert await first.ask(Deadline(limit=7), timeout=5) == 5
        assert await first.ask(Deadline(limit=4), timeout=5) == 4
        assert await first.ask(Deadline(limit=4)) == 4
        assert await first.ask(Aside(), timeout=5) == 5
        with trio.move_on_after(6):
            async with first.stream(Flow()) as items:
                assert [item async for item in items] == [6, 6]
    assert log == [5, 5, 5, 4, math.inf, 4]


async def test_told_messages_and_background_tasks_have_none(autojump_clock: MockClock) -> None:
    log: list[float] = []
    async with open_system() as system:
        first, _ = await _line(system, log)
        await first.ask(Deadline(), timeout=5)
        with trio.move_on_after(5):
            await first.tell(Told())
            await wait_all_tasks_blocked()
    assert log == [5, 5, math.inf, math.inf]


async def test_a_clean_up_asks_with_its_own_deadline_only(autojump_clock: MockClock) -> None:
    log: list[float] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        first, last = await _line(system, log)
        nursery.start_soon(last.ask, Hold(8))
        with pytest.raises(AskTimeout):
            await first.ask(Shielded(limit=4), timeout=5)
        # Its clean-up waited for the last actor, until three seconds after the deadline.
        assert trio.current_time() == 8
    assert log == [math.inf, 9, 9]


@pytest.mark.parametrize("how", ["ask", "asks"])
async def test_an_asker_that_moves_its_deadline_is_asked_again_after_the_old_one(
    how: str, autojump_clock: MockClock
) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        first, _ = await _line(system, [])
        with trio.move_on_after(5) as scope:

            async def move() -> None:
                await trio.sleep(1)
                scope.deadline = 50

            nursery.start_soon(move)
            # Asked at six, with a deadline of five: it is asked again without.
            if how == "ask":
                assert await first.ask(Late(6)) == math.inf
            else:
                assert await ask_each(first, [Late(6)], limit=1) == [Done(math.inf)]
        assert trio.current_time() == 6


class Below(Request[float], frozen=True, tag="deadline.below"):
    """Begins at once."""


class LateFlow(StreamRequest[float, str], frozen=True, tag="deadline.late-flow"):
    """Asks the next actor after six seconds, and returns the outcome."""


class LateAsk(Request[str], frozen=True, tag="deadline.late-ask"):
    """The same, asked."""


class Begun(Actor[Below]):
    def __init__(self) -> None:
        self.at: list[float] = []

    @handles(Below)
    async def begin(self, _: Below) -> float:
        self.at.append(trio.current_time())
        return trio.current_time()


class Latecomer(Actor[LateFlow | LateAsk]):
    def __init__(self, below: ActorRef[Below]) -> None:
        self.below = below
        self.got: list[str] = []

    @handles(LateFlow)
    async def flow(self, _: LateFlow, replies: Replies[float]) -> str:
        return await self._late()

    @handles(LateAsk)
    async def answer(self, _: LateAsk) -> str:
        return await self._late()

    async def _late(self) -> str:
        await trio.sleep(6)
        try:
            self.got.append(f"begun at {await self.below.ask(Below())}")
        except AskTimeout:
            self.got.append("too late")
        return self.got[-1]


@pytest.mark.parametrize("how", ["stream", "asks"])
async def test_no_handler_begins_for_an_asker_that_has_not_noticed_its_deadline(
    how: str, autojump_clock: MockClock
) -> None:
    """Given an asker that is busy behind a shield while its stream goes on."""
    begun = Begun()
    latecomers: list[Latecomer] = []

    async def ask(ref: ActorRef[LateFlow | LateAsk]) -> None:
        if how == "stream":
            async with ref.stream(LateFlow()):
                await _busy()
        else:
            async with Asks[str]() as asks:
                asks.begin(ref, LateAsk())
                await _busy()

    async def _busy() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    async with open_system() as system:
        below = await system.start(lambda: begun, name="below")

        def latecomer() -> Latecomer:
            latecomers.append(Latecomer(below))
            return latecomers[-1]

        ref = await system.start(latecomer, name="latecomer")
        with trio.move_on_after(5):
            await ask(ref)

    assert begun.at == []
    assert latecomers[0].got == ["too late"]
