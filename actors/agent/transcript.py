"""The grammar of a transcript: what is wrong with one, and how an interrupted one is closed (G7).

Grammar: ``(user (assistant(calls) tool*)* assistant)*`` where the tool rows after an assistant
row are exactly the results of its calls, in call order. Pure functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)

GAP_TEXT: dict[Outcome, str] = {
    "done": "[No output]",
    "answered": "[No output]",
    "failed": "[The call failed]",
    "denied": "[The call was not allowed]",
    "cancelled_before_start": "[Not run: the run was stopped before this call started]",
    "cancelled_while_running": "[Stopped while running: its effect may have happened in part]",
    "unknown": "[Outcome unknown: the host ended during this call; its effect may have happened]",
}


def gap(call: Call, outcome: Outcome) -> ToolMessage:
    """The result row of a call that has none of its own."""
    return ToolMessage(call.id, call.name, GAP_TEXT[outcome], outcome)


def close_calls(rows: Iterable[ChatMessage], outcome: Outcome) -> tuple[ChatMessage, ...]:
    """The rows with every call answered once, in call order; missing results say ``outcome``.

    Results may stand in any order behind their assistant row. A result without a call and a
    second result of one call are left out. Closing a closed transcript changes nothing.
    """
    closed: list[ChatMessage] = []
    for head, results in _blocks(rows):
        if head is not None:
            closed.append(head)
        if isinstance(head, AssistantMessage) and head.calls:
            found: dict[str, ToolMessage] = {}
            for result in results:
                found.setdefault(result.call_id, result)
            closed += [found.get(call.id) or gap(call, outcome) for call in head.calls]
    return tuple(closed)


def violations(rows: Sequence[ChatMessage]) -> tuple[str, ...]:
    """Everything that breaks the grammar, each with its position; empty for a valid transcript.

    An open end (a last user row that waits for its answer) is valid: it is what a model is sent.
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
    """Each user or assistant row with the tool rows behind it; orphans in front come with None."""
    blocks: list[_Block] = []
    for row in rows:
        if not isinstance(row, ToolMessage):
            blocks.append((row, []))
        elif blocks:
            blocks[-1][1].append(row)
        else:
            blocks.append((None, [row]))
    return blocks
