"""Scripts for models: their steps as data, how a step is played, and ``ScriptedModel``.

A step is the answer to one request, right or wrong. Its ``repr`` is the Python that makes it, so
that a drawn or recorded step can be pasted into a test. Steps are msgspec structs: a list of
``Step`` can be stored as JSON.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from keyword import iskeyword
from typing import TypeAlias, cast

import msgspec
import trio

from motet.actors.models.provider import Played
from motet.protocols.chat import JsonObject
from motet.protocols.model_failures import kind_of_status
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)

LONG = 160
"""From this length on, a repetitive text is printed as a product."""
PERIOD = 80


class RawCall(msgspec.Struct, frozen=True, tag="raw_call"):
    """A call with any text as ``arguments``. An empty ``id`` is generated."""

    tool: str
    arguments: str
    id: str = ""


class Answer(msgspec.Struct, frozen=True, tag="say"):
    """One answer of a script: a text, calls of tools, or both. ``a + b`` is one answer of both."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject] | RawCall, ...] = ()

    def __add__(self, other: Answer) -> Answer:
        return Answer(self.text + other.text, self.calls + other.calls)

    def __repr__(self) -> str:
        texts = [f"say({source_of(self.text)})"] if self.text or not self.calls else []
        return " + ".join([*texts, *map(_call_source, self.calls)])


class Failure(msgspec.Struct, frozen=True, tag="fail"):
    """A request that fails with an error of the provider."""

    status: int | None
    kind: str
    retry_after: float | None
    message: str

    def __repr__(self) -> str:
        kind = None if self.kind == kind_of_status(self.status) else self.kind
        options = {"kind": kind, "retry_after": self.retry_after, "message": self.message}
        if self.message == FAILED:
            del options["message"]
        named = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return f"fail({', '.join([*([repr(self.status)] if self.status else []), *named])})"


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """An answer whose stream is cut after ``after`` parts."""

    answer: Answer
    after: int

    def __repr__(self) -> str:
        return f"cut({self.answer!r}, after={self.after})"


class Slow(msgspec.Struct, frozen=True, tag="slow"):
    """A step that begins ``seconds`` later."""

    step: Answer | Failure | Cut
    seconds: float

    def __repr__(self) -> str:
        return f"slow({self.step!r}, seconds={self.seconds:g})"


Step: TypeAlias = Answer | Failure | Cut | Slow

FAILED = "scripted to fail"


def say(text: str) -> Answer:
    """An answer of this text."""
    return Answer(text)


def call(tool: str, /, **arguments: object) -> Answer:
    """An answer that calls a tool. ``call("a") + call("b")`` calls two at once."""
    return Answer(calls=((tool, arguments),))


def raw_call(tool: str, arguments: str, *, id: str = "") -> Answer:
    """An answer that calls a tool with any text for arguments: ``raw_call("add", '{"a": ')``.

    ``id``: the id of the call; two calls of one answer may have the same.
    """
    return Answer(calls=(RawCall(tool, arguments, id),))


def fail(
    status: int | None = None,
    *,
    kind: str | None = None,
    retry_after: float | None = None,
    message: str = FAILED,
) -> Failure:
    """A failed request: ``fail(429, retry_after=7)``, or ``fail(kind="connection")``.

    ``kind``: of :class:`motet.protocols.models.ModelFailure`; default: by the status.
    """
    return Failure(status, kind or kind_of_status(status), retry_after, message)


def cut(answer: Answer, *, after: int) -> Cut:
    """An answer whose stream is cut after ``after`` parts; if it has fewer, before ``Finished``.

    A part is a word of the text, the start of a call, or a few characters of its arguments.
    """
    return Cut(answer, after)


def slow(step: Answer | Failure | Cut, *, seconds: float) -> Slow:
    """A step that begins ``seconds`` after the request. The wait can be cancelled."""
    return Slow(step, seconds)


def source_of(value: object) -> str:
    """JSON data as Python source; a long repetitive text becomes a product."""
    match value:
        case str():
            return _text_source(value)
        case list():
            return f"[{', '.join(map(source_of, cast('list[object]', value)))}]"
        case dict() if "$result_of" in value:
            return _reference_source(cast(JsonObject, value))
        case dict():
            items = cast(JsonObject, value).items()
            return "{" + ", ".join(f"{source_of(k)}: {source_of(v)}" for k, v in items) + "}"
        case _:
            return repr(value)


def _reference_source(value: JsonObject) -> str:
    """A reference to an earlier result; see :func:`motet.testing.result_of`."""
    tool, path = value["$result_of"], value.get("path")
    given = [repr(tool), *([repr(path)] if path else [])]
    named = [f"{k}={source_of(value[k])}" for k in ("back", "otherwise") if k in value]
    return f"mt.result_of({', '.join([*given, *named])})"


def _call_source(one: tuple[str, JsonObject] | RawCall) -> str:
    if isinstance(one, RawCall):
        id = f", id={one.id!r}" if one.id else ""
        return f"raw_call({one.tool!r}, {source_of(one.arguments)}{id})"
    tool, arguments = one
    plain = {k: v for k, v in arguments.items() if k.isidentifier() and not iskeyword(k)}
    named = [f"{name}={source_of(value)}" for name, value in plain.items()]
    if others := {name: value for name, value in arguments.items() if name not in plain}:
        named.append(f"**{source_of(others)}")
    return f"call({', '.join([repr(tool), *named])})"


def _text_source(text: str) -> str:
    if len(text) >= LONG:
        for period in range(1, PERIOD + 1):
            piece, times = text[:period], len(text) // period
            if text == piece * times + piece[: len(text) - times * period]:
                rest = text[times * period :]
                return f"{piece!r} * {times}" + (f" + {rest!r}" if rest else "")
    return repr(text)


CHARS_PER_TOKEN = 4
PIECE = 8
"""Characters of arguments in one part of a cut answer."""


class StepModel(ABC):
    """Base class of models that answer each request with a step.

    Call ids are ``call_1``, ``call_2``... unless a step gives them; a token is four characters; the
    cost is zero. ``requests`` are all requests so far.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._player = Player()

    @abstractmethod
    def _step(self, request: ModelRequest, /) -> Step:
        """Choose the step; the request is the last of ``requests``. Raises ``ModelFailure``."""

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        yield await self._player.play(request, self._step(request))


class Player:
    """Plays steps, with consecutive ids for their calls."""

    def __init__(self) -> None:
        self._ids = count(1)

    async def play(self, request: ModelRequest, step: Step) -> Played:
        """The events of a step. Raises ``ModelFailure`` for a failing one."""
        match step:
            case Slow(then, seconds):
                await trio.sleep(seconds)
                return await self.play(request, then)
            case Failure(status, kind, retry_after, message):
                raise ModelFailure(message, kind=kind, status=status, retry_after=retry_after)
            case Cut(answer, after):
                return Played(islice(self._pieces(answer), after))
            case Answer():
                return Played(list(self._whole(request, step)))

    def _whole(self, request: ModelRequest, answer: Answer) -> Iterator[ModelEvent]:
        size = 0
        for event in self._events(answer):
            size += 0 if isinstance(event, CallStart) else len(event.text)
            yield event
        yield from ending(request, size, calls=bool(answer.calls))

    def _events(self, answer: Answer) -> Iterator[TextPart | CallStart | CallArguments]:
        if answer.text:
            yield TextPart(answer.text)
        for index, one in enumerate(answer.calls):
            made_up = f"call_{next(self._ids)}"
            if isinstance(one, tuple):
                tool, arguments, id = one[0], msgspec.json.encode(one[1]).decode(), made_up
            else:
                tool, arguments, id = one.tool, one.arguments, one.id or made_up
            yield CallStart(index, id, tool)
            yield CallArguments(index, arguments)

    def _pieces(self, answer: Answer) -> Iterator[ModelEvent]:
        """The answer in small parts, without ``Finished``."""
        for event in self._events(answer):
            match event:
                case TextPart(text):
                    yield from map(TextPart, re.findall(r"\S+\s*|\s+", text))
                case CallArguments(index, text):
                    pieces = range(0, len(text), PIECE)
                    yield from (CallArguments(index, text[at : at + PIECE]) for at in pieces)
                case CallStart():
                    yield event


def ending(request: ModelRequest, size: int, *, calls: bool) -> tuple[UsageReport, Finished]:
    """The last events of an answer of ``size`` characters."""
    heard = len(msgspec.json.encode((request.system, request.messages, request.tools)))
    used = Usage(heard // CHARS_PER_TOKEN, -(-size // CHARS_PER_TOKEN), cost=0.0)
    return UsageReport(used), Finished("tool_calls" if calls else "stop")


def script_source(steps: list[Step]) -> str:
    """The Python source of a :class:`ScriptedModel` with these steps, for a test."""
    lines = "".join(f"    {step!r},\n" for step in steps)
    return f"ScriptedModel([\n{lines}])"


class ScriptedModel(StepModel):
    """Answers one step per request, in order. A request beyond the last step fails.

    Deterministic; see :class:`StepModel` for call ids, tokens and ``requests``.
    """

    def __init__(self, steps: Sequence[Step], *, name: str = "scripted") -> None:
        super().__init__(name)
        self._steps = list(steps)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.remaining)} steps left>"

    @property
    def remaining(self) -> Sequence[Step]:
        """The steps without a request so far."""
        return self._steps[len(self.requests) :]

    def assert_complete(self) -> None:
        """Raise ``AssertionError`` when a step was not reached."""
        assert not self.remaining, (
            f"{len(self.remaining)} of {len(self._steps)} steps were not reached, "
            f"the next is {self.remaining[0]!r}"
        )

    def _step(self, _request: ModelRequest, /) -> Step:
        number = len(self.requests)
        if number > len(self._steps):
            raise ModelFailure(
                f"the script has {len(self._steps)} steps, and this is request {number}",
                kind="script",
            )
        return self._steps[number - 1]
