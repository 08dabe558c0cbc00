"""The task board of a team as tools of its agents.

A board is that of the caller's team and user: no argument names another (G16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from motet.actors.teams.board import BoardProtocol
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Tool, ToolDenied, ToolRetry, tool
from motet.protocols.agents import Team
from motet.protocols.chat import JsonObject
from motet.protocols.errors import NotFound
from motet.protocols.teams import (
    Board,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    TaskState,
    UpdateTask,
)
from motet.runtime import ActorRef

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
    boards: ActorRef[BoardProtocol], team_of: Callable[[Context[object]], Team | None]
) -> list[Tool]:
    """The tools of :data:`GROUP`. ``team_of``: the team of the agent that calls."""

    def board(ctx: Context[object]) -> Board:
        team = team_of(ctx)
        if team is None:
            raise ToolDenied(f"agent {ctx.agent!r} is in no team, so that it has no task board")
        return Board(team.name, ctx.principal.user)

    async def task_create(
        ctx: Context[object],
        title: Annotated[str, Length(1, TITLE_CHARS)],
        details: Annotated[str, Length(0, TEXT_CHARS)] = "",
        needs: list[int] | None = None,
    ) -> JsonObject:
        new = CreateTask(board(ctx), title, details, tuple(needs or ()), ctx.agent)
        try:
            return _shown(await boards.ask(new))
        except TaskRefused as refused:
            raise ToolRetry(str(refused)) from None

    async def task_list(ctx: Context[object], all: bool = False) -> list[JsonObject]:
        found = await boards.ask(ListTasks(board(ctx)))
        return [_shown(task) for task in found if all or task.state in ("open", "claimed")]

    async def task_claim(ctx: Context[object], number: int | None = None) -> JsonObject:
        try:
            return _shown(await boards.ask(ClaimTask(board(ctx), ctx.agent, ctx.run_id, number)))
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
            change = UpdateTask(board(ctx), number, ctx.run_id, new, result)
            return _shown(await boards.ask(change))
        except (NotFound, TaskRefused) as refused:
            raise ToolRetry(str(refused)) from None

    return [
        tool(task_create, description=_CREATE, effects="write"),
        tool(task_list, description=_LIST, polling=True, effects="read"),
        tool(task_claim, description=_CLAIM, effects="write"),
        tool(task_update, description=_UPDATE, effects="write"),
    ]


def _shown(task: Task) -> JsonObject:
    shown: JsonObject = msgspec.to_builtins(task)
    return shown
