"""From a step to a model's behaviour: the events of an answer, a failure, a cut, a wait."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice

import msgspec
import trio

from motet.actors.models.recorded import Played
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
from motet.testing.steps import Answer, Cut, Failure, Slow, Step

CHARS_PER_TOKEN = 4
PIECE = 8
"""Characters of arguments in one part of an answer that comes in parts."""


class StepModel(ABC):
    """A model that answers each request by a step. Deterministic but for how steps are chosen.

    Call ids are ``call_1``, ``call_2``... unless a step gives them, tokens are counted as four
    characters, the cost is zero. ``requests`` are those it has had.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._player = Player()

    @abstractmethod
    def _step(self, request: ModelRequest, /) -> Step:
        """What to answer; the request is the last of ``requests``. Raises ``ModelFailure``."""

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        yield await self._player.play(request, self._step(request))


class Player:
    """Plays steps; the ids of their calls are counted up."""

    def __init__(self) -> None:
        self._ids = count(1)

    async def play(self, request: ModelRequest, step: Step) -> Played:
        """The events of a step. Raises ``ModelFailure`` where it fails."""
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
        """The answer in small parts, without an end."""
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
    """How an answer of ``size`` characters ends."""
    heard = len(msgspec.json.encode((request.system, request.messages, request.tools)))
    used = Usage(heard // CHARS_PER_TOKEN, -(-size // CHARS_PER_TOKEN), cost=0.0)
    return UsageReport(used), Finished("tool_calls" if calls else "stop")


def script_source(steps: list[Step]) -> str:
    """The Python of a :class:`ScriptedModel` with these steps, to be pasted into a test."""
    lines = "".join(f"    {step!r},\n" for step in steps)
    return f"ScriptedModel([\n{lines}])"
