"""Escalations: runs that failed too often, and the decisions of the people who reviewed them.

Invariants: a run has at most one escalation; an escalation has at most one answer. A session needs
a review while one of its escalations is open. Source: seed 004, errors specification
section 4.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.errors import MotetError
from motet.protocols.messages import Request

Answer: TypeAlias = Literal["retry", "advice", "give_up"]
"""``retry``: a new run; ``advice``: a new run that reads the note; ``give_up``: no run."""

EscalationState: TypeAlias = Literal["open", "resolved"]


class EscalationAnswered(MotetError):
    """The escalation has another answer already; the message quotes it."""


class NewEscalation(msgspec.Struct, frozen=True):
    """The reason of an ``escalated`` end: the tool that failed last, and the limit in words."""

    tool: str
    reason: str


class EscalationInfo(msgspec.Struct, frozen=True):
    """One escalation.

    Attributes:
        run_id: the escalated run; ``agent`` and ``user`` are that run's.
        created, resolved: Unix seconds.
        next_run: the run that the answer starts.
    """

    id: str
    session: str
    run_id: str
    agent: str
    user: str
    tool: str
    reason: str
    created: float
    state: EscalationState = "open"
    decision: Answer | None = None
    note: str = ""
    resolved_by: str | None = None
    resolved: float | None = None
    next_run: str | None = None


class ListEscalations(Request[tuple[EscalationInfo, ...]], frozen=True, tag="sessions.escalations"):
    """Newest first; absent filters match all. ``user`` None: of all users."""

    user: str | None = None
    session: str | None = None
    state: EscalationState | None = None
    limit: int = 50


class GetEscalation(Request[EscalationInfo | None], frozen=True, tag="sessions.escalation"):
    id: str


class AnswerEscalation(Request[bool], frozen=True, tag="sessions.answer"):
    """Store an answer; False when the same answer is stored already.

    ``next_run``: the id of the run that the answer will start. Raises ``NotFound``, and
    ``EscalationAnswered`` when there is another answer.
    """

    id: str
    decision: Answer
    note: str
    by: str
    next_run: str | None = None


def escalation_id(run_id: str) -> str:
    """The id of a run's escalation."""
    return f"esc_{run_id.removeprefix('run_')}"
