"""One sample in a separate process: ``python -m bench.sample MODULE FUNCTION COUNT``.

It warms up with a tenth of the count, collects garbage and prints the values of the function. The
garbage collector stays on, since users pay for it, too.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable

__all__ = ["sample", "work_of"]


def work_of(module: str, function: str) -> Callable[[int], tuple[float, ...]]:
    """Import the function, which returns one value or several."""
    measured: Callable[[int], float | tuple[float, ...]] = getattr(
        importlib.import_module(module), function
    )

    def work(count: int) -> tuple[float, ...]:
        values = measured(count)
        return values if isinstance(values, tuple) else (values,)

    return work


def sample(work: Callable[[int], tuple[float, ...]], count: int) -> tuple[float, ...]:
    """The values of one measured call."""
    work(max(1, count // 10))
    gc.collect()
    return work(count)


if __name__ == "__main__":
    print(*sample(work_of(sys.argv[1], sys.argv[2]), int(sys.argv[3])))
