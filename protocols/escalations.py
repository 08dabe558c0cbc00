"""Escalations: a run that failed too often, handed to a person, and what the person decided.

Invariants: a run has at most one escalation; an escalation has at most one answer. A session needs
a review as long as one of its escalations is open. Source: seed 004, errors specification
section 4.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.errors import MotetError
from motet.protocols.messages import Request

Answer: TypeAlias = Literal["retry", "advice", "give_up"]
"""``retry``: a run that goes on; ``advice``: a run that is told the note; ``give_up``: no run."""

EscalationState: TypeAlias = Literal["open", "resolved"]


class EscalationAnswered(MotetError):
    """The escalation has been answered before, and otherwise; the message says how."""


class NewEscalation(msgspec.Struct, frozen=True):
    """What ends a run as ``escalated``: the tool that failed last, and the limit in words."""

    tool: str
    reason: str


class EscalationInfo(msgspec.Struct, frozen=True):
    """One escalation.

    Attributes:
        run_id: the run that was escalated; ``agent`` and ``user`` are its.
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
    """Newest first; absent filters match all. ``user`` None: everybody's."""

    user: str | None = None
    session: str | None = None
    state: EscalationState | None = None
    limit: int = 50


class GetEscalation(Request[EscalationInfo | None], frozen=True, tag="sessions.escalation"):
    id: str


class AnswerEscalation(Request[bool], frozen=True, tag="sessions.answer"):
    """Put an answer on record; False when the same one is there already.

    ``next_run`` is the id of the run that is about to be started for it. Raises ``NotFound``, and
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
