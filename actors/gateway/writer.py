"""The writer of one connection: the only task that waits for the socket to take frames.

Closing comes after it: :meth:`Writer.close` drops the queued events, and :meth:`Writer.run` returns
when the queued answers are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from motet.actors.gateway.outbox import Outbox
from motet.actors.gateway.websocket import FrameSocket
from motet.protocols import gateway as wire

_ANSWERS_HELD: Final = 64
"""Answers that a client has not taken before its next frame is read."""


class Writer:
    """``sending``: a frame is partly written, so that no other may follow if it is cancelled."""

    def __init__(self, limits: wire.Limits) -> None:
        self.outbox = Outbox(limits)
        self.sending = False
        self._timeout = limits.send_timeout_ms / 1000
        self._socket: FrameSocket | None = None
        self._wake = trio.Event()
        self._written = trio.Event()

    def answer(self, text: str, written: Callable[[], None] | None = None) -> None:
        """Queue an answer; ``written`` is called when it is on its way to the client."""
        self.outbox.answer(text, written)
        self.wake()

    def notice(self, frame: wire.EventFrame) -> None:
        """Queue a frame about the connection itself, if there is room."""
        self.outbox.notice(wire.encode(frame))
        self.wake()

    def wake(self) -> None:
        """The outbox got something."""
        self._wake.set()

    def close(self) -> None:
        """Write only the answers that are queued."""
        self.outbox.seal()
        self.wake()

    def send_now(self, frames: bytes) -> bool:
        """Send frames without waiting if none are queued; false: they have to be queued."""
        if self._socket is None or self.outbox.bytes or self.sending or self.outbox.sealed:
            return False
        sent = self._socket.send_now(frames)
        if sent == "a part":
            self.wake()
        return sent != "nothing"

    async def room_for_answers(self) -> None:
        """Wait until the client has taken most of its answers."""
        while self.outbox.answers >= _ANSWERS_HELD:
            self._written = trio.Event()
            await self._written.wait()

    async def run(self, socket: FrameSocket) -> None:
        """Write until closed. Raises ``trio.TooSlowError`` for a client that takes nothing."""
        self._socket = socket
        while True:
            entries = self.outbox.take()
            if entries or socket.owes:
                # Cancelled, `sending` stays true: the frame may be cut off in its middle, and then
                # not even a close frame can follow.
                with trio.fail_after(self._timeout):
                    self.sending = True
                    await socket.send(b"".join([entry.bytes() for entry in entries]))
                    self.sending = False
                for entry in entries:
                    if entry.written is not None:
                        entry.written()
                self._written.set()
            elif self.outbox.sealed:
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()
