"""Teams: their configuration, and the requests to their task board.

A board belongs to a team and one of its users: no request can name a task of another (G16). A claim
lasts as long as the run that made it: after a stop or a crash of that run the task is open again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import attrs
import msgspec

from motet.protocols.errors import MotetError
from motet.protocols.messages import Request

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

    ``waits_for``: numbers of the tasks that have to be done first and are not.
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


class CreateTask(Request[Task], frozen=True, tag="tasks.create"):
    """Raises ``TaskRefused`` for a full board, and for needs that are not on it."""

    board: Board
    title: str
    details: str = ""
    needs: tuple[int, ...] = ()
    made_by: str = ""


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


BoardProtocol: TypeAlias = CreateTask | ListTasks | ClaimTask | UpdateTask
