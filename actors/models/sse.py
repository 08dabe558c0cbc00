"""Server-sent events as an SDK hands out their lines: decoded here, and read to their very end.

The SDK's own decoder stops at the end mark and leaves the generators under it to the collector.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import attrs
import msgspec
import trio

END = "[DONE]"
DRAIN = 1.0
"""Seconds that a server has to end the body behind the end mark."""


@attrs.define
class SseDecoder:
    """Lines without their ends to the data of events; names, ids and comments are passed over."""

    _data: list[str] = attrs.field(factory=list[str], init=False)

    def feed(self, line: str) -> str | None:
        """The data of the event that this line ends, if it ends one that has data."""
        if not line:
            data, self._data = "\n".join(self._data), []
            return data or None
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None


class SseStream:
    """The JSON values of the events in these lines; leaving it closes the response.

    Raises ``msgspec.DecodeError`` for data that is no JSON, and what the lines raise.
    """

    def __init__(self, lines: AsyncIterator[str], close: Callable[[], Awaitable[None]]) -> None:
        self._lines = lines
        self._close = close
        self._decoder = SseDecoder()

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
        while True:
            data = self._decoder.feed(await anext(self._lines))
            if data == END:
                await self._drain()
                raise StopAsyncIteration
            if data is not None:
                return msgspec.json.decode(data)

    async def _drain(self) -> None:
        """Read what is behind the end mark, so that the connection can serve again."""
        with trio.move_on_after(DRAIN):
            while True:
                try:
                    await anext(self._lines)
                except StopAsyncIteration:
                    return
