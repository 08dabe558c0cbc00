"""The sums that rooms have spent: the statements, over drawn histories of runs."""

from __future__ import annotations

import json
from contextlib import closing
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.connection import Connection
from motet.actors.storage.schema import migrate
from motet.protocols.room_costs import FIND, FIND_ROUND, TRIGGERS, costs_of, spent, turn_begun
from motet.protocols.room_limits import DAY, HOUR, NANO, ROOM, Spent
from motet.protocols.storage import Statement
from tests.room_sums import DIFFERENCES, WATCH

NOON = 20_000 * DAY * HOUR + 12 * HOUR + 60.0
"""A minute past noon of 2024-10-04."""
PEOPLE = st.lists(st.sampled_from("abc"), max_size=3)
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
        self.rounds: dict[str, str] = {}
        self.turns_in: dict[str, dict[str, int]] = {}
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
        # Each third run is of a round without an account.
        round = self.rounds[parent] if parent else ("", "dev#7", "dev/7#8")[number % 3]
        options = {"role": "operator", "payers": payers, "round": round}
        given = json.dumps({name: value for name, value in options.items() if value})
        self.db.run(
            "INSERT INTO runs (run_id, session, agent, user, status, text, created, updated, given)"
            " VALUES (?, ?, 'a', ?, 'running', '', ?, ?, ?)",
            (run, session, "room:dev/7" if number % 3 else "room:dev", self.now, self.now, given),
        )
        self.count(turn_begun(run))
        self.runs[run], self.rounds[run] = (parent, payers, session), round
        self.own[run], self.stored[run] = [0, 0], [0, 0]
        self.live.add(run)
        if member and payers:
            for counts in (self.turns, self.turns_in.setdefault(round, {})):
                for who in (ROOM, *payers):
                    counts[who] = counts.get(who, 0) + 1

    def count(self, statement: Statement) -> None:
        self.db.run(statement.sql, statement.params)

    def total(self, run: str) -> list[int]:
        """A run's usage, with that of its sub-agents in this host's memory."""
        below = [self.total(one) for one, about in self.runs.items() if about[0] == run]
        return [sum(column) for column in zip(self.own[run], *below, strict=True)]

    def store(self, run: str, status: str) -> None:
        tokens, nanos = self.stored[run] = self.total(run)
        usage = json.dumps({"input_tokens": tokens, "output_tokens": 0, "cost": nanos / NANO})
        self.count(spent(run, usage, self.now, status))
        self.db.run(
            "UPDATE runs SET status = ?2, usage = ?3, updated = ?4 WHERE run_id = ?1",
            (run, status, usage, self.now),
        )

    def kill(self) -> None:
        """The host dies: the next one closes its runs with what is stored of them."""
        for run in sorted(self.live):
            ((usage,),) = self.db.run("SELECT usage FROM runs WHERE run_id = ?", (run,))
            self.count(spent(run, str(usage), self.now, "interrupted"))
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
    room's sum is that of all usage on disk, and the shares of its payers sum up to it. So it is in
    each round that has an account.
    """
    with closing(Connection(":memory:")) as connection:
        migrate(connection)
        connection.run(WATCH)
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
        assert connection.run(DIFFERENCES) == (), "as the triggers had it"
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
        for round in ("dev#7", "dev/7#8"):
            mine = [run for run, of in ledger.rounds.items() if of == round]
            sums = costs_of((), connection.run(FIND_ROUND, (round,))).round
            for at, name in enumerate(("tokens", "nanos")):
                amount = sum(ledger.own[run][at] for run in mine)
                paid_for = sum(ledger.own[run][at] for run in mine if ledger.runs[run][1])
                assert getattr(sums.get(ROOM, Spent()), name) == amount
                shares = (getattr(one, name) for user, one in sums.items() if user)
                assert sum(shares) == paid_for
            turns = {user: one.turns for user, one in sums.items() if one.turns}
            assert turns == ledger.turns_in.get(round, {})


def test_the_step_that_databases_have_taken_is_never_edited() -> None:
    """The tests of the sums rely on its triggers, too."""
    assert sha256(TRIGGERS.encode()).hexdigest()[:16] == "33484dc5a2edeb38"
