"""The steps of a script: what a model answers to one request, right or wrong, as data.

``repr`` of a step is the Python that makes it, so that a step that was drawn, or recorded, can be
pasted into a test. Steps are msgspec structs: a list of ``Step`` can be stored as JSON.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import TypeAlias, cast

import msgspec

from motet.actors.models.failures import kind_of_status
from motet.protocols.chat import JsonObject

LONG = 160
"""Characters from which on a text that repeats itself is written shorter."""
PERIOD = 80


class RawCall(msgspec.Struct, frozen=True, tag="raw_call"):
    """A call as a model wrote it: ``arguments`` is any text. An empty ``id`` is made up."""

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
        texts = [f"say({written(self.text)})"] if self.text or not self.calls else []
        return " + ".join([*texts, *map(_written_call, self.calls)])


class Failure(msgspec.Struct, frozen=True, tag="fail"):
    """A request of a script that fails as the provider would have it fail."""

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
    """An answer whose stream ends after so many of its parts."""

    answer: Answer
    after: int

    def __repr__(self) -> str:
        return f"cut({self.answer!r}, after={self.after})"


class Slow(msgspec.Struct, frozen=True, tag="slow"):
    """A step that comes so many seconds later."""

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

    ``id``: what the model calls the call; two of one answer may have the same.
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

    ``kind`` is that of :class:`motet.protocols.models.ModelFailure`; the status says it otherwise.
    """
    return Failure(status, kind or kind_of_status(status), retry_after, message)


def cut(answer: Answer, *, after: int) -> Cut:
    """An answer whose stream is cut after ``after`` parts, or, if it has less, before its end.

    A part is a word of the text, the beginning of a call, or a few characters of its arguments.
    """
    return Cut(answer, after)


def slow(step: Answer | Failure | Cut, *, seconds: float) -> Slow:
    """A step that begins ``seconds`` after the request; it can be cancelled meanwhile."""
    return Slow(step, seconds)


def written(value: object) -> str:
    """JSON data as Python, short where a long text is one piece again and again."""
    match value:
        case str():
            return _written_text(value)
        case list():
            return f"[{', '.join(map(written, cast('list[object]', value)))}]"
        case dict():
            items = cast(JsonObject, value).items()
            return "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in items) + "}"
        case _:
            return repr(value)


def _written_call(one: tuple[str, JsonObject] | RawCall) -> str:
    if isinstance(one, RawCall):
        id = f", id={one.id!r}" if one.id else ""
        return f"raw_call({one.tool!r}, {written(one.arguments)}{id})"
    tool, arguments = one
    plain = {k: v for k, v in arguments.items() if k.isidentifier() and not iskeyword(k)}
    named = [f"{name}={written(value)}" for name, value in plain.items()]
    if others := {name: value for name, value in arguments.items() if name not in plain}:
        named.append(f"**{written(others)}")
    return f"call({', '.join([repr(tool), *named])})"


def _written_text(text: str) -> str:
    if len(text) >= LONG:
        for period in range(1, PERIOD + 1):
            piece, times = text[:period], len(text) // period
            if text == piece * times + piece[: len(text) - times * period]:
                rest = text[times * period :]
                return f"{piece!r} * {times}" + (f" + {rest!r}" if rest else "")
    return repr(text)
