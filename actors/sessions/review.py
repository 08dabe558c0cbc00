"""What a person's answer to an escalation says: to the model, and to those who watch."""

from __future__ import annotations

from motet.protocols.errors import InputValidation
from motet.protocols.escalations import Answer, EscalationInfo
from motet.protocols.events import EscalationResolved

RETRY = "Try again, and go on from where you stopped."


def follow_up(decision: Answer, note: str) -> str | None:
    """The text of the next run; None when the answer is to give up.

    Raises ``InputValidation`` for advice that says nothing.
    """
    match decision:
        case "retry":
            return f"{RETRY}\n\n{note}" if note.strip() else RETRY
        case "advice" if note.strip():
            return note
        case "advice":
            raise InputValidation("advice needs a note: say what the agent should do")
        case "give_up":
            return None


def resolved(info: EscalationInfo) -> EscalationResolved:
    """The event that tells of an answer."""
    assert info.decision is not None
    assert info.resolved_by is not None
    return EscalationResolved(info.id, info.decision, info.note, info.resolved_by, info.next_run)
