"""The task boards of all teams: an actor over the tables ``team_tasks`` and ``team_task_needs``.

Invariants: what was answered is on disk; of many who claim one task one gets it, since all changes
go through the one writer; who asks for another's board finds it empty (G16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from motet.actors.storage.errors import ExpectationFailed
from motet.actors.storage.readers import Readers
from motet.actors.teams import board_sql as sql
from motet.protocols.errors import NotFound
from motet.protocols.storage import Statement, Transact
from motet.protocols.teams import (
    BOARD_TASKS,
    Board,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    UpdateTask,
)
from motet.runtime import Actor, ActorRef, handles
from motet.runtime.outside import wall_time

BoardProtocol: TypeAlias = CreateTask | ListTasks | ClaimTask | UpdateTask

AT_ONCE = 64


class TaskBoards(Actor[BoardProtocol]):
    """Handles the requests of ``motet.protocols.teams``; any may raise a ``StorageError``.

    Cancelling an asker withdraws a change that waits; one that is being committed is waited for.
    """

    def __init__(
        self,
        database: ActorRef[Transact],
        readers: Readers,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        self._database = database
        self._readers = readers
        self._clock = clock

    @handles(CreateTask, concurrent=AT_ONCE)
    async def create(self, request: CreateTask) -> Task:
        try:
            rows = await self._database.ask(Transact(sql.create(request, self._clock())))
        except ExpectationFailed as failed:
            if failed.index == 0:
                raise TaskRefused(f"the board is full: it holds {BOARD_TASKS} tasks") from None
            missing = sorted(set(request.needs))[failed.index - 1]
            raise TaskRefused(f"there is no task {missing} that this one could need") from None
        return await self._task(request.board, int(str(rows[0][0][0])))

    @handles(ListTasks, concurrent=AT_ONCE)
    async def tasks(self, request: ListTasks) -> tuple[Task, ...]:
        return await self._read(request.board)

    @handles(ClaimTask, concurrent=AT_ONCE)
    async def claim(self, request: ClaimTask) -> Task:
        number = await self._changed(sql.claim(request, self._clock()))
        if number is not None:
            return await self._task(request.board, number)
        if request.number is None:
            raise TaskRefused("no task is open that waits for no other")
        task = await self._task(request.board, request.number)
        if task.waits_for and task.state == "open":
            waits = ", ".join(map(str, task.waits_for))
            raise TaskRefused(f"task {task.number} waits for {waits}: they have to be done first")
        raise _refused(task, request.run_id)

    @handles(UpdateTask, concurrent=AT_ONCE)
    async def update(self, request: UpdateTask) -> Task:
        changed = await self._changed(sql.update(request, self._clock()))
        task = await self._task(request.board, request.number)
        if changed is None:
            raise _refused(task, request.run_id)
        return task

    async def _changed(self, statement: Statement) -> int | None:
        """The number of the task that it has changed."""
        (rows,) = await self._database.ask(Transact((statement,)))
        return int(str(rows[0][0])) if rows else None

    async def _task(self, board: Board, number: int) -> Task:
        found = await self._read(board, number)
        if not found:
            raise NotFound(f"there is no task {number}")
        return found[0]

    async def _read(self, board: Board, number: int | None = None) -> tuple[Task, ...]:
        rows = await self._readers.read(*sql.tasks(board, number))
        return tuple(sql.task(row) for row in rows)


def _refused(task: Task, run_id: str) -> TaskRefused:
    if task.state == "claimed":
        who = "you have it" if task.run_id == run_id else f"{task.agent} has it"
        return TaskRefused(f"task {task.number} is claimed: {who}")
    if task.state == "open":
        return TaskRefused(f"task {task.number} is open: claim it first")
    return TaskRefused(f"task {task.number} is {task.state} already")
