"""Rows of a transcript, which sessions store and models read.

Invariant (G7): in every stored transcript each call of an assistant row has exactly one
result row, in call order, before the next user or assistant row.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import msgspec

JsonObject: TypeAlias = dict[str, object]
"""A decoded JSON object."""


def json_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    # The cast holds since a JSON decoder made the value, so that its keys are strings.
    return cast(JsonObject, value) if isinstance(value, dict) else {}


Outcome: TypeAlias = Literal[
    "done",
    "answered",
    "failed",
    "denied",
    "cancelled_before_start",
    "cancelled_while_running",
    "unknown",
]
"""The end of a call. ``answered``: by a gate, so that the tool did not run. ``unknown``: the host
died while it ran; its effect may have happened."""

FailureClass: TypeAlias = Literal["fault", "infrastructure", "negative", "argument", "refusal"]
"""The class of a failed call. ``fault``: the tool broke. ``infrastructure``: a part that all users
share broke. ``negative``: the tool worked, and its answer is no. ``argument``: the model's mistake.
``refusal``: a gate, the policy, a person or a budget said no."""

ANSWERS: frozenset[Outcome] = frozenset({"done", "answered"})
"""The outcomes of successful calls."""


class Call(msgspec.Struct, frozen=True):
    """A tool call of the model. ``arguments`` is the raw JSON text, valid or not."""

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """The text of a person, a program or another agent. ``author`` is shown in rooms.

    ``sender``: the person whose turn it begins, where several share the session. ``note`` marks a
    row that does not begin a turn: a follow-up in a running turn, a hint of the host, or the
    summary of older rows.
    """

    text: str
    author: str | None = None
    note: Literal["", "injected", "hint", "summary"] = ""
    sender: str = ""


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """An answer of the model: text, calls, or both.

    ``note`` marks a row that the host wrote; ``silent``: a hidden one; ``refused``: the end of a
    turn that no later request shows.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    note: Literal[
        "", "stopped", "failed", "interrupted", "limited", "escalated", "silent", "refused"
    ] = ""


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    """The one result of one call.

    ``failure`` and ``kind``: of a failed one, as it was stored; empty in rows of older hosts.
    """

    call_id: str
    name: str
    text: str
    outcome: Outcome = "done"
    failure: FailureClass | Literal[""] = ""
    kind: str = ""


ChatMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
