"""Store of the task boards of teams: tables ``team_tasks`` and ``team_task_needs``.

Invariants: the statement that changes a task checks its condition, so that of many claims of one
task one succeeds; a claim counts only while its run has not ended; to others the board of a user is
empty (G16).
"""

from __future__ import annotations

import msgspec

from motet.actors.storage.tables import TableStore, rows_of
from motet.protocols.errors import NotFound
from motet.protocols.sessions import FINAL
from motet.protocols.storage import ExpectationFailed, Row, Statement
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


def create_statements(request: CreateTask, now: float) -> tuple[Statement, ...]:
    """The first statement fails for a full board, another for an unknown task."""
    board = (request.board.team, request.board.user)
    text = (request.title, request.details, request.made_by)
    needs = sorted(set(request.needs))
    return (
        Statement(_CREATE, (*board, *text, now), expect=1),
        *(Statement(_NEED, (*board, number), expect=1) for number in needs),
    )


def claim_statement(request: ClaimTask, now: float) -> Statement:
    board = (request.board.team, request.board.user)
    return Statement(_CLAIM, (*board, request.number, request.agent, request.run_id, now))


def update_statement(request: UpdateTask, now: float) -> Statement:
    board = (request.board.team, request.board.user)
    change = (request.number, request.state, request.result, request.run_id, now)
    return Statement(_UPDATE, (*board, *change))


def tasks_query(
    board: Board, number: int | None = None
) -> tuple[str, tuple[str | int | None, ...]]:
    return TASKS, (board.team, board.user, number)


def task_of(row: Row) -> Task:
    number, title, state, details, agent, run_id, needs, waits, result, made_by = row
    fields = {
        "number": number,
        "title": title,
        "state": state,
        "details": details,
        "agent": agent,
        "run_id": run_id,
        "needs": _numbers(needs),
        "waits_for": _numbers(waits),
        "result": result,
        "made_by": made_by,
    }
    return msgspec.convert(fields, Task)


def _numbers(joined: object) -> tuple[int, ...]:
    return tuple(sorted(map(int, str(joined).split(",")))) if joined else ()


AT_ONCE = 64


class TaskBoards(TableStore, Actor[BoardProtocol]):
    """Handles the requests of ``motet.protocols.teams``."""

    @handles(CreateTask, concurrent=AT_ONCE)
    async def create_statements(self, request: CreateTask) -> Task:
        statements = create_statements(request, self._clock())
        try:
            answer = await self._write(statements)
        except ExpectationFailed as failed:
            if failed.sql == _CREATE:
                raise TaskRefused(f"the board is full: it holds {BOARD_TASKS} tasks") from None
            missing = statements[failed.index].params[-1]
            raise TaskRefused(f"there is no task {missing} that this one could need") from None
        ((number,),) = rows_of(_CREATE, statements, answer)
        return await self._task(request.board, int(number or 0))

    @handles(ListTasks, concurrent=AT_ONCE)
    async def tasks_query(self, request: ListTasks) -> tuple[Task, ...]:
        return await self._read(task_of, *tasks_query(request.board))

    @handles(ClaimTask, concurrent=AT_ONCE)
    async def claim_statement(self, request: ClaimTask) -> Task:
        number = await self._changed(claim_statement(request, self._clock()))
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
    async def update_statement(self, request: UpdateTask) -> Task:
        changed = await self._changed(update_statement(request, self._clock()))
        task = await self._task(request.board, request.number)
        if changed is None:
            raise _refused(task, request.run_id)
        return task

    async def _changed(self, statement: Statement) -> int | None:
        """The number of the changed task; None when no task met the condition."""
        (rows,) = await self._write((statement,))
        return int(str(rows[0][0])) if rows else None

    async def _task(self, board: Board, number: int) -> Task:
        found = await self._read_one(task_of, *tasks_query(board, number))
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
