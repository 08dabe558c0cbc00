"""Teams: agents with a lead, a folder and a task board in common.

Invariants: an agent is in one team at most; a team's folder lies inside the workspace of the host,
wherever links lead; the board is that of the caller's team and user, and no argument names another
(G16). A team runs nothing by itself: users talk with its lead. Source: agent loop specification,
section 12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from motet.actors.agents.spec import AnyAgent
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Tool, tool
from motet.actors.transcript.grammar import CHILD_TOOL_GROUP as AGENTS
from motet.protocols.agents import Member
from motet.protocols.agents import Team as Membership
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.memory import Readership
from motet.protocols.teams import (
    Board,
    BoardProtocol,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    TaskState,
    TeamWorkspace,
    UpdateTask,
)
from motet.protocols.tools import ToolDenied, ToolRetry
from motet.runtime import ActorRef

TASK_TOOL_GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"group:tasks": ("task_create", "task_list", "task_claim", "task_update")}
)
"""All tools of the board by one name."""
FOLDER = "teams"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Team:
    """Makes agents a team, before a host knows them. Their prompts name each other.

    The lead gets ``group:agents``, by which it starts the others; all get the task board,
    ``group:tasks``. The lead works in the team's folder, and so do the runs that it starts.

    Args:
        name: letters, digits, ``_ . -``; its folder and its task board go by it.
        lead: who is talked with.
        members: the others.
        workspace: ``isolated``: a folder for each user or group chat; ``shared``: one for all.

    Raises ``ConfigError`` for a name that cannot be one, and an agent that is in a team already.
    """

    def __init__(
        self,
        name: str,
        *,
        lead: AnyAgent,
        members: Sequence[AnyAgent],
        workspace: TeamWorkspace = "isolated",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"team name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        self.name = name
        self.lead = lead
        self.members = tuple(member for member in members if member is not lead)
        self.workspace = workspace
        twice = {agent.name for agent in self.agents if self._named(agent.name) > 1}
        if twice:
            raise ConfigError(f"team {name!r} has two agents named {min(twice)!r}: rename one")
        for agent in self.agents:
            if agent.profile.team is not None:
                raise ConfigError(
                    f"agent {agent.name!r} is in the team {agent.profile.team.name!r} already, and "
                    f"cannot be in {name!r} too: make another agent for it"
                )
        for agent in self.agents:
            agent.join(
                self._as_seen_by(agent), *(AGENTS if agent is lead else ()), *TASK_TOOL_GROUP
            )

    def __repr__(self) -> str:
        return f"<Team {self.name} lead={self.lead.name} members={len(self.members)}>"

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """All members, the lead first: for ``open_host(agents=...)``."""
        return (self.lead, *self.members)

    def _as_seen_by(self, agent: AnyAgent) -> Membership:
        others = [other for other in self.agents if other is not agent]
        return Membership(
            name=self.name,
            role="lead" if agent is self.lead else "member",
            members=tuple(Member(other.name, other.description) for other in others),
            workspace=f"{FOLDER}/{self.name}",
            shared=self.workspace == "shared",
        )

    def _named(self, name: str) -> int:
        return sum(agent.name == name for agent in self.agents)


def link(config: HostConfig, agents: Mapping[str, AnyAgent]) -> list[str]:
    """Set up the handoffs and teams of a configuration; returns the errors, with their places.

    ``agents``: all agents, also those that the configuration does not describe.
    """
    problems: list[str] = []
    for name, spec in config.agents.items():
        for at, target in enumerate(spec.handoffs):
            if target not in agents:
                unknown = UnknownName("agent", target, sorted(agents))
                problems.append(f"agents.{name}.handoffs[{at}]: {unknown}")
            elif name in agents:
                agents[name].may_hand_to(agents[target])
    for name in config.teams:
        problems += _team(config, name, agents)
    return problems


def _team(config: HostConfig, name: str, agents: Mapping[str, AnyAgent]) -> list[str]:
    spec, place = config.teams[name], f"teams.{name}"
    lead = spec.lead or spec.members[0]
    names = dict.fromkeys((lead, *spec.members))
    wrong = [UnknownName("agent", who, sorted(agents)) for who in names if who not in agents]
    if wrong:
        return [f"{place}: {unknown}" for unknown in wrong]
    try:
        members = [agents[who] for who in names]
        Team(name, lead=agents[lead], members=members, workspace=spec.workspace)
    except ConfigError as error:
        return [f"{place}: {error}"]
    return []


# The task board as tools

TITLE_CHARS = 200
TEXT_CHARS = 16_000

_CREATE = "Put a task on the board of your team. needs: numbers of tasks to be done before it."
_LIST = "The tasks on the board of your team, without those that are over unless you want all."
_CLAIM = (
    "Take a task from the board of your team, so that nobody else does it: the one of that number, "
    "or the first that is open. It is yours until you say what became of it or your run ends."
)
_UPDATE = (
    "Say what became of a task: done or failed with the result, when you have claimed it; open to "
    "give it back or to have it tried again; cancelled when nobody needs to do it any more."
)


def task_tools(
    boards: ActorRef[BoardProtocol],
    team_of: Callable[[Context[object]], Membership | None],
    readers: Readership,
) -> list[Tool]:
    """The tools of the task board. ``team_of``: the team of the agent that calls.

    A run of ``readers`` that reads a task answers those for whom it was written, too.
    """

    def board(ctx: Context[object]) -> Board:
        team = team_of(ctx)
        if team is None:
            raise ToolDenied(f"agent {ctx.agent!r} is in no team, so that it has no task board")
        return Board(team.name, ctx.principal.user)

    async def read(ctx: Context[object], task: Task) -> JsonObject:
        if task.people:
            await readers.hear(ctx.session, task.people)
        shown: JsonObject = msgspec.to_builtins(replace(task, people=()))
        return shown

    async def task_create(
        ctx: Context[object],
        title: Annotated[str, Length(1, TITLE_CHARS)],
        details: Annotated[str, Length(0, TEXT_CHARS)] = "",
        needs: list[int] | None = None,
    ) -> JsonObject:
        of = ctx.agent, readers.people(ctx.session)
        new = CreateTask(board(ctx), title, details, tuple(needs or ()), *of)
        try:
            return await read(ctx, await boards.ask(new))
        except TaskRefused as refused:
            raise ToolRetry(str(refused)) from None

    async def task_list(ctx: Context[object], all: bool = False) -> list[JsonObject]:
        found = await boards.ask(ListTasks(board(ctx)))
        shown = [task for task in found if all or task.state in ("open", "claimed")]
        return [await read(ctx, task) for task in shown]

    async def task_claim(ctx: Context[object], number: int | None = None) -> JsonObject:
        try:
            claim = ClaimTask(board(ctx), ctx.agent, ctx.run_id, number)
            return await read(ctx, await boards.ask(claim))
        except (NotFound, TaskRefused) as refused:
            raise ToolRetry(str(refused)) from None

    async def task_update(
        ctx: Context[object],
        number: int,
        state: Literal["done", "failed", "open", "cancelled"],
        result: Annotated[str, Length(0, TEXT_CHARS)] = "",
    ) -> JsonObject:
        new: TaskState = state
        try:
            people = readers.people(ctx.session)
            change = UpdateTask(board(ctx), number, ctx.run_id, new, result, people)
            return await read(ctx, await boards.ask(change))
        except (NotFound, TaskRefused) as refused:
            raise ToolRetry(str(refused)) from None

    return [
        tool(task_create, description=_CREATE, effects="write"),
        tool(task_list, description=_LIST, polling=True, effects="read"),
        tool(task_claim, description=_CLAIM, effects="write"),
        tool(task_update, description=_UPDATE, effects="write"),
    ]
