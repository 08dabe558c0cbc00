"""Real hosts in simulated worlds: opened fast, from a seed, and dead at whatever step.

The disk is a simulated one. Who cuts its power cancels the tasks of the host as well, since they
have to end somehow; what they still do is seen by nobody. What opening a host costs is mostly the
same every time, so it is done once in a process: the tables are made, and tools of the same code
are described. Actors that a world is not about are left out.
"""

# It replaces parts of hosts.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

import motet
from motet.actors.hosting import wiring as equipment
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.tools import tool as tools
from motet.actors.tools.schema import Described, Function, describe
from motet.actors.tools.tool import Tool
from motet.runtime import System, outside
from motet.runtime.testing import InjectedCrash, Simulation
from motet.runtime.testing.probe import cell_at, crash
from motet.runtime.testing.scheduler import Patch, patched
from motet.testing.disk import SimulatedDisk

__all__ = [
    "ADMIN",
    "EPOCH",
    "LEFT_OUT",
    "Life",
    "Place",
    "Striker",
    "new_place",
    "settled",
]

EPOCH = 1_700_000_000.0
LEFT_OUT = frozenset(
    {
        *("agents", "approvals", "approvals-keeper", "boards", "memory", "results"),
        *("room-store", "rooms", "traces"),
    }
)
"""Actors that most laws are not about. They take as long to start and stop as the others."""


class Striker(trio.abc.Instrument):
    """Does something before the n-th step from now, once."""

    def __init__(self, steps: int, strike: Callable[[], None]) -> None:
        self._left = steps
        self._strike = strike

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._strike()


@attrs.define(eq=False)
class Life:
    """One host on a disk, from its start to its end, of whatever kind."""

    disk: SimulatedDisk
    scope: trio.CancelScope
    host: motet.Host | None = None
    is_over: bool = False

    @property
    def open_host(self) -> motet.Host:
        assert self.host is not None
        return self.host

    def power_cut(self) -> None:
        """What is on the disk stays; who notes anything asks ``is_over`` first."""
        if not self.is_over:
            self.is_over = True
            self.disk.crash()
            self.scope.cancel()

    def strike_after(self, steps: int, strike: Callable[[], None]) -> None:
        """Strike before the n-th step from now, if the host lives that long."""
        trio.lowlevel.add_instrument(Striker(steps, lambda: None if self.is_over else strike()))

    def crash_after(self, steps: int, path: str) -> None:
        """The actor at ``path`` fails before the n-th step from now."""

        def strike() -> None:
            cell = cell_at([self.open_host.system], path)
            if cell is not None:
                crash(cell, InjectedCrash(f"{path} was told to"))

        self.strike_after(steps, strike)


@attrs.define(eq=False)
class Place:
    """A disk that one host after the other uses, with empty tables at first."""

    sim: Simulation
    disk: SimulatedDisk

    @asynccontextmanager
    async def life(
        self, *agents: motet.Agent[None, str], config: motet.HostConfig | None = None
    ) -> AsyncGenerator[Life]:
        """A host, until the block or the host ends. A block that is cut off is left quietly."""
        with trio.CancelScope() as scope:
            life = Life(self.disk, scope)
            async with motet.open_host(agents=agents, config=config) as life.host:
                yield life
            life.is_over = True

    @contextmanager
    def opened(self) -> Generator[Connection]:
        """What is on the disk, while no host uses it."""
        with self.disk.location() as location:
            connection = location.connect()
            try:
                yield connection
            finally:
                connection.close()


class Absent:
    """In place of an actor that a world is not about: it has nothing, and takes everything."""

    is_alive = True

    async def ask(self, request: object, **_: object) -> tuple[object, ...]:
        return ()

    async def tell(self, message: object) -> None:
        pass

    def tell_nowait(self, message: object) -> None:
        pass


@contextmanager
def new_place(sim: Simulation, *, without: frozenset[str] = LEFT_OUT) -> Generator[Place]:
    """Hosts without a directory use its disk, and their time and ids come from ``sim``.

    ``without``: actors that are left out. Of those of :data:`LEFT_OUT` there are no tools, either.
    """
    disk = SimulatedDisk(random.Random(sim.seed))
    chance = random.Random(sim.seed)
    simulated = outside.Outside(
        wall_time=lambda: EPOCH + sim.clock.current_time(),
        monotonic=sim.clock.current_time,
        fresh_hex=lambda nbytes: chance.randbytes(nbytes).hex(),
    )
    fast: list[Patch] = [(Location, "memory", disk.location), (tools, "describe", _described)]
    fewer: list[Patch] = [(System, "start", _starting_all_but(without))]
    if without >= LEFT_OUT:
        fewer.append((equipment, "_builtin", _builtin_of_any))
    with patched([*fast, *fewer]), outside.replaced(simulated):
        yield Place(sim, disk)


_start = System.start
_builtin = equipment._builtin
_tools: dict[str, Tool] = {}


def _starting_all_but(names: frozenset[str]) -> Callable[..., Awaitable[object]]:
    async def start(system: System, factory: Any, *, name: str, **options: Any) -> object:
        return Absent() if name in names else await _start(system, factory, name=name, **options)

    return start


def _builtin_of_any(*given: Any) -> dict[str, Tool]:
    """The tools of the first host that there was: they are offered, and nobody calls them."""
    if not _tools:
        _tools.update(_builtin(*given))
    return _tools


_descriptions: dict[object, Described] = {}


def _described(fn: Function) -> Described:
    code = getattr(fn, "__code__", None)
    if code is None:
        return describe(fn)
    if code not in _descriptions:
        _descriptions[code] = describe(fn)
    return _descriptions[code]


# ---------------------------------------------------------------------- looking


async def settled(host: motet.Host) -> None:
    """Return once no run is at work or waits for its turn."""
    while (now := host.status()).running or now.queued:
        await trio.sleep(1)


ADMIN = motet.Principal("root", "admin")
