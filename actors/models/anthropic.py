"""Models of Anthropic's messages API.

The API has two roles, which must alternate: adjacent rows of one role become one message. So all
results of a batch of calls are in one user message, as the API requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import attrs
import msgspec

from motet.actors.models.catalog import ANTHROPIC_KEY, ANTHROPIC_URL
from motet.actors.models.dialects import (
    Lawful,
    Reader,
    Rules,
    arguments_object,
    by_role,
    wire_model,
)
from motet.actors.models.sdk import CONNECT_TIMEOUT, Adapter
from motet.actors.transcript.history import user_text
from motet.protocols.chat import ANSWERS, AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    ModelEvent,
    OutputSchema,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
)
from motet.protocols.schema_dialects import ANTHROPIC, translated
from motet.protocols.tool_schemas import object_schema
from motet.protocols.tools import ToolSpec

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.types import (
        MessageParam,
        OutputConfigParam,
        RawMessageStreamEvent,
        TextBlockParam,
        ToolParam,
        ToolResultBlockParam,
        ToolUseBlockParam,
    )

    BlockParam: TypeAlias = TextBlockParam | ToolUseBlockParam | ToolResultBlockParam

Role: TypeAlias = Literal["user", "assistant"]

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "context_exhausted",
    "pause_turn": "paused",
    "refusal": "content_filter",
}
RULES = Rules(declared=True)


def wire_messages(messages: Sequence[ChatMessage]) -> list[MessageParam]:
    """Lawful rows as alternating messages."""
    blocks = [pair for message in messages for pair in wire_blocks(message)]
    return [
        {"role": "user", "content": content}
        if role == "user"
        else {"role": "assistant", "content": content}
        for role, content in by_role(blocks)
    ]


def wire_blocks(message: ChatMessage) -> Iterator[tuple[Role, BlockParam]]:
    match message:
        case UserMessage():
            yield "user", {"type": "text", "text": user_text(message)}
        case AssistantMessage(text, calls):
            if text:
                yield "assistant", {"type": "text", "text": text.rstrip()}
            for call in calls:
                yield (
                    "assistant",
                    {
                        "type": "tool_use",
                        "id": call.id,
                        "name": call.name,
                        "input": arguments_object(call.arguments),
                    },
                )
        case ToolMessage():
            yield (
                "user",
                {
                    "type": "tool_result",
                    "tool_use_id": message.call_id,
                    "content": message.text,
                    "is_error": message.outcome not in ANSWERS,
                },
            )


def wire_tool(tool: ToolSpec) -> ToolParam:
    return {"name": tool.name, "description": tool.description, "input_schema": object_schema(tool)}


def wire_output(output: OutputSchema) -> OutputConfigParam:
    """The schema of an answer, in Anthropic's dialect if it has a translation."""
    schema = translated(output.schema, ANTHROPIC) or output.schema
    return {"format": {"type": "json_schema", "schema": schema}}


class ChunkUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class StartMessage(msgspec.Struct):
    usage: ChunkUsage | None = None


class Block(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None


class Details(msgspec.Struct):
    """Of a refusal."""

    category: str | None = None
    explanation: str | None = None


class Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: Details | None = None


class Chunk(msgspec.Struct):
    """One event of the stream: the fields that are read, of all its types."""

    type: str = ""
    index: int = 0
    message: StartMessage | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: ChunkUsage | None = None


@attrs.define
class AnthropicReader(Reader):
    """Translates the API's events. Unknown types of events, blocks and deltas are ignored."""

    _calls: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    _counts: ChunkUsage = attrs.field(factory=ChunkUsage, init=False)

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        read = msgspec.convert(chunk, Chunk, from_attributes=True)
        match read.type:
            case "message_start" if read.message is not None:
                self._count(read.message.usage)
            case "content_block_start" if read.content_block is not None:
                return list(self._start(read.index, read.content_block))
            case "content_block_delta" if read.delta is not None:
                return list(self._more(read.index, read.delta))
            case "message_delta":
                self._count(read.usage)
                if read.delta is not None and read.delta.stop_reason:
                    self.reason = STOP_REASONS.get(read.delta.stop_reason, "other")
                    said = read.delta.stop_details or Details()
                    self.detail = said.explanation or said.category or ""
            case _:
                pass
        return ()

    def _start(self, block_index: int, block: Block) -> Iterator[ModelEvent]:
        if block.type == "tool_use":
            index = self._calls[block_index] = len(self._calls)
            yield CallStart(index, block.id or "", block.name or "")
        if block.thinking:
            yield ThinkingPart(block.thinking)
        if block.text:
            yield TextPart(block.text)

    def _more(self, block_index: int, delta: Delta) -> Iterator[ModelEvent]:
        if delta.thinking:
            yield ThinkingPart(delta.thinking)
        if delta.text:
            yield TextPart(delta.text)
        if delta.partial_json and block_index in self._calls:
            yield CallArguments(self._calls[block_index], delta.partial_json)

    def _count(self, usage: ChunkUsage | None) -> None:
        """Update the figures that are present: each of them is a running total."""
        for name in ChunkUsage.__struct_fields__:
            figure = getattr(usage, name, None)
            if figure is not None:
                setattr(self._counts, name, figure)
        self.usage = usage_of(self._counts)


def usage_of(usage: ChunkUsage) -> Usage:
    """Input tokens are the whole prompt: read from the cache, written to it, and uncached."""
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    return Usage(
        input_tokens=(usage.input_tokens or 0) + written + cached,
        output_tokens=usage.output_tokens or 0,
        cached_tokens=cached,
        cache_write_tokens=written,
    )


MAX_TOKENS = 8192
OLD = (
    "claude-2",
    "claude-3",
    "claude-instant",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2",
    "claude-opus-4-0",
    "claude-opus-4-2",
)
"""Models without JSON Schema output. ``-4-0`` and ``-4-2`` match an alias and a date of 2025."""


@attrs.define(eq=False, repr=False)
class AnthropicModel(Adapter["AsyncAnthropic"]):
    """A messages model.

    Args:
        name: the provider's name of the model, ``claude-sonnet-4-5``.
        base_url: another server of the same API; the variable ``ANTHROPIC_BASE_URL`` otherwise.
        api_key: the key; the variable ``ANTHROPIC_API_KEY`` otherwise. Not needed with a base
            URL.
        deadlines: how long the model may be silent.
        max_tokens: limit for requests without one, since the API requires a limit.
        cache: let the provider cache the prompt, so that a long run pays for it once.
        native_output: the server enforces JSON Schemas. None: true for Anthropic's own server
            except for old models, false for other servers.

    Failures and cancellation are those of :class:`motet.actors.models.openai.OpenAIModel`.
    """

    provider: ClassVar = "anthropic"
    rules: ClassVar = RULES
    server_variable: ClassVar = ANTHROPIC_URL
    key_variables: ClassVar = (ANTHROPIC_KEY,)

    _max_tokens: int = attrs.field(alias="max_tokens", default=MAX_TOKENS, kw_only=True)
    _cache: bool = attrs.field(alias="cache", default=True, kw_only=True)
    _native_output: bool | None = attrs.field(alias="native_output", default=None, kw_only=True)

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """With and without tools; see :class:`motet.protocols.models.NativeOutput`."""
        native = self._native_output
        if native is None:
            native = self.base_url is None and not self._model.startswith(OLD)
        return native and translated(output.schema, ANTHROPIC) is not None

    def _reader(self) -> AnthropicReader:
        return AnthropicReader()

    def _make_client(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic, Timeout

        timeout = Timeout(None, connect=CONNECT_TIMEOUT)
        return AsyncAnthropic(
            api_key=self._key(), base_url=self.base_url, max_retries=0, timeout=timeout
        )

    async def _create(self, asked: Lawful) -> AsyncStream[RawMessageStreamEvent]:
        client, request = await self._client.get(), asked.request
        from anthropic import omit

        return await client.messages.create(
            model=wire_model(request.model, self._model, "anthropic"),
            max_tokens=request.max_output_tokens or self._max_tokens,
            system=request.system or omit,
            messages=wire_messages(request.messages),
            tools=[wire_tool(tool) for tool in request.tools] or omit,
            tool_choice={"type": "none"} if asked.withdrawn else omit,
            cache_control={"type": "ephemeral"} if self._cache else omit,
            output_config=omit if request.output is None else wire_output(request.output),
            # The SDK dropped this parameter: newer models refuse it, older ones accept it.
            extra_body=None
            if request.temperature is None
            else {"temperature": request.temperature},
            stream=True,
        )
