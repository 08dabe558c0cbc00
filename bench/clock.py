"""Measures samples: operations per second, and bytes per object."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

__all__ = ["Watch", "resident"]


class Watch:
    """A stop-watch that starts when it is made; by default of this process's CPU time.

    CPU time equals wall time as long as nothing waits for a disk or network, and has less noise
    from other processes.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._began = clock()

    def seconds(self) -> float:
        return self._clock() - self._began

    def rate(self, count: int) -> float:
        """Operations per second, for ``count`` operations since the start."""
        return count / self.seconds()


def resident() -> int:
    """Resident bytes of this process after a full collection; Linux only."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
