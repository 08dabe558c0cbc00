"""The plays of the world of stops: a story, with a stop at many of its steps.

Invariant: all that comes before a stop is played once. Where one is to come, the world branches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import attrs

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.errors import MotetError
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted
from tests.guarantees.branches import Branches
from tests.guarantees.worlds.stop_gates import slow_in
from tests.guarantees.worlds.stops import Door, Stops, Way

IDLE = 5
"""Ticks of which one is struck at while everybody sleeps: all that differs is the time."""
Story: TypeAlias = Callable[[Stops, motet.Agent[None]], None]


def config(hold: float = 3600.0) -> HostConfig:
    return HostConfig(approvals=ApprovalsConfig(hold=hold, expires=7200.0))


@contextmanager
def _opened(
    ways: Sequence[Way],
    seed: int,
    *,
    door: Door = "python",
    session: str = "main",
    before: Story | None = None,
    setup: Callable[[Host], None] | None = None,
    hold: float = 3600.0,
    slow: tuple[str, ...] = (),
    **options: Any,
) -> Generator[tuple[Stops, motet.Agent[None]]]:
    """A world, and what has happened in it ``before``.

    ``slow``: as of :func:`slow_in`, the tools of so many hosts.
    """
    setup = slow_in(*slow) if slow else setup
    with mt.simulated_host(seed, config=config(hold), setup=setup) as host:
        host.processes.program("make", mt.answers("made", after=0.5))
        world = Stops(host, ways[0], door, session, hosts=max(1, len(slow) - 1))
        agent = world.agent(**options)
        if before is not None:
            before(world, agent)
        yield world, agent


def _play(story: Story, world: Stops, agent: motet.Agent[None], first: int) -> None:
    """Play the story, into which a stop may come, and check what is left."""
    host = world.host
    host.begin(world.tick)
    try:
        story(world, agent)
        host.advance(2)
    except Interrupted:
        world.reopen((world.struck - first) % 4 * 7)
    except (MotetError, MotetRuntimeError):
        if not world.struck:
            raise
    host.loop.at(sys.maxsize, lambda: None)
    host.advance(2)
    while pending := host.call(_pending):
        for approval in pending:
            host.call(Host.approve, approval, "deny")
        host.advance(2)
    host.settle()
    try:
        world.check()
    except AssertionError as error:
        error.add_note(host.report(25))
        raise


async def _pending(host: Host) -> list[str]:
    return [one.id for one in await host.approvals() if one.state == "pending"]


def everywhere(
    story: Story,
    *ways: Way,
    seeds: Sequence[int] = (0,),
    every: int = 7,
    parts: int = 1,
    **options: Any,
) -> int:
    """Play it with a stop of each way at every ``every``-th step; returns how many struck.

    ``parts``: so many seeds share the ways of each stop.
    """
    struck = 0
    for seed in seeds:
        with _opened(ways, seed, **options) as (world, agent), Branches(world.host) as branches:
            strikes = _Strikes(world, branches, ways, every, parts, seed)
            strikes.next(1 + seed % every)
            _play(story, world, agent, world.host.loop.scheduler.steps)
        struck += branches.count
    return struck


@attrs.define(eq=False)
class _Strikes:
    """The stops of one play. Of steps in which nothing but the clock has moved it takes a few."""

    world: Stops
    branches: Branches
    ways: Sequence[Way]
    every: int
    parts: int
    number: int
    busy: int = 0

    def next(self, later: int) -> None:
        """Strike so many steps later, and at every ``every``-th step from then on."""
        loop = self.world.host.loop
        loop.at(loop.scheduler.steps + later, self._strike)

    def _strike(self) -> None:
        step, ticks = self.world.host.loop.scheduler.steps, self.world.ticks
        if self.busy != step - ticks or ticks % IDLE == 0:
            self.busy = step - ticks
            self.number += 1
            for way in self.ways[self.number % self.parts :: self.parts]:
                if self.branches.branch(f"{way} by {self.world.door}, step {step}"):
                    self.world.way = way
                    self.world.strike()
                    return
        self.next(self.every)
