"""Teams: their configuration, and the requests to their task board.

A board belongs to a team and one of its users: no request can name a task of another (G16). A claim
lasts as long as the run that made it: after a stop or a crash of that run the task is open again.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import attrs
import msgspec

from motet.protocols.errors import MotetError
from motet.protocols.messages import Request
from motet.protocols.sessions import FINAL, Principal
from motet.protocols.storage import Row

TeamWorkspace: TypeAlias = Literal["isolated", "shared"]
TaskState: TypeAlias = Literal["open", "claimed", "done", "failed", "cancelled"]

BOARD_TASKS = 500
"""Tasks of one board, with those that are done."""


def _known(_: object, attribute: attrs.Attribute[TeamWorkspace], value: str) -> None:
    if value not in get_args(TeamWorkspace):
        raise ValueError(f"{attribute.name} must be 'isolated' or 'shared', not {value!r}")


def _some(_: object, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must name at least one agent")


@attrs.frozen(kw_only=True)
class TeamConfig:
    """A team as a file describes it.

    Attributes:
        members: names of its agents, the lead among them or not.
        lead: who is talked with, and starts the others; the first member if absent.
        workspace: its folder: ``isolated`` is one for each user or group that talks with it,
            ``shared`` one for all.
    """

    members: tuple[str, ...] = attrs.field(validator=_some)
    lead: str = ""
    workspace: TeamWorkspace = attrs.field(default="isolated", validator=_known)


class TaskRefused(MotetError):
    """A request that a task does not allow: another run has it, it waits for others, it is over."""


class Board(msgspec.Struct, frozen=True):
    """The board of a team and a user."""

    team: str
    user: str


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task. ``agent`` and ``run_id``: of who has claimed it, or has last.

    ``waits_for``: numbers of the tasks that have to be done first and are not. ``people``: whose
    words it is, if not those of the board's user only.
    """

    number: int
    title: str
    state: TaskState
    details: str = ""
    agent: str | None = None
    run_id: str | None = None
    needs: tuple[int, ...] = ()
    waits_for: tuple[int, ...] = ()
    result: str = ""
    made_by: str = ""
    people: tuple[Principal, ...] = ()


class CreateTask(Request[Task], frozen=True, tag="tasks.create"):
    """Raises ``TaskRefused`` for a full board, and for needs that are not on it."""

    board: Board
    title: str
    details: str = ""
    needs: tuple[int, ...] = ()
    made_by: str = ""
    people: tuple[Principal, ...] = ()


class ListTasks(Request[tuple[Task, ...]], frozen=True, tag="tasks.list"):
    """All of a board, by number."""

    board: Board


class ClaimTask(Request[Task], frozen=True, tag="tasks.claim"):
    """Take one task, or the first that can be taken. Of many who ask for one, one gets it.

    Raises ``NotFound``, ``TaskRefused``.
    """

    board: Board
    agent: str
    run_id: str
    number: int | None = None


class UpdateTask(Request[Task], frozen=True, tag="tasks.update"):
    """Say what became of a task. ``done`` and ``failed`` are for who has claimed it.

    ``open`` gives a claim back, or opens what failed or was cancelled. Raises ``NotFound``,
    ``TaskRefused``.
    """

    board: Board
    number: int
    run_id: str
    state: TaskState
    result: str = ""
    people: tuple[Principal, ...] = ()


BoardProtocol: TypeAlias = CreateTask | ListTasks | ClaimTask | UpdateTask


# The tables ``team_tasks`` and ``team_task_needs``

_ENDED = ", ".join(f"'{status}'" for status in sorted(FINAL))
_STATE = f"""
CASE WHEN task.state = 'claimed' AND NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = task.run_id AND status NOT IN ({_ENDED})
) THEN 'open' ELSE task.state END"""
_NEEDS = """
FROM team_task_needs AS edge JOIN team_tasks AS need
ON need.team = edge.team AND need.user = edge.user AND need.number = edge.needs
WHERE edge.team = task.team AND edge.user = task.user AND edge.number = task.number"""

TASKS: Final = f"""
SELECT number, title, {_STATE}, details, agent, run_id,
    (SELECT group_concat(edge.needs) {_NEEDS}),
    (SELECT group_concat(edge.needs) {_NEEDS} AND need.state <> 'done'),
    result, made_by, people
FROM team_tasks AS task WHERE team = ?1 AND user = ?2 AND (?3 IS NULL OR number = ?3)
ORDER BY number"""

CREATE: Final = f"""
INSERT INTO team_tasks
    (team, user, number, title, details, state, made_by, created, updated, people)
SELECT ?1, ?2, 1 + coalesce(max(number), 0), ?3, ?4, 'open', ?5, ?6, ?6, ?7
FROM team_tasks WHERE team = ?1 AND user = ?2 HAVING count(*) < {BOARD_TASKS}
RETURNING number"""

NEED: Final = """
INSERT INTO team_task_needs (team, user, number, needs)
SELECT team, user, max(number), ?3 FROM team_tasks WHERE team = ?1 AND user = ?2
GROUP BY team, user HAVING ?3 >= 1 AND max(number) > ?3
RETURNING needs"""

CLAIM: Final = f"""
UPDATE team_tasks SET state = 'claimed', agent = ?4, run_id = ?5, updated = ?6
WHERE team = ?1 AND user = ?2 AND number = (
    SELECT number FROM team_tasks AS task
    WHERE team = ?1 AND user = ?2 AND (?3 IS NULL OR number = ?3) AND {_STATE} = 'open'
    AND NOT EXISTS (SELECT 1 {_NEEDS} AND need.state <> 'done')
    ORDER BY number LIMIT 1
)
RETURNING number"""

UPDATE: Final = f"""
UPDATE team_tasks AS task SET state = ?4, result = ?5, updated = ?7, people = (
    SELECT json_group_array(json(value)) FROM (
        SELECT value FROM json_each(task.people) UNION SELECT value FROM json_each(?8)))
WHERE team = ?1 AND user = ?2 AND number = ?3 AND CASE ?4
    WHEN 'cancelled' THEN {_STATE} IN ('open', 'claimed')
    WHEN 'open' THEN state IN ('failed', 'cancelled') OR (state = 'claimed' AND run_id = ?6)
    ELSE state = 'claimed' AND run_id = ?6 END
RETURNING number"""


def task_of(row: Row) -> Task:
    """The task of a row of :data:`TASKS`, whose lists of numbers are text."""
    fields: dict[str, object] = dict(zip(Task.__struct_fields__, row, strict=True))
    lists = {name: _numbers(fields[name]) for name in ("needs", "waits_for")}
    people = msgspec.json.decode(str(fields["people"]))
    return msgspec.convert(fields | lists | {"people": people}, Task)


def _numbers(joined: object) -> tuple[int, ...]:
    return tuple(sorted(map(int, str(joined).split(",")))) if joined else ()
