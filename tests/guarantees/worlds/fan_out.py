"""Two worlds of calls side by side, each an ask of some actor, that end in every way there is (G8).

The results have to be those of one call after the other: by index, whatever ends first, fails, is
cancelled or cut. In one world each call has a task, in the other all are asks of one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

import attrs
import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, asks, gather, handles, open_system
from motet.runtime.gather import Cut, Done, Failed, Settled
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, Search

ACTORS = 2
MOST_CALLS = 12  # so that "10" sorts before "2"


class Do(Request[str], frozen=True, tag="fan_out.do"):
    index: int
    seconds: float
    fails: bool
    stubborn: bool  # finishes, whoever cancels it


class Doer(Actor[Do]):
    """Does several things at once, for as long as it is told; ``run`` is told of each."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run

    @handles(Do, concurrent=8)
    async def do(self, request: Do) -> str:
        if self.run is None:
            return await self._do(request)
        return await self.run.account(request.index, partial(self._do, request))

    async def _do(self, request: Do) -> str:
        with trio.CancelScope(shield=request.stubborn):
            await trio.sleep(request.seconds)
        if request.fails:
            raise ValueError(f"{request.index} fails")
        return f"{request.index} is done"


@attrs.define
class Run:
    """The calls of one fan-out, and what each of them saw of itself."""

    sim: Simulation
    refs: list[ActorRef[Do]]
    limit: int
    plans: list[Do]
    running: int = 0
    begun: list[int] = attrs.field(factory=list[int])
    seen: dict[int, str] = attrs.field(factory=dict[int, str])  # what became of it, if it ended

    async def account(self, index: int, work: Callable[[], Awaitable[str]]) -> str:
        """Do the work of a call, and note what became of it."""
        self.begun.append(index)
        self.running += 1
        if self.running > self.limit:
            self._found(f"{self.running} run at once, {self.limit} may")
        try:
            text = self.seen[index] = await work()
            return text
        except ValueError as error:
            self.seen[index] = str(error)
            raise
        finally:
            self.running -= 1

    async def call(self, index: int) -> str:
        return await self.account(index, partial(self._ask, index))

    async def _ask(self, index: int) -> str:
        """Ask, unless somebody cancels just this one."""
        with self.sim.may_cancel(f"call {index}"):
            return await self.refs[index % ACTORS].ask(self.plans[index])
        return "was cancelled"

    def calls(self) -> list[Callable[[], Awaitable[str]]]:
        return [partial(self.call, index) for index in range(len(self.plans))]

    def judge(self, results: Sequence[Settled[str]]) -> None:
        """Entry i says what call i saw of itself."""
        if len(results) != len(self.plans):
            self._found(f"{len(results)} results of {len(self.plans)} calls")
        for index, result in enumerate(results):
            expected = self.seen.get(index, f"cut, started {index in self.begun}")
            if _told(result) != expected:
                self._found(f"entry {index} is {result}, call {index}: {expected}")

    def judge_failure(self, raised: str) -> None:
        """All or nothing: what was raised is a call's own, and no call is left running."""
        self.judge_order()
        if raised not in self.seen.values():
            self._found(f"raised {raised!r}, but the calls ended as {self.seen}")

    def judge_order(self) -> None:
        if self.begun != list(range(len(self.begun))):
            self._found(f"begun in the order {self.begun}")
        self.judge_end()

    def judge_end(self) -> None:
        if self.running:
            self._found(f"{self.running} calls run on")

    def judge_time(self, deadline: float) -> None:
        if trio.current_time() > deadline and not any(plan.stubborn for plan in self.plans):
            self._found(f"it took until {trio.current_time()}")

    def _found(self, detail: str) -> None:
        self.sim.violated("G8", "the fan-out", detail)


def _told(result: Settled[str]) -> str:
    match result:
        case Done(value):
            return value
        case Failed(error):
            return str(error)
        case Cut(started):
            return f"cut, started {started}"


def _plans(chance: random.Random) -> list[Do]:
    """Up to twelve calls."""
    return [
        Do(index, chance.choice((0, 0, 1, 2, 5)), chance.random() < 0.15, chance.random() < 0.1)
        for index in range(chance.randrange(MOST_CALLS + 1))
    ]


async def fan_out(sim: Simulation) -> None:
    """With a limit, perhaps a deadline, perhaps all or nothing."""
    chance = sim.random
    plans = _plans(chance)
    async with open_system() as system:
        sim.watch(system)
        refs = [await system.start(Doer, name=str(number)) for number in range(ACTORS)]
        run = Run(sim, refs, chance.choice((1, 2, 4, MOST_CALLS)), plans)
        isolate = chance.random() < 0.8
        deadline = chance.choice((math.inf, math.inf, 1.5, 3))
        try:
            results = await gather.gather_ordered(
                run.calls(), limit=run.limit, deadline=deadline, isolate=isolate
            )
        except ValueError as error:
            if isolate:
                sim.violated("G8", "the fan-out", f"one call's failure was everybody's: {error}")
            run.judge_failure(str(error))
        else:
            run.judge_order()
            run.judge(results)
        run.judge_time(deadline)


async def many_asks(sim: Simulation) -> None:
    """The same asks of one task, which may be cancelled."""
    chance = sim.random
    run = Run(sim, [], chance.choice((1, 2, 4, MOST_CALLS)), _plans(chance))
    async with open_system() as system:
        sim.watch(system)
        ref = await system.start(lambda: Doer(run), name="doer")
        deadline = chance.choice((math.inf, math.inf, 1.5, 3))
        with ExitStack() as all_calls:
            for index in range(MOST_CALLS):
                all_calls.enter_context(sim.may_cancel(f"call {index}"))
            run.judge(await asks.ask_each(ref, run.plans, limit=run.limit, deadline=deadline))
        run.judge_end()
        run.judge_time(deadline)


async def either(sim: Simulation) -> None:
    await (fan_out if sim.random.random() < 0.5 else many_asks)(sim)


def cancel_one_call(chance: random.Random) -> Sequence[Fault]:
    """One of the calls is cancelled, and no other."""
    target = f"call {chance.randrange(MOST_CALLS)}"
    return (Fault("cancel", chance.randrange(1, 90), target),)


ORDERED_FAN_OUT = Law("G8", Search("G8", either, cancel_one_call))
