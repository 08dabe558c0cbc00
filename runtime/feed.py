"""A bounded stream of what happens, for one who looks on: the kernel never waits for a reader.

Invariant: what a slow reader misses is counted in ``missed``, and the rest keeps its order.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

__all__ = ["FEED_BUFFER", "Feed", "joined"]

T = TypeVar("T")

FEED_BUFFER = 1024  # items a reader may be behind


class Feed(Generic[T]):
    """Iterate over it: ``async for item in feed``. It ends when its block is left."""

    def __init__(self, buffer: int = FEED_BUFFER) -> None:
        if not 1 <= buffer < math.inf:
            raise ValueError(f"a feed holds a bounded number of items, at least 1, not {buffer}")
        self._send, self._receive = trio.open_memory_channel[T](buffer)
        self.missed = 0  # items that found the buffer full

    def publish(self, item: T) -> None:
        """Hand over one item, or count it as missed; for the kernel."""
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            self.missed += 1

    def close(self) -> None:
        """No further item follows; those that are there can be read."""
        self._send.close()

    def receive_nowait(self) -> T:
        """The next item; raises ``trio.WouldBlock`` if there is none now."""
        return self._receive.receive_nowait()

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> T:
        """The next item. Cancelled: none is lost."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        return f"<Feed: {self._receive.statistics().current_buffer_used} items>"


@contextmanager
def joined(feeds: list[Feed[T]], buffer: int) -> Generator[Feed[T]]:
    """A new feed among ``feeds`` while the block lasts."""
    feed = Feed[T](buffer)
    feeds.append(feed)
    try:
        yield feed
    finally:
        feeds.remove(feed)
        feed.close()
