"""The messages and stream events of pydantic-ai: pure.

Rows become its requests and responses in turn; what a provider then makes of them is its affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import attrs
import msgspec

from motet.actors.models.wire import arguments_object, cut, user_text
from motet.protocols.chat import ANSWERS, AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def wire_messages(request: ModelRequest) -> list[ModelMessage]:
    """The rows as requests and responses that alternate; the system prompt is the first part."""
    from pydantic_ai.messages import ModelRequest as Asked
    from pydantic_ai.messages import ModelResponse, SystemPromptPart

    messages: list[ModelMessage] = []
    for answered, rows in groupby(request.messages, lambda row: isinstance(row, AssistantMessage)):
        if answered:
            messages.append(ModelResponse([part for row in rows for part in response_parts(row)]))
        else:
            messages.append(Asked([request_part(row) for row in rows]))
    if request.system:
        head = SystemPromptPart(request.system)
        match messages:
            case [Asked(parts=parts), *rest]:
                messages = [Asked([head, *parts]), *rest]
            case _:
                messages = [Asked([head]), *messages]
    return messages


def request_part(row: ChatMessage) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    if isinstance(row, ToolMessage):
        outcome: Literal["success", "failed"] = "success" if row.outcome in ANSWERS else "failed"
        return ToolReturnPart(row.name, row.text, row.call_id, outcome=outcome)
    assert isinstance(row, UserMessage)
    return UserPromptPart(user_text(row))


def response_parts(row: ChatMessage) -> Iterator[ModelResponsePart]:
    from pydantic_ai.messages import TextPart as Text
    from pydantic_ai.messages import ToolCallPart

    assert isinstance(row, AssistantMessage)
    if row.text:
        yield Text(row.text)
    for call in row.calls:
        yield ToolCallPart(call.name, arguments_object(call.arguments), call.id)


def wire_parameters(request: ModelRequest) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema={"type": "object", **tool.parameters},
        )
        for tool in request.tools
    ]
    return ModelRequestParameters(function_tools=tools)


def wire_settings(request: ModelRequest) -> ModelSettings:
    """Without retries: they are made where their delays are seen and can be cancelled."""
    settings: ModelSettings = {"max_retries": 0}
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    return settings


class Part(msgspec.Struct):
    part_kind: str = ""
    content: object = None
    tool_name: str | None = None
    args: object = None
    tool_call_id: str | None = None


class Delta(msgspec.Struct):
    part_delta_kind: str = ""
    content_delta: str | None = None
    tool_name_delta: str | None = None
    args_delta: object = None
    tool_call_id: str | None = None


class Event(msgspec.Struct):
    """The parts of an event that are read."""

    event_kind: str = ""
    index: int = 0
    part: Part | None = None
    delta: Delta | None = None


class Counted(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class End(msgspec.Struct, frozen=True):
    """What is known when the events are over. ``reason`` None: the provider gave none."""

    reason: str | None
    usage: Usage


@attrs.define
class PydanticAIReader:
    """Events to ours. Calls are counted by themselves: texts have places among the parts, too."""

    _calls: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _end: End | None = attrs.field(default=None, init=False)

    @property
    def complete(self) -> bool:
        return self._end is not None

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        if isinstance(chunk, End):
            self._end = chunk
            return ()
        read = msgspec.convert(chunk, Event, from_attributes=True)
        if read.event_kind == "part_start" and read.part is not None:
            return list(self._start(read.index, read.part))
        if read.event_kind == "part_delta" and read.delta is not None:
            return list(self._more(read.index, read.delta))
        return ()

    def close(self) -> Iterable[ModelEvent]:
        if self._end is None or self._end.reason is None:
            raise cut()
        used = (UsageReport(self._end.usage),) if self._end.usage.total_tokens else ()
        return (*used, Finished(STOP_REASONS.get(self._end.reason, "other")))

    def _start(self, place: int, part: Part) -> Iterator[ModelEvent]:
        if part.part_kind == "tool-call":
            index = self._calls[place] = len(self._calls)
            yield CallStart(index, part.tool_call_id or "", part.tool_name or "")
            yield from self._arguments(place, part.args)
        elif isinstance(part.content, str) and part.content:
            if part.part_kind == "thinking":
                yield ThinkingPart(part.content)
            elif part.part_kind == "text":
                yield TextPart(part.content)

    def _more(self, place: int, delta: Delta) -> Iterator[ModelEvent]:
        if delta.part_delta_kind == "tool_call":
            yield from self._arguments(place, delta.args_delta)
        elif delta.content_delta:
            thought = delta.part_delta_kind == "thinking"
            text = delta.content_delta
            yield ThinkingPart(text) if thought else TextPart(text)

    def _arguments(self, place: int, args: object) -> Iterator[ModelEvent]:
        """More of a call's arguments: the text of some JSON, or a whole object."""
        if args and place in self._calls:
            text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
            yield CallArguments(self._calls[place], text)


def usage_of(counted: object) -> Usage:
    """Input counts all of the prompt, as it does with pydantic-ai."""
    read = msgspec.convert(counted, Counted, from_attributes=True)
    return Usage(
        input_tokens=read.input_tokens,
        output_tokens=read.output_tokens,
        cached_tokens=read.cache_read_tokens,
        cache_write_tokens=read.cache_write_tokens,
    )
