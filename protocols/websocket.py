"""Frames of WebSockets as bytes (RFC 6455): those of a server, and the headers of a client's. Pure.

A server's frames are not masked, so that all clients of a stream get the same bytes.
"""

from __future__ import annotations

import sys
from typing import Final

TEXT: Final = b"\x81"
"""The first byte of the last frame of a text message (section 5.2)."""
CLOSE: Final = b"\x88"
_REASON_ROOM: Final = 123  # bytes, section 5.5


def text_frame(payload: bytes) -> bytes:
    """A text message of a server as one frame."""
    size = len(payload)
    if size < 126:
        return TEXT + bytes((size,)) + payload
    if size < 65_536:
        return TEXT + b"\x7e" + size.to_bytes(2, "big") + payload
    return TEXT + b"\x7f" + size.to_bytes(8, "big") + payload


def close_frame(code: int, reason: str) -> bytes:
    """A Close frame of a server; ``reason`` is cut to what it can hold."""
    payload = code.to_bytes(2, "big") + cut_reason(reason).encode()
    return CLOSE + bytes((len(payload),)) + payload


def cut_reason(reason: str) -> str:
    """The reason of a close, as far as a Close frame can hold it."""
    return reason.encode()[:_REASON_ROOM].decode("utf-8", "ignore")


class FrameHeaders:
    """The headers among the bytes of a client (RFC 6455, section 5.2), whatever their parts.

    ``behind``: the bytes of the handshake, which come first.
    """

    def __init__(self, limit: int, behind: int = 0) -> None:
        self.too_large = False
        """A frame was announced that is larger than the limit."""
        self.frames = 0
        """Frames that have begun."""
        self._limit = limit
        self._header = bytearray()
        self._payload = behind  # bytes to skip

    def take(self, data: bytes | bytearray, most: int = sys.maxsize) -> int:
        """How many of the bytes go on: all, or up to the size of the frame that is too large, or up
        to where more than ``most`` frames would begin.
        """
        at, most = 0, self.frames + most
        while at < len(data) and not self.too_large:
            if self._payload:
                skipped = min(self._payload, len(data) - at)
                self._payload -= skipped
                at += skipped
                continue
            header = self._header
            if not header:
                if self.frames >= most:
                    break
                self.frames += 1
            header.append(data[at])
            at += 1
            if len(header) < 2:
                continue
            size = header[1] & 0x7F
            extended = {126: 2, 127: 8}.get(size, 0)
            if len(header) < 2 + extended:
                continue
            if extended:
                size = int.from_bytes(header[2:], "big")
            self.too_large = size > self._limit
            self._payload = size + (4 if header[1] & 0x80 else 0)  # with its mask
            header.clear()
        return at
