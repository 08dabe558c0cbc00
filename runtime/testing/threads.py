"""Inline threads: in a simulation, functions for a thread run in the calling task.

Invariant: only the function with which Trio starts a thread is replaced, so that limits,
cancellation and context variables are those of :func:`trio.to_thread.run_sync`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import outcome

from motet.runtime.testing.guards import NotSimulated
from motet.runtime.testing.lines import blamed
from motet.runtime.testing.scheduler import patched, threads_of_trio

__all__ = ["WouldBlock", "inline_threads"]

T = TypeVar("T")


class WouldBlock(NotSimulated):
    """A thread's function would wait for Trio in Trio's own thread, at ``line``."""

    def __init__(self, line: str) -> None:
        RuntimeError.__init__(
            self,
            f"{line} used trio.from_thread.run inside a simulation, where the functions of threads "
            "run in Trio's own thread, which cannot wait for itself: make it an async function, "
            "or use trio.from_thread.run_sync for a function that does not wait",
        )
        self.guard = "thread"
        self.line = line


@contextmanager
def inline_threads(note: Callable[[NotSimulated], None] | None = None) -> Generator[None]:
    """Have ``trio.to_thread.run_sync`` in this thread start no threads during the block.

    The function runs after a checkpoint, in no virtual time, with the limiter held. Its result
    arrives in a later step, as a thread's does. In it ``trio.from_thread.check_cancelled`` and
    ``run_sync`` work; ``run`` raises :class:`WouldBlock`, with which ``note`` is called too.
    """
    trio_threads = threads_of_trio()
    mine, depth = threading.get_ident(), 0
    start: Callable[..., None] = trio_threads.start_thread_soon
    send: Callable[..., object] = trio_threads._send_message_to_trio

    def start_here(
        fn: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], object],
        name: str | None = None,
    ) -> None:
        nonlocal depth
        if threading.get_ident() != mine:
            start(fn, deliver, name)
            return
        depth += 1
        try:
            result = outcome.capture(fn)
        finally:
            depth -= 1
        deliver(result)

    def send_here(token: Any, message: Any) -> object:
        if threading.get_ident() != mine or not depth:
            return send(token, message)
        if isinstance(message, trio_threads.RunSync):
            result: object = message.unprotected_fn()
            return result
        error = WouldBlock(blamed(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
        if note is not None:
            note(error)
        raise error

    with patched(
        [
            (trio_threads, "start_thread_soon", start_here),
            (trio_threads, "_send_message_to_trio", send_here),
        ]
    ):
        yield
