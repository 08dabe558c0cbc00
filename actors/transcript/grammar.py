"""The grammar of a transcript, and the rows that end turns, calls and sub-agents in it. Pure.

Grammar: ``(user (assistant(calls) tool*)* assistant)*``, where the tool rows after an assistant row
are exactly the results of its calls, in call order. :func:`close_calls` makes any rows of a run
valid (G7), :func:`violations` says what breaks the grammar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from motet.actors.transcript.history import with_author
from motet.protocols.approvals import LATER
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.sanitize import is_silent, sanitize
from motet.protocols.sessions import RunStatus
from motet.protocols.tools import CallResult

MISSING_RESULTS: dict[Outcome, str] = {
    "done": "[No output]",
    "answered": "[No output]",
    "failed": "[The call failed]",
    "denied": "[The call was not allowed]",
    "cancelled_before_start": "[Not run: the run was stopped before this call started]",
    "cancelled_while_running": "[Stopped while running: its effect may have happened in part]",
    "unknown": "[Outcome unknown: the host ended during this call; its effect may have happened]",
}


def missing_result(call: Call, outcome: Outcome, text: str = "") -> ToolMessage:
    """The result row of a call that has none of its own."""
    return ToolMessage(call.id, call.name, text or MISSING_RESULTS[outcome], outcome)


def held(call: Call) -> ToolMessage:
    """The mark of a call in the journal that has not begun: before it does, another one is stored.

    Its run may resume with the call as if it were new. Else it is the result.
    """
    return replace(missing_result(call, "cancelled_before_start"), kind=LATER)


def is_held(row: ChatMessage) -> bool:
    return isinstance(row, ToolMessage) and row.kind == LATER


def close_calls(
    rows: Iterable[ChatMessage], outcome: Outcome, text: str = ""
) -> tuple[ChatMessage, ...]:
    """The rows with every call answered once, in call order; missing results say ``outcome``.

    ``text``: why they have none, in place of the usual words. Results may stand in any order behind
    their assistant row. A result without a call and a second result of one call are left out.
    Closing a closed transcript changes nothing.
    """
    closed: list[ChatMessage] = []
    for head, results in _blocks(rows):
        if head is not None:
            closed.append(head)
        if isinstance(head, AssistantMessage) and head.calls:
            found: dict[str, ToolMessage] = {}
            for row in results:
                found.setdefault(row.call_id, replace(row, kind="") if is_held(row) else row)
            closed += [
                found.get(call.id) or missing_result(call, outcome, text) for call in head.calls
            ]
    return tuple(closed)


def violations(rows: Sequence[ChatMessage]) -> tuple[str, ...]:
    """All violations of the grammar, with their positions; empty for a valid transcript.

    A last user row without an answer is valid: such rows are sent to a model.
    """
    return tuple(_violations(rows))


def _violations(rows: Sequence[ChatMessage]) -> Iterator[str]:
    at = 0
    previous = ""
    for head, results in _blocks(rows):
        role = "assistant" if isinstance(head, AssistantMessage) else "user" if head else ""
        if not head:
            yield f"row {at}: a result without a call before it"
        elif role == "user" and previous == "user":
            yield f"row {at}: two user rows with no answer between them"
        elif role == "assistant" and previous in ("", "answer"):
            yield f"row {at}: an assistant row that answers nothing"
        at += 1 if head else 0
        calls = head.calls if isinstance(head, AssistantMessage) else ()
        yield from _mismatch(at, calls, results)
        at += len(results)
        previous = role if role != "assistant" or calls else "answer"


def _mismatch(at: int, calls: Sequence[Call], results: Sequence[ToolMessage]) -> Iterator[str]:
    asked = [call.id for call in calls]
    got = [result.call_id for result in results]
    if len(set(asked)) != len(asked):
        yield f"row {at - 1}: two calls share one id: {asked}"
    if asked != got:
        yield f"row {at}: results {got} do not match calls {asked}"


_Block: TypeAlias = tuple[UserMessage | AssistantMessage | None, list[ToolMessage]]


def _blocks(rows: Iterable[ChatMessage]) -> list[_Block]:
    """Each user or assistant row with its tool rows; tool rows in front come with None."""
    blocks: list[_Block] = []
    for row in rows:
        if not isinstance(row, ToolMessage):
            blocks.append((row, []))
        elif blocks:
            blocks[-1][1].append(row)
        else:
            blocks.append((None, [row]))
    return blocks


# Rows that end a turn

EMPTY_ANSWER = "[The model gave an empty answer]"
STOPPED = "[Stopped by user]"


def answer_row(text: str) -> tuple[AssistantMessage, str]:
    """The row of an answer, and the output of the run: empty for a silent answer."""
    clean = sanitize(text)
    if is_silent(clean):
        return AssistantMessage(clean, note="silent"), ""
    return AssistantMessage(clean or EMPTY_ANSWER), clean


def stopped_row(partial: str, cause: str = "") -> AssistantMessage:
    """``cause``: of the stop, when it was not a person."""
    note = f"[Stopped: {cause}]" if cause else STOPPED
    return AssistantMessage(_with_note(partial, note), note="stopped")


def failed_row(partial: str, message: str) -> AssistantMessage:
    return AssistantMessage(_with_note(partial, f"[Failed: {message}]"), note="failed")


def limited_row(partial: str, limit: str) -> AssistantMessage:
    return AssistantMessage(_with_note(partial, f"[Ended by the limit: {limit}]"), note="limited")


def refused_row(partial: str, reason: str) -> AssistantMessage:
    """``reason`` is not repeated where the refusal was said as an answer."""
    said = sanitize(partial)
    told = " ".join(reason.split()).translate({ord("["): "(", ord("]"): ")"})
    note = "[Refused]" if reason in " ".join(said.split()) else f"[Refused: {told}]"
    return AssistantMessage(_with_note(said, note), note="refused")


def said_before_refusal(row: ChatMessage) -> str:
    """The text of a refused answer without the note of :func:`refused_row`."""
    return row.text.rpartition("[Refused")[0].rstrip()


def escalated_row(reason: str) -> AssistantMessage:
    return AssistantMessage(f"[Handed to a person: {reason}]", note="escalated")


def row_of(result: CallResult) -> ToolMessage:
    """The transcript row of a call's result."""
    kind = result.kind if result.outcome == "failed" else ""
    return ToolMessage(
        result.call_id, result.name, result.text, result.outcome, result.failure, kind
    )


def refusal(call: Call, text: str) -> CallResult:
    """The result of a call that was not run."""
    return CallResult(call.id, call.name, text, "denied", kind="limit", failure="refusal")


def injected_row(messages: Sequence[UserMessage]) -> UserMessage:
    """The one row as which messages enter a run that goes on."""
    authors = {message.author for message in messages}
    if len(authors) == 1:
        text = "\n\n".join(message.text for message in messages)
        return UserMessage(text, authors.pop(), note="injected")
    said = [with_author(m.author, m.text) if m.author else m.text for m in messages]
    return UserMessage("\n\n".join(said), note="injected")


def _with_note(partial: str, note: str) -> str:
    return f"{partial.rstrip()}\n\n{note}" if partial.strip() else note


# Sub-agents that a run did not wait for
#
# Invariant: the end of a child is in the transcript of its caller once: in a row that the model was
# shown, or, when the run ended before, in its last row (agent loop specification, section 12).

SPAWN = "spawn"
SUBAGENTS = "subagents"
CHILD_TOOLS = (SPAWN, SUBAGENTS)
CHILD_TOOL_GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType({"group:agents": CHILD_TOOLS})
"""The name of both in configurations."""


class EndedChild(msgspec.Struct, frozen=True):
    """A child that has ended. ``detail``: the limit, the failure, or who stopped it."""

    run_id: str
    agent: str
    status: RunStatus
    output: str = ""
    detail: str = ""

    @property
    def head(self) -> str:
        why = f", {self.detail}" if self.detail else ""
        return f"{self.agent} ({self.run_id}): {self.status}{why}"


def child_notice(ended: EndedChild) -> UserMessage:
    """The message to the caller's model about the end of a child."""
    said = ended.output or "[It said nothing]"
    return UserMessage(f"[Sub-agent {ended.head}]\n{said}", note="injected")


def unreported_children(
    rows: Iterable[ChatMessage], children: Iterable[EndedChild]
) -> tuple[EndedChild, ...]:
    """The children whose end is in no notice and in no result of ``subagents``."""
    told = "\n".join(row.text for row in rows if _reports_a_child(row))
    return tuple(one for one in children if one.head not in told)


def _reports_a_child(row: ChatMessage) -> bool:
    given = isinstance(row, UserMessage) and row.note == "injected"
    return given or (isinstance(row, ToolMessage) and row.name == SUBAGENTS)


def with_unreported_children(
    rows: Sequence[ChatMessage], children: Sequence[EndedChild]
) -> tuple[ChatMessage, ...]:
    """The rows of an ended run; the last one lists the ends of these children."""
    last = rows[-1] if rows else None
    if not children or not isinstance(last, AssistantMessage):
        return tuple(rows)
    told = "\n".join(f"- {one.head}" for one in children)
    text = f"{last.text}\n\n[Its sub-agents, whose results it has not seen:\n{told}]"
    return (*rows[:-1], replace(last, text=text))


def recovered_rows(
    rows: Sequence[ChatMessage], children: Iterable[EndedChild]
) -> tuple[ChatMessage, ...]:
    """The rows of an interrupted run, with the outputs of its unreported children."""
    late = unreported_children(rows, children)
    said = "\n\n".join(child_notice(one).text for one in late if one.output)
    last = rows[-1]
    if said and isinstance(last, AssistantMessage):
        rows = (*rows[:-1], replace(last, text=f"{last.text}\n\n{said}"))
    return with_unreported_children(rows, [one for one in late if not one.output])


# Unique ids of calls
#
# Some servers number calls anew in each answer, or give two calls one id. Others refuse a request
# with such a pair, or with an id of more than 40 characters, and so all later turns of a session.

CALL_ID_PREFIX = "call_"
CALL_ID_LENGTH = 40


def with_unique_ids(calls: Sequence[Call], run_id: str, iteration: int) -> tuple[Call, ...]:
    """The calls of one answer, each with an id derived from its run, request, index and own id.

    Equal arguments give equal ids, so that a replay finds the same ones.
    """
    return tuple(
        replace(call, id=_unique_id(f"{call.id}:{run_id}:{iteration}:{place}"))
        for place, call in enumerate(calls)
    )


def _unique_id(seed: str) -> str:
    digest = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()
    return CALL_ID_PREFIX + digest[: CALL_ID_LENGTH - len(CALL_ID_PREFIX)]
