"""The retry policy: what is tried again, how often, and after how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.models.provider import DEFAULT, GiveUp, Retry, decide
from motet.protocols.models import ModelFailure

PASSING = ["rate_limit", "timeout", "connection", "cut", "overloaded", "server"]
LASTING = ["auth", "quota", "bad_request", "context_exhausted"]

kinds = st.sampled_from(PASSING + LASTING)
waits = st.none() | st.floats(0, 1e6)
chances = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("kind", LASTING)
def test_a_permanent_failure_is_never_retried(kind: str) -> None:
    failure = ModelFailure("no", kind=kind, retry_after=0.0)
    assert decide(failure, 1, 0.5) == GiveUp()


@pytest.mark.parametrize("kind", PASSING)
def test_a_passing_failure_is_tried_four_times_in_all(kind: str) -> None:
    failure = ModelFailure("no", kind=kind)
    decisions = [decide(failure, attempt, 0.5) for attempt in range(1, 5)]
    assert [isinstance(decision, Retry) for decision in decisions] == [True, True, True, False]
    assert decisions[3] == GiveUp("after 4 attempts")


def test_the_bound_of_the_delay_doubles_from_half_a_second() -> None:
    failure = ModelFailure("no", kind="server")
    delays = [decide(failure, attempt, 0.5) for attempt in (1, 2, 3)]
    assert delays == [Retry(0.25), Retry(0.5), Retry(1.0)]


def test_a_wait_that_the_provider_asks_for_wins() -> None:
    assert decide(ModelFailure("no", kind="rate_limit", retry_after=7.0), 1, 0.9) == Retry(7.0)


def test_a_wait_that_is_too_long_ends_it_and_says_so() -> None:
    failure = ModelFailure("no", kind="rate_limit", retry_after=600.0)
    decision = decide(failure, 1, 0.0)
    assert decision == GiveUp("the provider asks to wait 600 s, longer than the 120 s we wait")


@given(kinds, st.integers(1, 50), waits, chances)
def test_delays_are_bounded_and_attempts_finite(
    kind: str, attempt: int, wait: float | None, chance: float
) -> None:
    """Law: no fifth attempt; our own delays are within [0, 30], asked ones within [0, 120]."""
    decision = decide(ModelFailure("no", kind=kind, retry_after=wait), attempt, chance)
    if isinstance(decision, Retry):
        assert attempt < DEFAULT.attempts
        assert kind in PASSING
        assert 0 <= decision.delay <= (DEFAULT.backoff.most if wait is None else DEFAULT.patience)
