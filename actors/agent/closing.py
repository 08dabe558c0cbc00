"""How the rows of a turn end, and what of them a person reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from motet.actors.agent.names import named
from motet.actors.agent.sanitize import sanitize
from motet.actors.agent.silence import is_silent
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.tools import CallResult

EMPTY_ANSWER = "[The model gave an empty answer]"
STOPPED = "[Stopped by user]"


def answer_row(text: str) -> tuple[AssistantMessage, str]:
    """The row of an answer, and what of it is given out: nothing when it is silent."""
    clean = sanitize(text)
    if is_silent(clean):
        return AssistantMessage(clean, note="silent"), ""
    return AssistantMessage(clean or EMPTY_ANSWER), clean


def stopped_row(partial: str, cause: str = "") -> AssistantMessage:
    """``cause``: what has ended the run when no person has."""
    note = f"[Stopped: {cause}]" if cause else STOPPED
    return AssistantMessage(_behind(partial, note), note="stopped")


def failed_row(partial: str, message: str) -> AssistantMessage:
    return AssistantMessage(_behind(partial, f"[Failed: {message}]"), note="failed")


def limited_row(partial: str, limit: str) -> AssistantMessage:
    return AssistantMessage(_behind(partial, f"[Ended by the limit: {limit}]"), note="limited")


def escalated_row(reason: str) -> AssistantMessage:
    return AssistantMessage(f"[Handed to a person: {reason}]", note="escalated")


def row_of(result: CallResult) -> ToolMessage:
    """The transcript row of a call's result."""
    return ToolMessage(result.call_id, result.name, result.text, result.outcome)


def refusal(call: Call, text: str) -> CallResult:
    """The result of a call that was not run."""
    return CallResult(call.id, call.name, text, "denied", kind="limit")


def injected_row(messages: Sequence[UserMessage]) -> UserMessage:
    """Messages that came while the run went on, as the one row that they enter it as."""
    authors = {message.author for message in messages}
    if len(authors) == 1:
        text = "\n\n".join(message.text for message in messages)
        return UserMessage(text, authors.pop(), note="injected")
    said = [named(m.author, m.text) if m.author else m.text for m in messages]
    return UserMessage("\n\n".join(said), note="injected")


def _behind(partial: str, note: str) -> str:
    return f"{partial.rstrip()}\n\n{note}" if partial.strip() else note
