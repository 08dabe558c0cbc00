"""Signals that interrupt a wait and nothing else. For the main thread of a program.

Python raises ``KeyboardInterrupt`` between any two instructions. Here a signal raises inside of
``with interrupts.waiting():`` only; one that comes at another time raises when that is entered.

A blocking call in C can miss a signal that comes just before it begins to wait: readline does,
between two keys. So a thread of this module interrupts the main thread until it has noticed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUDGE = signal.SIGURG
"""Ignored by default, so nobody is harmed by one that comes late."""
NOTICE = 0.05
"""Seconds in which the main thread is expected to notice a signal by itself."""


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler must be there: an ignored signal interrupts no system call."""


class Interrupted(BaseException):
    """A signal came. Not an ``Exception``, so that no library catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Holds the signals for the length of its ``with`` block.

    ``wakeup``: a non-blocking descriptor that gets a byte with each signal. A ``select`` on its
    other end misses none, not even one that comes just before it begins.
    """

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._waiting = False
        self._pending: int | None = None
        self._before: dict[int, object] = {}
        self._noticed = threading.Event()
        self._alarm = -1
        self._before_alarm = -1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        self._before[NUDGE] = signal.signal(NUDGE, _nothing)
        reader, self._alarm = os.pipe()
        os.set_blocking(self._alarm, False)
        self._before_alarm = signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        threading.Thread(
            target=self._insist, args=(reader, threading.get_ident()), daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before_alarm)
        os.close(self._alarm)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # it came from there

    def _insist(self, reader: int, main: int) -> None:
        """Pass each wake-up on; interrupt the main thread until it has noticed the signal."""
        while numbers := os.read(reader, 4096):
            if all(number == NUDGE for number in numbers):
                continue
            with suppress(BlockingIOError):  # Full of wake-ups: whoever waits there wakes.
                os.write(self._wakeup, numbers)
            while not self._noticed.wait(NOTICE):
                signal.pthread_kill(main, NUDGE)
            self._noticed.clear()
        os.close(reader)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Raise :class:`Interrupted` in this block when a signal comes, or came before it."""
        self._waiting = True
        try:
            if self._pending is not None:
                raise Interrupted(self._pending)
            yield
        finally:
            self._waiting = False
            self._pending = None

    def _came(self, number: int, _: FrameType | None) -> None:
        self._noticed.set()
        if self._waiting:
            self._waiting = False
            raise Interrupted(number)
        self._pending = number
