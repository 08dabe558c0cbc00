"""A host in a world of its own: virtual time, a seeded schedule, a disk and programs that are not
real, and nothing of the real world within reach.

Everything is driven from synchronous code: between two calls nothing happens in the world, and its
clock stands still.

    with mt.simulated_host(seed=1) as host:
        result = host.run(agent, "go")
        assert result.output == "done" and host.now() == 2.0

Invariants: the same calls with the same seed and choices give the same trace byte for byte (G12);
after :meth:`SimulatedHost.crash` there is nothing of before but what the disk had synced, what the
outside world had seen, and the agents, rooms and settings that the program gives to every host it
opens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, overload

import trio

from motet.actors.agent.definition import Agent, AnyAgent
from motet.actors.host import Host, hosted
from motet.actors.options import RunOptions
from motet.actors.origin import Origin
from motet.actors.result import RunResult
from motet.actors.rooms.definition import Room
from motet.actors.rooms.handle import OpenRoom
from motet.protocols.config import HostConfig
from motet.protocols.queueing import QueueMode
from motet.protocols.rooms import Said
from motet.protocols.sessions import LOCAL, Ack, Principal, StopReport
from motet.runtime.testing.guards import ALL_GUARDS, Guard
from motet.runtime.testing.invariants import Violation
from motet.runtime.testing.loop import MAX_STEPS, Job, SimulatedLoop
from motet.runtime.testing.policies import Policy
from motet.runtime.testing.simulation import Stuck
from motet.runtime.testing.trace import Trace
from motet.testing.disk import SimulatedDisk
from motet.testing.history import History
from motet.testing.ledger import Ledger

if TYPE_CHECKING:
    from motet.actors.hooks.register import On

__all__ = ["HostOptions", "Setup", "SimulatedHost", "simulated_host"]

D = TypeVar("D")
Out = TypeVar("Out")
P = ParamSpec("P")
T = TypeVar("T")

Setup = Callable[[Host], None]
"""What the program does with every host that it opens: register hooks, for one."""


class SimulatedHost:
    """A host, and the world it is in; made by :func:`simulated_host`.

    What runs in the world raises, besides its own errors, :class:`Stuck` when nothing can run any
    more, and ``NotSimulated``, which names the line, when something real was used meanwhile.

    Attributes:
        loop: the world itself: steps, choices, clock.
        disk: what a crash leaves.
        ledger: effects of flaky tools on the outside world.
        history: what people, models and subscribers saw, over all crashes.
        setup: called with every host before anything else happens in it.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        config: HostConfig,
        agents: Iterable[AnyAgent],
        workspace: str,
        watch: bool,
    ) -> None:
        self.loop = loop
        self.disk = SimulatedDisk(loop.sim.random)
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
        """What happened, step by step."""
        return self.loop.sim.trace

    @property
    def violations(self) -> Sequence[Violation]:
        """Where the kernel broke a guarantee (G2, G4, G5, G6, G13); needs ``watch``."""
        return self.loop.sim.violations

    def report(self, last: int = 50) -> str:
        """The last events, one line each, with a lane for each actor."""
        return self.trace.report(last)

    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.loop.now

    def advance(self, seconds: float) -> None:
        """Let so much virtual time go by, and what is due then happen."""
        self.loop.call(_sleep, seconds, name="clock", patience=seconds + 1)

    def steps(self, count: int) -> int:
        """Let the world take ``count`` steps, then hold it there; how many it could take."""
        return self.loop.steps(count)

    def settle(self, limit: float = 3600.0) -> None:
        """Let the world go on until no run goes on or waits for its turn, and no room speaks.

        Raises :class:`Stuck` if that takes more than ``limit`` virtual seconds. A run that waits
        for a person's approval is at rest once it is parked.
        """
        if not self.call(_settled, limit):
            raise Stuck(f"not at rest after {limit:g} virtual seconds", self._at_work())

    def crash(self) -> None:
        """Cut the power now, and have it come back: a new host opens what the disk has kept.

        Raises what a host raises that cannot open it.
        """
        self._note("CRASH: the power is cut")
        self.history.crashes.append(self.history.next_at())
        self.disk.crash()
        self._fall_silent(True)
        try:
            for job in [*self._jobs, self._life]:
                if job is not None:
                    self.loop.end(job)
        finally:
            self._fall_silent(False)
        self._jobs.clear()
        self._open.clear()
        self._boot()

    # ------------------------------------------------------------------ the host

    @property
    def host(self) -> Host:
        """The host itself, for what needs no waiting; another one after each crash."""
        if self._host is None:
            raise RuntimeError("the simulated host is not open: use it inside of its block")
        return self._host

    @property
    def on(self) -> On:
        """Register a hook with this host; with those after a crash too: see ``setup``."""
        return self.host.on

    def call(
        self, function: Callable[Concatenate[Host, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Run ``function`` in the world, with the host in front of its arguments."""
        return self.loop.wait(self.begin(function, *args, **kw))

    def begin(
        self, function: Callable[Concatenate[Host, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> Job[T]:
        """Start ``function`` in the world; it goes on whenever the world does, until a crash."""
        host = self.host

        async def job() -> T:
            return await function(host, *args, **kw)

        self._jobs = [job for job in self._jobs if not job.over]
        started = self.loop.start(job, name=_name_of(function))
        self._jobs.append(started)
        return started

    @overload
    def run(
        self,
        agent: Agent[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...

    @overload
    def run(
        self,
        agent: Agent[D, Out],
        text: str,
        *,
        deps: D,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...

    def run(
        self,
        agent: AnyAgent,
        text: str,
        *,
        deps: Any = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]:
        """Answer one input, and let the world go on until that is done: ``motet.Host.run``."""
        self._agents[agent.name] = agent

        async def run(host: Host) -> RunResult[Any]:
            return await host.run(agent, text, deps=deps, check=check, **options)

        return self.call(run)

    def start(
        self,
        agent: AnyAgent | None,
        text: str,
        *,
        session: str = "main",
        user: str | None = None,
        key: str | None = None,
        mode: QueueMode | None = None,
    ) -> Ack:
        """Say something, and wait until it is on disk: ``motet.Host.submit``."""
        return self.loop.wait(
            self.start_soon(agent, text, session=session, user=user, key=key, mode=mode)
        )

    def start_soon(
        self,
        agent: AnyAgent | None,
        text: str,
        *,
        session: str = "main",
        user: str | None = None,
        key: str | None = None,
        mode: QueueMode | None = None,
    ) -> Job[Ack]:
        """Say something, and wait for nothing: it arrives as the world goes on."""
        if agent is not None:
            self.know(agent)
        name = agent.name if agent is not None else None

        async def say(host: Host) -> Ack:
            return await host.submit(
                text, session=session, agent=name, mode=mode, principal=_who(user), key=key
            )

        return self._saying(say, user, session, text, key)

    def send(
        self, session: str, text: str, *, user: str | None = None, key: str | None = None
    ) -> Ack:
        """Say something to the run that goes on in a session: ``motet.Host.send``."""

        async def say(host: Host) -> Ack:
            return await host.send(text, session=session, principal=_who(user), key=key)

        return self.loop.wait(self._saying(say, user, session, text, key))

    def stop(
        self,
        *,
        session: str | None = None,
        run_id: str | None = None,
        room: str | None = None,
        user: str | None = None,
        grace: float = 5.0,
    ) -> StopReport:
        """Stop a session, a run or a room, and wait for its end: ``motet.Host.stop``."""

        async def stop(host: Host) -> StopReport:
            report = await host.stop(
                session=session, run_id=run_id, room=room, principal=_who(user), grace=grace
            )
            place = session or room or run_id or ""
            self.history.was_stopped(report, user=_of(user), place=place, room=bool(room))
            return report

        return self.call(stop)

    def cancel(self) -> None:
        """Whoever drives the host goes away: cancel what was begun, and wait for its clean-up."""
        going = [job for job in self._jobs if not job.over]
        self.loop.cancel(going)

    def know(self, agent: AnyAgent) -> None:
        """Have the host, and those after a crash, know an agent by its name."""
        if self._agents.get(agent.name) is not agent:
            self._agents[agent.name] = agent
        if all(info.name != agent.name for info in self.host.agents()):
            self.host.add(agent)

    def room(self, room: Room) -> OpenRoom:
        """Open a room, in this host and in those after a crash: ``motet.Host.open_room``."""
        self._rooms[room.name] = room
        if room.name not in self._open:
            self._open[room.name] = self.call(_open_room, room)
        return self._open[room.name]

    def post(self, room: Room | str, text: str, *, user: str, key: str | None = None) -> Said:
        """Say something in a room, and wait until it is on disk."""
        opened = self._open[room] if isinstance(room, str) else self.room(room)

        async def say(host: Host) -> Said:  # noqa: ARG001 (as all that is called in the world)
            said = await opened.post(text, user=user, key=key)
            self.history.was_posted(
                user=user, room=opened.name, text=text, key=key, again=said.duplicate
            )
            return said

        return self.call(say)

    # ------------------------------------------------------------------ inside

    def _saying(
        self,
        say: Callable[[Host], Awaitable[Ack]],
        user: str | None,
        session: str,
        text: str,
        key: str | None,
    ) -> Job[Ack]:
        async def noted(host: Host) -> Ack:
            try:
                ack = await say(host)
            except Exception as error:
                if not self.history.cut_off:
                    self.history.was_refused(
                        error, user=_of(user), place=session, text=text, key=key, room=False
                    )
                raise
            if not self.history.cut_off:
                steers = ack.status == "steered"
                self.history.was_sent(
                    ack, user=_of(user), place=session, text=text, key=key, steers=steers
                )
            return ack

        return self.begin(noted)

    def open(self) -> None:
        """Start the first host."""
        self._boot()

    def _boot(self) -> None:
        self._host = None
        with self.loop.in_order():
            life = self._life = self.loop.start(self._live, name="host")
            self.loop.drive(lambda: self._host is not None or life.over)
            if life.result is not None:
                life.result.unwrap()
            for room in self._rooms.values():
                self._open[room.name] = self.call(_open_room, room)

    async def _live(self) -> None:
        async with hosted(
            Origin(),
            self._config,
            tuple(self._agents.values()),
            state=self.disk.location(),
            workspace=self._workspace,
        ) as host:
            self._overhear(host)
            for prepare in self.setup:
                prepare(host)
            self._host = host
            await trio.sleep_forever()

    def _overhear(self, host: Host) -> None:
        tree = host._tree  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
        tree.services.tracer.overhear = self.history.hear_request
        tree.fanout.attach_everywhere(self.history.hear)
        if self._watch:
            self.loop.sim.watch(host.system)

    def _fall_silent(self, silent: bool) -> None:
        """What is taken apart after a crash has no effect on anything outside of it."""
        self.history.cut_off = silent
        self.trace.muted = silent
        self.ledger.cut_off = silent
        if silent:
            self.loop.sim.unwatch()

    def _note(self, what: str) -> None:
        self.loop.sim.note(what)

    def _at_work(self) -> list[str]:
        tree = self.host._tree  # pyright: ignore[reportPrivateUsage]
        runs = [f"run {run.id} of {run.session}: {run.state}" for run in tree.table.runs.values()]
        rooms = [f"room {place.name}" for place in tree.places.known.values() if not place.waits]
        return [*runs, *rooms]


class HostOptions(TypedDict, total=False):
    """What may be given to :func:`simulated_host` besides the seed."""

    agents: Sequence[AnyAgent]
    config: HostConfig | None
    setup: Setup | None
    policy: Policy | None
    choices: Iterable[int] | None
    guards: Collection[Guard]
    max_steps: int
    watch: bool


@contextmanager
def simulated_host(
    seed: int = 0,
    *,
    agents: Sequence[AnyAgent] = (),
    config: HostConfig | None = None,
    setup: Setup | None = None,
    policy: Policy | None = None,
    choices: Iterable[int] | None = None,
    guards: Collection[Guard] = ALL_GUARDS,
    max_steps: int = MAX_STEPS,
    watch: bool = False,
) -> Generator[SimulatedHost]:
    """A host in a simulated world for the length of the block.

    Args:
        seed: of the schedule, of ids, of jitter, and of what a crash leaves on the disk.
        agents: known by name from the start, and again after a crash.
        config: limits, tools and all else of ``motet.toml``.
        setup: called with every host that is opened, also after a crash.
        policy: how to schedule, by default any ready task with the same chance.
        choices: the schedule itself, as Hypothesis draws it; 0 is first in, first out.
        guards: which real things are refused.
        max_steps: after how many steps one call gives up.
        watch: look at every actor after every step, for the guarantees of the kernel; slower.

    One at a time in a process. Leaving the block ends the host in order.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(tempfile.TemporaryDirectory(prefix="motet-"))
        loop = SimulatedLoop(
            seed=seed, choices=choices, policy=policy, guards=guards, max_steps=max_steps
        )
        stack.enter_context(loop)
        host = SimulatedHost(loop, config or HostConfig(), agents, workspace, watch)
        if setup is not None:
            host.setup.append(setup)
        host.open()
        yield host


def _who(user: str | None) -> Principal:
    return LOCAL if user is None else Principal(user)


def _of(user: str | None) -> str:
    return LOCAL.user if user is None else user


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", "driver").strip("_")


async def _sleep(seconds: float) -> None:
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def _open_room(host: Host, room: Room) -> OpenRoom:
    return await host.open_room(room)


async def _settled(host: Host, limit: float) -> bool:
    """Whether all has come to rest within so many seconds."""
    tree = host._tree  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
    with trio.move_on_after(limit):
        while True:
            await trio.testing.wait_all_tasks_blocked()
            runs = [run for run in tree.table.runs.values() if not run.ended.is_set()]
            places = [place for place in tree.places.known.values() if not place.idle.is_set()]
            if runs:
                await runs[0].ended.wait()
            elif places:
                await places[0].idle.wait()
            elif len(tree.table.arrivals):
                await trio.sleep(0.01)
            else:
                return True
    return False
