"""Chat completions in OpenAI's format: requests and answers. Pure data.

Invariant: a request with a field that an agent cannot serve is refused by the field's name, never
answered as if it had no such field; fields that only tune a model are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.actors.gateway import idempotency as conversations
from motet.actors.gateway.edges.exchange import Fault, Part, bad_request, text_of
from motet.actors.gateway.edges.run_events import failure_of
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.events import (
    InputDropped,
    InputSteered,
    RunCancelled,
    RunCompleted,
    RunEscalated,
    RunFailed,
    RunInterrupted,
    RunLimited,
    RunRefused,
)
from motet.protocols.models import Usage

FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]
End: TypeAlias = (
    RunCompleted
    | RunLimited
    | RunRefused
    | RunFailed
    | RunCancelled
    | RunEscalated
    | RunInterrupted
    | InputDropped
    | InputSteered
)
DONE: Final = "[DONE]"
_HISTORY: Final = frozenset({"user", "assistant"})


# -- requests ----------------------------------------------------------------------------------


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


class Question(msgspec.Struct, frozen=True):
    """``before``: the messages until the last answer, as the client has them."""

    text: str
    before: tuple[conversations.Message, ...]


def question_of(request: ChatRequest) -> Question:
    """The text to be answered. Raises :class:`Fault` for unsupported requests."""
    _check(request)
    said = tuple(
        (one.role, text_of(one.content)) for one in request.messages if one.role in _HISTORY
    )
    if request.messages[-1].role not in ("user", "system", "developer"):
        raise bad_request("The last message has to be the user's.", "messages")
    last = max((place for place, one in enumerate(said) if one[0] == "assistant"), default=-1)
    text = "\n\n".join(text for _, text in said[last + 1 :])
    if not text.strip():
        raise bad_request("There is no text of the user after the last answer.", "messages")
    return Question(text, said[: last + 1])


def _check(request: ChatRequest) -> None:
    refused = {
        "n": request.n not in (None, 1),
        "tools": bool(request.tools),
        "functions": bool(request.functions),
        "response_format": request.response_format not in (None, ResponseFormat()),
        "logprobs": bool(request.logprobs),
        "modalities": request.modalities not in (None, ("text",)),
    }
    for name, is_asked in refused.items():
        if is_asked:
            raise bad_request(
                f"`{name}` is not supported: tools and the form of answers are the agent's own. "
                "Leave it out.",
                name,
                "unsupported_parameter",
            )


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


def finish_reason(end: End) -> FinishReason:
    """Why an answer ended. Raises :class:`Fault` for a run without an answer."""
    match end:
        case RunCompleted():
            return "stop"
        case RunLimited():
            return "length"
        case RunRefused():
            return "content_filter"
        case RunCancelled(reason=reason):
            raise Fault(409, "run_cancelled", f"The run was stopped: {reason}.")
        case RunInterrupted():
            raise Fault(503, "run_interrupted", "The host has ended during the run.")
        case _:
            code, message = failure_of(end) or ("internal", "The run has ended.")
            raise Fault(500 if isinstance(end, RunFailed) else 409, code, message)
