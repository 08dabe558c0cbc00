"""The answer of a model, put together from the events of its stream; and its failure. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from motet.protocols.chat import Call
from motet.protocols.errors import Llm
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelResponse,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)

__all__ = ["Assembler", "assemble", "llm_error", "unique_ids"]


class _CallParts(msgspec.Struct, eq=False):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Assembler(msgspec.Struct, eq=False):
    """Collects the events of one attempt. Feed all of them, then ask for the response.

    Invariants: calls are in index order, in whatever order they came; every call has a non-empty
    id, unique in the answer; equal events give an equal response.
    """

    _text: list[str] = []
    _thinking: list[str] = []
    _calls: dict[int, _CallParts] = {}
    _usage: Usage = Usage()
    _reason: StopReason | None = None
    _detail: str = ""

    def feed(self, event: ModelEvent) -> None:
        match event:
            case TextPart(text):
                self._text.append(text)
            case ThinkingPart(text):
                self._thinking.append(text)
            case CallStart(index, id, name):
                call = self._call(index)
                call.id = call.id or id
                call.name = call.name or name
            case CallArguments(index, text):
                call = self._calls.get(index) or self._call(index)
                call.arguments.append(text)
            case UsageReport(usage):
                self._usage = usage
            case Finished(reason, detail):
                self._reason, self._detail = reason, detail

    def _call(self, index: int) -> _CallParts:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _CallParts()
        return call

    def response(self) -> ModelResponse:
        """The complete answer. Raises :class:`ModelFailure` ``cut`` if ``Finished`` never came."""
        if self._reason is None:
            raise ModelFailure("the answer ended before it was complete", kind="cut")
        calls = self._ordered_calls() if self._calls else ()
        return ModelResponse(
            text="".join(self._text),
            thinking="".join(self._thinking),
            calls=calls,
            usage=self._usage,
            # Several servers end an answer that has calls with the reason "stop".
            stop_reason="tool_calls" if calls and self._reason == "stop" else self._reason,
            refusal=self._detail,
        )

    def _ordered_calls(self) -> tuple[Call, ...]:
        parts = [self._calls[index] for index in sorted(self._calls)]
        ids = unique_ids([part.id for part in parts])
        return tuple(
            [
                Call(id=id, name=part.name, arguments="".join(part.arguments) or "{}")
                for id, part in zip(ids, parts, strict=True)
            ]
        )


def assemble(events: Iterable[ModelEvent]) -> ModelResponse:
    """The response to the events of one attempt."""
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.response()


def unique_ids(ids: list[str]) -> list[str]:
    """The ids, made unique: the first holder keeps its own, a later one gets ``_2``, ``_3``...

    An empty id becomes ``call_<position>``, counted from 1. A generated id never equals one that
    the provider gave to another call.
    """
    given = set(ids)
    used: set[str] = set()
    unique: list[str] = []
    for place, id in enumerate(ids, start=1):
        name = id or f"call_{place}"
        made_up = not id
        number = 2
        candidate = name
        while candidate in used or (candidate in given and (made_up or candidate != id)):
            candidate = f"{name}_{number}"
            number += 1
        used.add(candidate)
        unique.append(candidate)
    return unique


# Failures

LLM_KINDS = {
    "overloaded": "unavailable",
    "server": "unavailable",
    "cut": "connection",
    "quota": "rate_limit",
}
"""Kinds of ModelFailure with another name in Llm; all others keep their name."""

ADVICE = {
    "auth": "check the key and its permissions",
    "rate_limit": "wait a while, or run fewer requests at once",
    "quota": "add credit at the provider",
    "timeout": "try again, or allow the model more time",
    "connection": "check the network and the base URL",
    "context_exhausted": "shorten the conversation",
    "bad_request": "check the model's name and the request",
    "overloaded": "try again later",
    "server": "try again later",
    "cut": "try again",
    "refused": "use a scripted or recorded model",
    "script": "add a step to the script",
    "not_recorded": "record it with mode='missing', if that is meant",
    "journal": "the replay ends here",
}


def llm_error(model: str, failure: ModelFailure, reason: str) -> Llm:
    """The error of a request: the model, its failure, and advice."""
    why = f" ({reason})" if reason else ""
    return Llm(
        f"{model} failed: {failure}{why}; {ADVICE.get(failure.kind, 'try again later')}",
        kind=LLM_KINDS.get(failure.kind, failure.kind),
        status=failure.status,
    )
