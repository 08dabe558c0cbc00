"""Starts child runs: for a call that waits for the result, or in the background of their caller.

Invariants: a child that a call waits for lives in the block of that call, a background child ends
before its caller, so that a stop of a parent ends all below it and waits (G1); a child spends its
parents' budgets too; its gate is asked before anything of it is stored. Source: agent loop
specification, section 12.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import attrs
import trio

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.hooks.chain import HooksClient
from motet.actors.runs.inbox import ended
from motet.actors.runs.run import Child, ChildSet, Run
from motet.actors.runs.table import RunEvents, RunTable
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Tool, tool
from motet.protocols import events
from motet.protocols.agents import AnyAgentLike, Team
from motet.protocols.budget import Budget, OverBudget
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.hooks import Abort, AfterChild, BeforeChild, Deny
from motet.protocols.memory import together
from motet.protocols.rooms import RoomLike, RoomResult
from motet.protocols.run_states import phase_of
from motet.protocols.session_keys import sub_agent_key
from motet.protocols.sessions import LOCAL, Principal
from motet.protocols.tools import ToolDenied, ToolRetry

if TYPE_CHECKING:
    from motet.actors.sessions.intake import Intake
    from motet.protocols.run import RunResult

InRoom: TypeAlias = "Callable[[Run, str, RoomLike, str], Awaitable[RoomResult]]"
FromRoom: TypeAlias = "Callable[[Run, str | int, int], Awaitable[str]]"
Hear: TypeAlias = "Callable[[Run, tuple[Principal, ...]], Awaitable[None]]"

TASK_PREVIEW = 500
PUBLISH_BUDGET = 1.0
LISTED = 40


class ChildRuns:
    """Starts and ends the child runs of one host."""

    def __init__(self, table: RunTable, hooks: HooksClient, events: RunEvents) -> None:
        self._connected: Intake | None = None
        self._consult: InRoom | None = None
        self._read: FromRoom | None = None
        self._hear: Hear | None = None
        self._table = table
        self._hooks = hooks
        self._events = events

    def connect(self, intake: Intake) -> None:
        """Give it the intake, which is made after the tools that start children."""
        self._connected = intake

    def connect_rooms(self, consult: InRoom, read: FromRoom, hear: Hear) -> None:
        """Give it the functions by which a room answers a run's call, a run reads its room, and
        one answers further people.
        """
        self._consult, self._read, self._hear = consult, read, hear

    @property
    def _intake(self) -> Intake:
        assert self._connected is not None
        return self._connected

    async def run(self, ctx: Context[object], agent: AnyAgentLike, text: str) -> RunResult:
        """Run a child to its end, for a call that waits. Cancelling ends it and waits (G1).

        Raises ``ToolDenied`` when a gate refuses it, ``ToolRetry`` when the limits of its
        parents do not allow it, and what :meth:`motet.Host.run` raises of an input.
        """
        assert isinstance(agent, AgentSpec)
        intake, parent = self._intake, self._table.runs[ctx.run_id]
        run = await self._new(ctx, parent, agent, text)
        begun = False
        try:
            async with intake.owned(run):
                begun = True
                await self._publish_start(parent, run)
                await run.ended.wait()
        finally:
            _close(run)
            if begun:
                await self._publish_end(ctx, parent, run)
        assert run.result is not None
        return run.result

    async def consult(self, ctx: Context[object], room: RoomLike, text: str) -> RoomResult:
        """Have a room answer as a part of a call. Cancelling stops it and waits (G1).

        Raises ``ToolDenied`` when a gate refuses it, and what opening and asking a room raises.
        """
        assert self._consult is not None
        await self._allowed(ctx, room.name, text)
        return await self._consult(self._table.runs[ctx.run_id], ctx.call_id, room, text)

    async def read_room(self, ctx: Context[object], before: str | int, limit: int) -> str:
        """A page of what was said in the room whose member the run is. Raises ``ToolRetry``."""
        assert self._read is not None
        return await self._read(self._table.runs[ctx.run_id], before, limit)

    def people(self, session: str) -> tuple[Principal, ...]:
        """The people whose words the runs of a session answer, and those that wait for them."""
        runs = self._table.of(session, LOCAL)
        return together(
            above.input.asked_by for run in runs for above in self._table.with_callers(run)
        )

    async def hear(self, session: str, people: tuple[Principal, ...]) -> None:
        """Have the runs of a session answer these people, too. Raises ``ToolRetry``."""
        assert self._hear is not None
        for run in self._table.of(session, LOCAL):
            await self._hear(run, people)

    async def spawn(self, ctx: Context[object], agent: str, text: str, label: str) -> Child:
        """Start a child run in the background of its caller; its input is on disk then.

        ``agent`` empty: another run of the caller's own agent. The caller does not end before it.
        Cancelling withdraws it, or ends it. Raises as :meth:`run`.
        """
        parent = self._table.runs[ctx.run_id]
        start_soon = parent.lineage.start_soon
        assert start_soon is not None
        run = await self._new(ctx, parent, await self._named(parent, agent), text)
        run.lineage.in_background, child = True, Child(run, label)
        children = parent.lineage.children = parent.lineage.children or ChildSet()
        try:
            start_soon(self._in_background, ctx, parent, children, child, name=run.id)
        except BaseException:  # the parent's session has ended
            _close(run)
            raise
        children.begins(child)
        try:
            await child.begun.wait()
        except BaseException:
            run.cancel("the call that started it was cut off")
            if not child.at_work:  # and may never be: a router that ends starts no actor for it
                _close(run)
                children.never_began(child)
                child.gone.set()
            raise
        if child.failure is not None:
            raise child.failure
        return child

    def hand_over(self, ctx: Context[object], agent: AnyAgentLike) -> str:
        """Let ``agent`` take over the run when the calls of this answer have their results.

        Raises ``ToolRetry`` when another agent takes over already.
        """
        assert isinstance(agent, AgentSpec)
        run = self._table.runs[ctx.run_id]
        if agent is run.agent:
            raise ToolRetry(f"You are {agent.name!r} already: answer yourself.")
        if run.next_agent is not None:
            raise ToolRetry(f"Not done: {run.next_agent.name!r} takes over, which came first.")
        run.next_agent = agent
        return f"{agent.name} takes over the conversation now."

    def background(self, ctx: Context[object]) -> ChildSet:
        """The background children of the calling run."""
        return self._table.runs[ctx.run_id].lineage.children or ChildSet()

    def team(self, ctx: Context[object]) -> Team | None:
        """The team of the caller's agent."""
        return self._table.runs[ctx.run_id].agent.profile.team

    async def _in_background(
        self, ctx: Context[object], parent: Run, children: ChildSet, child: Child
    ) -> None:
        """A task of the parent's session, which owns one child."""
        if child.gone.is_set():
            return
        run, child.at_work = child.run, True
        try:
            async with self._intake.owned(run):
                child.begun.set()
                await self._publish_start(parent, run)
                await run.ended.wait()
        except Exception as error:  # its input could not be stored: the spawning call raises it
            child.failure = error
        finally:
            _close(run)
            try:
                if child.begun.is_set():
                    await self._publish_end(ctx, parent, run)
            finally:
                if child.begun.is_set():
                    children.ends(child)
                else:
                    children.never_began(child)
                child.begun.set()
                child.gone.set()

    async def _new(self, ctx: Context[object], parent: Run, agent: AnyAgent, text: str) -> Run:
        """A child run within its parent's budget, not yet registered."""
        assert parent.lineage.budget is not None
        await self._allowed(ctx, agent.name, text)
        pending = self._intake.expect(None, ctx.principal)
        run = await self._intake.new_run(
            agent,
            text,
            sub_agent_key(agent.name, pending.run_id),
            deps=ctx.deps,
            principal=ctx.principal,
            toolkit=parent.toolkit,
            arrival=pending,
            sender=parent.input.sender,
        )
        run.lineage.caller = (ctx.run_id, ctx.call_id)
        run.lineage.child_limit, run.lineage.ancestors = parent.child_limiter, parent.subjects
        of = parent.input
        run.input = attrs.evolve(run.input, asked_by=of.asked_by, payers=of.payers, round=of.round)
        if _one_team(parent.agent, agent):
            run.workspace = parent.workspace
        run.lineage.budget = _budget(parent.lineage.budget, run)
        return run

    async def _named(self, parent: Run, name: str) -> AnyAgent:
        """The agent that a model has named. Raises ``ToolRetry`` if the run cannot have it."""
        if not name or name == parent.agent.name:
            return parent.agent
        team = parent.agent.profile.team
        if team is not None and name not in (known := [member.name for member in team.members]):
            raise ToolRetry(f"Your team has no {name!r}. Its members: {', '.join(known)}")
        if parent.toolkit is not None and (own := parent.toolkit.registry.own(name)) is not None:
            return own
        try:
            return await self._intake.agent(name)
        except UnknownName as unknown:
            raise ToolRetry(f"{unknown}\n{_listed(self._intake.known_agents())}") from None
        except ConfigError as error:
            raise ToolRetry(str(error)) from None

    async def _allowed(self, ctx: Context[object], child: str, text: str) -> None:
        if "before_child" not in self._hooks.hooks.points:
            return
        base = (ctx.run_id, ctx.session, ctx.agent, ctx.principal)
        verdict = await self._hooks.ask(BeforeChild(*base, child, text))
        if isinstance(verdict.decision, Abort | Deny):
            raise ToolDenied(verdict.decision.reason)

    async def _publish_start(self, parent: Run, run: Run) -> None:
        started = events.ChildStarted(
            run.id, run.session, run.agent.name, run.input.text[:TASK_PREVIEW]
        )
        await self._events.emit(parent, started)

    async def _publish_end(self, ctx: Context[object], parent: Run, run: Run) -> None:
        """Publish a child's end. Awaits while being cancelled: shielded, with a deadline."""
        result = run.result or run.ends_as("cancelled", "the host is closing")
        ended = events.ChildEnded(run.id, result.agent, result.status, result.usage)
        with trio.move_on_after(PUBLISH_BUDGET, shield=True):
            await self._events.emit(parent, ended)
        base = (ctx.run_id, ctx.session, ctx.agent, ctx.principal)
        event = AfterChild(
            *base, result.agent, result.run_id, result.status, result.text, result.usage
        )
        self._hooks.notify(event)


def _listed(agents: Iterable[tuple[str, str]]) -> str:
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in agents]
    rest = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join(["There are:", *lines[:LISTED], *rest])


def _close(run: Run) -> None:
    assert run.lineage.budget is not None
    run.lineage.budget.close()


def _budget(parent: Budget, run: Run) -> Budget:
    try:
        return parent.child(run.limits, started=trio.current_time())
    except OverBudget as over:
        raise ToolRetry(
            f"No agent can be started here: the limit {over.limit!r} of this run does not allow "
            "it. Do the work yourself, or wait for the others."
        ) from None


def _one_team(one: AnyAgent, other: AnyAgent) -> bool:
    """Whether two agents share a team's workspace."""
    mine, its = one.profile.team, other.profile.team
    return mine is not None and its is not None and mine.name == its.name and bool(mine.workspace)


# The tools of background children, which find the children of the calling run only (G16).


TASK_CHARS = 200

_SPAWN = (
    "Start a sub-agent for work that stands alone, or that can go on beside yours. It sees nothing "
    "of this conversation: give it all it needs to know. You get its id at once and its result, "
    "by itself, when it has ended; do not wait for it in a loop. Without an agent's name it is "
    "another one of you; a name that nobody has gets you the list of all."
)
_LOOK = (
    "The sub-agents that you have started in this run. list: all of them; status: one, with its "
    "result if it has ended; cancel: end one that is not needed any more, and wait until it has."
)


def child_tools(runs: ChildRuns) -> list[Tool]:
    """``spawn`` and ``subagents``, for the run that calls them."""

    async def spawn(
        ctx: Context[object], task: Annotated[str, Length(1)], agent: str = "", label: str = ""
    ) -> str:
        child = await runs.spawn(ctx, agent, task, label)
        return f"Started {_who(child)}. Its result will come to you by itself."

    async def subagents(
        ctx: Context[object], action: Literal["list", "status", "cancel"] = "list", id: str = ""
    ) -> str:
        children = runs.background(ctx)
        if action == "list":
            return "\n".join(map(_line, children.members.values())) or "You have started none."
        child = children.members.get(id)
        if child is None:
            known = ", ".join(children.members) or "none"
            raise ToolRetry(f"You have no sub-agent {id!r}. You have started: {known}")
        if action == "cancel":
            child.told = True  # by the result of this call, whenever it ends
            child.run.cancel("cancelled by its caller")
            await child.gone.wait()
        return _whole(child)

    return [
        tool(spawn, description=_SPAWN, effects="write"),
        tool(subagents, description=_LOOK, polling=True),
    ]


def _who(child: Child) -> str:
    label = f", {child.label}" if child.label else ""
    return f"{child.run.agent.name} ({child.run.id}{label})"


def _line(child: Child) -> str:
    run = child.run
    status = run.result.status if run.result else phase_of(run.state)
    label = f" [{child.label}]" if child.label else ""
    return f"{run.agent.name} ({run.id}): {status}{label} - {run.input.text[:TASK_CHARS]}"


def _whole(child: Child) -> str:
    if not child.gone.is_set():
        return _line(child)
    child.told = True
    end = ended(child)
    return f"{end.head}\n{end.output or '[It said nothing]'}"
