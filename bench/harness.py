"""Simulated worlds per second and core: schedules, sweeps of faults, hosts, and drawn programs.

Each figure is compared with bare ``trio.run`` calls of the same round, since absolute figures drift
with the machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from hypothesis import Phase, given, settings
from hypothesis import seed as seeded

import motet
from bench.clock import Watch
from bench.rows import MOTET, RATE, Case, Row
from motet import testing as mt
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, handles, open_system
from motet.runtime.testing import Simulation, run
from motet.runtime.testing.sweep import sweep
from motet.testing import ScriptedModel, call, say, simulated_host

__all__ = ["ROWS"]


class Tick(Message, frozen=True, tag="bench.tick"):
    """Counted by each actor."""


class Count(Request[int], frozen=True, tag="bench.count"):
    """The number of ticks that an actor and its successors have counted."""


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
    """A chain of five actors with tells and asks, without checks: the cost of scheduling alone."""
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
    """A cancellable ask of one actor, with the guarantees checked."""
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


def runs(count: int) -> float:
    """Empty ``trio.run`` calls per second: the reference of all worlds."""
    watch = Watch()
    for _ in range(count):
        trio.run(_nothing)
    return watch.rate(count)


def schedules(count: int) -> float:
    return _schedules(five_actors, count)


def schedules_watched(count: int) -> float:
    return _schedules(five_actors_watched, count)


def _schedules(world: Callable[[Simulation], Any], count: int) -> float:
    watch = Watch()
    for seed in range(count):
        run(world, seed=seed).check()
    return watch.rate(count)


def sweeps(count: int) -> float:
    """Worlds per second; ``count`` is the number of seeds, each swept at every step."""
    watch = Watch()
    report = sweep(one_actor, "cancel", seeds=range(count))
    report.check()
    return watch.rate(report.worlds)


def hosts(count: int) -> float:
    """Worlds per second, each a host that opens, answers with two parallel calls, and closes.

    One runs before the clock starts, so that one-time costs do not count.
    """
    _host(0)
    watch = Watch()
    for seed in range(count):
        _host(seed)
    return watch.rate(count)


def _host(seed: int) -> None:
    calls = call("nap", seconds=2) + call("nap", seconds=1)
    agent = motet.Agent("napper", model=ScriptedModel([calls, say("rested")]))

    @agent.tool
    async def nap(seconds: int) -> str:
        await trio.sleep(seconds)
        return "slept"

    with simulated_host(seed=seed, agents=[agent]) as host:
        assert host.run(agent, "go").output == "rested"


def _row(name: str, function: str, count: int, goal: float | None) -> Row:
    cases = Case(MOTET, __name__, function, count), Case("trio", __name__, "runs", 1000)
    return Row(name, RATE, cases, "trio", goal, bounded=True)


napper = motet.Agent("napper")


@napper.tool
async def rest(seconds: int) -> str:
    """Rest for a while."""
    await trio.sleep(max(0, min(seconds, 60)))
    return "rested"


@napper.tool
async def look(name: str) -> str:
    """Look at something."""
    return name


def programs(count: int) -> float:
    """Drawn programs of up to 20 steps with ``check``, per second of CPU.

    Some are drawn before the clock starts, so that one-time costs do not count.
    """
    _search(5)
    before = time.process_time()
    _search(count)
    return count / (time.process_time() - before)


def _search(count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, phases=(Phase.generate,))
    @seeded(1)
    @given(mt.programs(napper, max_steps=20))
    def search(program: mt.BoundProgram) -> None:
        with simulated_host(seed=program.seed) as host:
            program.execute(host)
            mt.check(host)

    search()


def two_jobs(count: int) -> float:
    """The time of ``motet fuzz --jobs 2``, as a share of the time of one job."""
    return _fuzzed(count, 2) / _fuzzed(count, 1)


def _fuzzed(count: int, jobs: int) -> float:
    """Seconds of ``motet fuzz``, with the start of its processes."""
    before = time.perf_counter()
    command = [sys.executable, "-m", "motet", "fuzz", f"{__name__}:napper"]
    options = ["--examples", str(count), "--seed", "1", "--jobs", str(jobs)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return time.perf_counter() - before


ROWS = (
    _row("schedules, five actors", "schedules", 200, 500),
    _row("the same, laws checked", "schedules_watched", 200, None),
    _row("sweep worlds, laws checked", "sweeps", 8, 1000),
    _row("worlds of a host", "hosts", 30, None),
    Row(
        "programs of 20 steps, by CPU",
        RATE,
        (Case(MOTET, __name__, "programs", 60),),
        goal=40,
        bounded=True,
    ),
    Row(
        "motet fuzz --jobs 2 / --jobs 1",
        "time",
        (Case(MOTET, __name__, "two_jobs", 300),),
        goal=1 / 1.8,
        bounded=True,
        rounds=1,
    ),
)
