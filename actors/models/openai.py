"""Models of the chat completions API: OpenAI, Ollama, and other servers with this API.

The reader accepts the variations of real servers, beyond the reference: deltas of a call without an
index, ids repeated on every delta, one index for all calls, late names, chunks without choices,
usage on every chunk or on none.

Ollama is reached through this API, not through its own Python client, which validates the schemas
of tools with a model of its own and drops references, alternatives and nested objects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import attrs
import msgspec

from motet.actors.models.catalog import OLLAMA_KEY, OLLAMA_URL, OPENAI_KEY, OPENAI_URL
from motet.actors.models.dialects import Lawful, Reader, Rules, arguments_text, wire_model
from motet.actors.models.sdk import CONNECT_TIMEOUT, Adapter, Deadlines, SseStream
from motet.actors.transcript.history import user_text
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.model_failures import refused
from motet.protocols.models import (
    CallArguments,
    CallStart,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
)
from motet.protocols.schema_dialects import OPENAI, translated
from motet.protocols.tool_schemas import MOST_TOOLS, object_schema
from motet.protocols.tools import ToolSpec

if TYPE_CHECKING:
    from openai import AsyncOpenAI
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
RULES = Rules(id="[A-Za-z0-9_-]{1,40}", tools=MOST_TOOLS["openai"], description=1_024, calls=128)


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
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
    }


def wire_tool(tool: ToolSpec) -> ChatCompletionFunctionToolParam:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": object_schema(tool),
        },
    }


def wire_output(output: OutputSchema) -> ResponseFormatJSONSchema:
    """The schema of an answer; strictly enforced if it has a translation to OpenAI's dialect."""
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
    """The fields of a chunk that are read; each may be absent."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: object = None


@attrs.define
class _Call:
    """The part of one call that has arrived."""

    index: int
    id: str = ""
    name: str = ""


@attrs.define
class OpenAIReader(Reader):
    """Translates chunks. ``Finished`` waits for the end, since usage comes after the reason.

    A refusal of the model's own is text, and ends with the reason "stop".
    """

    _calls: dict[int, _Call] = attrs.field(factory=dict[int, _Call], init=False)
    _at: dict[int, _Call] = attrs.field(factory=dict[int, _Call], init=False)
    _last: _Call | None = attrs.field(default=None, init=False)
    _refusal: str = attrs.field(default="", init=False)

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        read = msgspec.convert(chunk, Chunk, from_attributes=True)
        if read.error:
            raise refused(None, {"error": read.error})
        if read.usage is not None:
            self.usage = usage_of(read.usage)
        first = (choice for choice in read.choices or () if not choice.index)
        return [event for choice in first for event in self._choice(choice)]

    def _choice(self, choice: Choice) -> Iterator[ModelEvent]:
        delta = choice.delta or Delta()
        self._refusal += delta.refusal or ""
        if choice.finish_reason:
            self.reason = STOP_REASONS.get(choice.finish_reason, "other")
        if self.reason is not None and self._refusal:
            self.reason, self.detail = "content_filter", self._refusal.strip()
        if thinking := delta.reasoning_content or delta.reasoning:
            yield ThinkingPart(thinking)
        if text := delta.content or delta.refusal:
            yield TextPart(text)
        for call in delta.tool_calls or ():
            yield from self._call_delta(call)

    def _call_delta(self, delta: CallDelta) -> Iterator[ModelEvent]:
        function = delta.function or FunctionDelta()
        call = self._call_of(delta, function.name or "")
        if (delta.id and not call.id) or (function.name and not call.name):
            call.id = call.id or delta.id or ""
            call.name = call.name or function.name or ""
            yield CallStart(call.index, call.id, call.name)
        if function.arguments:
            yield CallArguments(call.index, function.arguments)

    def _call_of(self, delta: CallDelta, name: str) -> _Call:
        """The call of a delta: by index, else by id, else the latest one."""
        if delta.index is not None:
            call = self._at.get(delta.index)
        elif delta.id:
            call = next((call for call in self._calls.values() if call.id == delta.id), None)
        else:
            call = self._last
        # Some servers give every call index 0; a second id with a name is a second call.
        another = call is not None and delta.id and call.id and delta.id != call.id and name
        start_without_id = delta.index is None and not delta.id and name
        if call is None or another or start_without_id:
            call = self._new_call(delta.index)
        if delta.index is not None:
            self._at[delta.index] = call
        self._last = call
        return call

    def _new_call(self, wanted: int | None) -> _Call:
        free = wanted is not None and wanted not in self._calls
        index = wanted if wanted is not None and free else max(self._calls, default=-1) + 1
        call = self._calls[index] = _Call(index)
        return call


def usage_of(usage: ChunkUsage) -> Usage:
    details = usage.prompt_tokens_details or PromptDetails()
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=details.cached_tokens or 0,
        cost=usage.cost,
    )


HOME = "https://api.openai.com/v1"
OLD = re.compile(r"gpt-3|gpt-4(-|$)|o1-(mini|preview)|davinci|babbage")
"""Models without JSON Schema output."""


@attrs.define(eq=False, repr=False)
class OpenAIModel(Adapter["AsyncOpenAI"]):
    """A chat completions model.

    Args:
        name: the provider's name of the model, ``gpt-5.2``.
        base_url: another server of the same API; the variable ``OPENAI_BASE_URL`` otherwise.
        api_key: the key; the variable ``OPENAI_API_KEY`` otherwise. Not needed with a base URL,
            since local servers ask for none.
        deadlines: how long the model may be silent.
        native_output: the server enforces JSON Schemas, also together with tools. None: true for
            OpenAI's own server except for old models, false for other servers.

    Each call of :meth:`request` sends one request and never retries it. It raises ``MissingExtra``
    without the package and ``ModelFailure`` for everything else. Cancelling it, or leaving its
    block, closes its connection at once.
    """

    provider: ClassVar = "openai"
    rules: ClassVar = RULES
    server_variable: ClassVar = OPENAI_URL
    key_variables: ClassVar = (OPENAI_KEY,)

    _native_output: bool | None = attrs.field(alias="native_output", default=None, kw_only=True)

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """With any schema and any tools; see :class:`motet.protocols.models.NativeOutput`."""
        if self._native_output is None:
            at_openai = urlsplit(self.base_url or HOME).hostname == urlsplit(HOME).hostname
            return at_openai and not OLD.match(self._model)
        return self._native_output

    def _reader(self) -> OpenAIReader:
        return OpenAIReader()

    def _make_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, Timeout

        timeout = Timeout(None, connect=CONNECT_TIMEOUT)
        return AsyncOpenAI(
            api_key=self._key(), base_url=self.base_url, max_retries=0, timeout=timeout
        )

    async def _create(self, asked: Lawful) -> SseStream:
        client, request = await self._client.get(), asked.request
        from openai import omit

        limit = omit if request.max_output_tokens is None else request.max_output_tokens
        # OpenAI's newer models refuse the old name of the limit, other servers the new one.
        at_openai = client.base_url.host.endswith("api.openai.com")
        response = client.chat.completions.with_streaming_response.create(
            model=wire_model(request.model, self._model, self.provider),
            messages=wire_messages(request),
            tools=[wire_tool(tool) for tool in request.tools] or omit,
            temperature=omit if request.temperature is None else request.temperature,
            max_completion_tokens=limit if at_openai else omit,
            max_tokens=omit if at_openai else limit,
            response_format=omit if request.output is None else wire_output(request.output),
            stream=True,
            stream_options={"include_usage": True},
        )
        opened = await response.__aenter__()
        return SseStream(opened.iter_bytes(), opened.close)


LOCAL = "http://127.0.0.1:11434"
LOADING = Deadlines(first_token=300.0)
"""The first request waits until the model is in memory."""


class OllamaModel(OpenAIModel):
    """A model of an Ollama server, ``llama3.2``. It needs no key, and the package of OpenAI.

    Args:
        name: its name there, ``llama3.2`` or ``qwen3:8b``.
        base_url: the server; the variable ``OLLAMA_HOST`` otherwise, else this machine. A URL
            without a path is completed by ``/v1``.
        api_key: for a server behind a key; the variable ``OLLAMA_API_KEY`` otherwise.
        deadlines: how long the model may be silent; 300 s for the first token by default.

    The server sets the context size (``OLLAMA_CONTEXT_LENGTH``) and silently cuts a longer
    conversation, so that the agent's own window must not be larger.
    """

    provider: ClassVar = "ollama"
    key_variables: ClassVar = (OLLAMA_KEY,)
    default_deadlines: ClassVar = LOADING

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """Only without tools: the schema would keep the model from calling them.

        See :class:`motet.protocols.models.NativeOutput`.
        """
        return not tools

    @property
    def base_url(self) -> str:
        """The address of the server."""
        return server_url(self._base_url or os.environ.get(OLLAMA_URL) or LOCAL)


def server_url(host: str) -> str:
    """The address of the API for a host in the form that Ollama's own programs accept.

    ``0.0.0.0``, an address to listen on, becomes this machine.
    """
    scheme, separator, rest = host.rpartition("://")
    address, slash, path = rest.rstrip("/").partition("/")
    if not separator:
        bare = ":" not in address or address.endswith("]")
        address = f"{address}:11434" if bare else address
    address = address.replace("0.0.0.0", "127.0.0.1", 1)
    return f"{scheme or 'http'}://{address}" + (f"{slash}{path}" if path else "/v1")
