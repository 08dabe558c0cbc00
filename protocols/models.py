"""Requests to a model and its streamed answers, independent of any provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from motet.protocols.chat import Call, ChatMessage, JsonObject
from motet.protocols.messages import Message, StreamRequest
from motet.protocols.tools import ToolSpec

StopReason: TypeAlias = Literal[
    "stop", "tool_calls", "length", "content_filter", "paused", "context_exhausted", "other"
]
"""``content_filter``: the model or its provider refused, in whole or in the middle of the answer.
``paused``: the provider wants another request to go on. ``context_exhausted``: the conversation and
the answer together did not fit in the model's window."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the provider counted them. ``cost`` in US dollars; None is unknown, never zero.

    A sum has a cost only when every part that has tokens has one.

    Attributes:
        cached_tokens: of the input, what the provider read from its cache.
        cache_write_tokens: of the input, what it wrote to its cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def unpriced(self) -> bool:
        """Whether something was used whose price is unknown."""
        return self.cost is None and self.input_tokens + self.output_tokens > 0

    def __add__(self, other: Usage) -> Usage:
        cost = None
        if not (self.cost is other.cost is None or self.unpriced or other.unpriced):
            cost = (self.cost or 0.0) + (other.cost or 0.0)
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            cost,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class OutputSchema(msgspec.Struct, frozen=True):
    """The form an answer must have. ``schema``: a JSON Schema of type object; ``name`` is its own.

    An adapter sends as much of the schema as its provider takes. What comes back is checked
    against all of it by the run, which has a wrong answer repaired.
    """

    name: str
    schema: JsonObject


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model. ``model`` is the provider's own name of it.

    ``output``: what the text of the last answer must be; only ever given to a model that takes it,
    see :class:`NativeOutput`. An answer may still be calls of ``tools``.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    temperature: float | None = None
    output: OutputSchema | None = None


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ThinkingPart(msgspec.Struct, frozen=True, tag="thinking"):
    text: str


class CallStart(msgspec.Struct, frozen=True, tag="call.start"):
    """A call begins; ``index`` is its place among the calls of this answer."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, tag="call.arguments"):
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


class UsageReport(msgspec.Struct, frozen=True, tag="usage"):
    usage: Usage


class Finished(msgspec.Struct, frozen=True, tag="finished", omit_defaults=True):
    """The last event of a complete answer. A stream that ends without it was cut.

    ``detail``: the provider's own words for a refusal.
    """

    reason: StopReason
    detail: str = ""


ModelEvent: TypeAlias = TextPart | ThinkingPart | CallStart | CallArguments | UsageReport | Finished


class Retrying(msgspec.Struct, frozen=True, tag="retrying"):
    """An attempt failed and another follows; everything streamed so far is withdrawn."""

    attempt: int
    delay: float
    reason: str


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """The request waits for one of the model's places; False: it has got one.

    ``position``: in the line; 1 is the next one, 0 is not known yet.
    """

    waits: bool = True
    position: int = 0


Notice: TypeAlias = Retrying | Queued
"""Said of a request in between the parts of its answer."""
Streamed: TypeAlias = ModelEvent | Notice


class ModelResponse(msgspec.Struct, frozen=True):
    """One complete answer. Calls are in index order.

    ``refusal``: why it was refused, with the stop reason ``content_filter``, if that was said.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    stop_reason: StopReason = "stop"
    refusal: str = ""


class Generate(StreamRequest[Streamed, ModelResponse], frozen=True, tag="models.generate"):
    """Ask a provider's actor for one answer; the parts stream while it is made.

    ``user``, and ``payer``, the room or the session that it is for: these share the places of the
    model fairly. ``id``: by which it can be revised.
    Raises ``Llm`` when the model failed after retries.
    """

    request: ModelRequest
    payer: str = ""
    user: str = ""
    id: str = ""


class Revise(Message, frozen=True, tag="models.revise"):
    """Send ``request`` in place of the one with this id, which keeps its place in the line.

    From its next attempt on: what a model is answering already is not taken back.
    """

    id: str
    request: ModelRequest


ModelProtocol: TypeAlias = Generate | Revise


class ModelFailure(Exception):
    """The failure of an adapter, whatever its SDK raised: enough to decide on a retry.

    Attributes:
        kind: ``auth | rate_limit | quota | timeout | connection | context_exhausted | bad_request
            | overloaded | server | cut | content_filter``.
        status: HTTP status, if there was an answer.
        retry_after: seconds the provider asked us to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        status: int | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retry_after = retry_after


@runtime_checkable
class Model(Protocol):
    """A language model behind any API.

    ``request`` is a context manager: leaving it closes the connection at once, also on
    cancellation. It streams events, :class:`Finished` last, and raises :class:`ModelFailure`.
    It never retries by itself.
    """

    @property
    def name(self) -> str:
        """Full name, provider first: ``openai:gpt-5.2``."""
        ...

    def request(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]: ...


@runtime_checkable
class Repeatable(Protocol):
    """A :class:`Model` whose answers depend on the turn's messages alone: a turn of it that the end
    of a host has cut off is made again, and comes to the same calls with the same arguments.
    """

    @property
    def repeats(self) -> bool: ...


def is_repeatable(model: object) -> bool:
    """Whether it is a :class:`Repeatable` that repeats."""
    return isinstance(model, Repeatable) and model.repeats


@runtime_checkable
class NativeOutput(Protocol):
    """A :class:`Model` whose provider can hold an answer to a form (``ModelRequest.output``).

    A model without this method is asked for a call of the tool ``final_answer`` in place of it.
    """

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        """Whether ``output`` may be part of a request, where ``tools`` are offered or not.

        Asked once for each run, without a connection. False: the tool is used.
        """
        ...
