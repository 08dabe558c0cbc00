"""One budget for a run and all runs below it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.budget import Budget, OverBudget
from motet.protocols.limits import Limits
from motet.protocols.models import Usage


def used(tokens: int, cost: float | None = 0.0) -> Usage:
    return Usage(tokens, 0, cost=cost)


def test_a_child_spends_its_parents_budget_too() -> None:
    root = Budget(Limits(tokens=100, tool_calls=3))
    child = root.child(Limits(tokens=80))

    child.spend(used(80))
    child.spend_calls(2)

    assert child.exhausted() == "tokens"
    assert root.exhausted() is None
    assert (root.usage.total_tokens, root.tool_calls) == (80, 2)
    assert (root.calls_left(), child.calls_left()) == (1, 1)
    root.spend(used(20))
    assert root.exhausted() == "tokens"


def test_a_parents_end_is_its_childrens_end_but_turns_are_each_runs_own() -> None:
    root = Budget(Limits(usd=1.0, turns=1))
    child = root.child(Limits(turns=2))
    assert (root.spend_turn(), child.spend_turn()) == (1, 1)
    assert root.exhausted() == "turns"
    assert child.exhausted() is None
    root.spend(used(1, cost=1.0))
    assert child.exhausted() == "usd"


def test_what_is_expected_has_to_fit_beside_all_that_is_in_flight() -> None:
    root = Budget(Limits(tokens=100))
    one, other = root.child(Limits()), root.child(Limits())
    one.hold(used(60))
    assert other.refuses(used(40)) is None
    with pytest.raises(OverBudget, match="tokens"):
        other.hold(used(41))
    one.release(used(60))
    assert other.refuses(used(100)) is None
    assert other.refuses(used(101)) == "tokens"


def test_what_is_expected_of_a_request_is_what_the_others_were() -> None:
    root = Budget(Limits(usd=1.0))
    assert root.expects(10) == Usage(10)
    assert root.expects(10, most=5) == Usage(10, 5)
    root.spend(Usage(60, 40, cost=0.5))
    child = root.child(Limits())
    assert child.expects(60) == Usage(60, 40, cost=0.5)
    assert child.expects(60, most=140) == Usage(60, 140, cost=1.0)
    assert child.refuses(child.expects(61)) == "usd"


def test_the_wall_time_of_a_parent_ends_its_children() -> None:
    root = Budget(Limits(wall=10), started=100)
    child = root.child(Limits(wall=60), started=105)
    assert child.deadline == 110
    assert child.exhausted(109.9) is None
    assert child.exhausted(110) == "wall"
    assert Budget(Limits()).deadline == inf


def test_depth_is_bounded_by_every_run_above() -> None:
    root = Budget(Limits(depth=2))
    grandchild = root.child(Limits(depth=5)).child(Limits(depth=5))
    assert grandchild.refuses_child() == "depth"
    assert root.child(Limits(depth=0)).refuses_child() == "depth"
    with pytest.raises(OverBudget, match="depth"):
        grandchild.child(Limits())


def test_only_children_that_are_alive_count() -> None:
    root = Budget(Limits(children=2))
    first, _ = root.child(Limits()), root.child(Limits())
    assert root.refuses_child() == "children"
    first.close()
    first.close()
    assert root.children == 1
    assert root.refuses_child() is None


def test_an_unknown_price_is_warned_of_once_and_the_known_ones_still_count() -> None:
    root = Budget(Limits(usd=1.0))
    child = root.child(Limits())
    assert root.warning() == ""
    child.spend(used(10, cost=None))
    assert "limits.usd cannot be checked" in child.warning()
    assert root.warning() == child.warning() == ""
    assert root.usage.cost is None
    child.spend(used(10, cost=1.0))
    assert root.exhausted() == "usd"


def test_without_a_limit_in_dollars_an_unknown_price_is_no_matter() -> None:
    budget = Budget(Limits())
    budget.spend(used(10, cost=None))
    assert budget.warning() == ""


parts = st.builds(
    Usage,
    st.integers(0, 50),
    st.integers(0, 50),
    cost=st.none() | st.integers(0, 20).map(float),
)


@given(st.lists(parts))
def test_a_sum_has_a_cost_only_when_each_part_has_one(some: list[Usage]) -> None:
    """Law: unknown is unknown, never zero; tokens add up; the order makes no difference."""
    total, turned = sum(some, Usage()), sum(reversed(some), Usage())
    assert total == turned
    assert total.total_tokens == sum(part.total_tokens for part in some)
    assert total.unpriced == any(part.unpriced for part in some)
    known = [part.cost for part in some if part.cost is not None]
    assert total.cost == (sum(known) if known and not total.unpriced else None)


limits = st.builds(
    Limits,
    tokens=st.none() | st.integers(1, 300),
    usd=st.none() | st.integers(1, 30).map(float),
    tool_calls=st.none() | st.integers(1, 10),
    depth=st.integers(0, 3),
    children=st.integers(0, 3),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["child", "close", "begin", "begin", "end", "calls"]),
        st.integers(0, 20),
        parts,
        parts,
    ),
    max_size=40,
)


class Tree:
    """A tree of budgets as runs use it, beside a naive account of everything that was spent."""

    def __init__(self, limits: Limits) -> None:
        self.budgets = [Budget(limits)]
        self.flying: list[tuple[Budget, Usage, Usage]] = []
        self.spent: list[tuple[Budget, Usage]] = []
        self.calls: list[tuple[Budget, int]] = []

    def step(self, what: str, at: int, expected: Usage, actual: Usage, limits: Limits) -> None:
        budget = self.budgets[at % len(self.budgets)]
        match what:
            case "child" if budget.refuses_child() is None:
                self.budgets.append(budget.child(limits))
            case "close":
                budget.close()
            case "begin" if budget.refuses(expected) is None:
                budget.hold(expected)
                self.flying.append((budget, expected, actual))
            case "end" if self.flying:
                self.end(self.flying.pop(at % len(self.flying)))
            case "calls" if (left := budget.calls_left()) is None or at <= left:
                budget.spend_calls(at)
                self.calls.append((budget, at))
            case _:
                pass

    def end(self, flight: tuple[Budget, Usage, Usage]) -> None:
        budget, expected, actual = flight
        budget.spend(actual)
        budget.release(expected)
        self.spent.append((budget, actual))

    def below(self, level: Budget) -> list[Usage]:
        return [usage for budget, usage in self.spent if level in budget.lineage]


@given(limits, limits, steps)
def test_sums_are_those_of_the_subtree(
    top: Limits, other: Limits, script: list[tuple[str, int, Usage, Usage]]
) -> None:
    """Law: a level's usage, dollars and calls are those of its run and all runs below it."""
    tree = Tree(top)
    for what, at, expected, actual in script:
        tree.step(what, at, expected, actual, other)
    for level in tree.budgets:
        below = tree.below(level)
        assert level.usage == sum(below, Usage())
        assert level.usd == sum(usage.cost or 0.0 for usage in below)
        assert level.tool_calls == sum(n for budget, n in tree.calls if level in budget.lineage)
        allowed = level.limits.tool_calls
        assert allowed is None or level.tool_calls <= allowed


@given(limits, limits, steps, st.booleans())
def test_no_level_is_overspent_by_more_than_was_not_expected(
    top: Limits, other: Limits, script: list[tuple[str, int, Usage, Usage]], honest: bool
) -> None:
    """Law: with requests one after another, no level's limit is exceeded by more than one request;
    with many at once, not at all when none of them costs more than was expected of it."""
    tree = Tree(top)
    for what, at, expected, actual in script:
        tree.step(what, at, expected, expected if honest else actual, other)
        if not honest and tree.flying:
            tree.end(tree.flying.pop())
    while tree.flying:
        tree.end(tree.flying.pop())
    for level in tree.budgets:
        below = tree.below(level)
        tokens = 0 if honest else max((usage.total_tokens for usage in below), default=0)
        usd = 0.0 if honest else max((usage.cost or 0.0 for usage in below), default=0.0)
        if level.limits.tokens is not None:
            assert level.usage.total_tokens <= level.limits.tokens + tokens
        if level.limits.usd is not None:
            assert level.usd <= level.limits.usd + usd


@given(limits, st.lists(st.integers(0, 5), max_size=12))
def test_a_tree_is_never_deeper_or_wider_than_each_of_its_runs_allows(
    each: Limits, places: list[int]
) -> None:
    """Law: no run has more living children than its own limit, or descendants below its depth."""
    tree = Tree(each)
    for at in places:
        tree.step("child", at, Usage(), Usage(), each)
    for level in tree.budgets:
        assert level.children <= level.limits.children
        for below, above in enumerate(level.lineage):
            assert below <= above.limits.depth


def test_time_that_stands_still_is_no_wall_time_also_while_it_does() -> None:
    """A run is suspended while it waits for a person: what it has used is stored then."""
    budget = Budget(Limits(wall=30), started=100.0)
    assert budget.elapsed(105.0) == 5
    budget.pause(110.0)
    budget.pause(120.0)
    assert budget.elapsed(500.0) == 10
    budget.resume(130.0)
    assert budget.elapsed(500.0) == 10
    budget.resume(400.0)
    assert budget.elapsed(405.0) == 15
