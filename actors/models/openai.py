"""Models behind OpenAI's chat completions API, or any server that speaks it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import attrs
import msgspec

from motet.actors.models.catalog import OLLAMA_KEY, OLLAMA_URL, OPENAI_KEY, OPENAI_URL
from motet.actors.models.dialects import (
    OPENAI,
    arguments_object,
    cut,
    translated,
    wire_model,
)
from motet.actors.models.failures import refused
from motet.actors.models.sdk import CONNECT_TIMEOUT, Adapter, Deadlines, SseStream
from motet.actors.transcript.history import user_text
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import MissingExtra
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
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
    from openai import AsyncOpenAI
    from openai.types.chat import (
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageFunctionToolCallParam,
        ChatCompletionMessageParam,
    )
    from openai.types.shared_params import ResponseFormatJSONSchema


# The chat completions format of OpenAI and of the many servers that speak it: pure.
#
# The reader takes what real servers send, not only what the reference says: deltas of a call
# without an index, ids repeated on every delta, one index for all calls, late names, chunks
# without choices, usage on every chunk or on none.


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


HOME = "https://api.openai.com/v1"
OLD = re.compile(r"gpt-3|gpt-4(-|$)|o1-(mini|preview)|davinci|babbage")
"""Models that have no JSON Schema for their answers."""


class OpenAIModel(Adapter["AsyncOpenAI"]):
    """A chat completions model.

    ``provider`` and ``key_variable`` are those of the servers that a class is for.

    Args:
        name: the provider's name of the model, ``gpt-5.2``.
        base_url: another server of the same API; the variable ``OPENAI_BASE_URL`` otherwise.
        api_key: the key; the variable ``OPENAI_API_KEY`` otherwise. Not needed with a base URL,
            since local servers ask for none.
        deadlines: how long the model may be silent.
        native_output: whether the server holds answers to a JSON Schema, with tools beside it.
            None: OpenAI's own does; of another nobody knows.

    A request is made anew for every call of :meth:`request` and never retried here. It raises
    :class:`MissingExtra` without the package and :class:`ModelFailure` for everything else.
    Cancelling it, or leaving its block, closes its connection at once.
    """

    provider: ClassVar = "openai"
    key_variable: ClassVar = OPENAI_KEY
    server_variable: ClassVar = OPENAI_URL

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        native_output: bool | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines)
        self._native_output = native_output

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """With every schema and any tools; see :class:`motet.protocols.models.NativeOutput`."""
        if self._native_output is None:
            at_openai = urlsplit(self.base_url or HOME).hostname == urlsplit(HOME).hostname
            return at_openai and not OLD.match(self._model)
        return self._native_output

    def _reader(self) -> OpenAIReader:
        return OpenAIReader()

    def _make_client(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI, Timeout
        except ModuleNotFoundError as error:
            raise MissingExtra(self.provider, f"the model {self.name!r}") from error
        base_url = self.base_url
        variable = self.key_variable
        key = self._api_key or os.environ.get(variable) or ("none" if base_url else None)
        if key is None:
            raise ModelFailure(f"no API key: set the variable {variable}", kind="auth")
        timeout = Timeout(None, connect=CONNECT_TIMEOUT)
        return AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)

    async def _create(self, request: ModelRequest) -> SseStream:
        client = await self._client.get()
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


# Models on this machine, behind the chat completions API of an Ollama server.
#
# Its own Python client is not used: it checks the schemas of tools against a model of its own, and
# loses what that does not have (references, alternatives, objects inside of objects).


LOCAL = "http://127.0.0.1:11434"
LOADING = Deadlines(first_token=300.0)
"""The first request of a model waits until it is in memory."""


class OllamaModel(OpenAIModel):
    """A model of an Ollama server, ``llama3.2``. It needs no key, and the package of OpenAI.

    Args:
        name: its name there, ``llama3.2`` or ``qwen3:8b``.
        base_url: the server; the variable ``OLLAMA_HOST`` otherwise, else this machine. A URL
            without a path is completed by ``/v1``.
        api_key: for a server behind a key; the variable ``OLLAMA_API_KEY`` otherwise.
        deadlines: how long the model may be silent; 300 s for the first token by default.

    How much of a conversation the model sees is set at the server (``OLLAMA_CONTEXT_LENGTH``);
    what is longer it cuts silently, so that the agent's own window must not be larger.
    """

    provider: ClassVar = "ollama"
    key_variable: ClassVar = OLLAMA_KEY

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines or LOADING)

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """Not beside tools, which the form would keep the model from calling.

        See :class:`motet.protocols.models.NativeOutput`.
        """
        return not tools

    @property
    def base_url(self) -> str:
        """The server that is asked."""
        return server_url(self._base_url or os.environ.get(OLLAMA_URL) or LOCAL)


def server_url(host: str) -> str:
    """The address of the API on a host that is named as Ollama's own programs name it.

    ``0.0.0.0``, an address to listen on, is this machine.
    """
    scheme, separator, rest = host.rpartition("://")
    address, slash, path = rest.rstrip("/").partition("/")
    if not separator:
        bare = ":" not in address or address.endswith("]")
        address = f"{address}:11434" if bare else address
    address = address.replace("0.0.0.0", "127.0.0.1", 1)
    return (
        f"{scheme or 'http'}://{address}{slash}{path}"
        if path
        else (f"{scheme or 'http'}://{address}/v1")
    )
