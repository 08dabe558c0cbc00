"""One sample in a process of its own: ``python -m bench.sample MODULE FUNCTION COUNT``.

It warms up with a tenth of the count, collects the garbage and prints the value that the function
returns. The garbage collector stays on: it is part of what a user pays.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable

__all__ = ["sample"]


def sample(module: str, function: str, count: int) -> float:
    """The value of one measured call."""
    measured: Callable[[int], float] = getattr(importlib.import_module(module), function)
    measured(max(1, count // 10))
    gc.collect()
    return measured(count)


if __name__ == "__main__":
    sys.stdout.write(f"{sample(sys.argv[1], sys.argv[2], int(sys.argv[3]))}\n")
