"""Blocking work off Trio's thread, with one rule: the outcome that happened is the one reported.

``trio.to_thread.run_sync`` can either ignore a cancellation or abandon the thread. A query wants
a third way: be interrupted, then waited for. Both functions below never return before the job
has ended, so that its connection is free for the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

import apsw
import outcome
import trio

T = TypeVar("T")


async def in_thread(job: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """Run ``job`` in one of Trio's idle threads, which never keep a process alive.

    Cancellation: ``interrupt`` is called, from Trio's thread, and when ``job`` then raises
    ``apsw.InterruptError`` the task is cancelled. A job that ends otherwise, or that has no
    ``interrupt``, delivers its outcome: what was done is never reported as cancelled (G1).
    """
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    cancel: Callable[[], NoReturn] | None = None

    def abort(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        nonlocal cancel
        if interrupt is not None:
            cancel = raise_cancel
            interrupt()
        return trio.lowlevel.Abort.FAILED

    def deliver(result: outcome.Outcome[T]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    trio.lowlevel.start_thread_soon(job, deliver, "motet storage")
    try:
        value: T = await trio.lowlevel.wait_task_rescheduled(abort)
    except apsw.InterruptError:
        if cancel is not None:
            cancel()
        raise
    return value


async def inline(job: Callable[[], T], _interrupt: Callable[[], None] | None = None) -> T:
    """Run ``job`` here: for databases in memory.

    These take microseconds, and without a thread a virtual clock and a seeded schedule stay
    true. Not a checkpoint: whoever asks an actor for it has let others run.
    """
    return job()
