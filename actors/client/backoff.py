"""How long to wait before the next connection. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import attrs

FIRST: Final = 0.5
MOST: Final = 30.0
HEALTHY: Final = 30.0


@attrs.define(eq=False)
class Backoff:
    """Seconds that double from 0.5 to 30 with full jitter, so that many clients do not come back
    together; from the beginning again after a connection that held for 30 s.

    ``chance`` returns numbers in [0, 1).
    """

    chance: Callable[[], float] = random.random
    _failures: int = attrs.field(init=False, default=0)

    def next(self, held: float) -> float:
        """The wait after a connection that held for ``held`` seconds; 0: it was never made."""
        if held >= HEALTHY:
            self._failures = 0
        most = min(MOST, FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return self.chance() * most
