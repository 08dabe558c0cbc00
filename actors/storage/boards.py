"""Store of the task boards of teams: tables ``team_tasks`` and ``team_task_needs``.

Invariants: the statement that changes a task checks its condition, so that of many claims of one
task one succeeds; a claim counts only while its run has not ended; to others the board of a user is
empty (G16).
"""

from __future__ import annotations

import msgspec

from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import TableStore, rows_of
from motet.protocols.errors import NotFound
from motet.protocols.room_changes import ChangedMessages
from motet.protocols.sessions import FINAL
from motet.protocols.storage import Commit, ExpectationFailed, Row, SqlValue, Statement
from motet.protocols.teams import (
    BOARD_TASKS,
    Board,
    BoardProtocol,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    UpdateTask,
)
from motet.runtime import Actor, handles

_ENDED = ", ".join(f"'{status}'" for status in sorted(FINAL))
_STATE = f"""
CASE WHEN task.state = 'claimed' AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = task.run_id AND status NOT IN ({_ENDED})
) THEN 'open' ELSE task.state END"""
_NEEDS = """
FROM team_task_needs AS edge JOIN team_tasks AS need
ON need.team = edge.team AND need.user = edge.user AND need.number = edge.needs
WHERE edge.team = task.team AND edge.user = task.user AND edge.number = task.number"""

TASKS = f"""
SELECT number, title, {_STATE}, details, agent, run_id,
    (SELECT group_concat(edge.needs) {_NEEDS}),
    (SELECT group_concat(edge.needs) {_NEEDS} AND need.state <> 'done'),
    result, made_by
FROM team_tasks AS task WHERE team = ?1 AND user = ?2 AND (?3 IS NULL OR number = ?3)
ORDER BY number"""

_CREATE = f"""
INSERT INTO team_tasks (team, user, number, title, details, state, made_by, created, updated)
SELECT ?1, ?2, 1 + coalesce(max(number), 0), ?3, ?4, 'open', ?5, ?6, ?6
FROM team_tasks WHERE team = ?1 AND user = ?2 HAVING count(*) < {BOARD_TASKS}
RETURNING number"""

_NEED = """
INSERT INTO team_task_needs (team, user, number, needs)
SELECT team, user, max(number), ?3 FROM team_tasks WHERE team = ?1 AND user = ?2
GROUP BY team, user HAVING ?3 >= 1 AND max(number) > ?3
RETURNING needs"""

_CLAIM = f"""
UPDATE team_tasks SET state = 'claimed', agent = ?4, run_id = ?5, updated = ?6
WHERE team = ?1 AND user = ?2 AND number = (
    SELECT number FROM team_tasks AS task
    WHERE team = ?1 AND user = ?2 AND (?3 IS NULL OR number = ?3) AND {_STATE} = 'open'
    AND NOT EXISTS (SELECT 1 {_NEEDS} AND need.state <> 'done')
    ORDER BY number LIMIT 1
)
RETURNING number"""

_UPDATE = f"""
UPDATE team_tasks AS task SET state = ?4, result = ?5, updated = ?7
WHERE team = ?1 AND user = ?2 AND number = ?3 AND CASE ?4
    WHEN 'cancelled' THEN {_STATE} IN ('open', 'claimed')
    WHEN 'open' THEN state IN ('failed', 'cancelled') OR (state = 'claimed' AND run_id = ?6)
    ELSE state = 'claimed' AND run_id = ?6 END
RETURNING number"""


def _task(row: Row) -> Task:
    """A row of :data:`TASKS`, whose lists of numbers are text."""
    fields: dict[str, object] = dict(zip(Task.__struct_fields__, row, strict=True))
    lists = {name: _numbers(fields[name]) for name in ("needs", "waits_for")}
    return msgspec.convert(fields | lists, Task)


def _numbers(joined: object) -> tuple[int, ...]:
    return tuple(sorted(map(int, str(joined).split(",")))) if joined else ()


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
            Statement(_CREATE, (team, user, *text, self._clock()), expect=1),
            *(Statement(_NEED, (team, user, number), expect=1) for number in needs),
        )
        try:
            answer = await self._write(statements)
        except ExpectationFailed as failed:
            if failed.sql == _CREATE:
                raise TaskRefused(f"the board is full: it holds {BOARD_TASKS} tasks") from None
            missing = statements[failed.index].params[-1]
            raise TaskRefused(f"there is no task {missing} that this one could need") from None
        ((number,),) = rows_of(_CREATE, statements, answer)
        return await self._one(request.board, int(number or 0))

    @handles(ListTasks, concurrent=AT_ONCE)
    async def tasks(self, request: ListTasks) -> tuple[Task, ...]:
        return await self._read(_task, TASKS, (request.board.team, request.board.user, None))

    @handles(ClaimTask, concurrent=AT_ONCE)
    async def claim(self, request: ClaimTask) -> Task:
        wanted = (request.number, request.agent, request.run_id, self._clock())
        number = await self._changed(_CLAIM, request.board, wanted)
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
        change = (request.number, request.state, result, request.run_id, self._clock())
        changed = await self._changed(_UPDATE, request.board, change)
        task = await self._one(request.board, request.number)
        if changed is None:
            raise _refused(task, request.run_id)
        return task

    async def _changed(self, sql: str, board: Board, params: tuple[SqlValue, ...]) -> int | None:
        """The number of the changed task; None when no task met the condition."""
        (rows,) = await self._write((Statement(sql, (board.team, board.user, *params)),))
        return int(str(rows[0][0])) if rows else None

    async def _one(self, board: Board, number: int) -> Task:
        found = await self._read_one(_task, TASKS, (board.team, board.user, number))
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
