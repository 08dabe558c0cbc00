"""Models that need no script: ``TestModel`` calls every tool, ``FunctionModel`` is a function.

The first part reads the current turn from a request and makes a plain answer to it. Pure.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Literal, Self, TypeAlias

import msgspec
import trio

from motet.actors.agents.registry import ALWAYS_OFFERED
from motet.actors.runs.output import FINAL_ANSWER
from motet.protocols.chat import (
    AssistantMessage,
    ChatMessage,
    JsonObject,
    ToolMessage,
    UserMessage,
    json_object,
)
from motet.protocols.errors import listing, nearest
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    ThinkingPart,
)
from motet.protocols.schema_values import filled
from motet.protocols.tools import ToolSpec
from motet.testing.scripted import Answer, Cut, Failure, Player, Slow, Step, StepModel, ending, say

TEXT = "a"
"""The text of generated values that are not drawn."""

_FINAL = re.compile(rf"{FINAL_ANSWER}(_\d+)?")


def this_turn(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The rows after the last input that began a turn."""
    inputs = (
        at for at, row in enumerate(messages) if isinstance(row, UserMessage) and not row.note
    )
    return messages[max(inputs, default=-1) + 1 :]


def called(messages: Sequence[ChatMessage]) -> set[str]:
    """The names of all called tools."""
    return {
        call.name for row in messages if isinstance(row, AssistantMessage) for call in row.calls
    }


def results(messages: Sequence[ChatMessage]) -> list[ToolMessage]:
    return [row for row in messages if isinstance(row, ToolMessage)]


def output_tool(request: ModelRequest) -> ToolSpec | None:
    """The last tool, if a call of it is the structured answer of the agent."""
    last = request.tools[-1] if request.tools else None
    if last is None or not _FINAL.fullmatch(last.name):
        return None
    done = {row.name for row in results(this_turn(request.messages)) if row.outcome == "done"}
    return None if last.name in done else last  # it was the agent's own tool of that name


def plain_answer(request: ModelRequest, text: str, output: JsonObject | None = None) -> Answer:
    """End the turn with ``text``; a structured answer is ``output`` or the simplest valid one."""
    if request.output is not None:
        value = output if output is not None else filled(request.output.schema, TEXT)
        return say(msgspec.json.encode(value).decode())
    tool = output_tool(request)
    if tool is None:
        return say(text)
    value = output if output is not None else json_object(filled(tool.parameters, TEXT))
    return Answer(calls=((tool.name, value),))


Part: TypeAlias = str | ModelEvent
"""A part of an answer; a ``str`` is a part of its text."""
Reply: TypeAlias = Step | str | Iterable[Part] | AsyncIterator[Part]
"""The return value of the function of a :class:`FunctionModel`."""


class TestModel(StepModel):
    """Calls every offered tool once per turn, all in one answer, and then answers.

    So an agent runs through all its tools without a script. Arguments are the simplest values that
    match the tool's schema, the same each time. The tools by which every host returns errors and
    long results are called only if named.

    Attributes:
        tools: the names of the tools to call, or all.
        text: the answer; None: the results, as a JSON object by the names of the tools.
        output: the answer for an agent with an ``output_type``; None: the simplest valid one.
    """

    __test__ = False

    def __init__(
        self,
        *,
        tools: Collection[str] | Literal["all"] = "all",
        text: str | None = None,
        output: JsonObject | None = None,
        name: str = "test",
    ) -> None:
        super().__init__(name)
        self.tools = tools
        self.text = text
        self.output = output

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.requests)} requests>"

    def _step(self, request: ModelRequest, /) -> Step:
        turn = this_turn(request.messages)
        done = called(turn)
        calls = [
            (tool.name, json_object(filled(tool.parameters, TEXT)))
            for tool in self._chosen(request)
            if tool.name not in done
        ]
        if calls:
            return Answer(calls=tuple(calls))
        found = {row.name: row.text for row in results(turn)}
        text = msgspec.json.encode(found).decode() if self.text is None else self.text
        return plain_answer(request, text, self.output)

    def _chosen(self, request: ModelRequest) -> list[ToolSpec]:
        final = output_tool(request)
        offered = {tool.name: tool for tool in request.tools if tool is not final}
        if self.tools == "all":
            return [tool for name, tool in offered.items() if name not in ALWAYS_OFFERED]
        for name in self.tools:
            if name not in offered:
                near = nearest(name, list(offered))
                hint = f"did you mean {near!r}?" if near else f"there are {listing([*offered])}"
                raise ModelFailure(f"no tool {name!r} is offered; {hint}", kind="script")
        return [tool for name, tool in offered.items() if name in self.tools]


class FunctionModel:
    """Answers each request by calling a function.

    The function gets the :class:`~motet.protocols.models.ModelRequest` and returns a step (``say``,
    ``call``, ``fail``...), a ``str``, or the parts of an answer: an iterator or async iterator,
    such as a generator. Parts are texts and events; a missing end is added. ``ModelFailure`` breaks
    the answer off. An async function is cancelled with its request.
    """

    def __init__(
        self,
        function: Callable[[ModelRequest], Reply | Awaitable[Reply]],
        *,
        name: str = "function",
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._function = function
        self._player = Player()

    def __repr__(self) -> str:
        inner = getattr(self._function, "__name__", type(self._function).__name__)
        return f"<{type(self).__name__} {inner}, {len(self.requests)} requests>"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        made = self._function(request)
        reply = await made if inspect.isawaitable(made) else made
        if isinstance(reply, str):
            reply = say(reply)
        if isinstance(reply, Answer | Failure | Cut | Slow):
            yield await self._player.play(request, reply)
            return
        parts = aiter(reply) if isinstance(reply, AsyncIterator) else iter(reply)
        try:
            yield _Parts(request, parts)
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()


class _Parts:
    """The parts of an answer as events, with the end added."""

    def __init__(self, request: ModelRequest, parts: Iterator[Part] | AsyncIterator[Part]) -> None:
        self._request = request
        self._parts = parts
        self._size = 0
        self._calls = False
        self._ending: Iterator[ModelEvent] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await trio.lowlevel.checkpoint()
        if self._ending is None:
            try:
                return self._seen(await self._next())
            except StopAsyncIteration:
                self._ending = iter(ending(self._request, self._size, calls=self._calls))
        for event in self._ending:
            return event
        raise StopAsyncIteration

    async def _next(self) -> Part:
        if isinstance(self._parts, AsyncIterator):
            return await anext(self._parts)
        for part in self._parts:
            return part
        raise StopAsyncIteration

    def _seen(self, part: Part) -> ModelEvent:
        event = TextPart(part) if isinstance(part, str) else part
        if isinstance(event, TextPart | ThinkingPart | CallArguments):
            self._size += len(event.text)
        self._calls = self._calls or isinstance(event, CallStart)
        if isinstance(event, Finished):
            self._ending = iter(())
        return event
