"""How often somebody may do something. Pure: the time is always an argument, in seconds.

Invariant: memory is bounded by the number of names that are not at rest.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs


@attrs.define
class TokenBucket:
    """``burst`` at once, refilled at ``rate`` per second."""

    rate: float
    burst: float
    level: float = attrs.field(init=False)
    at: float = attrs.field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self.level = self.burst

    def take(self, now: float) -> float:
        """Take one and return 0, or take none and return the seconds until one is there."""
        self._refill(now)
        if self.level >= 1:
            self.level -= 1
            return 0.0
        return (1 - self.level) / self.rate

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self.level >= self.burst

    def _refill(self, now: float) -> None:
        self.level = min(self.burst, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)


@attrs.define
class Buckets:
    """One bucket per name; those that are full again are forgotten."""

    rate: float
    burst: float
    _buckets: dict[str, TokenBucket] = attrs.field(init=False, factory=dict[str, TokenBucket])

    def take(self, name: str, now: float) -> float:
        """As :meth:`TokenBucket.take`, for the bucket of ``name``."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self.rate, self.burst)
            bucket.at = now
        return bucket.take(now)

    def forget_idle(self, now: float) -> None:
        full = [name for name, bucket in self._buckets.items() if bucket.is_full(now)]
        for name in full:
            del self._buckets[name]

    def __len__(self) -> int:
        return len(self._buckets)


@attrs.define
class FailureWindow:
    """Names with ``limit`` failures in the last ``period`` seconds are refused.

    At most ``names`` are remembered; the one that failed least recently goes first.
    """

    limit: int
    period: float
    names: int = 10_000
    _failures: OrderedDict[str, deque[float]] = attrs.field(
        init=False, factory=OrderedDict[str, "deque[float]"]
    )

    def record(self, name: str, now: float) -> None:
        times = self._failures.setdefault(name, deque(maxlen=self.limit))
        times.append(now)
        self._failures.move_to_end(name)
        if len(self._failures) > self.names:
            self._failures.popitem(last=False)

    def refused_for(self, name: str, now: float) -> float:
        """Seconds that ``name`` is still refused; 0 when it is not."""
        times = self._failures.get(name)
        if times is None or len(times) < self.limit:
            return 0.0
        return max(0.0, times[0] + self.period - now)

    def forget_old(self, now: float) -> None:
        old = [name for name, times in self._failures.items() if times[-1] + self.period <= now]
        for name in old:
            del self._failures[name]

    def __len__(self) -> int:
        return len(self._failures)
