"""Buckets and windows, by a clock that is an argument."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway.auth import Buckets, FailureWindow, TokenBucket


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
    buckets = Buckets(rate=1, burst=2)
    buckets.take("a", 0.0)
    buckets.take("b", 9.5)
    buckets.forget_idle(10.0)
    assert len(buckets) == 1


def test_thirty_failures_refuse_an_address_until_the_first_one_is_old() -> None:
    window = FailureWindow(limit=30, period=300)
    for second in range(30):
        assert window.refused_for("a", second) == 0
        window.record("a", second)
    assert window.refused_for("a", 29) == 271
    assert window.refused_for("b", 29) == 0
    assert window.refused_for("a", 300) == 0


def test_addresses_that_failed_long_ago_are_forgotten_and_the_memory_is_bounded() -> None:
    window = FailureWindow(limit=3, period=10, names=5)
    for index in range(9):
        window.record(str(index), index)
    assert len(window) == 5
    window.forget_old(16)
    assert len(window) == 2
