"""Models of Google's Gemini API.

The API has the roles user and model, which must alternate: adjacent rows of one role become one
content. So all results of a batch of calls are together, as the API requires.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import attrs
import msgspec
import trio

from motet.actors.models.catalog import GOOGLE_KEYS, GOOGLE_URL
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
from motet.protocols.chat import (
    ANSWERS,
    AssistantMessage,
    ChatMessage,
    JsonObject,
    ToolMessage,
    UserMessage,
)
from motet.protocols.models import (
    CallArguments,
    CallStart,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    OutputSchema,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
)
from motet.protocols.schema_dialects import Dialect, translated
from motet.protocols.tool_schemas import MOST_TOOLS, object_schema
from motet.protocols.tools import ToolSpec

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import (
        ContentDict,
        FunctionDeclarationDict,
        GenerateContentConfigDict,
        PartDict,
    )
    from httpx2 import AsyncClient

Role: TypeAlias = Literal["user", "model"]

REFUSALS = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
    *("LANGUAGE", "ESCALATION", "PUP_LIMITED_DISABLED"),
    *("IMAGE_SAFETY", "IMAGE_RECITATION", "IMAGE_PROHIBITED_CONTENT"),
)
STOP_REASONS: dict[str, StopReason] = {
    "STOP": "stop",
    "FUNCTION_CALL": "tool_calls",
    "MAX_TOKENS": "length",
    **dict.fromkeys(REFUSALS, "content_filter"),
}
GOOGLE = Dialect(
    frozenset({"format", "minimum", "maximum", "minItems", "maxItems"}), references=True
)
RULES = Rules(
    name="[A-Za-z_][A-Za-z0-9_-]{0,63}",
    property="[A-Za-z_][A-Za-z0-9_]{0,63}",
    tools=MOST_TOOLS["google"],
)
UNSIGNED = b"skip_thought_signature_validator"
"""Accepted by Gemini 3 in place of the signature that the first call of an answer must have."""
MALFORMED = {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"}


def wire_contents(request: ModelRequest, model: str) -> list[ContentDict]:
    """Lawful rows as alternating contents."""
    signed = wants_signatures(model)
    parts = [pair for message in request.messages for pair in wire_parts(message, signed)]
    return [{"role": role, "parts": content} for role, content in by_role(parts)]


def wants_signatures(model: str) -> bool:
    """The model refuses calls in its history that have no thought signature."""
    version = re.search(r"gemini-(\d+)", model)
    return version is not None and int(version[1]) >= 3


def wire_parts(message: ChatMessage, signed: bool) -> Iterator[tuple[Role, PartDict]]:
    match message:
        case UserMessage():
            yield "user", {"text": user_text(message)}
        case AssistantMessage(text, calls):
            if text:
                yield "model", {"text": text}
            for place, call in enumerate(calls):
                part: PartDict = {
                    "function_call": {"name": call.name, "args": arguments_object(call.arguments)}
                }
                if signed and not place:
                    part["thought_signature"] = UNSIGNED
                yield "model", part
        case ToolMessage():
            key = "output" if message.outcome in ANSWERS else "error"
            response: JsonObject = {key: message.text}
            yield "user", {"function_response": {"name": message.name, "response": response}}


def wire_tool(tool: ToolSpec) -> FunctionDeclarationDict:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters_json_schema": object_schema(tool),
    }


def wire_config(request: ModelRequest) -> GenerateContentConfigDict:
    """A request without its rows and its model."""
    # By default the SDK itself calls functions and requests the rest of a long answer.
    config: GenerateContentConfigDict = {
        "automatic_function_calling": {"disable": True},
        "automatic_continuation": False,
    }
    if request.system:
        config["system_instruction"] = request.system
    if request.tools:
        config["tools"] = [{"function_declarations": [wire_tool(tool) for tool in request.tools]}]
    if request.max_output_tokens is not None:
        config["max_output_tokens"] = request.max_output_tokens
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if request.output is not None:
        config["response_mime_type"] = "application/json"
        schema = request.output.schema
        config["response_json_schema"] = translated(schema, GOOGLE) or schema
    return config


class FunctionCall(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: JsonObject | None = None


class Part(msgspec.Struct):
    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct):
    parts: list[Part] | None = None


class Candidate(msgspec.Struct):
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class Feedback(msgspec.Struct):
    block_reason: str | None = None


class ChunkUsage(msgspec.Struct):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None


class Chunk(msgspec.Struct):
    """The fields of a chunk that are read; each may be absent."""

    candidates: list[Candidate] | None = None
    prompt_feedback: Feedback | None = None
    usage_metadata: ChunkUsage | None = None


@attrs.define
class GoogleReader(Reader):
    """Translates chunks. Calls come whole, and often without an id: the assembler makes one."""

    _calls: int = attrs.field(default=0, init=False)

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        read = msgspec.convert(chunk, Chunk, from_attributes=True)
        if read.usage_metadata is not None:
            self.usage = usage_of(read.usage_metadata)
        if read.prompt_feedback is not None and read.prompt_feedback.block_reason:
            self.reason, self.detail = "content_filter", read.prompt_feedback.block_reason
        first = (found for found in read.candidates or () if not found.index)
        return [event for candidate in first for event in self._candidate(candidate)]

    def _candidate(self, candidate: Candidate) -> Iterator[ModelEvent]:
        if candidate.finish_reason in MALFORMED:
            raise ModelFailure("the provider could not read the model's output", kind="server")
        if candidate.finish_reason:
            self.reason = STOP_REASONS.get(candidate.finish_reason, "other")
            if self.reason == "content_filter":
                self.detail = candidate.finish_message or candidate.finish_reason
        parts: Sequence[Part] = (candidate.content and candidate.content.parts) or ()
        for part in parts:
            if part.text:
                yield ThinkingPart(part.text) if part.thought else TextPart(part.text)
            if part.function_call is not None:
                yield from self._call(part.function_call)

    def _call(self, call: FunctionCall) -> Iterator[ModelEvent]:
        index, self._calls = self._calls, self._calls + 1
        yield CallStart(index, call.id or "", call.name or "")
        yield CallArguments(index, msgspec.json.encode(call.args or {}).decode())


def usage_of(usage: ChunkUsage) -> Usage:
    """Thinking is billed as output, the results of built-in tools as input."""
    return Usage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        output_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        cached_tokens=usage.cached_content_token_count or 0,
    )


@attrs.define(eq=False, repr=False)
class GoogleModel(Adapter["_Client"]):
    """A Gemini model.

    Args:
        name: the provider's name of the model, ``gemini-2.5-flash``.
        base_url: another server of the same API; ``GOOGLE_GEMINI_BASE_URL`` otherwise.
        api_key: the key; the variable ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY`` otherwise. Not
            needed with a base URL.
        deadlines: how long the model may be silent.
        api_version: version of the API, such as ``v1beta``; None: the SDK's default.

    Failures and cancellation are those of :class:`motet.actors.models.openai.OpenAIModel`.
    """

    provider: ClassVar = "google"
    rules: ClassVar = RULES
    server_variable: ClassVar = GOOGLE_URL
    key_variables: ClassVar = GOOGLE_KEYS

    _api_version: str | None = attrs.field(alias="api_version", default=None, kw_only=True)

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        """Only without tools: older models refuse a schema and tools in one request.

        See :class:`motet.protocols.models.NativeOutput`.
        """
        return not tools and translated(output.schema, GOOGLE) is not None

    def _reader(self) -> GoogleReader:
        return GoogleReader()

    def _make_client(self) -> _Client:
        from google.genai import Client
        from google.genai.types import HttpOptions
        from httpx2 import AsyncClient, Timeout

        key = self._key()
        # The SDK's default transport needs asyncio; this one runs on Trio.
        transport = AsyncClient(timeout=Timeout(None, connect=CONNECT_TIMEOUT))
        options = HttpOptions(
            base_url=self.base_url, api_version=self._api_version, httpx_async_client=transport
        )
        return _Client(Client(vertexai=False, api_key=key, http_options=options), transport)

    async def _create(self, asked: Lawful) -> _Stream:
        client, request = await self._client.get(), asked.request
        model = wire_model(request.model, self._model, "google")
        contents, config = [*wire_contents(request, model)], wire_config(request)
        # One of the parameter types of the SDK is from a package that may be missing.
        chunks = await client.sdk.aio.models.generate_content_stream(  # pyright: ignore[reportUnknownMemberType]
            model=model, contents=contents, config=config
        )
        return _Stream(chunks)


@attrs.frozen
class _Client:
    """The SDK's client and its transport, which the client does not close."""

    sdk: Client
    transport: AsyncClient

    async def close(self) -> None:
        await self.transport.aclose()
        self.sdk.close()


@attrs.frozen
class _Stream(trio.abc.AsyncResource):
    """The SDK's generator of chunks. :func:`unwind` has ended it and closed its connection."""

    chunks: AsyncIterator[object]

    async def aclose(self) -> None:
        """Nothing is left to close."""

    async def __anext__(self) -> object:
        return await anext(self.chunks)
