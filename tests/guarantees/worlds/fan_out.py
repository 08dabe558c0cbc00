"""A world of calls side by side, each an ask of some actor, that end in every way there is (G8).

The results have to be those of one call after the other: by index, whatever ends first, fails, is
cancelled or cut.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, fanout, handles, open_system
from motet.runtime.fanout import Cut, Done, Failed, Settled
from motet.runtime.testing import Fault, Simulation
from tests.guarantees.law import Law, on_schedules

ACTORS = 2
MOST_CALLS = 12  # so that "10" sorts before "2"


class Do(Request[str], frozen=True, tag="fan_out.do"):
    index: int
    seconds: float
    fails: bool


class Doer(Actor[Do]):
    """Does several things at once, for as long as it is told."""

    @handles(Do, concurrent=8)
    async def do(self, request: Do) -> str:
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

    async def call(self, index: int) -> str:
        """Ask, unless somebody cancels just this one."""
        self.begun.append(index)
        self.running += 1
        if self.running > self.limit:
            self._found(f"{self.running} run at once, {self.limit} may")
        text = "was cancelled"
        try:
            with self.sim.may_cancel(f"call {index}"):
                text = await self.refs[index % ACTORS].ask(self.plans[index])
            self.seen[index] = text
            return text
        except ValueError as error:
            self.seen[index] = str(error)
            raise
        finally:
            self.running -= 1

    def calls(self) -> list[Callable[[], Awaitable[str]]]:
        return [partial(self.call, index) for index in range(len(self.plans))]

    def judge(self, results: Sequence[Settled[str]]) -> None:
        """Entry i says what call i saw of itself."""
        self.judge_order()
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
        if self.running:
            self._found(f"{self.running} calls run on")

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


async def fan_out(sim: Simulation) -> None:
    """Up to twelve calls, with a limit, perhaps a deadline, perhaps all or nothing."""
    chance = sim.random
    plans = [
        Do(index, chance.choice((0, 0, 1, 2, 5)), chance.random() < 0.15)
        for index in range(chance.randrange(MOST_CALLS + 1))
    ]
    async with open_system() as system:
        sim.watch(system)
        refs = [await system.start(Doer, name=str(number)) for number in range(ACTORS)]
        run = Run(sim, refs, chance.choice((1, 2, 4, MOST_CALLS)), plans)
        isolate = chance.random() < 0.8
        deadline = chance.choice((math.inf, math.inf, 1.5, 3))
        try:
            results = await fanout.gather_ordered(
                run.calls(), limit=run.limit, deadline=deadline, isolate=isolate
            )
        except ValueError as error:
            if isolate:
                sim.violated("G8", "the fan-out", f"one call's failure was everybody's: {error}")
            run.judge_failure(str(error))
        else:
            run.judge(results)
        if trio.current_time() > deadline:
            sim.violated("G8", "the fan-out", f"it took until {trio.current_time()}")


def cancel_one_call(chance: random.Random) -> Sequence[Fault]:
    """One of the calls is cancelled, and no other."""
    target = f"call {chance.randrange(MOST_CALLS)}"
    return (Fault("cancel", chance.randrange(1, 90), target),)


ORDERED_FAN_OUT = Law("G8", on_schedules("G8", fan_out, cancel_one_call))
