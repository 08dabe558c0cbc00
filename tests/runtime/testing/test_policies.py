"""Policies are pure: from one seed, one sequence of choices; the search misses none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.testing import DelayBounded, Pct, Policy, Uniform
from motet.runtime.testing.policies import next_choices, played

policies = st.one_of(
    st.just(Uniform()),
    st.builds(DelayBounded, delays=st.integers(0, 9), horizon=st.integers(1, 40)),
    st.builds(Pct, depth=st.integers(1, 9), horizon=st.integers(1, 40)),
)


@given(policies, st.integers(0, 99), st.lists(st.integers(2, 6), max_size=60))
def test_a_choice_is_one_of_the_ready_and_decided_by_the_seed(
    policy: Policy, seed: int, widths: list[int]
) -> None:
    """Law: start(seed) gives the same choices each time, each an index into the ready queue."""
    first, second = policy.start(seed), policy.start(seed)
    for width in widths:
        ready = list(range(width))
        choice = first(ready)
        assert choice in ready
        assert second(ready) == choice


@given(st.integers(0, 9), st.integers(1, 40), st.integers(0, 99))
def test_a_delay_bounded_policy_makes_the_declared_number_of_delays(
    delays: int, horizon: int, seed: int
) -> None:
    """Law: over its horizon the choices add up to the bound, if enough tasks are ready."""
    choose = DelayBounded(delays, horizon).start(seed)
    assert sum(choose(range(100)) for _ in range(horizon)) == delays
    assert choose(range(100)) == 0


def test_priorities_prefer_one_task_until_a_change_point() -> None:
    choose = Pct(depth=1).start(4)
    assert len({choose("abc") for _ in range(50)}) == 1


def test_a_task_that_never_stops_running_does_not_starve_the_others() -> None:
    choose = Pct(depth=1, patience=10).start(4)
    assert {choose("abc") for _ in range(40)} == {0, 1, 2}


@given(st.lists(st.integers(0, 50)))
def test_played_choices_continue_with_zeros(choices: list[int]) -> None:
    """Law: after the last choice all are 0."""
    choose = played(choices)
    assert [choose("abc") for _ in choices] == [choice % 3 for choice in choices]
    assert choose("abc") == 0


@given(st.lists(st.integers(1, 3), max_size=5))
def test_the_search_counts_through_all_choices_in_order(widths: list[int]) -> None:
    """Law: for fixed widths next_choices yields each list of choices once, in order."""
    total = 1
    for width in widths:
        total *= width
    seen: list[tuple[int, ...]] = []
    choices: tuple[int, ...] | None = ()
    while choices is not None:
        seen.append((*choices, *[0] * (len(widths) - len(choices))))
        choices = next_choices(choices, widths)
    assert seen == sorted(set(seen))
    assert len(seen) == total
