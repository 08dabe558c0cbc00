"""Feeds: bounded streams for observers, and what a system has of them: dead letters, restarts.

Invariant: the kernel never waits for a reader. Items that found the reader's buffer full are
counted in ``missed``; the others keep their order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Generic, Literal, NoReturn, TypeVar

import msgspec
import trio

from motet.runtime.telemetry import DEAD_LETTERS, Meter

__all__ = [
    "FEED_BUFFER",
    "DeadLetter",
    "DeadLetters",
    "Feed",
    "FeedBlock",
    "RestartEvent",
    "Restarts",
    "joined",
]

T = TypeVar("T")

FEED_BUFFER = 1024  # items by which a reader may be behind


class Feed(Generic[T]):
    """Iterate over it: ``async for item in feed``. It ends when its block is left."""

    def __init__(self, buffer: int = FEED_BUFFER) -> None:
        if not 1 <= buffer < math.inf:
            raise ValueError(f"a feed holds a bounded number of items, at least 1, not {buffer}")
        self._send, self._receive = trio.open_memory_channel[T](buffer)
        self.missed = 0  # items that found the buffer full

    def publish(self, item: T) -> None:
        """Pass one item to the reader, or count it as missed; for the kernel."""
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            self.missed += 1

    def close(self) -> None:
        """End the feed; items in the buffer can still be read."""
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


class FeedBlock(AbstractContextManager[Feed[T], None]):
    """A feed before ``with``: to use it is an error that says so."""

    def __init__(self, block: AbstractContextManager[Feed[T]]) -> None:
        self._block = block

    def __enter__(self) -> Feed[T]:
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(
            f"a feed has no {attribute!r} before its block: use `with ... as feed:`, and "
            f"feed.{attribute} in that block",
            name=attribute,
            obj=self,
        )

    def __aiter__(self) -> NoReturn:
        raise TypeError(_NOT_OPEN)

    def __await__(self) -> NoReturn:
        raise TypeError(_NOT_OPEN)

    async def __aenter__(self) -> NoReturn:
        raise TypeError(_NOT_OPEN)

    async def __aexit__(self, *_error: object) -> None:
        """Never called; Python looks for it before ``__aenter__``."""


_NOT_OPEN = (
    "a feed is opened by a plain `with`: use `with ... as feed:`, and `async for item in feed:` in "
    "that block"
)


def joined(feeds: list[Feed[T]], buffer: int) -> FeedBlock[T]:
    """A new feed among ``feeds`` while the block lasts."""
    return FeedBlock(_joined(feeds, buffer))


@contextmanager
def _joined(feeds: list[Feed[T]], buffer: int) -> Generator[Feed[T]]:
    feed = Feed[T](buffer)
    feeds.append(feed)
    try:
        yield feed
    finally:
        feeds.remove(feed)
        feed.close()


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that no handler has finished, and the reason."""

    path: str
    message: object
    reason: str


class DeadLetters:
    """The dead letters of a system: counted, the last hundred kept, and new ones to follow."""

    KEPT = 100

    def __init__(self, meter: Meter | None = None) -> None:
        self.count = 0
        self._meter = meter
        self._feeds: list[Feed[DeadLetter]] = []
        self._last: deque[DeadLetter] = deque(maxlen=self.KEPT)

    @property
    def last(self) -> tuple[DeadLetter, ...]:
        """The most recent dead letters, oldest first."""
        return tuple(self._last)

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self._last.append(letter)
        for feed in self._feeds:
            feed.publish(letter)
        if self._meter is not None:
            self._meter.count(DEAD_LETTERS, letter.path)

    def follow(self, buffer: int = FEED_BUFFER) -> AbstractContextManager[Feed[DeadLetter]]:
        """Follow new ones: ``with system.dead_letters.follow() as letters: async for letter in …``.

        No actor waits for the reader; ``letters.missed`` counts those that found ``buffer`` full.
        """
        return joined(self._feeds, buffer)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.last)

    def __repr__(self) -> str:
        return f"<DeadLetters: {self.count}>"


class RestartEvent(msgspec.Struct, frozen=True):
    """The decision of a supervisor on an actor that has failed, or that restarts with its group.

    ``restart``: the actor at ``path`` is built again after ``delay`` seconds of back-off, for the
    ``restarts``-th time. ``give_up``: it has failed too often, and ends for ever. ``escalate``: its
    parent crashes because of it. ``error`` is that of the actor at ``by``: the same one, or a
    sibling whose end restarts the group; None if that has ended by itself.
    """

    path: str
    kind: Literal["restart", "give_up", "escalate"]
    by: str
    error: str | None
    restarts: int
    delay: float = 0.0


class Restarts:
    """The restarts of a system: counted, and to follow. An event comes when it is decided."""

    def __init__(self) -> None:
        self.count = 0  # without those that were given up
        self._feeds: list[Feed[RestartEvent]] = []

    def add(self, event: RestartEvent) -> None:
        self.count += event.kind == "restart"
        for feed in self._feeds:
            feed.publish(event)

    def follow(self, buffer: int = FEED_BUFFER) -> AbstractContextManager[Feed[RestartEvent]]:
        """Follow new ones: ``with system.restarts.follow() as restarts: async for event in …``.

        No supervisor waits for the reader; ``restarts.missed`` counts those that found ``buffer``
        full.
        """
        return joined(self._feeds, buffer)

    def __repr__(self) -> str:
        return f"<Restarts: {self.count}>"
