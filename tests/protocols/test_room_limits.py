"""Budgets of rooms: the rules alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.limits import Limits
from motet.protocols.room_limits import (
    DAY,
    HOUR,
    NANO,
    ROOM,
    Allowance,
    Budgets,
    Costs,
    Planned,
    Spent,
    plan,
    refusal,
    shares,
)

NOON = 20_000 * DAY * HOUR + 12 * HOUR + 60.0
"""A minute past noon of 2024-10-04."""
COUNTS = st.none() | st.integers(1, 60)
ALLOWANCES = st.builds(
    Allowance, turns=COUNTS, tokens=COUNTS, usd=st.none() | st.integers(1, 60).map(float)
)
SPENT = st.builds(
    Spent, st.integers(0, 70), st.integers(0, 70), st.integers(0, 70).map(lambda n: n * NANO)
)
MEMBERS: list[str] = ["x", "y", "z"]
PEOPLE = st.lists(st.sampled_from("abc"), max_size=3)


def test_a_refusal_names_the_budget_and_when_it_opens_again() -> None:
    budgets = Budgets(
        hour=Allowance(turns=5), day=Allowance(usd=2.5), person_day=Allowance(tokens=1000)
    )
    costs = Costs(
        {ROOM: Spent(5, 0, 0), "al": Spent()}, {ROOM: Spent(9, 0, 2 * NANO), "al": Spent(0, 1000)}
    )
    assert refusal(budgets, costs, ROOM, NOON) == (
        "the room has used the 5 turns of this hour: agents answer again from 2024-10-04 13:00 UTC"
    )
    assert refusal(budgets, costs, "al", NOON) == (
        "al has used the 1,000 tokens of today: agents answer again from 2024-10-05 00:00 UTC"
    )
    assert refusal(budgets, costs, "bo", NOON) == ""
    day = Costs(costs.hour, {ROOM: Spent(9, 0, 3 * NANO)})
    assert "the $2.50 of today" in refusal(budgets, day, ROOM, NOON), "the one that opens last"


@given(budgets=st.builds(Budgets, ALLOWANCES, ALLOWANCES, ALLOWANCES, ALLOWANCES), data=st.data())
def test_turns_that_begin_at_once_exceed_no_budget_together(
    budgets: Budgets, data: st.DataObject
) -> None:
    """Law: whatever was spent before, if each planned turn uses all that it may, no budget of the
    room or of a person is exceeded; and a turn is refused only for a budget that is used up.
    """
    users = (ROOM, "a", "b", "c")
    day = {user: data.draw(SPENT) for user in users}
    hour = {
        user: Spent(
            data.draw(st.integers(0, one.turns)),
            data.draw(st.integers(0, one.tokens)),
            data.draw(st.integers(0, one.nanos)),
        )
        for user, one in day.items()
    }
    turns = data.draw(st.dictionaries(st.sampled_from(MEMBERS), PEOPLE, max_size=3))
    planned, refused = plan(budgets, Costs(hour, day), turns, NOON)
    assert planned.keys() | refused.keys() == turns.keys()
    assert not planned.keys() & refused.keys()
    for sums, room, person in (
        (hour, budgets.hour, budgets.person_hour),
        (day, budgets.day, budgets.person_day),
    ):
        for user in users:
            mine = [one for one in planned.values() if user == ROOM or user in one.payers]
            if not mine:
                continue
            allowed = room if user == ROOM else person
            if allowed.turns is not None:
                assert sums[user].turns + len(mine) <= allowed.turns
            part = [1 if user == ROOM else 1 / len(one.payers) for one in mine]
            if allowed.tokens is not None:
                used = sum((one.tokens or 0) * p for one, p in zip(mine, part, strict=True))
                assert all(one.tokens is not None for one in mine)
                # One token is the least that a turn may have.
                assert sums[user].tokens + used <= max(
                    allowed.tokens, sums[user].tokens + len(mine)
                )
            if allowed.usd is not None:
                usd = sum((one.usd or 0.0) * p for one, p in zip(mine, part, strict=True))
                assert sums[user].nanos / NANO + usd <= allowed.usd + 1e-6
    for name, why in refused.items():
        blamed = why.split(" has used", 1)[0]
        assert blamed == "the room" or blamed in turns[name]
    for name, one in planned.items():
        assert bool(one.payers) == bool(turns[name])


@given(st.integers(0, 10**12), st.integers(1, 20))
def test_shares_are_equal_and_sum_up(total: int, payers: int) -> None:
    parts = shares(total, payers)
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_the_limits_of_a_run_are_lowered_and_never_raised() -> None:
    own = Limits(tokens=100, usd=None)
    assert Planned().lowered(own) is own
    assert Planned((), 500, 0.5).lowered(own) == Limits(tokens=100, usd=0.5)
    assert Planned((), 7).lowered(own).tokens == 7


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"tokens": -1}, {"usd": 0.0}])
def test_an_allowance_of_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Allowance(**wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
