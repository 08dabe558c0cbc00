"""Store of the task boards of teams: tables ``team_tasks`` and ``team_task_needs``.

Invariants: the statement that changes a task checks its condition, so that of many claims of one
task one succeeds; a claim counts only while its run has not ended; to others the board of a user is
empty (G16).
"""

from __future__ import annotations

from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import TableStore, rows_of
from motet.protocols.errors import NotFound
from motet.protocols.memory import listed
from motet.protocols.room_changes import ChangedMessages
from motet.protocols.storage import Commit, ExpectationFailed, SqlValue, Statement
from motet.protocols.teams import (
    BOARD_TASKS,
    CLAIM,
    CREATE,
    NEED,
    TASKS,
    UPDATE,
    Board,
    BoardProtocol,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    UpdateTask,
    task_of,
)
from motet.runtime import Actor, handles

AT_ONCE = 64


class TaskBoards(TableStore, Actor[BoardProtocol]):
    """Handles the requests of ``motet.protocols.teams``.

    ``changed``: the messages of rooms that were changed, in the database too.
    """

    def __init__(
        self, commit: Commit, readers: Readers, changed: ChangedMessages | None = None
    ) -> None:
        super().__init__(commit, readers)
        self._text = (changed or ChangedMessages()).corrected_text

    @handles(CreateTask, concurrent=AT_ONCE)
    async def create(self, request: CreateTask) -> Task:
        team, user = request.board.team, request.board.user
        given = (self._text(user, one) for one in (request.title, request.details))
        text = (*given, request.made_by)
        needs = sorted(set(request.needs))
        statements = (
            Statement(CREATE, (team, user, *text, self._clock(), listed(request.people)), expect=1),
            *(Statement(NEED, (team, user, number), expect=1) for number in needs),
        )
        try:
            answer = await self._write(statements)
        except ExpectationFailed as failed:
            if failed.sql == CREATE:
                raise TaskRefused(f"the board is full: it holds {BOARD_TASKS} tasks") from None
            missing = statements[failed.index].params[-1]
            raise TaskRefused(f"there is no task {missing} that this one could need") from None
        ((number,),) = rows_of(CREATE, statements, answer)
        return await self._one(request.board, int(number or 0))

    @handles(ListTasks, concurrent=AT_ONCE)
    async def tasks(self, request: ListTasks) -> tuple[Task, ...]:
        return await self._read(task_of, TASKS, (request.board.team, request.board.user, None))

    @handles(ClaimTask, concurrent=AT_ONCE)
    async def claim(self, request: ClaimTask) -> Task:
        wanted = (request.number, request.agent, request.run_id, self._clock())
        number = await self._changed(CLAIM, request.board, wanted)
        if number is not None:
            return await self._one(request.board, number)
        if request.number is None:
            raise TaskRefused("no task is open that waits for no other")
        task = await self._one(request.board, request.number)
        if task.waits_for and task.state == "open":
            waits = ", ".join(map(str, task.waits_for))
            raise TaskRefused(f"task {task.number} waits for {waits}: they have to be done first")
        raise _refused(task, request.run_id)

    @handles(UpdateTask, concurrent=AT_ONCE)
    async def update(self, request: UpdateTask) -> Task:
        result = self._text(request.board.user, request.result)
        when = request.run_id, self._clock(), listed(request.people)
        change = (request.number, request.state, result, *when)
        changed = await self._changed(UPDATE, request.board, change)
        task = await self._one(request.board, request.number)
        if changed is None:
            raise _refused(task, request.run_id)
        return task

    async def _changed(self, sql: str, board: Board, params: tuple[SqlValue, ...]) -> int | None:
        """The number of the changed task; None when no task met the condition."""
        (rows,) = await self._write((Statement(sql, (board.team, board.user, *params)),))
        return int(str(rows[0][0])) if rows else None

    async def _one(self, board: Board, number: int) -> Task:
        found = await self._read_one(task_of, TASKS, (board.team, board.user, number))
        if found is None:
            raise NotFound(f"there is no task {number}")
        return found


def _refused(task: Task, run_id: str) -> TaskRefused:
    if task.state == "claimed":
        who = "you have it" if task.run_id == run_id else f"{task.agent} has it"
        return TaskRefused(f"task {task.number} is claimed: {who}")
    if task.state == "open":
        return TaskRefused(f"task {task.number} is open: claim it first")
    return TaskRefused(f"task {task.number} is {task.state} already")
