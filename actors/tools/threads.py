"""Worker threads for tools that are plain functions.

A thread cannot be killed: a cancelled call, or one that is out of time, waits until its function
returns. What such a wait is for can be asked, so that a stop never waits silently (G2).
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import attrs
import trio
from trio.lowlevel import RunVar

THREADS = 40
"""Calls at once, of all hosts of a program; more wait for a thread."""


@attrs.define(eq=False)
class _Call:
    run_id: str
    tool: str
    thread: int = 0

    def begin(self, function: Callable[[], object]) -> object:
        self.thread = threading.get_ident()
        return function()

    def place(self) -> str:
        """Where its function is just now."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # it is documented
        frame = frames.get(self.thread)
        if frame is None:
            return "it waits for a thread"
        mine = [one for one in traceback.extract_stack(frame) if one.filename != __file__]
        file = Path(mine[-1].filename).name  # its folder is nobody's business but the host's
        return f"it is in {mine[-1].name}, {file} line {mine[-1].lineno}"


@attrs.define(eq=False)
class _Threads:
    """Not trio's default limiter: slow tools must not starve other users of threads."""

    limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS))
    calls: list[_Call] = attrs.field(factory=list[_Call])


_threads: RunVar[_Threads] = RunVar("motet tool threads")


async def run_in_thread(function: Callable[[], object], *, run_id: str, tool: str) -> object:
    """Call a function in a thread. Cancelling waits until it has returned; then it is cancelled."""
    threads, call = _of_this_loop(), _Call(run_id, tool)
    threads.calls.append(call)
    try:
        return await trio.to_thread.run_sync(
            partial(call.begin, function), abandon_on_cancel=False, limiter=threads.limiter
        )
    finally:
        threads.calls.remove(call)


def held_by(run_ids: Collection[str]) -> list[str]:
    """What keeps these runs from ending: each function in a thread, and where it is."""
    return [
        f"{call.run_id}: tool {call.tool!r} runs in a thread, which nothing can end: {call.place()}"
        for call in _of_this_loop().calls
        if call.run_id in run_ids
    ]


def _of_this_loop() -> _Threads:
    try:
        return _threads.get()
    except LookupError:
        _threads.set(_Threads())
        return _threads.get()
