"""Escalations: runs that failed too often, and the decisions of the people who reviewed them.

Invariants: a run has at most one escalation; an escalation has at most one answer, which is stored
together with the input that it starts. A session needs a review while one of its escalations is
open. Source: seed 004, errors specification section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from motet.protocols.errors import CompactError, InputValidation, MotetError
from motet.protocols.messages import Request
from motet.protocols.redaction.redact import redact, redact_text

Answer: TypeAlias = Literal["retry", "advice", "skip", "give_up"]
"""``retry``: a new run; ``advice``: a new run that reads the note; ``skip``: a new run that takes
the note in place of the step that failed; ``give_up``: no run."""

EscalationState: TypeAlias = Literal["open", "resolved"]


class EscalationAnswered(MotetError):
    """The escalation has another answer already; the message quotes it."""


class NewEscalation(msgspec.Struct, frozen=True):
    """The reason of an ``escalated`` end: the tool that failed last, and the limit in words.

    Attributes:
        error_history: as of :class:`EscalationInfo`.
        sender: the author of the run's input, among those who share its session.
    """

    tool: str
    reason: str
    error_history: tuple[CompactError, ...] = ()
    sender: str = ""


class EscalationInfo(msgspec.Struct, frozen=True):
    """One escalation.

    Attributes:
        run_id: the escalated run; ``agent`` and ``user`` are that run's.
        created, resolved: Unix seconds.
        next_run: the run that the answer starts.
        sender: the author of the run's input, among those who share the session.
        error_history: the failed calls that led to it, oldest first, at most
            :data:`HISTORY_SHOWN`; their arguments are redacted and short.
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
    sender: str = ""
    error_history: tuple[CompactError, ...] = ()


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


# The history of an escalation, for the person who answers it and for the run that goes on.

HISTORY_SHOWN = 20
_ARGUMENTS_SEARCHED = 16_384
_ARGUMENTS_SHOWN = 300
RETRY = "Try again, and go on from where you stopped."
SKIP = "Leave out the step that failed: do not call {tool} for it again. Take this in its place:"
_HEAD = "The failed calls before this answer, oldest first:"
HISTORY_TAG = "error_history"


def history_of(errors: Sequence[CompactError]) -> tuple[CompactError, ...]:
    """The newest errors, with arguments that people may see."""
    shown = errors[-HISTORY_SHOWN:]
    return tuple(replace(one, arguments=_redacted(one.arguments)) for one in shown)


def _redacted(arguments: str) -> str:
    """JSON text without secrets, cut after it was redacted, so that a cut reveals none."""
    try:
        value = redact(msgspec.json.decode(arguments[:_ARGUMENTS_SEARCHED] or "{}"))
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, RecursionError):
        text = redact_text(arguments[:_ARGUMENTS_SEARCHED])
    return text if len(text) <= _ARGUMENTS_SHOWN else f"{text[: _ARGUMENTS_SHOWN - 1]}…"


def history_lines(history: Sequence[CompactError]) -> list[str]:
    """A line for each failed call."""
    return [
        f"{number}. {one.tool_name}({one.arguments}): {one.error_type}: {one.message}"
        f"{f' [{one.error_id}]' if one.error_id else ''}"
        f"{' (a later call has succeeded)' if one.resolved else ''}"
        for number, one in enumerate(history, 1)
    ]


def follow_up(decision: Answer, note: str, tool: str) -> str | None:
    """The answer as the next run reads it; None when it is to give up.

    Raises ``InputValidation`` for an unknown decision, and for one that needs a note without it.
    """
    match decision:
        case "retry":
            return f"{RETRY}\n\n{note}" if note.strip() else RETRY
        case "advice" | "skip" if not note.strip():
            raise InputValidation(f"{decision} needs a note: say what the agent should do")
        case "advice":
            return note
        case "skip":
            return f"{SKIP.format(tool=tool)}\n\n{note}"
        case "give_up":
            return None
        case _:
            known = ", ".join(get_args(Answer))
            raise InputValidation(f"{decision!r} is no decision: {known}")


def with_history(text: str, history: Sequence[CompactError]) -> str:
    """An answer with the history that it is about. No text of an error closes the block."""
    lines = [line.replace("</", "&lt;/") for line in history_lines(history)]
    if not lines:
        return text
    return "\n".join([f"{text}\n\n<{HISTORY_TAG}>", _HEAD, *lines, f"</{HISTORY_TAG}>"])


def without_history(text: str) -> str:
    """The answer alone."""
    return text.split(f"\n\n<{HISTORY_TAG}>\n{_HEAD}\n", 1)[0]
