"""Rates: never more than the limit, a refusal costs nothing, idle names take no memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.rates import SlidingWindow, SlidingWindows, TokenBucket, TokenBuckets

times = st.lists(st.floats(0, 50), max_size=40).map(sorted)


def test_a_burst_passes_and_the_next_one_is_told_how_long_to_wait() -> None:
    bucket = TokenBucket(rate=1, burst=10)
    assert [bucket.take(0.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(0.0) == 1.0
    assert bucket.take(0.5) == 0.5
    assert bucket.take(1.0) == 0.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_a_bucket_never_gives_more_than_burst_and_rate(times: list[float]) -> None:
    """Law: in any span of t seconds at most burst + rate * t are let through."""
    bucket = TokenBucket(rate=2, burst=5)
    passed = [now for now in sorted(times) if bucket.take(now) == 0]
    for i, start in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= 5 + 2 * (passed[j] - start) + 1e-6


def test_full_buckets_are_forgotten() -> None:
    buckets = TokenBuckets(rate=1, burst=2)
    buckets.take("a", 0.0)
    buckets.take("b", 9.5)
    buckets.forget_idle(10.0)
    assert len(buckets) == 1


@given(st.integers(1, 4), times)
def test_no_window_has_more_calls_than_the_limit(limit: int, some: list[float]) -> None:
    """Of calls at any times, no ``limit + 1`` that were let through lie within one period."""
    one = SlidingWindow(limit, 10.0)
    taken = [at for at in some if one.take(at) == 0]
    assert all(late - early >= 10.0 for early, late in zip(taken, taken[limit:], strict=False))


@given(st.integers(1, 4), times, st.floats(50, 60))
def test_after_the_wait_that_is_told_a_call_is_let_through(
    limit: int, some: list[float], now: float
) -> None:
    """What a refusal says is true, and refusals move nothing."""
    one = SlidingWindow(limit, 10.0)
    for at in some:
        one.take(at)
    wait = one.take(now)
    if wait > 0:
        assert one.take(now + wait / 2) > 0
        assert one.take(now + wait + 1e-6) == 0


def test_thirty_failures_refuse_an_address_until_the_first_one_is_old() -> None:
    failures = SlidingWindows[str](period=300)
    for second in range(30):
        assert failures.wait("a", second) == 0
        failures.record("a", 30, second)
    assert failures.wait("a", 29) == 271
    assert failures.wait("b", 29) == 0
    assert failures.wait("a", 300) == 0


def test_an_event_above_the_limit_replaces_the_oldest_one() -> None:
    window = SlidingWindow(limit=2, period=10)
    for second in (0, 4, 6):
        window.record(second)
    assert window.wait(7) == 7


def test_idle_windows_are_forgotten_and_the_least_recently_used_goes_first() -> None:
    windows = SlidingWindows[str](period=10, most=5)
    for second in range(9):
        assert windows.take(str(second), 1, second) == 0
    assert len(windows) == 5
    assert windows.take("8", 1, 9) > 0
    windows.forget_idle(16)
    assert len(windows) == 2
