"""Clients of a gateway over memory streams, for its tests; the host is in ``fake_host``."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.protocols import gateway as wire
from tests.actors.gateway.fake_host import FakeHost


class Client:
    """One connection. Events that come while an answer is waited for are kept in order."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.events: deque[wire.EventFrame] = deque()
        self._answers: dict[str, wire.ResponseFrame] = {}
        self._ids = itertools.count(1)

    async def post(self, method: str, **params: object) -> str:
        """Send a request and return its id."""
        request_id = str(next(self._ids))
        await self.socket.send_message(
            wire.encode(wire.RequestFrame(request_id, method, dict(params)))
        )
        return request_id

    async def answer(self, request_id: str) -> wire.ResponseFrame:
        while request_id not in self._answers:
            await self._receive()
        return self._answers.pop(request_id)

    async def ask(self, method: str, **params: object) -> wire.ResponseFrame:
        return await self.answer(await self.post(method, **params))

    async def result(self, method: str, **params: object) -> dict[str, object]:
        """The result of a request that succeeds."""
        answer = await self.ask(method, **params)
        assert answer.ok, answer
        return msgspec.convert(answer.result, dict[str, object])

    async def error(self, method: str, **params: object) -> wire.ErrorBody:
        """The error of a request that fails."""
        answer = await self.ask(method, **params)
        assert isinstance(answer.error, wire.ErrorBody), answer
        return answer.error

    async def event(self) -> wire.EventFrame:
        while not self.events:
            await self._receive()
        return self.events.popleft()

    async def until(self, name: str) -> list[wire.EventFrame]:
        """All events up to the first one of this name."""
        found = [await self.event()]
        while found[-1].event != name:
            found.append(await self.event())
        return found

    async def close_code(self) -> int:
        """Read on until the server closes; the code it gives."""
        try:
            while True:
                await self._receive()
        except ConnectionClosed as closed:
            return closed.reason.code if closed.reason is not None else 0

    async def _receive(self) -> None:
        message = await self.socket.get_message()
        frame = wire.decode_frame(message)
        if isinstance(frame, wire.EventFrame):
            self.events.append(frame)
        elif isinstance(frame, wire.ResponseFrame):
            self._answers[frame.id] = frame


Headers = list[tuple[bytes, bytes]]
Tap = Callable[[bytes], None]


class Tapped(trio.abc.SendStream):
    """A stream whose bytes ``tap`` is called with as they are written."""

    def __init__(self, stream: trio.abc.SendStream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._tap(bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def opened(
    context: Context,
    *,
    headers: Headers | None = None,
    peer: str = "127.0.0.1",
    tap: Tap | None = None,
) -> AsyncGenerator[Client]:
    """A WebSocket to the gateway, before its first frame."""
    theirs, ours = trio.testing.memory_stream_pair()
    served: trio.abc.HalfCloseableStream = theirs
    if tap is not None:
        served = trio.StapledStream(Tapped(theirs.send_stream, tap), theirs.receive_stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, context, served, peer)
        socket = await wrap_client_stream(
            nursery,
            cast("trio.SocketStream", ours),  # any stream does, its signature is too narrow
            "localhost",
            "/ws",
            subprotocols=[wire.SUBPROTOCOL],
            extra_headers=headers,
        )
        try:
            yield Client(socket)
        finally:
            with trio.move_on_after(1, shield=True):
                await socket.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    context: Context, token: str | None = None, *, resume: dict[str, int] | None = None
) -> AsyncGenerator[Client]:
    """A client that has connected."""
    async with opened(context) as client:
        await client.result("connect", auth={"token": token}, resume=resume or {})
        yield client


async def stuck_client(
    nursery: trio.Nursery, context: Context, stream: str, *, after: int | None = None
) -> trio.abc.AsyncResource:
    """A client that subscribes to a stream and then reads no more; close what is returned."""
    theirs, ours = trio.testing.lockstep_stream_pair()
    nursery.start_soon(serve_stream, context, theirs, "stuck")
    async with trio.open_nursery() as reading:
        socket = await wrap_client_stream(
            reading, cast("trio.SocketStream", ours), "localhost", "/ws"
        )
        client = Client(socket)
        await client.result("connect")
        await client.result("subscribe", stream=stream, after=after)
        reading.cancel_scope.cancel()
    return ours


def context_of(host: FakeHost, settings: Settings | None = None) -> Context:
    return Context(host.api, settings or Settings(), now=lambda: 1000.0)
