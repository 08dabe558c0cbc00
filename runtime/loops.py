"""The event loop that runs the caller, for calls that block and would hold it up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import current_thread, get_ident
from typing import Literal

import trio

from motet.runtime.errors import ActorDead, WrongLoop

_INSTEAD = "use ref.threadsafe() for messages, and system.portal() for all else"


class HomeLoop:
    """The run of Trio that a system lives in, for callers that may be elsewhere.

    A system is used in its own thread only, since nothing in it has a lock. Two ways lead in from
    other threads and loops, both through Trio's token: :meth:`post` and what stands on it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.thread = get_ident()
        self.name = current_thread().name
        self.token = trio.lowlevel.current_trio_token()
        self.task = trio.lowlevel.current_task()

    def check(self, path: str) -> None:
        """Raise :class:`WrongLoop` in any other thread. Its loops are other loops, if it has any.

        The thread of the system may be in another loop too: in asyncio, with Trio as its guest or
        blocked by it. There all works that does not wait; :meth:`outside` is the error of a wait.
        """
        if get_ident() != self.thread:
            problem = f"lives in the thread {self.name!r} and was used in another"
            raise WrongLoop(path, problem, _INSTEAD)

    def outside(self, path: str) -> WrongLoop:
        """The error for a wait that is begun outside of Trio's tasks."""
        return WrongLoop(path, "was awaited outside of Trio's tasks", _INSTEAD)

    def in_task(self) -> bool:
        """Whether the caller is a task of this very run of Trio."""
        return get_ident() == self.thread and trio.lowlevel.in_trio_task()

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the loop soon, in the order of the posts; from any thread.

        It must not raise. Every call that was accepted runs before the loop ends. ActorDead: the
        loop has ended.
        """
        try:
            self.token.run_sync_soon(call)
        except trio.RunFinishedError:
            raise ActorDead(self.path, "its loop has ended") from None

    def refuse_to_block(self, path: str) -> None:
        """Raise :class:`WrongLoop` where a blocking wait would hold up a loop."""
        if get_ident() == self.thread:
            problem = "would wait for the thread that this call blocks"
            raise WrongLoop(path, problem, "await the reference's own methods, or take the future")
        here = loop_here()
        if here is not None:
            problem = f"would block the loop of {here} in this thread"
            raise WrongLoop(path, problem, "take the future, which asyncio.wrap_future awaits")


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
