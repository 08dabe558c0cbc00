"""Budgets of rooms: the rules alone, and the sums that the triggers keep, over drawn histories."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.connection import Connection
from motet.actors.storage.schema import migrate
from motet.protocols.limits import Limits
from motet.protocols.room_limits import (
    DAY,
    FIND,
    HOUR,
    NANO,
    ROOM,
    Allowance,
    Budgets,
    Costs,
    Planned,
    Spent,
    costs_of,
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


# The triggers, against a model


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "child", "chooser", "spend", "end", "kill", "hour"]),
        st.integers(0, 5),
        st.integers(0, 999),
        PEOPLE.map(lambda people: tuple(dict.fromkeys(people))),
    ),
    max_size=30,
)


class Ledger:
    """A database of runs as a host writes it, and what should have been spent by each."""

    def __init__(self, connection: Connection) -> None:
        self.db = connection
        self.now = NOON
        self.runs: dict[str, tuple[str, tuple[str, ...], str]] = {}  # parent, payers, session
        self.own: dict[str, list[int]] = {}  # tokens, nanos: of the run alone
        self.stored: dict[str, list[int]] = {}
        self.live: set[str] = set()
        self.turns: dict[str, int] = {}

    def begin(self, kind: str, payers: tuple[str, ...], parent: str = "") -> None:
        number = len(self.runs)
        run = f"run_{number}"
        member = kind == "turn"
        session = f"agent:a{number}:room:group:dev" if member else f"agent:a:subagent:{number}"
        payers = self.runs[parent][1] if parent else payers
        self.db.run(
            "INSERT INTO sessions (session, agent, owner, created, updated, parent)"
            " VALUES (?, 'a', 'room:dev', ?, ?, ?)",
            (session, self.now, self.now, parent or None),
        )
        given = json.dumps(
            {"role": "operator", "payers": payers} if payers else {"role": "operator"}
        )
        self.db.run(
            "INSERT INTO runs (run_id, session, agent, user, status, text, created, updated, given)"
            " VALUES (?, ?, 'a', ?, 'running', '', ?, ?, ?)",
            (run, session, "room:dev/7" if number % 3 else "room:dev", self.now, self.now, given),
        )
        self.runs[run] = parent, payers, session
        self.own[run], self.stored[run] = [0, 0], [0, 0]
        self.live.add(run)
        if member and payers:
            for who in (ROOM, *payers):
                self.turns[who] = self.turns.get(who, 0) + 1

    def total(self, run: str) -> list[int]:
        """A run's usage, with that of its sub-agents in this host's memory."""
        below = [self.total(one) for one, about in self.runs.items() if about[0] == run]
        return [sum(column) for column in zip(self.own[run], *below, strict=True)]

    def store(self, run: str, status: str) -> None:
        tokens, nanos = self.stored[run] = self.total(run)
        usage = json.dumps({"input_tokens": tokens, "output_tokens": 0, "cost": nanos / NANO})
        self.db.run(
            "UPDATE runs SET status = ?2, usage = ?3, updated = ?4 WHERE run_id = ?1",
            (run, status, usage, self.now),
        )

    def kill(self) -> None:
        """The host dies: the next one closes its runs with what is stored of them."""
        for run in sorted(self.live):
            self.db.run(
                "UPDATE runs SET status = 'interrupted', updated = ?2 WHERE run_id = ?1",
                (run, self.now),
            )
        self.live.clear()


@given(STEPS)
def test_the_sums_are_what_was_stored_of_all_runs_token_by_token(
    steps: list[tuple[str, int, int, tuple[str, ...]]],
) -> None:
    """Law: turns, selectors, sub-agents that a call waits for, ends and kills in any order: the
    room's sum is that of all usage on disk, and the shares of its payers sum up to it.
    """
    with closing(Connection(":memory:")) as connection:
        migrate(connection)
        ledger = Ledger(connection)
        for kind, which, amount, people in steps:
            ledger.now += 1
            live = sorted(ledger.live)
            # A run that waits for a sub-agent does nothing else.
            free = [
                run for run in live if not any(ledger.runs[one][0] == run for one in ledger.live)
            ]
            chosen = free[which % len(free)] if free else ""
            if kind in ("turn", "chooser"):
                ledger.begin(kind, people)
            elif kind == "kill":
                ledger.kill()
            elif kind == "hour":
                ledger.now += 2 * HOUR
            elif not chosen:
                continue
            elif kind == "child":
                ledger.store(chosen, "running")  # the intent of the call that starts it
                ledger.now += 1
                ledger.begin(kind, (), chosen)
            elif kind == "spend":
                ledger.own[chosen][0] += amount
                ledger.own[chosen][1] += amount * 7
                ledger.store(chosen, "running")
            else:
                ledger.store(chosen, "completed")
                ledger.live.discard(chosen)
        ledger.kill()
        rows = connection.run(FIND, ("dev", 0, 0))
        found = costs_of(rows).day
        tokens = sum(own[0] for own in ledger.own.values())
        nanos = sum(own[1] for own in ledger.own.values())
        room = found.get(ROOM, Spent())
        assert (room.tokens, room.nanos) == (tokens, nanos)
        assert {user: one.turns for user, one in found.items() if one.turns} == ledger.turns
        paid = [
            (sum(ledger.own[run][0] for run in ledger.own if ledger.runs[run][1]), "tokens"),
            (sum(ledger.own[run][1] for run in ledger.own if ledger.runs[run][1]), "nanos"),
        ]
        for amount, name in paid:
            assert sum(getattr(one, name) for user, one in found.items() if user) == amount
