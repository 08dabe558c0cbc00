"""Chat completions in OpenAI's format: requests and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.models import Usage

FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]
DONE: Final = "[DONE]"


# -- requests ----------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True):
    """A part of a message, as clients of OpenAI and of AG-UI send it."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | tuple[Part, ...] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str = "text"


class ChatRequest(msgspec.Struct, frozen=True):
    """The field ``user`` is ignored: the user is the token's."""

    model: str
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None
    n: int | None = None
    tools: tuple[JsonObject, ...] | None = None
    functions: tuple[JsonObject, ...] | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    modalities: tuple[str, ...] | None = None


# -- answers -----------------------------------------------------------------------------------


class Details(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageInfo(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Details


class Answer(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True):
    message: Answer
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class Approval(msgspec.Struct, frozen=True):
    """A pending approval. ``expires``: Unix seconds."""

    id: str
    tool: str
    args: JsonObject
    reason: str
    expires: float


class Completion(msgspec.Struct, frozen=True):
    """``approvals``: the pending ones that the answer asks for; an extension of the format."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: UsageInfo
    approvals: tuple[Approval, ...] | UnsetType = UNSET
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["", "assistant"] = ""
    content: str = ""


class DeltaChoice(msgspec.Struct, frozen=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class Chunk(msgspec.Struct, frozen=True):
    """``approvals``: as in :class:`Completion`, beside the ``finish_reason``."""

    id: str
    created: int
    model: str
    choices: tuple[DeltaChoice, ...]
    usage: UsageInfo | None = None
    approvals: tuple[Approval, ...] | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Model(msgspec.Struct, frozen=True):
    id: str
    created: int
    owned_by: str = "motet"
    object: Literal["model"] = "model"


class Models(msgspec.Struct, frozen=True):
    data: tuple[Model, ...]
    object: Literal["list"] = "list"


def approvals_of(pending: Sequence[ApprovalInfo]) -> tuple[Approval, ...] | UnsetType:
    found = tuple(Approval(one.id, one.tool, one.args, one.reason, one.expires) for one in pending)
    return found or UNSET


def usage_of(usage: Usage) -> UsageInfo:
    return UsageInfo(
        usage.input_tokens, usage.output_tokens, usage.total_tokens, Details(usage.cached_tokens)
    )
