"""A model that follows a script: each request is answered by the next step of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeAlias

import msgspec
import trio

from motet.actors.models.failures import kind_of_status
from motet.actors.models.played import Played
from motet.protocols.chat import JsonObject
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

CHARS_PER_TOKEN = 4


class Answer(msgspec.Struct, frozen=True):
    """One answer of a script: a text, calls of tools, or both. ``a + b`` is one answer of both."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()

    def __add__(self, other: Answer) -> Answer:
        return Answer(self.text + other.text, self.calls + other.calls)


class Failure(msgspec.Struct, frozen=True):
    """A request of a script that fails as the provider would have it fail."""

    status: int | None
    kind: str
    retry_after: float | None
    message: str


Step: TypeAlias = Answer | Failure


def say(text: str) -> Answer:
    """An answer of this text."""
    return Answer(text)


def call(tool: str, /, **arguments: object) -> Answer:
    """An answer that calls a tool. ``call("a") + call("b")`` calls two at once."""
    return Answer(calls=((tool, arguments),))


def fail(
    status: int | None = None,
    *,
    kind: str | None = None,
    retry_after: float | None = None,
    message: str = "scripted to fail",
) -> Failure:
    """A failed request: ``fail(429, retry_after=7)``, or ``fail(kind="connection")``.

    ``kind`` is that of :class:`motet.protocols.models.ModelFailure`; the status says it otherwise.
    """
    return Failure(status, kind or kind_of_status(status), retry_after, message)


class ScriptedModel:
    """Answers one step per request, in order. A request too many fails and says so.

    Deterministic: call ids are ``call_1``, ``call_2``..., tokens are counted as four characters,
    the cost is zero. ``requests`` are those it has had.
    """

    def __init__(self, steps: Sequence[Step], *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._steps = list(steps)
        self._ids = count(1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.remaining)} steps left>"

    @property
    def remaining(self) -> Sequence[Step]:
        """The steps that no request has reached yet."""
        return self._steps[len(self.requests) :]

    def assert_complete(self) -> None:
        """Raises ``AssertionError`` when a step was not reached."""
        assert not self.remaining, (
            f"{len(self.remaining)} of {len(self._steps)} steps were not reached, "
            f"the next is {self.remaining[0]!r}"
        )

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        await trio.lowlevel.checkpoint()
        remaining = self.remaining
        self.requests.append(request)
        if not remaining:
            raise ModelFailure(
                f"the script has {len(self._steps)} steps, and this is request "
                f"{len(self.requests)}",
                kind="script",
            )
        step = remaining[0]
        if isinstance(step, Failure):
            raise ModelFailure(
                step.message, kind=step.kind, status=step.status, retry_after=step.retry_after
            )
        yield Played(self._events(request, step))

    def _events(self, request: ModelRequest, step: Answer) -> list[ModelEvent]:
        events: list[ModelEvent] = [TextPart(step.text)] if step.text else []
        written = len(step.text)
        for index, (tool, arguments) in enumerate(step.calls):
            text = msgspec.json.encode(arguments).decode()
            written += len(text)
            events.append(CallStart(index, f"call_{next(self._ids)}", tool))
            events.append(CallArguments(index, text))
        heard = len(msgspec.json.encode((request.system, request.messages, request.tools)))
        used = Usage(heard // CHARS_PER_TOKEN, -(-written // CHARS_PER_TOKEN), cost=0.0)
        events.append(UsageReport(used))
        return [*events, Finished("tool_calls" if step.calls else "stop")]
