"""The life of an approval is a table, and the store makes its changes and no others."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.approvals import ApprovalStore
from motet.actors.storage.location import Location
from motet.protocols.approvals import (
    TRANSITIONS,
    AnswerApproval,
    ApprovalAnswered,
    ApprovalEvent,
    ApprovalLife,
    ApprovalProtocol,
    ClaimApproval,
    ExpireApproval,
    GetApproval,
    Mark,
    NewApproval,
    RequestApproval,
    WithdrawLeft,
)
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import NotFound
from motet.protocols.sessions import FinishRun
from motet.runtime import ActorRef
from tests.actors.sessions.store_builders import Clock, Store, open_store

STATES: tuple[ApprovalLife, ...] = get_args(ApprovalLife)
EVENTS: tuple[ApprovalEvent, ...] = get_args(ApprovalEvent)
Act: TypeAlias = Literal[
    "ask",
    "ask otherwise",
    "allow",
    "deny",
    "expire",
    "use",
    "use otherwise",
    "end",
    "cut off",
    "late",
    "start",
]
LIFE = 60.0
MARK = Mark(1, ToolMessage("c", "act", "?", "unknown"))


def approval(number: int) -> NewApproval:
    """The approval of one call, for one of two sets of arguments."""
    args = f'{{"n":{number}}}'
    return NewApproval(f"apr_{number}", "r", "c", 1, "act", args, f"h{number}", "", ("tool",), LIFE)


@attrs.define
class World:
    """One call that is asked for with changing arguments, and the states that the table gives."""

    store: Store
    approvals: ActorRef[ApprovalProtocol]
    clock: Clock
    states: dict[int, ApprovalLife] = attrs.field(factory=dict[int, ApprovalLife])
    expires: dict[int, float] = attrs.field(factory=dict[int, float])
    ended: bool = False

    def move(self, number: int, event: ApprovalEvent) -> bool:
        """Make the transition in the model; whether there is one."""
        state = self.states.get(number)
        if state is None or event not in TRANSITIONS[state]:
            return False
        self.states[number] = TRANSITIONS[state][event]
        return True

    async def do(self, act: Act, number: int) -> None:
        name = f"apr_{number}"
        match act:
            case "ask" | "ask otherwise":
                await self.ask(number if act == "ask" else 1 - number)
            case "allow" | "deny":
                await self.answer(number, act)
            case "expire":
                if number in self.states:
                    moved = self.move(number, "expire")
                    assert (await self.approvals.ask(ExpireApproval(name))).fresh == moved
            case "use" | "use otherwise":
                digest = f"h{number if act == 'use' else 1 - number}"
                claimed = await self.approvals.ask(ClaimApproval(name, "r", digest, MARK))
                assert claimed == (act == "use" and not self.ended and self.move(number, "use"))
            case "end" | "cut off":
                await self.end(withdraw=act == "end")
            case "start":
                left = [info.id for info in await self.approvals.ask(WithdrawLeft())]
                assert sorted(left) == sorted(self.withdraw() if self.ended else [])
            case "late":
                self.clock.now += LIFE

    def withdraw(self) -> list[str]:
        """Withdraw what is pending in the model; its ids."""
        return [f"apr_{number}" for number in self.states if self.move(number, "withdraw")]

    async def end(self, *, withdraw: bool) -> None:
        """The run ends; ``withdraw`` false: in a way that leaves its approvals behind."""
        end = FinishRun("r", "cancelled", (), withdraw=withdraw)
        withdrawn = await self.store.ref.ask(end)
        assert sorted(withdrawn) == sorted(self.withdraw() if withdraw and not self.ended else [])
        self.ended = True

    async def ask(self, number: int) -> None:
        if self.ended:
            with pytest.raises(NotFound):
                await self.approvals.ask(RequestApproval(approval(number), None))
            return
        settled = await self.approvals.ask(RequestApproval(approval(number), None))
        assert settled.fresh == (number not in self.states)
        other = 1 - number
        assert settled.superseded == ((f"apr_{other}",) if self.move(other, "withdraw") else ())
        if settled.fresh:
            self.states[number] = "pending"
            self.expires[number] = self.clock.now + LIFE

    async def answer(self, number: int, event: Literal["allow", "deny"]) -> None:
        before = self.states.get(number)
        if before == "pending" and self.clock.now >= self.expires[number]:
            self.move(number, "expire")
        moved = self.move(number, event)
        decision: Literal["allow-once", "deny"] = "allow-once" if event == "allow" else "deny"
        same = {"allow": ("allowed", "used"), "deny": ("denied",)}[event]
        try:
            request = AnswerApproval(f"apr_{number}", decision, "alice")
            assert (await self.approvals.ask(request)).fresh == moved
            assert moved or before in same
        except NotFound:
            assert before is None
        except ApprovalAnswered:
            assert not moved
            assert before not in same

    async def check(self) -> None:
        for number, state in self.states.items():
            info = await self.approvals.ask(GetApproval(f"apr_{number}"))
            assert info is not None
            assert ("used" if info.used is not None else info.state) == state


def test_every_state_has_a_row_and_every_event_begins_in_one_state() -> None:
    assert set(TRANSITIONS) == set(STATES)
    for row in TRANSITIONS.values():
        assert set(row.values()) <= set(STATES)
    for event in EVENTS:
        assert sum(event in row for row in TRANSITIONS.values()) == 1


@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_an_approval_is_settled_once_and_used_only_when_it_was_allowed(
    events: list[ApprovalEvent],
) -> None:
    """Law (G10): along every path a state is entered once, and only ``allowed`` leads to a use."""
    state: ApprovalLife = "pending"
    seen: list[ApprovalLife] = [state]
    for event in events:
        if event in TRANSITIONS[state]:
            state = TRANSITIONS[state][event]
            seen.append(state)
    assert len(seen) == len(set(seen))
    assert "used" not in seen or seen == ["pending", "allowed", "used"]


@given(
    st.lists(st.tuples(st.sampled_from(get_args(Act)), st.integers(0, 1)), min_size=1, max_size=12)
)
def test_the_store_makes_the_changes_of_the_table_and_no_others(
    acts: list[tuple[Act, int]],
) -> None:
    """Law: after any requests in any order, the stored states are those of the table."""

    async def play() -> None:
        with Location.memory() as location:
            async with open_store(location) as store:
                database = store.database
                approvals = await database.system.start(
                    lambda: ApprovalStore(
                        database.writer.submit, database.readers, store.journal, store.clock
                    ),
                    name="approvals",
                )
                await store.accept("r")
                world = World(store, approvals, store.clock)
                await world.ask(0)
                for act, number in acts:
                    await world.do(act, number)
                    await world.check()

    trio.run(play)
