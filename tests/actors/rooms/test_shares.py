"""The costs of people in a room by round, hour and day: they sum up, and bound them alone.

Several people call members who work, call each other, and wait for approvals; the host is killed.
Then the sums are made anew from the runs themselves.
"""

# It reads the database of the simulated host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any

import apsw
import attrs
import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms import member
from motet.actors.rooms import room as actor
from motet.actors.rooms.history import RoomHistory
from motet.actors.rooms.member import MemberRunner
from motet.protocols import room_calls, room_costs
from motet.protocols import room_floor as floor
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.models import ModelRequest
from motet.protocols.room_limits import ROOM, Allowance, Budgets, Planned, shares
from motet.protocols.room_turns import Turn
from motet.protocols.rooms import NOBODY, ROOM_MODES, RoomState
from motet.protocols.storage import Row

CONFIG = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.02, expires=60))
PEOPLE, NAMES = ("ada", "bob", "cy"), ("ann", "ben")
BUDGETS = (
    Budgets(person_round=Allowance(turns=1)),
    Budgets(person_round=Allowance(tokens=400)),
    Budgets(person_round=Allowance(turns=3, tokens=900), person_day=Allowance(tokens=1500)),
    Budgets(person_round=Allowance(tokens=600), person_hour=Allowance(turns=4)),
)
RUNS = """
SELECT run_id, status, usage, given FROM runs WHERE user = 'room:hall' ORDER BY rowid"""
DROPPED = (
    "SELECT json_extract(data, '$.by'), json_extract(data, '$.reason'), json_extract(data,"
    " '$.round') FROM events WHERE stream = 'room:hall' AND event = 'call.dropped' ORDER BY seq"
)
BLAMED = re.compile(r"(\w+) has (?:nearly )?used the")


def speaker(name: str, chance: Random) -> motet.Agent[None, str]:
    def answer(request: ModelRequest) -> mt.Step:
        rows = request.messages
        worked = sum(isinstance(row, ToolMessage) for row in rows[-6:])
        late = sum(isinstance(row, AssistantMessage) for row in rows) > 20
        match chance.choice(("says", "says", "calls", "looks", "looks", "pays")):
            case "looks" if worked < 3:
                return mt.slow(mt.call("look"), seconds=0.05)
            case "pays" if not worked and not late:
                return mt.call("pay")
            case "calls":
                other = next(one for one in NAMES if one != name)
                return mt.slow(mt.say(f"@{other} what do you think?"), seconds=0.1)
            case _:
                return mt.slow(mt.say("this is what I think of it"), seconds=0.1)

    agent = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

    @agent.tool(effects="read")
    async def look() -> str:
        return "a line of what there is to see\n" * 3

    @agent.tool(effects="write", approval=True)
    async def pay() -> str:
        return "paid"

    return agent


@attrs.define
class World:
    host: mt.SimulatedHost
    chance: Random
    room: motet.Room
    killed: bool = False
    ended: dict[int, str] = attrs.field(factory=dict[int, str])
    reasons: dict[int, str] = attrs.field(factory=lambda: defaultdict[int, str](str))

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        reader = apsw.Connection("/motet.db", vfs=self.host.disk.vfs)
        try:
            return list(reader.execute(sql))  # pyright: ignore[reportUnknownMemberType]
        finally:
            reader.close()

    def act(self) -> None:
        host, chance = self.host, self.chance
        match chance.choice(("post",) * 6 + ("allow", "allow", "crash", "power", "restart")):
            case "post":
                called = chance.choice(("@ann", "@ben", "@all", "@ann @ben"))
                who = chance.choice(PEOPLE)
                host.call(lambda _: host.room(self.room).post(f"{called} go on", user=who))
                if chance.random() < 0.6:
                    host.advance(chance.choice((0.01, 0.1, 0.5, 3)))
            case "allow":
                host.call(allow)
            case "restart":
                self.killed = True
                host.restart(0.1)
                host.room(self.room)
            case _:
                host.steps(chance.randrange(60))
                self.killed = True
                host.crash()
                host.room(self.room)

    def rest(self) -> None:
        for _ in range(40):
            self.host.advance(3)
            self.host.call(allow)
        self.host.settle()

    # The laws

    def wrong(self) -> list[str]:
        """How the sums differ from the runs, and who was stopped by the limit of another."""
        found: list[str] = []
        wanted: dict[tuple[str, str], Counter[str]] = {}
        last: dict[tuple[int, str], str] = {}
        for run_id, status, usage, given in self.read(RUNS):
            options, used = json.loads(given), json.loads(usage or "{}")
            payers, account = options.get("payers", []), options.get("round", "")
            if not payers and status in ("steered", "dropped"):
                continue  # words that were to enter a turn
            if not payers or not account:
                found.append(f"{run_id} is paid by {payers} in {account!r}")
            last |= {(int(account.partition("#")[2]), who): status for who in payers}
            tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
            parts = zip(payers, shares(tokens, len(payers)), strict=True)
            for who, part in ((ROOM, tokens), *parts):
                for key in (("hall", who), (account, who)):
                    sums = wanted.setdefault(key, Counter())
                    sums.update(tokens=part, turns=1)
        rows = self.read(
            "SELECT room, user, sum(turns), sum(tokens) FROM room_costs GROUP BY room, user"
        )
        kept = {(room, user): Counter(turns=t, tokens=n) for room, user, t, n in rows}
        found += [
            f"{key}: {kept.get(key)} is kept, {sums} were spent"
            for key, sums in wanted.items()
            if kept.get(key) != sums
        ]
        found += [f"{key} is of no run" for key in kept.keys() - wanted.keys()]
        done = {
            key: status for key, status in last.items() if not self._has_spent_all(wanted, *key)
        }
        return found + self._bystanders(done)

    def _has_spent_all(
        self, sums: Mapping[tuple[str, str], Counter[str]], number: int, who: str
    ) -> bool:
        """Whether somebody may pay for no further turn of a round; they are told of that only if
        nobody else pays for it.
        """
        budgets, spent = self.room.budgets, sums["hall", who]
        return any(
            (one.turns is not None and used["turns"] >= one.turns)
            or (one.tokens is not None and used["tokens"] >= one.tokens)
            for one, used in (
                (budgets.person_round, sums[f"hall#{number}", who]),
                (budgets.person_hour, spent),
                (budgets.person_day, spent),
            )
        )

    def _bystanders(self, last: dict[tuple[int, str], str]) -> list[str]:
        """Those who had something left, and had a call dropped for the budget of others, or no
        turn after one that has ended for it. ``last``: how the last turn that they pay for in a
        round has ended.
        """
        found, dropped = list[str](), self.read(DROPPED)
        for number, reason in (*self.ended.items(), *(one[:0:-1] for one in dropped)):
            self.reasons[number] += f"; {reason}"
        blamed = {number: {*BLAMED.findall(text)} for number, text in self.reasons.items()}
        for by, reason, number in dropped:
            left = {*json.loads(by)} & {*PEOPLE} - blamed[number]
            found += [f"{who} had something left: {reason}" for who in left if "used" in reason]
        for (number, who), status in last.items():
            reason = self.ended.get(number, "")
            text = self.reasons[number]
            cut = "cut off" in text or (self.killed and "limited" in text)
            over = not cut and (reason == NOBODY or BLAMED.search(reason))
            if status == "limited" and over and who not in blamed[number]:
                found.append(f"{who} has no turn in round {number}: {text}")
        return found


async def allow(host: Host) -> None:
    for one in await host.approvals(state="pending"):
        with suppress(motet.MotetError):  # its run has ended meanwhile
            await host.approve(one.id, "allow-once")


def broken(seed: object, acts: int = 14) -> list[str]:
    chance, models = Random(f"{seed}"), Random(f"{seed}/models")
    room = motet.Room(
        "hall",
        members=[speaker(name, models) for name in NAMES],
        speakers=motet.mentions(),
        mode=chance.choice([one for one in ROOM_MODES if one != "reject"]),
        concurrency=chance.choice((1, 2)),
        max_turns=6,
        budgets=chance.choice(BUDGETS),
    )
    end, warn, note = floor.end_round, RoomHistory.warn, room_calls.noted
    with (
        pytest.MonkeyPatch.context() as patch,
        mt.simulated_host(sum(map(ord, f"{seed}")), config=CONFIG) as host,
    ):
        world = World(host, chance, room)

        def ends(state: RoomState, reason: str, **how: Any) -> RoomState:
            world.ended[state.floor.round] = reason
            return end(state, reason, **how)

        async def warns(self: RoomHistory, message: str) -> None:
            world.reasons[self.state.floor.round] += f"; {message}"
            await warn(self, message)

        def notes(state: RoomState, *texts: str) -> RoomState:
            for text in texts:
                world.reasons[state.floor.round] += f"; {text}"
            return note(state, *texts)

        patch.setattr(floor, "end_round", ends)
        patch.setattr(actor, "noted", notes)
        patch.setattr(RoomHistory, "warn", warns)
        host.room(room)
        for _ in range(acts):
            world.act()
        world.rest()
        return world.wrong()


@pytest.mark.parametrize("seed", range(6))
def test_what_each_person_spends_sums_up_and_a_limit_stops_nobody_else(seed: int) -> None:
    """Law: after any talk with kills and suspended turns, what a person has spent in a round, and
    in all, is their share of the runs that they pay for, token by token; a call is dropped for a
    budget only if that of each person who made it was used up.
    """
    assert broken(seed) == []


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_in_many_talks_what_each_person_spends_sums_up(part: int) -> None:
    for seed in range(60):
        assert broken(f"{part}/{seed}", 25) == [], seed


# Planted defects: each is found within a few talks.


def ends_for_all(self: MemberRunner, turn: Turn, own: motet.Limits, planned: Planned) -> Turn:
    """The limit of one person ends the round of all."""
    if turn.limit in ("tokens", "usd") and getattr(own, turn.limit) is None:
        self._refused = planned.why[turn.limit][1]
    return turn


def ends_for_one(_: object, over: Mapping[str, str]) -> str:
    """The round ends as soon as one of its people has nothing left."""
    return "; ".join(over.values())


DEFECTS: list[tuple[object, str, object]] = [
    (MemberRunner, "_notice", ends_for_all),
    (room_costs, "_SPENT", room_costs._SPENT.replace("payer.key <", "payer.key <=")),
    (member, "used_up", ends_for_one),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS, ids=[one[1] for one in DEFECTS])
def test_the_law_finds_a_defect_of(
    owner: object, name: str, defect: object, monkeypatch: pytest.MonkeyPatch, sums: list[Row]
) -> None:
    monkeypatch.setattr(owner, name, defect)
    assert any(broken(seed) for seed in range(30))
    sums.clear()
