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
    "failed",
    "denied",
    "cancelled_before_start",
    "cancelled_while_running",
    "unknown",
]
"""How a call ended. ``unknown``: the host died while it ran, its effect may have happened."""


class Call(msgspec.Struct, frozen=True):
    """A tool call asked for by the model. ``arguments`` is the raw JSON text, valid or not."""

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """Text a person, a program or another agent put in. ``author`` is shown in rooms."""

    text: str
    author: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model answered: text, calls, or both. ``note`` marks a row the host wrote."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    note: Literal["", "stopped", "failed", "interrupted", "limited", "escalated"] = ""


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The one result of one call."""

    call_id: str
    name: str
    text: str
    outcome: Outcome = "done"


ChatMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
