"""A circuit breaker as a state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from motet.runtime.breaker import Breaker, BreakerPolicy


def failing(breaker: Breaker, times: int, now: float = 0.0) -> Breaker:
    for _ in range(times):
        breaker, epoch = breaker.admit(now)
        assert epoch is not None
        breaker = breaker.failed(epoch, now)
    return breaker


def test_the_fifth_failure_in_a_row_takes_the_tool_out() -> None:
    four = failing(Breaker(), 4)
    assert four.state == "closed"
    assert failing(four.succeeded(four.epoch), 4).state == "closed"
    five = failing(four, 1)
    assert five.state == "open"
    assert not five.offers(29.9)
    assert five.offers(30)
    assert five.admit(29.9)[1] is None


def test_one_probe_at_a_time_and_two_successes_close_it() -> None:
    half, probe = failing(Breaker(), 5).admit(30)
    assert half.state == "half_open"
    assert probe is not None
    assert half.admit(30)[1] is None
    once = half.succeeded(probe)
    assert once.state == "half_open"
    again, second = once.admit(31)
    assert second is not None
    closed = again.succeeded(second)
    assert (closed.state, closed.failures, closed.opens) == ("closed", 0, 0)


def test_a_probe_that_was_cancelled_frees_its_place() -> None:
    half, probe = failing(Breaker(), 5).admit(30)
    assert probe is not None
    assert half.abandoned(probe).admit(30)[1] == probe


def test_each_opening_lasts_twice_as_long_up_to_the_cap_until_it_closes() -> None:
    breaker, now, lengths = failing(Breaker(), 5), 0.0, list[float]()
    for _ in range(7):
        lengths.append(breaker.until - now)
        now = breaker.until
        breaker = failing(breaker, 1, now)
    assert lengths == [30, 60, 120, 240, 480, 600, 600]


def test_a_call_from_before_the_opening_changes_nothing() -> None:
    closed, old = Breaker().admit(0)
    assert old is not None
    opened = failing(closed, 5)
    assert opened.failed(old, 1) == opened.succeeded(old) == opened.abandoned(old) == opened
    half, _ = opened.admit(30)
    assert half.failed(old, 31) == half.succeeded(old) == half


@pytest.mark.parametrize(
    "wrong", [{"failures": 0}, {"successes": 0}, {"base": 0}, {"base": 9, "cap": 5}, {"jitter": 1}]
)
def test_a_policy_that_could_not_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="breaker"):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_lie_between_their_bounds(opens: int, chance: float) -> None:
    """Law: base * (1 - jitter) <= delay <= cap, and without jitter never shorter than before."""
    policy = BreakerPolicy()
    assert 24 <= policy.delay(opens, chance) <= 600
    assert policy.delay(opens) <= policy.delay(opens + 1)


class AnyOrder(RuleBasedStateMachine):
    """Law: the rules of the module hold for calls that start and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0.0
        self.running: list[int] = []

    @rule(seconds=st.floats(0, 700))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_begins(self) -> None:
        before = self.breaker
        self.breaker, epoch = before.admit(self.now)
        assert (epoch is not None) >= (before.state == "closed")
        assert before.offers(self.now) or epoch is None
        if epoch is not None:
            self.running.append(epoch)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from(["ok", "failed", "cancelled"]))
    def a_call_ends(self, data: st.DataObject, end: str) -> None:
        epoch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        before = self.breaker
        match end:
            case "ok":
                self.breaker = before.succeeded(epoch)
            case "failed":
                self.breaker = before.failed(epoch, self.now)
            case _:
                self.breaker = before.abandoned(epoch)
        if epoch != before.epoch:
            assert self.breaker == before

    @invariant()
    def at_most_one_probe_is_under_way(self) -> None:
        if self.breaker.state == "half_open":
            probes = self.running.count(self.breaker.epoch)
            assert probes == int(self.breaker.probing)

    @invariant()
    def it_never_stays_open_for_longer_than_the_cap(self) -> None:
        if self.breaker.state == "open":
            assert self.breaker.until <= self.now + self.breaker.policy.cap


TestAnyOrder = AnyOrder.TestCase
