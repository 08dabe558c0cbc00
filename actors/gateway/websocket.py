"""A WebSocket over a stream whose request head was already read, and its frames as bytes.

A server's frames are not masked, so that all clients of a stream get the same bytes; and a client
that keeps up gets them from the kernel at once, with no task of its own in between. Invariants:
only whole frames are written, in the order of the calls, whether by the connection or by
trio-websocket, which answers pings and closes; a file descriptor is used only while its socket is
open; when :func:`serve_websocket` is cancelled, the closing handshake still takes place for at most
one second, while the session inside is cancelled at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import trio
import trio_websocket
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto.utilities import LocalProtocolError

from motet.actors.gateway.http import HEAD_BYTES, HEAD_SECONDS, linger
from motet.protocols.gateway import SUBPROTOCOL
from motet.protocols.websocket import CLOSE, FrameHeaders, close_frame, cut_reason
from motet.runtime.scopes import shielded_close

Sent: TypeAlias = Literal["nothing", "a part", "all"]
Spend: TypeAlias = Callable[[int, int], float]
AT_ONCE: Final = 64
"""Frames that are worked on before other tasks run: one read of the socket may have thousands."""


class ReplayingStream(trio.abc.HalfCloseableStream):
    """A stream that first returns the bytes already read from it, with several writers."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, received: bytes) -> None:
        self._stream = stream
        self._received = received
        self._sending = trio.StrictFIFOLock()
        self.owed = b""
        """The rest of :meth:`send_now` that the kernel did not take."""
        self._fileno: Callable[[], int] | None = None
        if isinstance(stream, trio.SocketStream) and sys.platform != "win32":
            self._fileno = stream.socket.fileno
        self.is_cut_off = False
        """A send was cancelled after it had begun, or has failed."""
        self._free = True  # no task sends, and nothing is owed; false for ever when a send failed

    def send_now(self, data: bytes) -> Sent:
        """Give ``data`` to the kernel as far as it takes it.

        The rest of a part goes with the next :meth:`send_all`, before all else.
        """
        if self._fileno is None or not self._free:
            return "nothing"
        try:
            sent = os.write(self._fileno(), data)  # -1 once it is closed
        except OSError:
            return "nothing"  # full, or broken: then the next send raises
        if sent == len(data):
            return "all"
        self.owed, self._free = data[sent:], False
        return "a part"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._free = False
        async with self._sending:
            await trio.lowlevel.checkpoint_if_cancelled()
            # From here on it writes at once, as much as the kernel takes.
            rest, self.owed = self.owed, b""
            try:
                await self._stream.send_all(rest + bytes(data) if rest else data)
            except BaseException:
                self.is_cut_off = True
                raise
        self._free = not self._sending.locked()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self._received:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        size = len(self._received) if max_bytes is None else max_bytes
        data, self._received = self._received[:size], self._received[size:]
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ClientStream(ReplayingStream):
    """The stream that trio-websocket uses. It closes a client that breaks the protocol without a
    word: then it stays open, for :func:`serve_websocket` to tell the client.

    Frames are read as fast as the client has a budget for them, and not counted as messages: pings
    and fragments are work, too.
    """

    sent_close = False

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        handshake: bytes,
        frame_limit: int,
        spend: Spend,
    ) -> None:
        super().__init__(stream, handshake)
        self.headers = FrameHeaders(frame_limit, behind=len(handshake))
        self._spend = spend

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.headers.too_large:  # its bytes may be long in coming
            raise trio.BrokenResourceError("a frame is too large")
        data = await super().receive_some(max_bytes)
        begun = self.headers.frames
        taken = self.headers.take(data, AT_ONCE)
        if taken < len(data) and not self.headers.too_large:
            self._received = bytes(data[taken:]) + self._received
        # The reader waits, so that the kernel's buffers fill up, and the client is slowed down.
        late = self._spend(self.headers.frames - begun, taken)
        if late > 0:
            await trio.sleep(late)
        return data[:taken]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent_close = self.sent_close or data[:1] == CLOSE
        await super().send_all(data)

    async def aclose(self) -> None:
        if self.sent_close:
            await super().aclose()


class FrameSocket:
    """A WebSocket that takes frames as bytes.

    Calls that wait raise ``ConnectionClosed`` when the client has gone.
    """

    def __init__(self, socket: WebSocketConnection, stream: ReplayingStream) -> None:
        self._socket = socket
        self._stream = stream

    async def get_message(self) -> str | bytes:
        return await self._socket.get_message()

    async def ping(self) -> None:
        """Returns when the pong has come."""
        await self._socket.ping()

    @property
    def owes(self) -> bool:
        """Whether a rest of :meth:`send_now` is still to be sent."""
        return bool(self._stream.owed)

    @property
    def is_cut_off(self) -> bool:
        """Whether a frame was cut off in its middle, so that nothing can follow."""
        return self._stream.is_cut_off

    def send_now(self, frames: bytes) -> Sent:
        """Send without waiting, as much as the kernel takes."""
        if self._socket.closed is not None:
            return "nothing"
        return self._stream.send_now(frames)

    async def send(self, frames: bytes) -> None:
        """Send all of it, after what is owed. Cancelled, the connection is unusable."""
        reason = self._socket.closed
        if reason is not None:
            raise ConnectionClosed(reason)
        await self._stream.send_all(frames)


CLOSE_SECONDS: Final = 1.0
_FAILURES: Final = frozenset({1002, 1003, 1007, 1008, 1009, 1011})


@attrs.frozen
class Ending:
    """The end of a session. ``broken``: nothing can be written any more."""

    code: int
    reason: str
    last_frame: str | None = None
    broken: bool = False


class Session(Protocol):
    """The user of an accepted WebSocket."""

    def spend(self, frames: int, size: int) -> float:
        """Count frames of the client, and their bytes; the seconds until it may send more."""
        ...

    async def run(self, socket: FrameSocket) -> None: ...

    def ending(self) -> Ending:
        """Called after :meth:`run` returned, raised or was cancelled."""
        ...


async def serve_websocket(
    stream: trio.abc.HalfCloseableStream,
    handshake: bytes,
    *,
    subprotocol: bool,
    frame_limit: int,
    session: Session,
) -> None:
    """Accept the handshake, which was read already, run the session, close with its ending.

    Raises the errors of the session. Cancelled, it closes first, within :data:`CLOSE_SECONDS`.
    """
    replaying = _ClientStream(stream, handshake, frame_limit, session.spend)
    async with shielded_close() as scope:
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
                        await _close(socket, replaying, ending)
                pump.cancel_scope.cancel()
        except* (ConnectionClosed, LocalProtocolError):
            # The client went before the handshake ended; or trio-websocket answers a ping of a
            # client that has closed already.
            pass
        if closing is not None:
            # Closed by trio-websocket itself (frame too large), or after an error of the client,
            # the stream is still open. No other task uses it any more.
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


async def _close(socket: WebSocketConnection, stream: _ClientStream, ending: Ending) -> None:
    failed, large = socket.closed, stream.headers.too_large
    if failed is not None and not stream.sent_close and (large or failed.code in _FAILURES):
        # trio-websocket ends without a word when the client breaks the protocol.
        code = failed.code if failed.code in _FAILURES else 1009
        await stream.send_all(close_frame(code, failed.reason or ""))
        return
    try:
        if ending.last_frame is not None:
            await socket.send_message(ending.last_frame)
    except ConnectionClosed:
        pass
    await socket.aclose(ending.code, cut_reason(ending.reason))
