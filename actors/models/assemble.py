"""From a model's events to one :class:`ModelResponse`: pure, and forgiving of bad ids.

Invariants: calls are in index order whatever order they came in; every call has an id that is
not empty and that no other call of the answer has; equal events give an equal response.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from motet.protocols.chat import Call
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


class _CallParts(msgspec.Struct, eq=False):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Assembler(msgspec.Struct, eq=False):
    """Collects the events of one attempt. Feed all of them, then ask for the response."""

    _text: list[str] = []
    _thinking: list[str] = []
    _calls: dict[int, _CallParts] = {}
    _usage: Usage = Usage()
    _reason: StopReason | None = None

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
            case Finished(reason):
                self._reason = reason

    def _call(self, index: int) -> _CallParts:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _CallParts()
        return call

    def response(self) -> ModelResponse:
        """The whole answer; :class:`ModelFailure` ``cut`` when it never finished."""
        if self._reason is None:
            raise ModelFailure("the answer ended before it was complete", kind="cut")
        calls = self._ordered_calls() if self._calls else ()
        return ModelResponse(
            text="".join(self._text),
            thinking="".join(self._thinking),
            calls=calls,
            usage=self._usage,
            # Several servers finish an answer that has calls with a plain "stop".
            stop_reason="tool_calls" if calls and self._reason == "stop" else self._reason,
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
    """The response that these events of one attempt make."""
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.response()


def unique_ids(ids: list[str]) -> list[str]:
    """The ids, made unique: the first holder keeps its own, a later one gets ``_2``, ``_3``...

    An empty id becomes ``call_<place>``, counted from 1. No made-up id takes one that the
    provider gave to another call.
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
