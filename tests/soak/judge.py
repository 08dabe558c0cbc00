"""Judges a daemon's samples: what a process holds must not grow with what it has done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import linear_regression

import attrs

__all__ = ["BLOCKS_PER_RUN", "Sample", "never_ran", "problems"]

BLOCKS_PER_RUN = 1.0
"""Of Python's memory, once the caches are full."""
_SPREAD = {"files": 2, "tasks": 4, "threads": 4, "log": 16 << 20}
"""By which a level at rest may differ: a worker is idle or has ended; the file of the log keeps the
size of its longest time between two checkpoints, which are 4 MB apart."""


@attrs.frozen
class Sample:
    """What a process holds after ``runs`` runs, at rest.

    Attributes:
        blocks: of Python's memory.
        files: open file descriptors.
        tasks: of Trio.
        log: bytes of the write-ahead log.
    """

    runs: int
    blocks: int
    files: int
    tasks: int
    threads: int
    log: int


def problems(samples: Sequence[Sample], most: float = BLOCKS_PER_RUN) -> list[str]:
    """What grows, in words. The first half of the samples is the time in which caches fill.

    ``most``: blocks for each run; a soak of a minute has not filled all caches. Raises
    ``ValueError`` for fewer than eight samples, which tell nothing.
    """
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} samples are too few to judge by: soak longer")
    warm = samples[len(samples) // 2 :]
    found: list[str] = []
    slope = _slope([one.runs for one in warm], [one.blocks for one in warm])
    if slope > most:
        found.append(f"blocks: {slope:.2f} more with each run, at most {most:g}")
    half = len(warm) // 2
    for name, spread in _SPREAD.items():
        levels = [int(getattr(one, name)) for one in warm]
        # The lowest of later times above the highest of earlier ones: that is a slope and no wave.
        if min(levels[half:]) > max(levels[:half]) + spread:
            found.append(f"{name}: {max(levels[:half])}, then at least {min(levels[half:])}")
    return found


def never_ran(ran: Mapping[str, int], paths: Iterable[str]) -> list[str]:
    """The paths that a soak says nothing about, in words."""
    return [f"{path} never ran" for path in paths if not ran.get(path)]


def _slope(runs: Sequence[int], values: Sequence[int]) -> float:
    if runs[0] == runs[-1]:
        return 0.0
    return linear_regression(runs, values).slope
