"""A host in a simulated world: virtual time, a seeded schedule, simulated disk and programs.

The real world is out of reach. Synchronous code drives the world: between two calls nothing happens
in it, and its clock stands still.

    with mt.simulated_host(seed=1) as host:
        result = host.run(agent, "go")
        assert result.output == "done" and host.now() == 2.0

Invariant: the same calls with the same seed and choices give the same trace byte for byte (G12).
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict, TypeVar, Unpack, overload

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.host import Host
from motet.actors.rooms.definition import Room
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.config import HostConfig
from motet.protocols.queueing import QueueMode
from motet.protocols.rooms import Said
from motet.protocols.run import RunOptions, RunResult
from motet.protocols.sessions import LOCAL, Ack, Principal, StopReport
from motet.runtime.testing.guards import ALL_GUARDS, Guard
from motet.runtime.testing.loop import MAX_STEPS, Job, SimulatedLoop
from motet.runtime.testing.policies import Policy
from motet.testing.web_services import FakeHttp, FakeWeb, reset
from motet.testing.world import HostWorld, Setup, open_room

__all__ = ["HostOptions", "Setup", "SimulatedHost", "simulated_host"]

D = TypeVar("D")
Out = TypeVar("Out")


class SimulatedHost(HostWorld):
    """A host and its world; made by :func:`simulated_host`.

    Calls raise, besides their own errors, :class:`Stuck` when no task can ever run again, and
    ``NotSimulated`` with the source line when something real was used.

    Attributes:
        loop: the world itself: steps, choices, clock.
        disk: the simulated disk.
        processes: programs that tools, hooks and MCP servers may start, declared by the test.
        ledger: effects of flaky tools on the outside world.
        history: all that users, models and subscribers saw, across crashes.
        setup: functions that are called with every new host before anything else.
        web: the network to the services of :func:`motet.testing.fake_http`.
    """

    web: FakeWeb

    @overload
    def run(
        self,
        agent: AgentSpec[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...

    @overload
    def run(
        self,
        agent: AgentSpec[D, Out],
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
        """Answer one input, and wait for the end of the run: ``motet.Host.run``."""
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
        """Submit an input, and wait until it is on disk: ``motet.Host.submit``."""
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
        """Submit an input without waiting: it arrives while the world is driven."""
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
        """Send a message to the active run of a session: ``motet.Host.send``."""

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

    @property
    def workspace(self) -> str:
        """The folder in which the tools of this world work."""
        return self._workspace

    def know(self, agent: AnyAgent) -> None:
        """Register an agent with this host and those after a crash."""
        if self._agents.get(agent.name) is not agent:
            self._agents[agent.name] = agent
        if all(info.name != agent.name for info in self.host.agents()):
            self.host.add(agent)

    def room(self, room: Room) -> OpenRoom:
        """Open a room, in this host and in those after a crash: ``motet.Host.open_room``."""
        self._rooms[room.name] = room
        if room.name not in self._open:
            self._open[room.name] = self.call(open_room, room)
        return self._open[room.name]

    def post(
        self,
        room: Room | str,
        text: str,
        *,
        user: str,
        key: str | None = None,
        reply_to: int | None = None,
    ) -> Said:
        """Post a message in a room, and wait until it is on disk."""
        opened = self._open[room] if isinstance(room, str) else self.room(room)

        async def say(host: Host) -> Said:  # noqa: ARG001 (the signature of all calls in the world)
            said = await opened.post(text, user=user, key=key, reply_to=reply_to)
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


class HostOptions(TypedDict, total=False):
    """The options of :func:`simulated_host` besides the seed."""

    agents: Sequence[AnyAgent]
    config: HostConfig | None
    setup: Setup | None
    policy: Policy | None
    choices: Iterable[int] | None
    guards: Collection[Guard]
    max_steps: int
    watch: bool
    http: Sequence[FakeHttp]


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
    http: Sequence[FakeHttp] = (),
) -> Generator[SimulatedHost]:
    """A host in a simulated world for the length of the block.

    Args:
        seed: of the schedule, of ids, of jitter, and of the disk after a crash.
        agents: registered from the start, and again after a crash.
        config: limits, tools and the other settings of ``motet.toml``.
        setup: called with every new host, also after a crash.
        policy: the scheduling policy; default: each ready task with the same probability.
        choices: the schedule itself, as Hypothesis draws it; 0 is first in, first out.
        guards: the real resources to refuse.
        max_steps: the most steps of one call.
        watch: check the kernel's guarantees of every actor after every step; slower.
        http: services of the web, made by :func:`motet.testing.fake_http`; they forget all that
            they did in another world.

    One at a time in a process. Leaving the block closes the host in order.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(tempfile.TemporaryDirectory(prefix="motet-"))
        ended = stack.enter_context(ExitStack())
        loop = SimulatedLoop(
            seed=seed, choices=choices, policy=policy, guards=guards, max_steps=max_steps
        )
        stack.enter_context(loop)
        host = SimulatedHost(loop, config or HostConfig(), agents, workspace, watch)
        ended.callback(host.disk.unplug)
        if setup is not None:
            host.setup.append(setup)
        stack.enter_context(host.processes.installed())
        reset(http)
        host.web = FakeWeb(
            tuple(http),
            silent=lambda: host.history.cut_off,
            now=host.now,
            refuse=loop.refuse if "socket" in guards else None,
        )
        stack.enter_context(host.web.installed())
        host.open()
        yield host


def _who(user: str | None) -> Principal:
    return LOCAL if user is None else Principal(user)


def _of(user: str | None) -> str:
    return LOCAL.user if user is None else user
