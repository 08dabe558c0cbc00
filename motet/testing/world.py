"""The life of a host in a simulated world: time, steps, crashes and power cuts.

Invariant: after :meth:`HostWorld.crash` nothing is left but the synced disk, the effects on the
outside world, and the agents, rooms and settings that the program gives to every host it opens.

A crash falls between two steps, where a commit is complete or has not begun, since the host waits
for its disk within a step. :func:`power_cut` falls inside a commit: only there can an input be on
disk without an acknowledgement, or a commit be half written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import attrs
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host, hosted
from motet.actors.hosting.config import ConfigSource
from motet.actors.rooms.definition import Room
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.config import HostConfig
from motet.runtime.testing.invariants import Violation
from motet.runtime.testing.loop import Interrupted, Job, SimulatedLoop
from motet.runtime.testing.simulation import Stuck
from motet.runtime.testing.trace import Trace
from motet.testing.disk import SimulatedDisk
from motet.testing.history import History, Ledger
from motet.testing.processes import FakeProcesses

if TYPE_CHECKING:
    from motet.actors.hooks.registry import On

__all__ = ["HostWorld", "Power", "Setup", "open_room", "power_cut"]


P = ParamSpec("P")
T = TypeVar("T")

Setup = Callable[[Host], None]
"""Prepares every opened host, for example registers hooks."""


class HostWorld:
    """The part of :class:`motet.testing.SimulatedHost` that is not user input."""

    def __init__(
        self,
        loop: SimulatedLoop,
        config: HostConfig,
        agents: Iterable[AnyAgent],
        workspace: str,
        watch: bool,
    ) -> None:
        self.loop = loop
        self.disk = SimulatedDisk(loop.sim.random, kept=True)
        self.processes = FakeProcesses(loop.refuse)
        self.ledger = Ledger()
        self.history = History()
        self.setup: list[Setup] = []
        self._config = config
        self._agents: dict[str, AnyAgent] = {agent.name: agent for agent in agents}
        self._rooms: dict[str, Room] = {}
        self._open: dict[str, OpenRoom] = {}
        self._jobs: list[Job[Any]] = []
        self._workspace = workspace
        self._watch = watch
        self._host: Host | None = None
        self._life: Job[None] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedHost seed {self.seed}, {self.now():g} s, {self.loop.scheduler.steps}>"

    # ------------------------------------------------------------------ the world

    @property
    def seed(self) -> int:
        return self.loop.sim.seed

    @property
    def trace(self) -> Trace:
        """The events of the world, step by step."""
        return self.loop.sim.trace

    @property
    def violations(self) -> Sequence[Violation]:
        """Violations of kernel guarantees (G2, G4, G5, G6, G13); needs ``watch``."""
        return self.loop.sim.violations

    def report(self, last: int = 50) -> str:
        """The last events, one line each, with a lane for each actor."""
        return self.trace.report(last)

    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.loop.now

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, and run the work that becomes due."""
        self.loop.call(_sleep, seconds, name="clock", patience=seconds + 1)

    def jump_clock(self, seconds: float) -> None:
        """Put the wall clock forward, or back, as an operator or a time server does.

        Deadlines and time-outs are on Trio's clock, which does not jump.
        """
        self._note(f"the wall clock jumps by {seconds:g} s")
        self.loop.jump(seconds)

    def steps(self, count: int) -> int:
        """Run ``count`` steps of the scheduler, or as many as possible; returns their number."""
        return self.loop.steps(count)

    def settle(self, limit: float = 3600.0) -> None:
        """Run until no run is active or queued and all rooms are idle.

        Raises :class:`Stuck` after ``limit`` virtual seconds. A run that waits for an approval
        counts as idle once it is suspended.
        """
        if not self.call(_settled, limit):
            raise Stuck(f"not at rest after {limit:g} virtual seconds", self._at_work())

    def crash(self) -> None:
        """Cut the power and restore it: a new host opens the surviving data of the disk.

        Raises the new host's error if it cannot open the data.
        """
        self._note("CRASH: the power is cut")
        self.history.crashes.append(self.history.next_at())
        self.disk.crash()
        self._mute(True)
        try:
            for job in [*self._jobs, self._life]:
                if job is not None:
                    self.loop.end(job)
        finally:
            self._mute(False)
        self._jobs.clear()
        self._open.clear()
        self.disk.clear()
        self._boot()

    def restart(self, drain: float | None = None, *, drains: bool = True) -> None:
        """Close the host in order, as at SIGTERM, and open a new one on the same disk.

        ``drain``: seconds that runs get to end before they are cut off; None: as configured.
        ``drains`` false: its block is only left, as by an exception of the program.
        """
        self._note("RESTART: the host is closed in order")
        if drains:
            self.call(_drained, drain)
        life = self._life
        self.loop.cancel([job for job in (*self._jobs, life) if job is not None])
        self._jobs.clear()
        self._open.clear()
        self._boot()

    @property
    def unheard(self) -> int:
        """Inputs that have come, and that the host has not registered yet."""
        parts = self.host._parts  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
        return len(parts.table.pending_inputs)

    # ------------------------------------------------------------------ the host

    @property
    def host(self) -> Host:
        """The current host, for methods that do not wait; a crash replaces it."""
        if self._host is None:
            raise RuntimeError("the simulated host is not open: use it inside of its block")
        return self._host

    @property
    def on(self) -> On:
        """Register a hook with this host only; ``setup`` registers it after a crash, too."""
        return self.host.on

    def call(
        self, function: Callable[Concatenate[Host, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Run ``function(host, *args)`` in the world."""
        with self.loop.inside():
            return self.loop.wait(self.begin(function, *args, **kw))

    def begin(
        self, function: Callable[Concatenate[Host, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> Job[T]:
        """Start ``function`` in the world; it runs while the world is driven, until a crash."""
        host = self.host

        async def job() -> T:
            return await function(host, *args, **kw)

        self._jobs = [job for job in self._jobs if not job.over]
        started = self.loop.start(job, name=_name_of(function))
        self._jobs.append(started)
        return started

    def cancel(self) -> None:
        """Cancel all begun jobs, as if their caller went away, and wait for their clean-up."""
        going = [job for job in self._jobs if not job.over]
        self.loop.cancel(going)

    # ------------------------------------------------------------------ inside

    def open(self) -> None:
        """Start the first host."""
        self._boot()

    def _boot(self) -> None:
        self._host = None
        with self.loop.inside(), self.loop.in_order():
            life = self._life = self.loop.start(self._live, name="host")
            self.loop.drive(lambda: self._host is not None or life.over)
            if life.result is not None:
                life.result.unwrap()
            for room in self._rooms.values():
                self._open[room.name] = self.call(open_room, room)

    async def _live(self) -> None:
        try:
            async with hosted(
                ConfigSource(),
                self._config,
                tuple(self._agents.values()),
                state=self.disk.location(),
                workspace=self._workspace,
            ) as host:
                self._observe(host)
                for prepare in self.setup:
                    prepare(host)
                self._host = host
                await trio.sleep_forever()
        finally:
            self.processes.host_ended()

    def _observe(self, host: Host) -> None:
        parts = host._parts  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
        parts.services.tracer.overhear = self.history.hear_request
        parts.stores.publisher.subscribers.attach_everywhere(self.history.hear)
        if self._watch:
            self.loop.sim.watch(host.system)

    def _mute(self, silent: bool) -> None:
        """Mute a crashed host: while it is dismantled, it has no effect on the outside."""
        self.history.cut_off = silent
        self.trace.muted = silent
        self.ledger.cut_off = silent
        self.processes.cut_off = silent
        if silent:
            self.loop.sim.unwatch()

    def _note(self, what: str) -> None:
        self.loop.sim.note(what)

    def _at_work(self) -> list[str]:
        parts = self.host._parts  # pyright: ignore[reportPrivateUsage]
        runs = [f"run {run.id} of {run.session}: {run.state}" for run in parts.table.runs.values()]
        rooms = [
            f"room {one.name}" for one in parts.room_table.rooms.values() if not one.history.waits
        ]
        return [*runs, *rooms]


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "driver").strip("_")


async def _sleep(seconds: float) -> None:
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def _drained(host: Host, seconds: float | None) -> None:
    await host.drain(seconds)


async def open_room(host: Host, room: Room) -> OpenRoom:
    """Open a room in a host."""
    return await host.open_room(room)


async def _settled(host: Host, limit: float) -> bool:
    """True if all has come to rest within ``limit`` seconds."""
    parts = host._parts  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
    with trio.move_on_after(limit):
        while True:
            await trio.testing.wait_all_tasks_blocked()
            runs = [run for run in parts.table.runs.values() if not run.ended.is_set()]
            idle = [one.control.idle for one in parts.room_table.rooms.values()]
            if runs:
                await runs[0].ended.wait()
            elif busy := [one for one in idle if not one.is_set()]:
                await busy[0].wait()
            elif len(parts.table.pending_inputs):
                await trio.sleep(0.01)
            else:
                return True
    return False


@attrs.define
class Power:
    """Whether the power has ``failed``."""

    failed: bool = False


@contextmanager
def power_cut(host: HostWorld, change: int) -> Generator[Power]:
    """Cut the power in the block, before the ``change``-th change of the disk from now.

    The host is mute at once; at the end of its step the call that drives it is interrupted, which
    leaves the block. Then a new host opens the surviving data. A block with fewer changes of the
    disk runs to its end.

        with mt.power_cut(host, 3) as power:
            host.start(agent, "go", key="once")
        assert power.failed
    """
    power = Power()

    def fail() -> None:
        power.failed = True
        host._mute(True)  # pyright: ignore[reportPrivateUsage]  # of this module
        host.loop.at(0, _leave)

    host.disk.crash_at(change, fail)
    try:
        yield power
    except Interrupted:
        if not power.failed:
            raise
    finally:
        host.disk.crash_at(None)
    if power.failed:
        host.crash()


def _leave() -> None:
    raise Interrupted
