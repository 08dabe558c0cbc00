"""Policies are pure: from one seed, one sequence of choices; the search misses none."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.testing import DelayBounded, Pct, Policy, Simulation, Uniform, run
from motet.runtime.testing.policies import (
    AT_REST,
    EACH,
    Holds,
    Mixed,
    Places,
    Speeds,
    next_choices,
    played,
    within,
)

policies = st.one_of(
    st.just(Uniform()),
    st.builds(DelayBounded, delays=st.integers(0, 9), horizon=st.integers(1, 40)),
    st.builds(Pct, depth=st.integers(1, 9), horizon=st.none() | st.integers(1, 40)),
    st.just(Speeds()),
    st.builds(
        Holds,
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4).map(tuple),
    ),
    st.builds(Mixed, st.none() | st.integers(1, 40)),
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


# ---------------------------------------------------------------- holds


def test_a_held_task_waits_for_its_number_of_choices() -> None:
    choose = Holds(((1, 3),)).start(0)
    assert [choose("ab") for _ in range(6)] == [0, 1, 1, 1, 0, 0]


def test_a_task_that_is_held_at_rest_goes_on_when_all_others_wait() -> None:
    choose = Holds(((0, AT_REST),)).start(0)
    assert [choose("ab") for _ in range(50)] == [1] * 50
    assert choose("b") == 0
    assert choose("ab") == 0


def test_all_held_tasks_go_on_when_no_other_is_ready() -> None:
    choose = Holds(((0, AT_REST), (1, AT_REST))).start(0)
    assert [choose("abc"), choose("abc"), choose("ab")] == [1, 2, 0]


def test_a_task_is_held_at_a_place_in_the_code() -> None:
    choose = Places(((1, EACH, 2), (0, 3, 1))).start(lambda task: task)
    assert choose("ab") == 0  # the first turn at A
    assert choose("ba") == 1  # at B, which is held for two choices
    assert [choose("ba"), choose("ca")] == [1, 0]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 99))
def test_a_policy_within_a_part_chooses_there_as_it_does_alone(
    first: int, end: int, seed: int
) -> None:
    """Law: from first to end the choices are those of the policy, and 0 elsewhere."""
    alone, part = Uniform().start(seed), within(Uniform().start(seed), first, end)
    for choice in range(40):
        chosen = alone("abcd")
        assert part("abcd") == (chosen if first <= choice < end else 0)


# ---------------------------------------------------------------- the portfolio

TASKS, STEPS = 4, 20

Order = dict[tuple[int, int], int]
"""The time of each step of each task."""


async def crowd(_: Simulation) -> Order:
    """Four tasks of twenty steps."""
    order: Order = {}

    async def work(task: int) -> None:
        for step in range(STEPS):
            await trio.lowlevel.checkpoint()
            order[task, step] = len(order)

    async with trio.open_nursery() as nursery:
        for task in range(TASKS):
            nursery.start_soon(work, task)
    return order


def overtaken(order: Order) -> bool:
    """Depth 1: the last task has ended before the first one took a step."""
    return order[3, STEPS - 1] < order[0, 0]


def met(order: Order) -> bool:
    """Depth 2: a step of one task fell between two neighbours of another."""
    return order[0, 10] < order[3, 10] < order[0, 11]


def met_late(order: Order) -> bool:
    """Depth 2, where the one is far ahead of the other."""
    return order[0, 8] < order[3, 14] < order[0, 11]


def schedules_until(found: Callable[[Order], bool], first: int) -> int:
    seed = first
    while not found(run(crowd, seed=seed, traced=False).check()):
        seed += 1
    return seed - first + 1


@pytest.mark.parametrize(
    ("found", "most", "searches"), [(overtaken, 5, 200), (met, 60, 40), (met_late, 60, 40)]
)
def test_the_default_policy_finds_an_order_in_few_schedules(
    found: Callable[[Order], bool], most: int, searches: int
) -> None:
    assert mean(schedules_until(found, 1_000 * n) for n in range(searches)) <= most


@pytest.mark.sweep
@pytest.mark.parametrize("found", [met, met_late])
def test_the_default_policy_finds_a_meeting_from_any_seed(
    found: Callable[[Order], bool],
) -> None:
    assert mean(schedules_until(found, 7_919 * n) for n in range(200)) <= 60


def test_any_eight_seeds_in_a_row_take_the_whole_portfolio() -> None:
    portfolio = Mixed(80)
    kinds = {repr(portfolio.policy(seed)) for seed in range(8)}
    assert all({repr(portfolio.policy(s + n)) for s in range(8)} == kinds for n in range(9))
