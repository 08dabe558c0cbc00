"""How many simulated worlds a core runs in a second: seeded schedules, and sweeps of faults.

Each figure stands beside bare ``trio.run`` calls of the same minute, since absolute figures drift
with the machine: ``runs`` says how many empty ``trio.run`` one world costs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, handles, open_system
from motet.runtime.testing import Simulation, run, sweep

ROUNDS = 7


class Tick(Message, frozen=True, tag="bench.tick"):
    """Counted by each actor."""


class Count(Request[int], frozen=True, tag="bench.count"):
    """How many ticks an actor and those after it have counted."""


class Link(Actor[Tick | Count]):
    """One of a chain."""

    def __init__(self, later: ActorRef[Tick | Count] | None) -> None:
        self.later = later
        self.ticks = 0

    @handles(Tick)
    async def tick(self, message: Tick) -> None:  # noqa: ARG002 (the protocol's signature)
        await trio.lowlevel.checkpoint()
        self.ticks += 1

    @handles(Count)
    async def count(self, request: Count) -> int:
        return self.ticks + (await self.later.ask(request) if self.later is not None else 0)


async def five_actors(sim: Simulation) -> int:
    """A chain of five under mail and asks. No laws: the figure of the schedules alone."""
    return await _chain(sim, 5)


async def five_actors_watched(sim: Simulation) -> int:
    """The same with G2 to G6 and G13 checked after every step."""
    return await _chain(sim, 5, watch=True)


async def _chain(sim: Simulation, length: int, *, watch: bool = False) -> int:
    async with open_system() as system:
        if watch:
            sim.watch(system)
        refs: list[ActorRef[Tick | Count]] = []
        for index in range(length):
            later = refs[-1] if refs else None
            refs.append(await system.start(partial(Link, later), name=f"link{index}"))
        async with trio.open_nursery() as nursery:
            for ref in refs:
                await ref.tell(Tick())
                nursery.start_soon(_ask, ref)
    return length


async def _ask(ref: ActorRef[Tick | Count]) -> None:
    await ref.ask(Count())


async def one_actor(sim: Simulation) -> None:
    """An ask that may be cancelled, of one actor, with the laws checked."""
    async with open_system() as system:
        sim.watch(system)
        ref = await system.start(lambda: Link(None), name="link")
        with sim.may_cancel("asker"):
            try:
                await ref.tell(Tick())
                await ref.ask(Count())
            except ActorDead:
                sim.note("dead")


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


def _rate(worlds: Callable[[], int]) -> float:
    began = time.perf_counter()
    number = worlds()
    return number / (time.perf_counter() - began)


def _schedules(world: Callable[[Simulation], Any], number: int) -> int:
    for seed in range(number):
        run(world, seed=seed).check()
    return number


def _sweeps() -> int:
    report = sweep(one_actor, "cancel", seeds=range(4))
    report.check()
    return report.worlds


def _bare() -> int:
    for _ in range(200):
        trio.run(_nothing)
    return 200


def main() -> None:
    """Measure in interleaved rounds and print medians, the best, and the goal."""
    rows: dict[str, tuple[Callable[[], int], int | None]] = {
        "bare trio.run": (_bare, None),
        "schedules, five actors": (lambda: _schedules(five_actors, 100), 500),
        "the same, laws checked": (lambda: _schedules(five_actors_watched, 100), None),
        "sweep worlds, laws checked": (_sweeps, 1000),
    }
    rates: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, (worlds, _goal) in rows.items():
            rates[name].append(_rate(worlds))
    bare = statistics.median(rates["bare trio.run"])
    print_line = sys.stdout.write
    print_line(f"{'':28}{'median/s':>10}{'best/s':>10}{'goal':>8}{'runs':>8}\n")
    for name, (_, goal) in rows.items():
        median = statistics.median(rates[name])
        print_line(f"{name:28}{median:10,.0f}{max(rates[name]):10,.0f}")
        print_line(f"{goal or '':>8}{bare / median:8.1f}\n")
    steps = run(five_actors).steps, run(one_actor).steps
    print_line(f"steps of a world: {steps[0]} with five actors, {steps[1]} in the sweep\n")


if __name__ == "__main__":
    main()
