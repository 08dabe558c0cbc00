"""The handler's end of a request that has items before its answer.

Nobody gets them if it was told, or asked only; :class:`Taken` gives each to a function of the
asker, and ``stream.py`` has those that wait for a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from motet.runtime.ask import TakingAsk

__all__ = ["Replies", "Taken"]

T_contra = TypeVar("T_contra", contravariant=True)


class Replies(Generic[T_contra]):
    """The handler's end of a stream. These go to nobody: the request was told, or asked only."""

    async def send(self, item: T_contra) -> None:
        """Send one item; waits while a reader is 64 items behind. Cancelled: it was not sent.

        Raises ``trio.BrokenResourceError`` after the asker has left, or has failed to take an
        item. If the request was told or asked instead of streamed, nobody reads, and the item is
        discarded.
        """
        del item
        await trio.lowlevel.checkpoint()

    def send_nowait(self, item: T_contra) -> None:
        """As ``send``, but raises ``trio.WouldBlock`` while a reader is 64 items behind."""


class Taken(Replies[T_contra]):
    """Gives each item to the asker's function, which is done with it when ``send`` returns.

    The first error of that function is the outcome of the ask, and no item is given after it, nor
    after the asker was cancelled or has its outcome (G1, G3).
    """

    # Any: the types were checked where the handler was declared, and where it was asked.
    def __init__(self, ask: TakingAsk, take: Callable[[Any], object]) -> None:
        self._ask = ask
        self._take = take

    async def send(self, item: T_contra) -> None:
        await trio.lowlevel.checkpoint()
        self.send_nowait(item)

    def send_nowait(self, item: T_contra) -> None:
        ask = self._ask
        if ask.settled or ask.cancelled_at is not None:
            raise trio.BrokenResourceError("the asker takes no items any more") from ask.failure
        try:
            self._take(item)
        except Exception as error:
            ask.fail(error)
            raise trio.BrokenResourceError("the asker failed to take an item") from error
