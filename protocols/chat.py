"""The transcript: what a session stores and a model reads.

Invariant (G7): in every stored transcript each call of an assistant row has exactly one
result row, in call order, before the next user or assistant row.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, object]
"""A decoded JSON object."""

Outcome: TypeAlias = Literal[
    "done",
    "answered",
    "failed",
    "denied",
    "cancelled_before_start",
    "cancelled_while_running",
    "unknown",
]
"""How a call ended. ``answered``: by a gate, in place of the tool, which did not run. ``unknown``:
the host died while it ran, its effect may have happened."""

ANSWERS: frozenset[Outcome] = frozenset({"done", "answered"})
"""The outcomes of calls that brought what was asked for."""


class Call(msgspec.Struct, frozen=True):
    """A tool call asked for by the model. ``arguments`` is the raw JSON text, valid or not."""

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """Text a person, a program or another agent put in. ``author`` is shown in rooms.

    ``note`` marks a row that begins no turn: a follow-up that came into a running turn, a hint of
    the host, or the summary of what is not shown any more.
    """

    text: str
    author: str | None = None
    note: Literal["", "injected", "hint", "summary"] = ""


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model answered: text, calls, or both.

    ``note`` marks a row that the host wrote, or, when ``silent``, one that nobody is shown.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    note: Literal["", "stopped", "failed", "interrupted", "limited", "escalated", "silent"] = ""


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The one result of one call."""

    call_id: str
    name: str
    text: str
    outcome: Outcome = "done"


ChatMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
