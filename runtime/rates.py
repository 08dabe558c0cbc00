"""Rate limits: a token bucket for a steady rate, a sliding window for "at most N in a period".

Pure: the time is an argument, in seconds. Invariants: a refusal uses nothing of the limit, and the
wait that it names is enough; memory is bounded by the names that were used lately.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)


@attrs.define
class TokenBucket:
    """``burst`` at once, refilled at ``rate`` per second."""

    rate: float
    burst: float
    at: float = 0.0
    level: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.level = self.burst

    def take(self, now: float) -> float:
        """Take one and return 0, or take none and return the seconds until one is there."""
        self._refill(now)
        if self.level >= 1:
            self.level -= 1
            return 0.0
        return (1 - self.level) / self.rate

    def spend(self, cost: float, now: float) -> float:
        """Take ``cost``, also what is not there yet; return the seconds until that has come."""
        self._refill(now)
        self.level -= cost
        return max(0.0, -self.level / self.rate)

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self.level >= self.burst

    def _refill(self, now: float) -> None:
        self.level = min(self.burst, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)


@attrs.define
class TokenBuckets:
    """One bucket per name; full ones are forgotten, since a new one is the same."""

    rate: float
    burst: float
    _buckets: dict[str, TokenBucket] = attrs.field(init=False, factory=dict[str, TokenBucket])

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """As :meth:`TokenBucket.take`, from the bucket of ``name``."""
        return self._bucket(name, now).take(now)

    def spend(self, name: str, cost: float, now: float) -> float:
        """As :meth:`TokenBucket.spend`, from the bucket of ``name``."""
        return self._bucket(name, now).spend(cost, now)

    def _bucket(self, name: str, now: float) -> TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self.rate, self.burst, now)
        return bucket

    def forget_idle(self, now: float) -> None:
        full = [name for name, bucket in self._buckets.items() if bucket.is_full(now)]
        for name in full:
            del self._buckets[name]


@attrs.define
class SlidingWindow:
    """At most ``limit`` events in any ``period``. ``idle``: when the last one stops to count."""

    limit: int
    period: float
    idle: float = attrs.field(default=-inf, init=False)
    _events: OrderedDict[object, float] = attrs.field(
        factory=OrderedDict[object, float], init=False
    )

    def take(self, now: float, event: object = None) -> float:
        """Count an event and return 0, or count none and return the seconds to wait.

        ``event``: its identity. One that was counted already passes without being counted again.
        """
        wait = self.wait(now)
        if wait == 0 and event not in self._events:
            self._events[object() if event is None else event] = now
            self.idle = now + self.period
        return 0.0 if event in self._events else wait

    def wait(self, now: float) -> float:
        """Seconds until the next event may come; 0: now."""
        events = self._events
        while events:
            oldest = next(iter(events.values()))
            if now < oldest + self.period:
                return 0.0 if len(events) < self.limit else oldest + self.period - now
            events.popitem(last=False)
        return 0.0

    def record(self, now: float, event: object = None) -> None:
        """Count an event that happened, also above the limit: then the oldest one is dropped."""
        if len(self._events) >= self.limit:
            self._events.popitem(last=False)
        self._events[object() if event is None else event] = now
        self.idle = now + self.period


@attrs.define
class SlidingWindows(Generic[K]):
    """One window per name, at most ``most``: idle ones are dropped, then the least recently used.

    A limit is above 0 and an argument of each call, since it may change while events still count.
    """

    period: float
    most: int = 10_000
    _windows: OrderedDict[K, SlidingWindow] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._windows = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, name: K, limit: int, now: float, event: object = None) -> float:
        """As :meth:`SlidingWindow.take`, in the window of ``name``."""
        wait = self._used(name, limit).take(now, event)
        self.forget_idle(now)
        return wait

    def record(self, name: K, limit: int, now: float) -> None:
        """As :meth:`SlidingWindow.record`, in the window of ``name``."""
        self._used(name, limit).record(now)
        self.forget_idle(now)

    def wait(self, name: K, now: float) -> float:
        """As :meth:`SlidingWindow.wait`, in the window of ``name``. It does not count as a use."""
        window = self._windows.get(name)
        return 0.0 if window is None else window.wait(now)

    def forget_idle(self, now: float) -> None:
        # In the order of their last use, so that looking at the first one is enough.
        while self._windows:
            name, window = next(iter(self._windows.items()))
            if now < window.idle and len(self._windows) <= self.most:
                return
            del self._windows[name]

    def _used(self, name: K, limit: int) -> SlidingWindow:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = SlidingWindow(limit, self.period)
        window.limit = limit
        self._windows.move_to_end(name)
        return window
