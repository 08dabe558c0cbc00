"""What is kept of an output of any length: its beginning and its end, in bounded memory."""

from __future__ import annotations

import codecs


class HeadTail:
    """The first and the last bytes of a stream; at most ``room`` of them, and as much again.

    ``total`` counts all bytes that were added.
    """

    def __init__(self, room: int) -> None:
        self._head_room = room // 2
        self._tail_room = room - self._head_room
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes | bytearray) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        missing = self._head_room - len(self._head)
        self._head += data[:missing]
        self._tail += data[missing:][-self._tail_room :]
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def text(self) -> str:
        """What was kept, as text; invalid UTF-8 is replaced, and what was left out is counted."""
        tail = self._tail[-self._tail_room :]
        cut = self.total - len(self._head) - len(tail)
        if not cut:
            return (self._head + tail).decode("utf-8", "replace")
        # A character that the cut went through is part of what was left out.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        begin = next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        shown = tail[begin:].decode("utf-8", "replace")
        return f"{head}\n[... {cut:,} of {self.total:,} bytes left out ...]\n{shown}"
