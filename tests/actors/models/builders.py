"""Requests, scripted models and a raw server, shared by the tests of this folder."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import attrs
import msgspec
import trio

from motet.protocols.chat import ChatMessage, JsonObject, UserMessage
from motet.protocols.models import Finished, Model, ModelEvent, ModelRequest, TextPart
from motet.protocols.tools import ToolSpec

NOTHING: JsonObject = {}

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def request(*rows: ChatMessage | str, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    """A request with these rows; a plain text is a user's."""
    messages = tuple(UserMessage(row) if isinstance(row, str) else row for row in rows)
    return ModelRequest(model="some-model", messages=messages, tools=tuple(tools))


async def events_of(model: Model, asked: ModelRequest) -> list[ModelEvent]:
    async with model.request(asked) as events:
        return [event async for event in events]


Step: TypeAlias = ModelEvent | Exception | float
"""An event to give, an error to raise, or seconds to be silent."""


def say(text: str) -> tuple[Step, ...]:
    return (TextPart(text), Finished("stop"))


@attrs.define
class ScriptedModel:
    """Plays one script per attempt; the last one again for every further attempt."""

    scripts: Sequence[Sequence[Step]]
    name: str = "scripted:model"
    attempts: int = 0
    open: int = 0
    most_open: int = 0
    at: list[float] = attrs.field(factory=list[float])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        script = self.scripts[min(self.attempts, len(self.scripts) - 1)]
        self.attempts += 1
        self.at.append(trio.current_time())
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield Played(list(script))
        finally:
            self.open -= 1


@attrs.define
class Played:
    """The events of a script, with its silences and its error."""

    steps: list[Step]

    def __aiter__(self) -> "Played":
        return self

    async def __anext__(self) -> ModelEvent:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if not isinstance(step, int | float):
                await trio.lowlevel.checkpoint()
                return step
            await trio.sleep(step)
        raise StopAsyncIteration


Handler: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


@asynccontextmanager
async def raw_server(handler: Handler, bodies: list[bytes] | None = None) -> AsyncGenerator[str]:
    """A server that reads one request of each connection and leaves the rest to the handler.

    ``bodies`` gets what was read.
    """

    async def serve(stream: trio.SocketStream) -> None:
        body = await read_request(stream)
        if bodies is not None:
            bodies.append(body)
        await handler(stream)

    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(listen)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def read_request(stream: trio.SocketStream) -> bytes:
    """The body of one request with a content length; empty when the connection has ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        received = await stream.receive_some()
        if not received:
            return b""
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2])
    while len(body) < length:
        body += await stream.receive_some()
    return body


def sse(*data: object, event: str = "") -> bytes:
    """The chunk of a chunked body that carries these server-sent events."""
    text = b"".join(
        (f"event: {event}\n".encode() if event else b"")
        + b"data: "
        + (item if isinstance(item, bytes) else msgspec.json.encode(item))
        + b"\n\n"
        for item in data
    )
    return b"%x\r\n%s\r\n" % (len(text), text)


def http_error(status: int, body: object, *headers: str) -> bytes:
    data = msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status} No", "content-type: application/json", *headers]
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""])
    return head.encode() + data
