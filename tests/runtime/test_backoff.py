"""Exponential back-off: growth, bounds and jitter."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.backoff import Backoff

SECONDS = st.floats(0, 1e6)
CHANCE = st.floats(0, 1, exclude_max=True)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    first, most = sorted((draw(SECONDS), draw(SECONDS)))
    factor = draw(st.floats(1, 1e300))
    return Backoff(first, factor, most, jitter=draw(st.floats(0, 1)))


def test_the_delay_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, most=30)
    assert [backoff.longest(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_without_a_first_delay_there_is_none() -> None:
    assert Backoff(0).delay(100, 0) == 0


def test_jitter_takes_off_a_share() -> None:
    assert Backoff(10, jitter=0.2).delay(1, 0.5) == 9


def test_full_jitter_takes_any_part() -> None:
    assert Backoff(10).full_jitter(1, 0) == 0
    assert Backoff(10).full_jitter(1, 0.5) == 5


def test_a_maximum_may_be_missing() -> None:
    assert Backoff(1, most=math.inf).longest(11) == 1024


@given(backoffs(), st.integers(1, 10_000), CHANCE)
def test_every_delay_is_within_its_bounds(backoff: Backoff, failures: int, chance: float) -> None:
    """Law: longest never falls and stays in [first, most]; chance only takes off its share."""
    longest = backoff.longest(failures)
    assert backoff.first <= longest <= backoff.most
    assert longest <= backoff.longest(failures + 1)
    assert longest * (1 - backoff.jitter) <= backoff.delay(failures, chance) <= longest
    assert 0 <= backoff.full_jitter(failures, chance) <= longest


@given(backoffs(), st.integers(-5, 1))
def test_the_first_failure_waits_the_first_delay(backoff: Backoff, failures: int) -> None:
    """Law: before the second failure nothing has grown."""
    assert backoff.longest(failures) == backoff.first


@pytest.mark.parametrize(
    ("first", "factor", "most", "jitter"),
    [(-1, 2, 30, 0), (31, 2, 30, 0), (1, 0.5, 30, 0), (1, 2, 30, -0.1), (1, 2, 30, 1.1)],
)
def test_a_policy_that_makes_no_sense_is_refused(
    first: float, factor: float, most: float, jitter: float
) -> None:
    with pytest.raises(ValueError, match=r"back-off needs|jitter is a share"):
        Backoff(first, factor, most, jitter)
