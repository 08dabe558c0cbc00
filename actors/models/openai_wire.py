"""The chat completions format of OpenAI and of the many servers that speak it: pure.

The reader takes what real servers send, not only what the reference says: deltas of a call
without an index, ids repeated on every delta, one index for all calls, late names, chunks
without choices, usage on every chunk or on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs
import msgspec

from motet.actors.models.dialects import OPENAI, translated
from motet.actors.models.failures import refused
from motet.actors.models.wire import arguments_object, cut, user_text
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)
from motet.protocols.tools import ToolSpec

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageFunctionToolCallParam,
        ChatCompletionMessageParam,
    )
    from openai.types.shared_params import ResponseFormatJSONSchema

STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def wire_messages(request: ModelRequest) -> list[ChatCompletionMessageParam]:
    """The system prompt first, then the rows."""
    rows = [wire_message(message) for message in request.messages]
    return [{"role": "system", "content": request.system}, *rows] if request.system else rows


def wire_message(message: ChatMessage) -> ChatCompletionMessageParam:
    match message:
        case UserMessage():
            return {"role": "user", "content": user_text(message)}
        case AssistantMessage(text, ()):
            return {"role": "assistant", "content": text}
        case AssistantMessage(text, calls):
            return {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [wire_call(call) for call in calls],
            }
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}


def wire_call(call: Call) -> ChatCompletionMessageFunctionToolCallParam:
    arguments = msgspec.json.encode(arguments_object(call.arguments)).decode()
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def wire_tool(tool: ToolSpec) -> ChatCompletionFunctionToolParam:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def wire_output(output: OutputSchema) -> ResponseFormatJSONSchema:
    """The form of an answer; enforced to the letter where it can be said in their dialect."""
    strict = translated(output.schema, OPENAI)
    schema = output.schema if strict is None else strict
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name, "schema": schema, "strict": strict is not None},
    }


class FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    cost: float | None = None


class Chunk(msgspec.Struct):
    """The parts of a chunk that are read; everything may be absent."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: object = None


@attrs.define
class _Slot:
    """One call as far as it is known."""

    index: int
    id: str = ""
    name: str = ""


@attrs.define
class OpenAIReader:
    """Chunks to events. ``Finished`` waits for the end, since usage comes after the reason."""

    _slots: dict[int, _Slot] = attrs.field(factory=dict[int, _Slot], init=False)
    _at: dict[int, _Slot] = attrs.field(factory=dict[int, _Slot], init=False)
    _last: _Slot | None = attrs.field(default=None, init=False)
    _usage: Usage | None = attrs.field(default=None, init=False)
    _reason: StopReason | None = attrs.field(default=None, init=False)

    @property
    def complete(self) -> bool:
        return self._reason is not None

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        read = msgspec.convert(chunk, Chunk, from_attributes=True)
        if read.error:
            raise refused(None, {"error": read.error})
        if read.usage is not None:
            self._usage = usage_of(read.usage)
        first = (choice for choice in read.choices or () if not choice.index)
        return [event for choice in first for event in self._choice(choice)]

    def close(self) -> Iterable[ModelEvent]:
        if self._reason is None:
            raise cut()
        usage = () if self._usage is None else (UsageReport(self._usage),)
        return (*usage, Finished(self._reason))

    def _choice(self, choice: Choice) -> Iterator[ModelEvent]:
        if choice.finish_reason:
            self._reason = STOP_REASONS.get(choice.finish_reason, "other")
        delta = choice.delta or Delta()
        if thinking := delta.reasoning_content or delta.reasoning:
            yield ThinkingPart(thinking)
        if text := delta.content or delta.refusal:
            yield TextPart(text)
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def _call(self, delta: CallDelta) -> Iterator[ModelEvent]:
        function = delta.function or FunctionDelta()
        slot = self._slot(delta, function.name or "")
        if (delta.id and not slot.id) or (function.name and not slot.name):
            slot.id = slot.id or delta.id or ""
            slot.name = slot.name or function.name or ""
            yield CallStart(slot.index, slot.id, slot.name)
        if function.arguments:
            yield CallArguments(slot.index, function.arguments)

    def _slot(self, delta: CallDelta, name: str) -> _Slot:
        """The call this delta belongs to: by index, else by id, else the latest one."""
        slot = self._known(delta)
        # Some servers give every call index 0; a second id with a name is a second call.
        another = slot is not None and delta.id and slot.id and delta.id != slot.id and name
        nameless_start = delta.index is None and not delta.id and name
        if slot is None or another or nameless_start:
            slot = self._new_slot(delta.index)
        if delta.index is not None:
            self._at[delta.index] = slot
        self._last = slot
        return slot

    def _known(self, delta: CallDelta) -> _Slot | None:
        if delta.index is not None:
            return self._at.get(delta.index)
        if delta.id:
            return next((slot for slot in self._slots.values() if slot.id == delta.id), None)
        return self._last

    def _new_slot(self, wanted: int | None) -> _Slot:
        free = wanted is not None and wanted not in self._slots
        index = wanted if wanted is not None and free else max(self._slots, default=-1) + 1
        slot = self._slots[index] = _Slot(index)
        return slot


def usage_of(usage: ChunkUsage) -> Usage:
    details = usage.prompt_tokens_details or PromptDetails()
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=details.cached_tokens or 0,
        cost=usage.cost,
    )
