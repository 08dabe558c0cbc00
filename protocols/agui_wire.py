"""Requests and events of AG-UI 1.0, as far as motet uses them.

Source: the protocol's schema 1.0. Request fields that are not named here are ignored. Events with
the same fields share a class, and a table has the types of the events that make up a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.chat import JsonObject
from motet.protocols.models import Usage
from motet.protocols.openai_wire import Part

PROTOCOL = "1.0"

# -- requests ----------------------------------------------------------------------------------

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | tuple[Part, ...] | JsonObject | None = None


class ResumeEntry(msgspec.Struct, frozen=True, rename="camel"):
    interrupt_id: Name
    status: Literal["resolved", "cancelled"]
    payload: object = None


class RunAgentInput(msgspec.Struct, frozen=True, rename="camel"):
    """State, tools and context are the client's own, and not read."""

    thread_id: Name
    run_id: Name
    messages: tuple[Message, ...]
    resume: tuple[ResumeEntry, ...] | None = None


# -- events ------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Root of all events; a field with its default is left out."""


class RunStarted(Event, frozen=True, tag_field="type", tag="RUN_STARTED"):
    thread_id: str
    run_id: str
    protocol_version: str = msgspec.field(default_factory=lambda: PROTOCOL)


class TokenUsage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0


class Interrupt(msgspec.Struct, frozen=True, rename="camel"):
    """``expires_at``: ISO 8601; ``metadata``: the call that the person decides on."""

    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: JsonObject
    expires_at: str
    metadata: JsonObject


class Success(msgspec.Struct, frozen=True, tag="success"):
    pass


class Interrupted(msgspec.Struct, frozen=True, tag="interrupt"):
    interrupts: tuple[Interrupt, ...]


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    pass


Outcome: TypeAlias = Success | Interrupted | Cancelled


class RunFinished(Event, frozen=True, tag_field="type", tag="RUN_FINISHED"):
    thread_id: str
    run_id: str
    outcome: Outcome
    usage: tuple[TokenUsage, ...] = ()


class RunError(Event, frozen=True, tag_field="type", tag="RUN_ERROR"):
    message: str
    code: str
    usage: tuple[TokenUsage, ...] = ()


MessageType: TypeAlias = Literal[
    "TEXT_MESSAGE_START",
    "TEXT_MESSAGE_CONTENT",
    "TEXT_MESSAGE_END",
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "REASONING_END",
]


class MessageEvent(Event, frozen=True):
    """``role``: when a message begins; ``delta``: of its content."""

    type: MessageType
    message_id: str
    delta: str | UnsetType = UNSET
    role: Literal["assistant", "reasoning"] | UnsetType = UNSET


class ToolCallEvent(Event, frozen=True):
    type: Literal["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
    tool_call_id: str
    tool_call_name: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET


class ToolCallResult(Event, frozen=True, tag_field="type", tag="TOOL_CALL_RESULT"):
    message_id: str
    tool_call_id: str
    content: str
    role: Literal["tool"] = msgspec.field(default_factory=lambda: "tool")


class SubagentEvent(Event, frozen=True):
    """``name``, ``description``: at its start; ``message``: of its error."""

    type: Literal["SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"]
    subagent_run_id: str
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class Custom(Event, frozen=True, tag_field="type", tag="CUSTOM"):
    name: str
    value: object


MessageKind: TypeAlias = Literal["text", "reasoning"]


class _Message(NamedTuple):
    """The types of the events that make up a message, in order."""

    starts: tuple[MessageType, ...]
    content: MessageType
    ends: tuple[MessageType, ...]


_MESSAGES: Final[dict[MessageKind, _Message]] = {
    "text": _Message(("TEXT_MESSAGE_START",), "TEXT_MESSAGE_CONTENT", ("TEXT_MESSAGE_END",)),
    "reasoning": _Message(
        ("REASONING_START", "REASONING_MESSAGE_START"),
        "REASONING_MESSAGE_CONTENT",
        ("REASONING_MESSAGE_END", "REASONING_END"),
    ),
}
_ROLES: Final[dict[MessageType, Literal["assistant", "reasoning"]]] = {
    "TEXT_MESSAGE_START": "assistant",
    "REASONING_MESSAGE_START": "reasoning",
}


def message_start(kind: MessageKind, message_id: str) -> Iterator[MessageEvent]:
    for name in _MESSAGES[kind].starts:
        yield MessageEvent(name, message_id, role=_ROLES.get(name, UNSET))


def message_content(kind: MessageKind, message_id: str, delta: str) -> MessageEvent:
    return MessageEvent(_MESSAGES[kind].content, message_id, delta)


def message_end(kind: MessageKind, message_id: str) -> Iterator[MessageEvent]:
    for name in _MESSAGES[kind].ends:
        yield MessageEvent(name, message_id)


def token_usage(usage: Usage) -> tuple[TokenUsage, ...]:
    return (
        TokenUsage(
            usage.input_tokens,
            usage.output_tokens,
            usage.total_tokens,
            usage.cached_tokens,
            usage.cache_write_tokens,
        ),
    )
