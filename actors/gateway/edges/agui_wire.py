"""What AG-UI 1.0 has of requests and events, as far as it is spoken here. Pure data.

Source: the protocol's schema 1.0. Fields that are not named here are not looked at.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from motet.protocols.chat import JsonObject
from motet.protocols.models import Usage

PROTOCOL = "1.0"

# -- requests ----------------------------------------------------------------------------------

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


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


class Event(msgspec.Struct, frozen=True, tag_field="type", rename="camel", omit_defaults=True):
    """Root of all events; what has its default is left out."""


class RunStarted(Event, frozen=True, tag="RUN_STARTED"):
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
    """``expires_at`` in ISO 8601; ``metadata`` has what the person is to decide on."""

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


class RunFinished(Event, frozen=True, tag="RUN_FINISHED"):
    thread_id: str
    run_id: str
    outcome: Outcome
    usage: tuple[TokenUsage, ...] = ()


class RunError(Event, frozen=True, tag="RUN_ERROR"):
    message: str
    code: str
    usage: tuple[TokenUsage, ...] = ()


class TextStart(Event, frozen=True, tag="TEXT_MESSAGE_START"):
    message_id: str
    role: Literal["assistant"] = msgspec.field(default_factory=lambda: "assistant")


class TextContent(Event, frozen=True, tag="TEXT_MESSAGE_CONTENT"):
    message_id: str
    delta: str


class TextEnd(Event, frozen=True, tag="TEXT_MESSAGE_END"):
    message_id: str


class ReasoningStart(Event, frozen=True, tag="REASONING_START"):
    message_id: str


class ReasoningMessageStart(Event, frozen=True, tag="REASONING_MESSAGE_START"):
    message_id: str
    role: Literal["reasoning"] = msgspec.field(default_factory=lambda: "reasoning")


class ReasoningContent(Event, frozen=True, tag="REASONING_MESSAGE_CONTENT"):
    message_id: str
    delta: str


class ReasoningMessageEnd(Event, frozen=True, tag="REASONING_MESSAGE_END"):
    message_id: str


class ReasoningEnd(Event, frozen=True, tag="REASONING_END"):
    message_id: str


class ToolCallStart(Event, frozen=True, tag="TOOL_CALL_START"):
    tool_call_id: str
    tool_call_name: str


class ToolCallArgs(Event, frozen=True, tag="TOOL_CALL_ARGS"):
    tool_call_id: str
    delta: str


class ToolCallEnd(Event, frozen=True, tag="TOOL_CALL_END"):
    tool_call_id: str


class ToolCallResult(Event, frozen=True, tag="TOOL_CALL_RESULT"):
    message_id: str
    tool_call_id: str
    content: str
    role: Literal["tool"] = msgspec.field(default_factory=lambda: "tool")


class SubagentStarted(Event, frozen=True, tag="SUBAGENT_STARTED"):
    subagent_run_id: str
    name: str
    description: str


class SubagentFinished(Event, frozen=True, tag="SUBAGENT_FINISHED"):
    subagent_run_id: str


class SubagentError(Event, frozen=True, tag="SUBAGENT_ERROR"):
    subagent_run_id: str
    message: str


class Custom(Event, frozen=True, tag="CUSTOM"):
    name: str
    value: object


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
