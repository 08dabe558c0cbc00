"""Exponential back-off: the seconds to wait after each failure in a row. Pure.

One policy for supervisors, providers of models, tools, MCP servers and clients. It holds no state
and draws no chance: callers count failures, and pass a number from their own random source, so
that a simulation repeats every delay (G12).
"""

from __future__ import annotations

import msgspec

__all__ = ["Backoff"]

# A long row of failures would overflow the power. 64 doublings are past any maximum, and with a
# smaller factor the delay only stays a little below it.
_MOST_STEPS = 64


class Backoff(msgspec.Struct, frozen=True):
    """Delays that grow from ``first`` by ``factor`` to ``most`` seconds.

    With 0 for ``first`` there is never a delay. Chance spreads the delays, so that those that
    failed together do not come back together: :meth:`delay` takes off up to the share ``jitter``,
    which keeps most of the pause for a resource that needs one; :meth:`full_jitter` takes any part
    of it, which spreads best, for many clients of one server.
    """

    first: float
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.most and self.factor >= 1):
            raise ValueError(
                "back-off needs 0 <= first <= most and factor >= 1, not "
                f"first {self.first}, most {self.most} and factor {self.factor}"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share between 0 and 1, not {self.jitter}")

    def longest(self, failures: int) -> float:
        """Seconds after the ``failures``-th failure in a row, before chance takes anything off."""
        if self.first == 0:
            return 0.0
        steps = min(max(failures - 1, 0), _MOST_STEPS)
        try:
            return min(self.first * self.factor**steps, self.most)
        except OverflowError:
            return self.most

    def delay(self, failures: int, chance: float) -> float:
        """Seconds with ``jitter``; ``chance`` is in [0, 1)."""
        return self.longest(failures) * (1 - self.jitter * chance)

    def full_jitter(self, failures: int, chance: float) -> float:
        """Seconds drawn from the whole of [0, longest); ``chance`` is in [0, 1)."""
        return chance * self.longest(failures)
