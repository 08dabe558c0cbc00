"""The public face of a host: :class:`Host` and :func:`open_host`.

A host is a supervised tree of actors (see :mod:`motet.actors.hosting.tree`); this file holds the
calls that reach it. Most are one call of the part that does the work. There are no globals: two
hosts in one process do not see each other. Leaving ``open_host``, in whatever way, ends all runs,
stores their transcripts and closes the database.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import logger
from motet.actors.hooks.programs import add_command
from motet.actors.hooks.registry import HookOptions, On
from motet.actors.hosting.config import ConfigSource
from motet.actors.hosting.inputs import RunStream
from motet.actors.hosting.records import Records
from motet.actors.hosting.reload import Reloads, check_policy
from motet.actors.hosting.retention import delete_session, delete_user, start_retention
from motet.actors.hosting.tree import Parts, open_tree
from motet.actors.rooms.api import RoomApi
from motet.actors.rooms.definition import Room
from motet.actors.rooms.opening import OpenRoom
from motet.actors.storage.location import Location
from motet.actors.telemetry.subscription import subscribe
from motet.protocols.agents import AgentRecord
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.config import GatewayConfig, HostConfig
from motet.protocols.errors import Errors
from motet.protocols.escalations import Answer, EscalationInfo
from motet.protocols.events import SessionCompacted
from motet.protocols.hooks import Point
from motet.protocols.host import Expected, Journal
from motet.protocols.mcp import McpServer
from motet.protocols.memory import Memory
from motet.protocols.policy import Policy
from motet.protocols.queueing import QueueMode
from motet.protocols.reload import Reloaded
from motet.protocols.run import RunOptions, RunResult
from motet.protocols.sessions import LOCAL, Ack, Principal, Role, RunInfo, StopReport
from motet.protocols.tokens import Operator
from motet.protocols.users import UserDeleted
from motet.runtime import System
from motet.runtime.loops import refuse_in_asyncio
from motet.runtime.scopes import only_in_a_block

D = TypeVar("D")
Out = TypeVar("Out")


class Host(Records):
    """A running host, made by :func:`open_host`. All calls are for the task that has it open.

    Everything that waits is a checkpoint and may be cancelled; a cancelled :meth:`run` or
    :meth:`stream` has ended its run, tools and child processes before it returns (G1).
    """

    def __init__(self, parts: Parts, interrupted: tuple[RunInfo, ...]) -> None:
        super().__init__(parts, interrupted)
        self.on = On(parts.hooks)
        """Register a hook: ``@host.on("before_tool")``; see :class:`On`."""
        self.log = logger("motet.host")
        """For the embedding program and its hooks; secrets are redacted, as everywhere."""
        self._reloads = Reloads(parts)

    def __repr__(self) -> str:
        return f"<Host {self._parts.location.name} {self._parts.table!r}>"

    @property
    def events(self) -> Journal:
        """Events of all streams: ``session:<key>``."""
        return self._parts.journal

    @property
    def system(self) -> System:
        """The actors: what each does and waits for, dead letters, statistics."""
        return self._parts.system

    # Agents and hooks

    def add(self, agent: AnyAgent) -> None:
        """Make an agent known by name. Raises ``ConfigError``, ``UnknownName``."""
        self._parts.add(agent)

    async def put_agent(self, record: AgentRecord) -> None:
        """Store an agent, or replace the stored one of its name, from the next run on.

        Raises ``ConfigError``, ``UnknownName`` for one that could never run, or whose name an
        agent of the program or its configuration has.
        """
        await self._parts.resolver.put(record)

    async def remove_agent(self, name: str) -> bool:
        """Forget a stored agent; its live runs go on. False: there was none."""
        return await self._parts.resolver.remove(name)

    def on_command(
        self,
        point: Point,
        argv: Sequence[str],
        *,
        env: Sequence[str] = (),
        **options: Unpack[HookOptions],
    ) -> None:
        """Register a program as a hook: JSON on stdin in the field names of Claude Code.

        Exit 0 goes on, exit 2 blocks with stderr as the reason, anything else is a failure; ``env``
        names the variables that are passed to it. It runs in the current directory, and must not
        lie in the workspace. Raises ``ConfigError``.
        """
        parts = self._parts
        add_command(parts.hooks, point, argv, workspace=parts.workspace, env=env, **options)

    # Runs

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
        run = await self._parts.intake.new_run(agent, text, deps=deps, **options)
        run = await self._parts.intake.run_to_end(run)
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

    @only_in_a_block
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
        run = await self._parts.intake.new_run(agent, text, deps=deps, **options)
        stream = f"session:{run.session}"
        async with subscribe(self.events, stream) as events, self._parts.intake.owned(run) as ack:
            if ack.status == "duplicate":
                run = await self._parts.intake.first_run(ack.run_id, run)
            yield RunStream(run, events)

    async def submit(
        self,
        text: str,
        *,
        session: str,
        agent: str | None = None,
        mode: QueueMode | None = None,
        sender: str = "",
        debounce: float | None = None,
        principal: Principal = LOCAL,
        key: str | None = None,
        expected: Expected | None = None,
    ) -> Ack:
        """Make an input durable and have it answered; the answer comes as events.

        Args:
            agent: None: the session's own, else the host's only or first agent.
            mode: how the input is queued if the session is at work; see :data:`QueueMode`. None: as
                :meth:`set_queue` says, else as chats of channels have it, else ``followup``.
            sender: who said it, in a group whose session the principal keeps: the model reads it
                in front of the text, and one sender's inputs keep their order. It gives no rights.
            debounce: seconds for which the input is held, on disk, to be joined with the sender's
                next one; None: in chats of channels as the host is configured, else 0.
            expected: the note that :meth:`expect` has made of it.

        Cancelling does not take back an input that is on its way to disk. Raises ``UnknownName``,
        ``InputValidation``, ``NotFound``, ``QueueFull``, ``SessionBusy`` (mode ``reject``) and
        ``KeyConflict``.
        """
        return await self._parts.inputs.submit(
            text, session, agent, mode, principal, key, sender, debounce, expected
        )

    def expect(self, session: str, *, sender: str = "", principal: Principal = LOCAL) -> Expected:
        """Note an input that is to be submitted, so that a stop covers it from now on (G2).

        For callers that read several inputs at once, or look something up first. The note counts
        as long as it is held.
        """
        return self._parts.inputs.expect(session, sender, principal)

    async def send(
        self,
        text: str,
        *,
        run_id: str | None = None,
        session: str | None = None,
        mode: QueueMode = "steer",
        principal: Principal = LOCAL,
        key: str | None = None,
    ) -> Ack:
        """Give a text to the run ``run_id``, or to the active run of ``session``.

        ``steer``: it enters the run before its next model request; if the model has just given
        its last answer, it is asked once more; a suspended run takes it when it resumes.
        ``followup``: it is answered after the run. On disk when this returns. ``Ack.status`` is
        ``steered`` for a text that is to enter the run; else it becomes a run of its own, as when
        none is active any more. A run that is stopped drops the texts that were to enter.

        Raises ``UnknownName`` for another mode, ``NotFound`` for a run or session that is not
        there or not the principal's, and what :meth:`submit` raises.
        """
        return await self._parts.inputs.send(text, run_id, session, mode, principal, key)

    async def resend(self, run_id: str, *, principal: Principal = LOCAL) -> Ack:
        """Send the input of an interrupted or dropped run again, once: later it is a duplicate.

        The new run has the same author, limits and mode, and no right that ``principal`` lacks.
        Anything done before stays done, and the transcript says so. Raises ``NotFound``,
        ``InputValidation`` for other runs and those with ``deps``, ``UnknownName``, ``QueueFull``.
        """
        return await self._parts.inputs.resubmit(run_id, principal)

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        room: str | None = None,
        everything: bool = False,
        newest: bool = False,
        sender: str = "",
        principal: Principal = LOCAL,
        grace: float = 5.0,
    ) -> StopReport:
        """Cancel runs, drop inputs, and wait at most ``grace`` seconds for the clean-up.

        Give one of ``run_id``, ``session``, ``room`` and ``everything``: all sessions and rooms of
        the principal, of all users for an admin. ``session`` with ``newest``: only the principal's
        newest active run and its author's waiting inputs; with ``sender``: only the inputs of this
        sender. Waiting inputs are dropped wherever they are, sub-agents end with their caller, and
        a task of a team that a run had claimed is open again.

        Needs neither the session's actor nor the database, so it works while both are stuck.
        Of many stops of one run the first reports it as stopped, the others as already stopping.
        Raises ``NotFound`` for a run or a room that is not there or not the principal's.
        """
        return await self._parts.stops.stop(
            run_id=run_id,
            session=session,
            room=room,
            everything=everything,
            newest=newest,
            sender=sender,
            principal=principal,
            grace=grace,
        )

    # Answers of people

    async def approve(
        self,
        approval: str,
        decision: ApprovalDecision,
        *,
        by: str | None = None,
        note: str = "",
        deps: object = None,
        principal: Principal = LOCAL,
    ) -> ApprovalInfo:
        """Answer an approval; its run resumes, also one that waited when its host was killed.

        ``allow-always`` allows this tool of this agent for this user from now on, whatever the
        arguments; :meth:`grants` lists that. ``by``: who decides, for the record; the principal if
        absent. ``note``: with a denial, the model reads it. ``deps``: for a run that an earlier
        process left, if its agent has them. ``blocked`` says what keeps an answered run from
        going on.

        The same answer given again changes nothing, but resumes a run that could not go on before.
        Cancelling does not take back an answer that is on its way to disk. Raises ``NotFound``
        (also for a foreign one), and ``ApprovalAnswered`` when there is another answer, or it is
        too late.
        """
        return await self._parts.answers.approve(approval, decision, by, note, deps, principal)

    async def revoke(
        self, grant: str, *, room: str | None = None, principal: Principal = LOCAL
    ) -> None:
        """Have people asked again. Calls that have begun are not affected. Raises ``NotFound``."""
        await self._parts.answers.revoke(grant, room, principal)

    async def resolve(
        self,
        escalation: str,
        decision: Answer,
        *,
        note: str = "",
        deps: object = None,
        principal: Principal = LOCAL,
    ) -> EscalationInfo:
        """Answer an escalation; all but ``give_up`` start a run of its session, or say in the room.

        The same answer again changes nothing. Raises ``NotFound`` (also for a foreign one),
        ``EscalationAnswered`` when there is another answer, ``InputValidation`` without a note that
        is needed, ``QueueFull``, ``SessionBusy`` (of a room) and ``UnknownName``.
        """
        return await self._parts.answers.resolve(escalation, decision, note, deps, principal)

    # Sessions

    async def set_queue(
        self, session: str, mode: QueueMode | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set how inputs are queued that come while a session is at work; None: the default.

        It is stored, and holds from the next input on. Raises ``UnknownName``, ``NotFound``.
        """
        await self._parts.inputs.set_queue(session, mode, principal)

    async def set_model(
        self, session: str, model: str | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set the model of a session; None: its agent's own again.

        It is stored, and holds from the next run on. Raises ``UnknownName`` for one that is not
        among :meth:`models`, and ``NotFound``.
        """
        await self._parts.inputs.set_model(session, model, principal)

    async def inject(
        self,
        text: str,
        *,
        session: str,
        role: Literal["user", "assistant"] = "user",
        key: str,
        principal: Principal = LOCAL,
    ) -> Ack:
        """Put a row at the end of a session's transcript; no run comes of it.

        With it goes a row of the other side, which people are not shown, so that the transcript
        stays valid (G7). A model is shown both from the next run on. On disk when this returns,
        once per ``key``. Raises ``NotFound``, ``KeyConflict``, and ``InputValidation`` for an empty
        text or one that the guard blocks.
        """
        return await self._parts.inputs.inject(text, session, role, key, principal)

    async def compact(
        self, session: str, *, principal: Principal = LOCAL
    ) -> SessionCompacted | None:
        """Summarise a session now; the rows that have a summary, None: too short, refused, stopped.

        Nothing stored is deleted. Raises ``NotFound``, and ``UnknownName`` when its agent is gone.
        """
        noted = self._parts.table.pending_inputs.expect(session, principal)
        info = await self.session(session, principal=principal)
        agent = await self._parts.resolver.resolve(info.agent)
        # On behalf of its owner, whose memory files the summary is preceded by.
        role: Role = "operator" if principal.user != info.owner else principal.role
        who = Principal(info.owner, role)
        return await self._parts.intake.compact(agent, session, who, info.generation, noted)

    async def delete(self, session: str, *, principal: Principal = LOCAL) -> int:
        """Delete a session and everything stored of it; returns how many rows it had.

        Its runs are stopped first, and waited for. Raises ``NotFound``, and ``SessionBusy`` when
        another input arrived meanwhile: then nothing was deleted.
        """
        info = await self.session(session, principal=principal)
        await self.stop(session=session, principal=principal, grace=math.inf)
        return await delete_session(self._parts, info)

    # Rooms

    async def delete_room(self, room: str, *, principal: Principal = LOCAL) -> None:
        """Delete a room and all that is stored of it. Raises ``Forbidden``, ``SessionBusy``."""
        await self._parts.room_table.reopened.wait()  # or it is opened again behind its deletion
        async with self.rooms.deleting(room, principal) as remaining:
            while found := await remaining():
                await self.delete(found[0].session)

    @property
    def rooms(self) -> RoomApi:
        """The rooms by name, for people who are connected: to list, make, post to and read."""
        return self._parts.rooms

    async def delete_user(self, user: str, *, rooms: str | None = None) -> UserDeleted:
        """Delete a user with all that is theirs; files in the workspace stay.

        ``rooms``: ``delete`` or ``transfer:OTHER``, if they own some. After an end in between it
        can be called again. Raises ``InputValidation``, ``NotFound``, ``SessionBusy``.
        """
        return await delete_user(self._parts, user, rooms, self.delete, self.delete_room)

    async def open_room(self, room: Room | str, *, principal: Principal = LOCAL) -> OpenRoom:
        """A room, at work: its messages are there, and an unfinished round continues.

        ``room`` is its definition, or the name of a configured one; one that is open stays as it
        is. Raises ``UnknownName``, and ``NotFound`` for a room that is another's.
        """
        return await self._parts.rooms.open(room, principal)

    # Operation

    async def serve(
        self, config: GatewayConfig | None = None, *, operator: Operator | str | None = None
    ) -> str:
        """Start the gateway, by default as the host is configured; the URL it listens on.

        ``operator``: a token of an admin that is valid as long as this gateway runs; without an
        ``Operator`` it does not make others need one. Raises ``ConfigError``, ``OSError``.
        """
        operator = Operator(operator) if isinstance(operator, str) else operator
        configured = self._parts.generations.config.gateway
        return await self._parts.gateway.serve(self, config or configured, operator, configured)

    async def reload(
        self, config: HostConfig | str | Path | None = None, *, expect_hash: str | None = None
    ) -> Reloaded:
        """Put a configuration in force; None: the current content of the host's file. The files of
        the gateway's certificate are read again.

        Live runs keep their agents, tools and models; each change says when it counts.
        ``expect_hash``: refuse unless that of the configuration in force is this one. A wrong
        configuration changes nothing. Raises ``ConfigError`` naming all its problems, and
        ``UnknownName``, ``MissingExtra``, ``StartFailed``. Cancelled before it is in
        force, nothing has changed.
        """
        return await self._reloads.reload(config, expect_hash)

    def plan_reload(self, config: HostConfig | str | Path | None = None) -> Reloaded:
        """The changes that :meth:`reload` would make; makes none. Raises ``ConfigError``."""
        return self._reloads.plan(config)

    async def drain(self, deadline: float | None = None) -> tuple[str, ...]:
        """Shut down in order: refuse inputs, tell clients, and give runs some seconds to end.

        ``deadline``: seconds; None: as configured. Runs that have not ended then are cut off, as
        are those that wait for a person: the next host on this state resumes them where it can.
        Returns their ids. Queued inputs stay queued, for it too, unless a caller of :meth:`run`
        waits for them. Afterwards leave the block of the host. Cancelling cuts the waiting short,
        and live runs end with the block.
        """
        configured = self._parts.generations.config.recovery.drain
        return await self._parts.stops.drain(configured if deadline is None else deadline)

    async def closing(self) -> None:
        """Return when the host has begun to shut down."""
        await self._parts.table.draining.wait()

    async def storage_changed(self) -> None:
        """Return when the storage becomes unavailable, or works again: see :meth:`status`."""
        await self._parts.stores.health.changed()


@only_in_a_block
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
    errors: Errors | None = None,
) -> AsyncGenerator[Host]:
    """Run a host for the length of the block.

    Args:
        state: directory of the database; one host at a time may use it. None: in memory.
        config: limits, tools, model providers, agents, or a TOML file with them; its
            ``state`` and ``workspace`` are the defaults.
        agents: known by name from the start, before configured ones of their names; others
            become known when they first run.
        workspace: the directory of the file and shell tools; default: see :class:`HostConfig`.
        check_messages: copy every message through msgpack, for tests: a message that could not
            cross a process is refused.
        memory: what agents with ``memory`` use; None: a full-text index in the database.
        policy: an engine that rules on tools beside the rules of the configuration.
        mcp: MCP servers by name, beside the configured ones; agents name them ``mcp:<name>``.
        errors: where errors are stored; None: in the database. A failure of it ends nothing.

    Raises ``StateInUse`` when another host has the directory, ``StorageError`` when it cannot be
    used, ``ConfigError`` for a wrong agent, a rule on an unknown tool or agent (of ``agents``),
    or a workspace that holds the state, and ``RuntimeError`` inside asyncio. Cancellation ends
    everything in order: runs first, the database last.
    """
    refuse_in_asyncio("open_host()", "use a motet.HostThread, or `async with motet.guest()`")
    source, config = ConfigSource.of(config or HostConfig(), mcp or {}, policy)
    places = state, workspace
    async with hosted(source, config, agents, *places, check_messages, memory, errors) as host:
        yield host


@asynccontextmanager
async def hosted(
    source: ConfigSource,
    config: HostConfig,
    agents: Sequence[AnyAgent] = (),
    state: str | Path | Location | None = None,
    workspace: str | Path | None = None,
    check_messages: bool = False,
    memory: Memory | None = None,
    errors: Errors | None = None,
) -> AsyncGenerator[Host]:
    """A host with a configuration that was read from its source; see :func:`open_host`."""
    described = source.agents(config, agents)
    async with open_tree(
        state or config.state,
        workspace or config.workspace,
        config,
        source,
        check_messages=check_messages,
        memory=memory,
        errors=errors,
    ) as parts:
        generations = parts.generations
        for agent in (*agents, *described):
            parts.add(agent)
        generations.describe(described)
        policy = generations.current.policy
        await check_policy(policy, generations.registry, parts.resolver, config)
        host = Host(parts, parts.interrupted + await parts.recovery.interrupt_unfit())
        parts.suspended_runs.opened.set()
        parts.recovery.opened.set()  # and not before: now the block can register its hooks
        host.rooms.begin()
        await start_retention(parts)
        for note in await host.workspace_notes():
            host.log.warning(note)
        yield host
