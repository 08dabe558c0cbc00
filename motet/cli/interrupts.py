"""Signals that interrupt a wait and nothing else. For the main thread of a program.

Python raises ``KeyboardInterrupt`` between any two instructions. Here a signal raises inside of
``with interrupts.waiting():`` only; one that comes at another time raises when that is entered.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # it came from there

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
        if self._waiting:
            self._waiting = False
            raise Interrupted(number)
        self._pending = number
