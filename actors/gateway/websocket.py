"""A WebSocket over a stream of which the request head was already read.

Invariant: when :func:`serve_websocket` is cancelled, the client is still told so (close frame
and handshake) for at most one second; the session inside is cancelled at once.
"""

from __future__ import annotations

from typing import Final, Protocol

import attrs
import trio
import trio_websocket
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto.utilities import LocalProtocolError

from motet.actors.farewell import cancelled_inside
from motet.actors.gateway.frames import FrameSocket, ReplayingStream
from motet.actors.gateway.http import HEAD_BYTES, HEAD_SECONDS, linger
from motet.protocols.gateway import SUBPROTOCOL

CLOSE_SECONDS: Final = 1.0
_UTF8_ROOM: Final = 123  # bytes of a close reason, RFC 6455 section 5.5


@attrs.frozen
class Ending:
    """How a session ends: ``farewell`` is a last frame; ``broken``: nothing can be written."""

    code: int
    reason: str
    farewell: str | None = None
    broken: bool = False


class Session(Protocol):
    """What talks over an accepted WebSocket."""

    async def run(self, socket: FrameSocket) -> None: ...

    def ending(self) -> Ending:
        """How to close; asked after :meth:`run` returned, raised or was cancelled."""
        ...


async def serve_websocket(
    stream: trio.abc.HalfCloseableStream,
    handshake: bytes,
    *,
    subprotocol: bool,
    frame_limit: int,
    session: Session,
) -> None:
    """Accept the handshake, which was read already, run the session, close as it says.

    Raises what the session raises; when cancelled it closes first, as the session says.
    """
    replaying = ReplayingStream(stream, handshake)
    async with cancelled_inside() as scope:
        closing = None
        try:
            async with trio.open_nursery() as pump:
                socket: WebSocketConnection | None = None
                with scope:
                    socket = await _accepted(pump, replaying, frame_limit, subprotocol)
                    if socket is not None:
                        await session.run(FrameSocket(socket, replaying))
                ending = session.ending()
                if socket is not None and not ending.broken:
                    closing = trio.current_time() + CLOSE_SECONDS
                    with trio.move_on_at(closing):
                        await _close(socket, ending)
                pump.cancel_scope.cancel()
        except* (ConnectionClosed, LocalProtocolError):
            # The client went before it was let in; or trio-websocket answers a ping of it though
            # it has said good-bye.
            pass
        if closing is not None:
            # Closed by trio-websocket itself (frame too large): the stream is still open. By now
            # nobody else uses it.
            with trio.move_on_at(closing):
                await linger(stream)


async def _accepted(
    pump: trio.Nursery, stream: ReplayingStream, frame_limit: int, subprotocol: bool
) -> WebSocketConnection | None:
    with trio.move_on_after(HEAD_SECONDS):
        request = await trio_websocket.wrap_server_stream(
            pump, stream, max_message_size=frame_limit, receive_buffer_size=HEAD_BYTES
        )
        return await request.accept(subprotocol=SUBPROTOCOL if subprotocol else None)
    return None


async def _close(socket: WebSocketConnection, ending: Ending) -> None:
    try:
        if ending.farewell is not None:
            await socket.send_message(ending.farewell)
    except ConnectionClosed:
        pass
    reason = ending.reason.encode()[:_UTF8_ROOM].decode("utf-8", "ignore")
    await socket.aclose(ending.code, reason)
