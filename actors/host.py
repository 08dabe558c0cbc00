"""The host: agents, sessions and stores as one supervised tree, and the calls that reach them.

Two hosts in one process do not see each other: there are no globals. Leaving ``open_host``, in
whatever way, ends all runs, stores their transcripts and closes the database.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

import trio

from motet.actors.agents.spec import AgentSpec, AnyAgent, D_contra, O_co
from motet.actors.errors.log import logger
from motet.actors.hooks.programs import add_command
from motet.actors.hooks.registry import HookOptions, On
from motet.actors.hosting.config import Origin
from motet.actors.hosting.inputs import Receiving, Serving
from motet.actors.hosting.reload import Reloading, check_policy
from motet.actors.hosting.run_stream import RunStream
from motet.actors.hosting.stop import Durable, Stopping
from motet.actors.hosting.tree import Tree, grow
from motet.actors.rooms.api import RoomApi
from motet.actors.rooms.definition import Room
from motet.actors.rooms.opening import OpenRoom, RoomParts
from motet.actors.sessions.router import Retire
from motet.actors.storage.location import Location
from motet.actors.telemetry.subscription import subscribe
from motet.protocols.agents import AgentRecord
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import GatewayConfig, HostConfig
from motet.protocols.events import SessionCompacted
from motet.protocols.hooks import Point
from motet.protocols.host import AgentInfo, HostStatus, Journal
from motet.protocols.mcp import McpServer, McpStatus
from motet.protocols.memory import Memory
from motet.protocols.policy import Judged, Policy, Subject
from motet.protocols.run import Bounds, RunOptions, RunResult
from motet.protocols.sessions import LOCAL, DeleteSession, Principal
from motet.protocols.traces import FlushTraces
from motet.runtime import System
from motet.runtime.loops import refuse_in_loop

D = TypeVar("D")
Out = TypeVar("Out")


class Host(Serving, Receiving, Reloading, Stopping, Durable):
    """A running host, made by :func:`open_host`. All calls are for the task that has it open.

    Everything that waits is a checkpoint and may be cancelled; a cancelled :meth:`run` or
    :meth:`stream` has ended its run, tools and child processes before it returns (G1).
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.on = On(tree.hooks)
        """Register a hook: ``@host.on("before_tool")``; see :class:`On`."""
        self.log = logger("motet.host")
        """For the embedding program and its hooks; secrets are left out, as everywhere."""
        self._rooms = RoomApi(
            RoomParts(
                table=tree.places,
                actor=tree.rooms,
                store=tree.rooms_store,
                sessions=tree.store,
                journal=tree.journal,
                publisher=tree.publisher,
                services=tree.services,
                resolver=tree.resolver,
                intake=self._intake,
                closing=tree.table.draining,
                config=lambda: tree.config,
                add=self.add,
            )
        )

    def __repr__(self) -> str:
        return f"<Host {self._tree.location.name} {self._tree.table!r}>"

    @property
    def events(self) -> Journal:
        """Events of all streams: ``session:<key>``."""
        return self._tree.journal

    @property
    def system(self) -> System:
        """The actors underneath: what each does and waits for, dead letters, statistics."""
        return self._tree.system

    def add(self, agent: AnyAgent) -> None:
        """Make an agent known by name. Raises ``ConfigError``, ``UnknownName``."""
        self._tree.registry.add(agent)
        self._suspended_runs.agent_added(agent.name)
        self._tree.recovery.agents_changed.set()

    def agents(self) -> tuple[AgentInfo, ...]:
        return self._tree.registry.infos()

    async def tools(
        self, agent: str, *, session: str = "", principal: Principal = LOCAL
    ) -> tuple[Judged, ...]:
        """The tools of an agent by name, and what the policy says of each for the principal.

        ``session``: as in this one. Raises ``UnknownName``.
        """
        known = await self._tree.resolver.resolve(agent)
        subject = Subject(known.name, principal.user, principal.role, session)
        return self._tree.services.toolkits.current.policy.judged((subject,))

    async def mcp_servers(self) -> tuple[McpStatus, ...]:
        """How each MCP server is, in the order they were configured; starts none."""
        return await self._tree.services.toolkits.current.mcp.statuses()

    async def put_agent(self, record: AgentRecord) -> None:
        """Store an agent, or replace the stored one of its name, from the next run on.

        Raises ``ConfigError``, ``UnknownName`` for one that could never run, or whose name an
        agent of the program or its configuration has.
        """
        await self._tree.resolver.put(record)

    async def remove_agent(self, name: str) -> bool:
        """Forget a stored agent; its live runs go on. False: there was none."""
        return await self._tree.resolver.remove(name)

    async def stored_agents(self) -> tuple[AgentRecord, ...]:
        """The stored agents, by name."""
        return await self._tree.resolver.records()

    def status(self) -> HostStatus:
        return self._tree.status()

    def on_command(
        self,
        point: Point,
        argv: Sequence[str],
        *,
        env: Sequence[str] = (),
        **options: Unpack[HookOptions],
    ) -> None:
        """Register a program as a hook: JSON on stdin in the field names of Claude Code.

        Exit 0 goes on, exit 2 blocks with stderr as the reason, all else is a failure; ``env``
        names the variables it gets to know. It runs in the current directory, and must not lie
        in the workspace. Raises ``ConfigError``.
        """
        add_command(
            self._tree.hooks, point, argv, workspace=self._tree.workspace, env=env, **options
        )

    # Running

    @overload
    async def run(
        self,
        agent: AgentSpec[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...

    @overload
    async def run(
        self,
        agent: AgentSpec[D, Out],
        text: str,
        *,
        deps: D,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...

    @overload
    async def run(
        self,
        agent: str,
        text: str,
        *,
        deps: object = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]: ...

    async def run(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]:
        """Answer one input and wait for it; ``options`` are those of :class:`RunOptions`.

        What an agent known by name gives is not known to a type checker: ``RunResult[Any]``.
        Cancelling ends the run and waits for its clean-up. Raises with ``check`` as
        :meth:`RunResult.check` does; always ``UnknownName``, ``QueueFull``, ``KeyConflict``,
        ``NotFound`` (a foreign session) and ``StorageError`` when the input could not be accepted.
        """
        run = await self._intake.new_run(agent, text, deps=deps, **options)
        run = await self._intake.answered(run)
        assert run.result is not None
        return run.result.check() if check else run.result

    @overload
    def stream(
        self,
        agent: AgentSpec[None, Out],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[RunOptions],
    ) -> AbstractAsyncContextManager[RunStream[Out]]: ...

    @overload
    def stream(
        self, agent: AgentSpec[D, Out], text: str, *, deps: D, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[Out]]: ...

    @overload
    def stream(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[RunStream[Any]]: ...

    @asynccontextmanager
    async def stream(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[RunStream[Any]]:
        """Answer one input and watch it: ``async with host.stream(...) as run: async for ...``.

        Leaving the block early cancels the run and waits until all it started has ended.
        Raises as :meth:`run` does without ``check``.
        """
        run = await self._intake.new_run(agent, text, deps=deps, **options)
        stream = f"session:{run.session}"
        async with subscribe(self.events, stream) as events, self._intake.owned(run) as ack:
            if ack.status == "duplicate":
                run = await self._intake.twin(ack.run_id, run)
            yield RunStream(run, events)

    async def compact(
        self, session: str, *, principal: Principal = LOCAL
    ) -> SessionCompacted | None:
        """Summarise a session now; which rows the summary stands for, None: it was too short.

        Nothing stored is deleted. Raises ``NotFound``, and ``UnknownName`` when its agent is gone.
        """
        info = await self.session(session, principal=principal)
        agent = await self._tree.resolver.resolve(info.agent)
        return await self._intake.compact(agent, session, principal)

    async def delete(self, session: str, *, principal: Principal = LOCAL) -> int:
        """Delete a session with all that is stored of it; returns how many rows it had.

        Its runs are stopped first, and waited for. Raises ``NotFound``, and ``SessionBusy`` when
        another input arrived meanwhile: then nothing was deleted.
        """
        await self.session(session, principal=principal)
        await self.stop(session=session, principal=principal, grace=math.inf)
        await self._tree.router.ask(Retire(session))
        await self._tree.journal.settle()
        await self._tree.traces.ask(FlushTraces())  # or they would be written afterwards
        self._tree.table.modes.pop(session, None)
        self._tree.table.models.pop(session, None)
        return await self._tree.store.ask(DeleteSession(session))

    @property
    def rooms(self) -> RoomApi:
        """The rooms by name, for whoever is connected: to list, make, post to and read."""
        return self._rooms

    async def open_room(self, room: Room | str, *, principal: Principal = LOCAL) -> OpenRoom:
        """A room, at work: what was said is there, and an unfinished round goes on.

        ``room`` is its definition, or the name of a configured one; one that is open stays as it
        is. Raises ``UnknownName``, and ``NotFound`` for a room that is another's.
        """
        return await self._rooms.open(room, principal)

    async def serve(
        self, config: GatewayConfig | None = None, *, operator: str | None = None
    ) -> str:
        """Start the gateway, by default as the host is configured; the URL it listens on.

        ``operator``: a token of an admin that is good as long as this gateway runs; it does not
        make others need one. Raises ``ConfigError``, ``OSError``.
        """
        return await self._tree.serve(self, config or self._tree.config.gateway, operator)


@asynccontextmanager
async def open_host(
    state: str | Path | None = None,
    *,
    config: HostConfig | str | Path | None = None,
    agents: Sequence[AnyAgent] = (),
    workspace: str | Path | None = None,
    check_messages: bool = False,
    memory: Memory | None = None,
    policy: Policy | None = None,
    mcp: Mapping[str, McpServer] | None = None,
) -> AsyncGenerator[Host]:
    """Run a host for the length of the block.

    Args:
        state: directory of the database; one host at a time may use it. None: in memory.
        config: limits, tools, model providers, agents, or the TOML file that says so; its
            ``state`` and ``workspace`` are the defaults.
        agents: known by name from the start, before configured ones of their names; others
            become known when they first run.
        workspace: what the file and shell tools see; default as :class:`HostConfig` says.
        check_messages: copy every message through msgpack, for tests: what could not cross a
            process never enters a mailbox unnoticed.
        memory: what agents with ``memory`` use; None: a full-text index in the database.
        policy: an engine that rules on tools beside the rules of the configuration.
        mcp: MCP servers by name, beside the configured ones; agents name them ``mcp:<name>``.

    Raises ``StateInUse`` when another host has the directory, ``StorageError`` when it cannot be
    used, ``ConfigError`` for a wrong agent, a rule on a tool or an agent that nobody knows (here:
    of ``agents``), or a workspace that holds the state. Cancellation ends
    everything in order: runs first, the database last.
    """
    origin, config = Origin.of(config or HostConfig(), mcp or {}, policy)
    async with hosted(
        origin,
        config,
        agents,
        state=state,
        workspace=workspace,
        check_messages=check_messages,
        memory=memory,
    ) as host:
        yield host


@asynccontextmanager
async def hosted(
    origin: Origin,
    config: HostConfig,
    agents: Sequence[AnyAgent] = (),
    *,
    state: str | Path | Location | None = None,
    workspace: str | Path | None = None,
    check_messages: bool = False,
    memory: Memory | None = None,
) -> AsyncGenerator[Host]:
    """A host with a configuration that was read from its origin; see :func:`open_host`."""
    described = origin.agents(config, agents)
    place, folder = state or config.state, workspace or config.workspace
    async with grow(
        place, folder, config, origin, check_messages=check_messages, memory=memory
    ) as tree:
        host = Host(tree)
        for agent in (*agents, *described):
            host.add(agent)
        tree.described = frozenset(agent.name for agent in described)
        await check_policy(
            tree.services.toolkits.current.policy, tree.registry, tree.resolver, config
        )
        tree.interrupted += await tree.recovery.interrupt_unfit()
        tree.suspended_runs.opened.set()
        tree.recovery.opened.set()  # and not before: now the block can register its hooks
        host.rooms.begin()
        yield host


ALONE = HostConfig(approvals=ApprovalsConfig(ask=False))
"""Of a host that nobody but the caller of one run knows of."""


class Agent(AgentSpec[D_contra, O_co]):
    """An agent that any number of hosts can run. Share it freely.

    ``Agent[Deps, Ticket]`` wants ``deps`` of the one type and gives outputs of the other; plain
    ``Agent`` wants none and gives a text.

    Args:
        name: how sessions, events and other agents call it: letters, digits, ``_ . -``.
        model: ``provider:model`` (``openai:gpt-5.2``, ``anthropic:claude-sonnet-4-5``), ``demo``,
            or any object that is a ``Model``.
        instructions: the system prompt.
        description: one line for people and for other agents.
        tools: tools, type-hinted functions, or names of built-in tools and groups.
        handoffs: agents that it may hand its conversation to: its model sees a
            ``transfer_to_<name>`` for each. :meth:`may_hand_to` adds more.
        deps_type: type of the ``deps`` that tools find in their ``Context``.
        output_type: what a run's ``output`` is: anything msgspec can read, or a pydantic model.
            Absent: the text of the answer.
        output_retries: how often the model may mend an answer that is not of that type.
        limits: what one run may spend.
        memory: whether it remembers the user from one session to another, with ``group:memory``.
        window: tokens that its model takes, 200,000 by default; a conversation that gets near is
            compacted.
        history: user turns that the model is shown at most; 0 is all.
        profile: bootstrap files, a workspace for each user, and how its prompt is made.
        skills: folders of skills, before those of its files and of the host; empty: no skills.
        policy: which of its tools it may call; it holds for all that work for it too.

    Raises ``ConfigError`` for a name that cannot be one, ``TypeError`` for an ``output_type`` that
    cannot be described to a model.
    """

    @overload
    async def run(
        self: Agent[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **bounds: Unpack[Bounds],
    ) -> RunResult[Out]: ...

    @overload
    async def run(
        self, text: str, *, deps: D_contra, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[O_co]: ...

    async def run(
        self, text: str, *, deps: object = None, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[Any]:
        """One answer from a host in memory that lives for this call only.

        What needs an approval is denied: nobody could answer. Raises and is cancelled as
        :meth:`motet.Host.run`.
        """
        async with open_host(config=ALONE) as host:
            return await host.run(self._any, text, deps=deps, check=check, **bounds)

    @overload
    def run_sync(
        self: Agent[None, Out],
        text: str,
        *,
        deps: None = None,
        check: bool = True,
        **bounds: Unpack[Bounds],
    ) -> RunResult[Out]: ...

    @overload
    def run_sync(
        self, text: str, *, deps: D_contra, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[O_co]: ...

    def run_sync(
        self, text: str, *, deps: object = None, check: bool = True, **bounds: Unpack[Bounds]
    ) -> RunResult[Any]:
        """As :meth:`run`, for programs without a loop. Raises ``RuntimeError`` inside one."""
        refuse_in_loop(
            "run_sync()",
            trio="use `await agent.run(...)` there",
            asyncio="use a motet.HostThread and `await host.asyncio.run(agent, ...)` there",
        )
        return trio.run(partial(self._any.run, text, deps=deps, check=check, **bounds))

    @overload
    def stream(
        self: Agent[None, Out], text: str, *, deps: None = None, **bounds: Unpack[Bounds]
    ) -> AbstractAsyncContextManager[RunStream[Out]]: ...

    @overload
    def stream(
        self, text: str, *, deps: D_contra, **bounds: Unpack[Bounds]
    ) -> AbstractAsyncContextManager[RunStream[O_co]]: ...

    @asynccontextmanager
    async def stream(
        self, text: str, *, deps: object = None, **bounds: Unpack[Bounds]
    ) -> AsyncGenerator[RunStream[Any]]:
        """The events of one answer, from a host in memory that lives for this block only."""
        async with (
            open_host(config=ALONE) as host,
            host.stream(self._any, text, deps=deps, **bounds) as run,
        ):
            yield run

    @property
    def _any(self) -> Agent[Any, Any]:
        """Itself, where what it wants and gives has been checked already."""
        return self
