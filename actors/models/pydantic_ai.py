"""Models of all other providers, by the model classes of pydantic-ai without its agents.

Rows become alternating requests and responses; the rest of the wire format is pydantic-ai's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import msgspec
import trio

from motet.actors.models.dialects import Lawful, Reader, Rules, arguments_object
from motet.actors.models.sdk import Adapter
from motet.actors.transcript.history import user_text
from motet.protocols.chat import ANSWERS, AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError, MissingExtra
from motet.protocols.models import (
    CallArguments,
    CallStart,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
)
from motet.protocols.tool_schemas import MOST_TOOLS, object_schema

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart
    from pydantic_ai.models import Model as SdkModel
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
RULES = Rules(
    name="[A-Za-z_][A-Za-z0-9_-]{0,63}",
    id="[A-Za-z0-9]{9}",
    property="[A-Za-z_][A-Za-z0-9_]{0,63}",
    declared=True,
    tools=MOST_TOOLS["pydantic_ai"],
    description=1_024,
    calls=128,
)
"""Those of all providers together: Mistral's ids, Bedrock's declarations."""


def wire_messages(request: ModelRequest) -> list[ModelMessage]:
    """The rows as alternating requests and responses; the system prompt is the first part."""
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
            name=tool.name, description=tool.description, parameters_json_schema=object_schema(tool)
        )
        for tool in request.tools
    ]
    return ModelRequestParameters(function_tools=tools)


def wire_settings(request: ModelRequest, *, withdrawn: bool = False) -> ModelSettings:
    """Settings without retries: the provider actor retries, visibly and cancellably."""
    settings: ModelSettings = {"max_retries": 0}
    if withdrawn:
        settings["tool_choice"] = "none"
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
    args_delta: object = None
    tool_call_id: str | None = None


class Event(msgspec.Struct):
    """The fields of an event that are read."""

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
    """Totals at the end of a stream. ``reason`` None: the provider sent none."""

    reason: str | None
    usage: Usage


@attrs.define
class PydanticAIReader(Reader):
    """Translates events. Calls get indices of their own: the parts' indices count texts, too."""

    _calls: dict[int, int] = attrs.field(factory=dict[int, int], init=False)

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        if isinstance(chunk, End):
            if chunk.reason is not None:
                self.reason = STOP_REASONS.get(chunk.reason, "other")
            self.usage = chunk.usage if chunk.usage.total_tokens else None
            return ()
        read = msgspec.convert(chunk, Event, from_attributes=True)
        if read.event_kind == "part_start" and read.part is not None:
            return list(self._start(read.index, read.part))
        if read.event_kind == "part_delta" and read.delta is not None:
            return list(self._more(read.index, read.delta))
        return ()

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
        """More of a call's arguments: a piece of JSON text, or a whole object."""
        if args and place in self._calls:
            text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
            yield CallArguments(self._calls[place], text)


def usage_of(counted: object) -> Usage:
    """Input tokens are the whole prompt, as in pydantic-ai."""
    read = msgspec.convert(counted, Counted, from_attributes=True)
    return Usage(
        input_tokens=read.input_tokens,
        output_tokens=read.output_tokens,
        cached_tokens=read.cache_read_tokens,
        cache_write_tokens=read.cache_write_tokens,
    )


PROVIDER = "pydantic_ai"


@attrs.define(eq=False, repr=False)
class PydanticAIModel(Adapter["_Client"]):
    """A model of any provider that pydantic-ai knows: ``groq:llama-3.3-70b-versatile``.

    Args:
        name: the provider's name at pydantic-ai, a colon, and the provider's name of the model.
        base_url: another server of that provider's API; pydantic-ai's default otherwise.
        api_key: the key; the provider's own variable otherwise.
        deadlines: how long the model may be silent.

    Raises ``ConfigError`` for a name without a colon. Failures and cancellation are those of
    :class:`motet.actors.models.openai.OpenAIModel`; ``MissingExtra`` names a package that the
    provider needs. Bedrock waits in threads that keep running after a cancellation.
    """

    provider: ClassVar = PROVIDER
    rules: ClassVar = RULES

    _provider: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._provider, colon, model = self._model.partition(":")
        if not (self._provider and colon and model):
            raise ConfigError(f"write {PROVIDER}:<provider>:<model>, not {PROVIDER}:{self._model}")
        super().__attrs_post_init__()

    def _reader(self) -> PydanticAIReader:
        return PydanticAIReader()

    def _make_client(self) -> _Client:
        from pydantic_ai.models import infer_model
        from pydantic_ai.providers import Provider, infer_provider_class

        def provider(name: str) -> Provider[object]:
            given = {"base_url": self._base_url, "api_key": self._api_key}
            try:
                return infer_provider_class(name)(**{k: v for k, v in given.items() if v})
            except TypeError as error:
                raise ConfigError(f"{name} takes no base_url or api_key: {error}") from error

        return _Client(lambda name: made(name, lambda: infer_model(name, provider)))

    async def _create(self, asked: Lawful) -> _Stream:
        client, request = await self._client.get(), asked.request
        name = request.model.removeprefix(f"{PROVIDER}:") or self._model
        if ":" not in name:
            name = f"{self._provider}:{name}"
        from pydantic_ai.direct import model_request_stream

        stream = model_request_stream(
            await client.model(name),
            wire_messages(request),
            model_settings=wire_settings(request, withdrawn=asked.withdrawn),
            model_request_parameters=wire_parameters(request),
        )
        return _Stream(stream, await stream.__aenter__())


def made(name: str, make: Callable[[], SdkModel]) -> SdkModel:
    """A model of pydantic-ai; its errors for a wrong name or key become our own."""
    from pydantic_ai.exceptions import UserError

    try:
        return make()
    except ImportError as error:
        advised = re.search(r"pydantic-ai-slim\[[\w,-]+\]", str(error))
        package = advised[0] if advised else error.name or "pydantic-ai"
        raise MissingExtra(PROVIDER, f"the model '{PROVIDER}:{name}'", package) from error
    except (UserError, ValueError) as error:
        kind = "auth" if "API_KEY" in str(error) else "bad_request"
        raise ModelFailure(" ".join(str(error).split()), kind=kind) from error


@attrs.define
class _Client:
    """The models of pydantic-ai in use, each with its connections."""

    _make: Callable[[str], SdkModel]
    _models: dict[str, SdkModel] = attrs.field(factory=dict[str, "SdkModel"], init=False)

    async def model(self, name: str) -> SdkModel:
        """The model of that name. The first use makes it in a thread: it may import an SDK."""
        if name not in self._models:
            made = await trio.to_thread.run_sync(self._make, name, abandon_on_cancel=True)
            self._models.setdefault(name, made)
        return self._models[name]

    async def close(self) -> None:
        for model in self._models.values():
            async with model:  # leaving the block closes the connections
                pass


@attrs.define
class _Stream(trio.abc.AsyncResource):
    """The events of one response, then its :class:`End`."""

    _asked: AbstractAsyncContextManager[StreamedResponse]
    _response: StreamedResponse
    _ended: bool = attrs.field(default=False, init=False)

    async def aclose(self) -> None:
        await self._asked.__aexit__(None, None, None)

    async def __anext__(self) -> object:
        if self._ended:
            raise StopAsyncIteration
        try:
            return await anext(self._response.__aiter__())
        except StopAsyncIteration:
            self._ended = True
            return End(reason_of(self._response), usage_of(self._response.usage))


def reason_of(response: StreamedResponse) -> str | None:
    """The reason for the end of a response; None when the provider sent none: it was cut.

    For some providers pydantic-ai turns a missing reason into "stop"; then the provider's details
    have no reason either.
    """
    details, reason = response.provider_details, response.finish_reason
    if details is not None and "finish_reason" not in details and reason == "stop":
        return None
    return reason or ("other" if details and "finish_reason" in details else None)
