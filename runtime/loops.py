"""The thread and the event loop that run the caller."""

from __future__ import annotations

import sys
from threading import RLock
from typing import Final, Literal, Protocol

import trio

__all__ = [
    "NO_THREAD",
    "ThreadMark",
    "loop_here",
    "mark_thread",
    "refuse_in_asyncio",
    "refuse_in_loop",
]


class ThreadMark(Protocol):
    """The mark of one thread: a lock that it holds for ever, and that nobody else ever takes.

    Whether the caller is in that thread is asked for each message. To ask a lock for its owner
    takes 5 ns. The comparison of ``get_ident()`` with a kept number takes 20, since it makes an
    integer, and that was a twentieth of a tell. The name is private, but ``threading.Condition``
    asks any lock that it is given for this method.
    """

    def _is_owned(self) -> bool: ...


def mark_thread() -> ThreadMark:
    """A mark of the calling thread."""
    mark = RLock()
    mark.acquire()
    return mark  # type: ignore[return-value]  # typeshed leaves out the method


NO_THREAD: Final[ThreadMark] = RLock()  # type: ignore[assignment]  # as above; nobody holds it


def loop_here() -> Literal["trio", "asyncio"] | None:
    """The loop whose thread a blocking call would hold up, None outside of any.

    In guest mode both loops share a thread; what counts is which of them runs the caller.
    """
    if trio.lowlevel.in_trio_task():
        return "trio"
    asyncio = sys.modules.get("asyncio")  # a program that has not imported it runs no loop of it
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return "asyncio"
    return None


def refuse_in_asyncio(what: str, instead: str) -> None:
    """Raise ``RuntimeError`` inside of asyncio, with what to write there instead."""
    if loop_here() == "asyncio":
        raise RuntimeError(f"{what} runs on Trio and was called inside asyncio: {instead}")


def refuse_in_loop(what: str, *, trio: str, asyncio: str) -> None:
    """Raise ``RuntimeError`` inside of a loop, with what to write there instead."""
    here = loop_here()
    if here is not None:
        instead = trio if here == "trio" else asyncio
        raise RuntimeError(f"{what} was called inside {here}, whose loop it would block: {instead}")
