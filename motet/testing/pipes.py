"""A pipe in memory with the bounds of the kernel's, so that a fast writer waits for its reader.

Invariants: data written before the close of the writer can still be read; no operation waits for a
side that is closed.
"""

from __future__ import annotations

import trio

__all__ = ["PIPE_SIZE", "PipeReader", "PipeWriter", "pipe"]

PIPE_SIZE = 1 << 16
"""Bytes that fit into a pipe, as on Linux; a writer waits for room."""

PAUSE = 0.01
"""Seconds that it takes to write as much. Without them an endless writer would use no virtual time,
and no deadline would ever end it."""


class _Pipe:
    def __init__(self) -> None:
        self.content = bytearray()
        self.read_closed = False
        self.write_closed = False
        self.changed = trio.lowlevel.ParkingLot()


class PipeWriter(trio.abc.SendStream):
    """The writing end; closing it ends the stream after the written data."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._since_pause = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Wait for room. A cancelled call has written a part. See :class:`trio.abc.SendStream`."""
        await trio.lowlevel.checkpoint()
        pipe, rest = self._pipe, bytes(data)
        self._check()
        while rest:
            room = PIPE_SIZE - len(pipe.content)
            if room:
                part, rest = rest[:room], rest[room:]
                pipe.content += part
                pipe.changed.unpark_all()
                await self._take_time(len(part))
            else:
                await pipe.changed.park()
            self._check()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        while len(self._pipe.content) == PIPE_SIZE and not self._pipe.read_closed:
            await self._pipe.changed.park()
            self._check()

    def close(self) -> None:
        self._pipe.write_closed = True
        self._pipe.changed.unpark_all()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    async def _take_time(self, size: int) -> None:
        self._since_pause += size
        if self._since_pause >= PIPE_SIZE:
            self._since_pause -= PIPE_SIZE
            await trio.sleep(PAUSE)

    def _check(self) -> None:
        if self._pipe.write_closed:
            raise trio.ClosedResourceError("this end of the pipe was closed")
        if self._pipe.read_closed:
            raise trio.BrokenResourceError("the reader of the pipe has gone")


class PipeReader(trio.abc.ReceiveStream):
    """The reading end; closing it makes writes fail."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The available data, at least one byte; empty at the end. A cancelled call takes none."""
        await trio.lowlevel.checkpoint()
        pipe = self._pipe
        while not (pipe.content or pipe.write_closed or pipe.read_closed):
            await pipe.changed.park()
        if pipe.read_closed:
            raise trio.ClosedResourceError("this end of the pipe was closed")
        chunk = bytes(pipe.content[:max_bytes])
        del pipe.content[:max_bytes]
        pipe.changed.unpark_all()
        return chunk

    def close(self) -> None:
        self._pipe.read_closed = True
        self._pipe.changed.unpark_all()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def pipe() -> tuple[PipeWriter, PipeReader]:
    """The two ends of a new pipe."""
    shared = _Pipe()
    return PipeWriter(shared), PipeReader(shared)
