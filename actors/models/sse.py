"""Server-sent events from the bytes of an SDK's response: decoded here, and read to their end.

The SDK's own decoder stops at the end mark and leaves the generators under it to the collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

import attrs
import msgspec
import trio

END = b"[DONE]"
DRAIN = 1.0
"""Seconds that a server has to end the body behind the end mark."""


@attrs.define
class SseDecoder:
    """Bytes to the data of events; names, ids and comments are passed over.

    Lines end with LF or CRLF alone: JSON may hold every other character that ends a line of text.
    """

    _rest: bytes = attrs.field(default=b"", init=False)
    _data: list[bytes] = attrs.field(factory=list[bytes], init=False)

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of the events that end in these bytes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not name and not value and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


class SseStream:
    """The JSON values of the events in a response; leaving it closes the response.

    Raises ``msgspec.DecodeError`` for data that is no JSON, and what ``received`` raises.
    """

    def __init__(
        self, received: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._received = received
        self._close = close
        self._decoder = SseDecoder()
        self._events: deque[bytes] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._close()

    async def __anext__(self) -> object:
        while not self._events:
            self._events.extend(self._decoder.feed(await anext(self._received)))
        data = self._events.popleft()
        if data == END:
            await self._drain()
            raise StopAsyncIteration
        return msgspec.json.decode(data)

    async def _drain(self) -> None:
        """Read what is behind the end mark, so that the connection can serve again."""
        with trio.move_on_after(DRAIN):
            while True:
                try:
                    await anext(self._received)
                except StopAsyncIteration:
                    return
