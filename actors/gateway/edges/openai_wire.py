"""Chat completions as clients of OpenAI write and read them. Pure.

Invariant: a request that asks for what an agent does not give is refused by name, never answered
as if it had not been asked; fields that only tune a model are left to the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.actors.gateway.edges.watching import Fault, wrong
from motet.actors.gateway.stores import Said
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
)
from motet.protocols.models import Usage

FinishReason: TypeAlias = Literal["stop", "length"]
End: TypeAlias = (
    RunCompleted
    | RunLimited
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


class Part(msgspec.Struct, frozen=True):
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
    """``user`` is not looked at: who asks is whom the token is of."""

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


class Asked(msgspec.Struct, frozen=True):
    """``before``: what was said until the last answer, as the client has it."""

    text: str
    before: tuple[Said, ...]


def asked(request: ChatRequest) -> Asked:
    """What is to be answered. Raises :class:`Fault` for what an agent does not do."""
    _check(request)
    said = tuple(
        (one.role, text_of(one.content)) for one in request.messages if one.role in _HISTORY
    )
    if request.messages[-1].role not in ("user", "system", "developer"):
        raise wrong("The last message has to be the user's.", "messages")
    last = max((place for place, one in enumerate(said) if one[0] == "assistant"), default=-1)
    text = "\n\n".join(text for _, text in said[last + 1 :])
    if not text.strip():
        raise wrong("There is no text of the user after the last answer.", "messages")
    return Asked(text, said[: last + 1])


def text_of(content: str | Sequence[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    strange = next((part.type for part in content if part.type != "text"), None)
    if strange is not None:
        raise wrong(f"Parts of type {strange!r} are not taken here, only text.", "messages")
    return "".join(part.text for part in content)


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
            raise wrong(
                f"`{name}` is not supported: tools and the form of answers are the agent's own. "
                "Leave it out.",
                name,
                "unsupported_parameter",
            )


# -- answers -----------------------------------------------------------------------------------


class Details(msgspec.Struct, frozen=True):
    cached_tokens: int


class Counted(msgspec.Struct, frozen=True):
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
    """A call that waits for a person. ``expires``: Unix seconds."""

    id: str
    tool: str
    args: JsonObject
    reason: str
    expires: float


class Completion(msgspec.Struct, frozen=True):
    """``approvals``: the answer asks for these; no field of OpenAI's."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Counted
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
    usage: Counted | None = None
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


def listed(waiting: Sequence[ApprovalInfo]) -> tuple[Approval, ...] | UnsetType:
    found = tuple(Approval(one.id, one.tool, one.args, one.reason, one.expires) for one in waiting)
    return found or UNSET


def counted(usage: Usage) -> Counted:
    return Counted(
        usage.input_tokens, usage.output_tokens, usage.total_tokens, Details(usage.cached_tokens)
    )


def reason_of(end: End) -> FinishReason:
    """Why an answer ended. Raises :class:`Fault` for a run that has none."""
    match end:
        case RunCompleted():
            return "stop"
        case RunLimited():
            return "length"
        case RunFailed(kind=kind, message=message):
            raise Fault(500, kind, message)
        case RunCancelled(reason=reason):
            raise Fault(409, "run_cancelled", f"The run was stopped: {reason}.")
        case RunEscalated(reason=reason, escalation=escalation):
            told = f"The run was handed to a person ({reason}), who answers {escalation}."
            raise Fault(409, "run_escalated", told)
        case InputDropped(reason=reason):
            raise Fault(409, "input_dropped", f"The input is not answered: {reason}.")
        case InputSteered(into=into):
            raise Fault(409, "input_steered", f"The input is answered by the run {into}.")
        case RunInterrupted():
            raise Fault(503, "run_interrupted", "The host has ended during the run.")
