"""Rounds end, whatever is said in them; the floor is one, and turns are never given back."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.protocols.events import CallDropped
from motet.protocols.room_calls import collect, covers, merged
from motet.protocols.room_floor import (
    TRANSITIONS,
    Choose,
    Give,
    Over,
    Phase,
    Rules,
    Transition,
    Wait,
    ask_also,
    asked_by,
    choose,
    drop_impossible,
    end_round,
    end_turn,
    give_floor,
    next_move,
    no_choice,
    open_round,
    phase_of,
    recover_round,
    settle_turn,
    shown_at_least,
    suspend_turn,
)
from motet.protocols.rooms import (
    DEPTH,
    NOBODY,
    REMOVED,
    SILENT,
    TURNS,
    Due,
    Floor,
    Kind,
    RoomMessage,
    RoomState,
    Waiting,
)
from motet.protocols.sessions import Principal

NAMES = ["ann", "ben", "cid"]
PHASES = get_args(Phase)


def opened(*called: str, state: RoomState | None = None) -> RoomState:
    """A round for the next message of ``ada``, who calls these members."""
    state = state or RoomState()
    message = RoomMessage(state.heard + 1, "ada", "person", "hello", 1)
    return open_round(collect(state, message, called), heard=message.seq, now=0.0)


def due_of(state: RoomState) -> list[tuple[str, int]]:
    return [(due.name, due.depth) for due in state.floor.due]


def with_floor(*names: str) -> RoomState:
    return give_floor(opened(*names), [Due(name) for name in names], now=0.0)


def waiting(state: RoomState, name: str) -> RoomState:
    return suspend_turn(state, name, Waiting(f"run of {name}", state.floor.round, 0.0))


def in_phase(phase: Phase) -> RoomState:
    match phase:
        case "idle":
            return RoomState()
        case "deciding":
            return opened("ann")
        case "speaking":
            return with_floor("ann", "ben")
        case "held":
            return waiting(with_floor("ann"), "ann")


def after(transition: Transition, state: RoomState) -> RoomState:
    """The state after a transition of the first speaker, if it needs one."""
    name = state.floor.speaking[0].name if state.floor.speaking else "ann"
    match transition:
        case "open":
            return opened("ben", state=state)
        case "choose":
            return choose(state, ["ben"])
        case "give":
            return give_floor(state, [Due("ann")], now=0.0)
        case "suspend":
            return waiting(state, name)
        case "settle":
            return settle_turn(state, name, 0.0)
        case "speak":
            return end_turn(state, name, silent=True)
        case "recover":
            return recover_round(state)
        case "end":
            return end_round(state, "over")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("transition", get_args(Transition))
def test_a_transition_leads_where_the_table_says_or_raises(
    phase: Phase, transition: Transition
) -> None:
    state = in_phase(phase)
    assert phase_of(state) == phase
    if transition in TRANSITIONS[phase]:
        assert phase_of(after(transition, state)) in TRANSITIONS[phase][transition]
    else:
        with pytest.raises((RuntimeError, ValueError)):
            after(transition, state)


@settings(max_examples=200)
@given(data=st.data())
def test_every_way_through_the_table_keeps_the_floor_in_order(data: st.DataObject) -> None:
    """Law: turns are never given back within a round, nobody has the floor twice, and nobody who
    has it waits for it.
    """
    state = RoomState()
    for _ in range(12):
        before, transition = state, data.draw(st.sampled_from(list(TRANSITIONS[phase_of(state)])))
        speaking = [turn.name for turn in state.floor.speaking]
        free = [name for name in speaking if not state.holds(name)]
        match transition:
            case "give":
                names = [due.name for due in state.floor.due] or ["cid"]
                some = names[: data.draw(st.integers(1, len(names)))]
                state = give_floor(state, [Due(name) for name in some], now=0.0)
            case "suspend":
                assume(free)
                state = waiting(state, data.draw(st.sampled_from(free)))
            case "speak":
                assume(free)
                called = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
                name = data.draw(st.sampled_from(free))
                state = end_turn(state, name, silent=data.draw(st.booleans()), called=called)
            case "settle":
                state = settle_turn(state, data.draw(st.sampled_from(speaking or NAMES)), 1.0)
            case "recover":
                state = recover_round(state, free[:1])
            case "open" | "choose" | "end":
                state = after(transition, state)
        floor = state.floor
        assert phase_of(state) in TRANSITIONS[phase_of(before)][transition]
        assert floor.round > before.floor.round or floor.turns >= before.floor.turns
        on_floor = [turn.name for turn in floor.speaking]
        assert len(set(on_floor)) == len(on_floor)


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {to for steps in TRANSITIONS.values() for ends in steps.values() for to in ends}
    assert reached == set(PHASES) == set(TRANSITIONS)
    assert all("end" in steps and "open" in steps for steps in TRANSITIONS.values())


def step(state: RoomState, rules: Rules, draw: st.DataObject) -> RoomState:
    """The next move of a room whose members say and call whatever they like."""
    state, deep = drop_impossible(state, rules, NAMES)
    match next_move(state.floor, rules, met=deep):
        case Over(reason):
            return end_round(state, reason)
        case Give(speakers):
            return give_floor(state, speakers, now=0.0)
        case Choose():
            names = draw.draw(st.lists(st.sampled_from(NAMES), max_size=2))
            reason = no_choice(state.floor, names, NAMES)
            return end_round(state, reason) if reason else choose(state, names)
        case Wait():
            name = draw.draw(st.sampled_from([due.name for due in state.floor.speaking]))
            called = draw.draw(st.lists(st.sampled_from(NAMES), unique=True))
            return end_turn(state, name, silent=draw.draw(st.booleans()), called=called)


@settings(max_examples=100)
@given(
    rules=st.builds(
        Rules,
        max_turns=st.integers(1, 9),
        max_depth=st.integers(0, 4),
        concurrency=st.integers(1, 3),
    ),
    called=st.lists(st.sampled_from(NAMES), unique=True),
    data=st.data(),
)
def test_a_round_ends_within_its_turns_whatever_is_said(
    rules: Rules, called: list[str], data: st.DataObject
) -> None:
    """Law: turns <= max_turns at every moment, and the round is over after finitely many moves."""
    state = opened(*called)
    for _ in range(rules.max_turns * 4 + 4):
        if not state.floor.going:
            break
        before = state.floor
        state = step(state, rules, data)
        floor = state.floor
        assert floor.turns <= rules.max_turns
        assert floor.turns >= before.turns, "no turn is given back"
        assert len(floor.speaking) <= rules.concurrency
        assert len({due.name for due in floor.speaking}) == len(floor.speaking)
        assert all(due.depth <= rules.max_depth for due in floor.speaking)
    assert not state.floor.going
    assert state.floor.reason


def test_a_person_opens_a_round_with_fresh_counters_and_an_agent_does_not() -> None:
    before = RoomState(Floor(round=4, going=True, turns=7, passes=2, last="ann"))
    floor = opened("ben", state=before).floor
    due = (Due("ben", 0, (), (Principal("ada"),), ("ada",), 1, 1),)
    assert floor == Floor(round=5, going=True, due=due, last="ann")
    assert end_turn(with_floor("ann"), "ann", silent=False, called=["ben"]).floor.round == 1


def test_two_who_call_each_other_are_stopped_by_the_depth() -> None:
    rules, state, order = Rules(max_turns=99, max_depth=3), opened("ann"), list[str]()
    while state.floor.going:
        state, deep = drop_impossible(state, rules, NAMES)
        move = next_move(state.floor, rules, met=deep)
        if isinstance(move, Over):
            state = end_round(state, move.reason)
            break
        assert isinstance(move, Give)
        (speaker,) = move.speakers
        order.append(speaker.name)
        other = "ben" if speaker.name == "ann" else "ann"
        state = give_floor(state, move.speakers, now=0.0)
        state = end_turn(state, speaker.name, silent=False, called=[other])
    assert order == ["ann", "ben", "ann", "ben"], "the person's call, and three hops"
    assert state.floor.reason == DEPTH


def test_calls_of_agents_that_are_no_members_are_dropped() -> None:
    state, reason = drop_impossible(opened("ann", "ben"), Rules(), ["ben"])
    assert (due_of(state), reason) == ([("ben", 0)], "")
    assert state.dropped == (CallDropped("ann", ("ada",), REMOVED, 1, 1, 1, 1),)
    state, reason = drop_impossible(opened("ann"), Rules(max_depth=0), [])
    assert (state.floor.due, reason) == ((), ""), "the depth is not the reason"


def said(number: int, *people: str, kind: Kind = "person", author: str = "") -> RoomMessage:
    who = tuple(map(Principal, people))
    return RoomMessage(number, author or people[0], kind, "hello", 1, asked_by=who)


def test_a_turn_answers_the_people_of_its_round_and_those_behind_what_it_reads() -> None:
    state = open_round(RoomState(), heard=3, now=0.0, asked_by=[Principal("ada")])
    shown = {"ann": [said(1, "bob"), said(2, "cy", "bob", kind="agent", author="ben")]}
    state = give_floor(state, [Due("ann")], now=0.0, shown=shown)
    assert asked_by(state, "ann") == tuple(map(Principal, ("ada", "bob", "cy")))
    state = ask_also(state, Principal("dan"))
    assert {who.user for who in asked_by(state, "ann")} == {"ada", "bob", "cy", "dan"}
    state = suspend_turn(state, "ann", Waiting("r", state.floor.round, 0.0))
    assert {who.user for who in state.waiting["ann"].asked_by} == {"ada", "bob", "cy", "dan"}
    state = open_round(state, heard=4, now=0.0, asked_by=[Principal("eve")])
    again = give_floor(state, [Due("ann")], now=0.0)
    assert asked_by(again, "ann") == (Principal("eve"),), "its earlier turn waits still"
    state = give_floor(state, [Due("ben")], now=0.0)
    assert asked_by(state, "ben") == (Principal("eve"),)
    state = end_turn(state, "ben", silent=False, called=["cal"])
    state = give_floor(state, state.floor.due, now=0.0)
    assert asked_by(state, "cal") == (Principal("eve"),), "an agent's call adds no right"


def test_one_user_with_two_roles_is_asked_about_twice() -> None:
    """Words of a guest's token get no right from a later message of the same user's other token."""
    roles = [Principal("ada", "viewer"), Principal("ada", "admin")]
    state = open_round(RoomState(), heard=2, now=0.0, asked_by=roles)
    assert asked_by(give_floor(state, [Due("ann")], now=0.0), "ann") == tuple(roles)


def test_messages_of_earlier_versions_are_their_authors_own() -> None:
    assert RoomMessage(1, "ada", "person", "hello", 1).principals == (Principal("ada"),)
    assert RoomMessage(1, "ann", "agent", "hello", 1).principals == ()


def test_nobody_can_call_itself_and_nobody_waits_twice() -> None:
    state = give_floor(opened("ann", "ben"), [Due("ann")], now=0.0)
    state = end_turn(state, "ann", silent=False, called=["ann", "ben", "cid"])
    assert due_of(state) == [("ben", 0), ("cid", 1)]
    assert all(due.called_by == ("ann",) for due in state.floor.due)


def test_a_round_ends_when_all_have_passed_and_when_nobody_is_chosen() -> None:
    passed = Floor(round=1, going=True, turns=3, passes=3)
    assert no_choice(passed, ["ann"], NAMES) == SILENT
    open_still = Floor(round=1, going=True, turns=3, passes=2)
    assert no_choice(open_still, [], NAMES) == NOBODY
    assert no_choice(open_still, ["ann"], NAMES) == ""
    assert choose(RoomState(open_still), ["ann", "ann"]).floor.due == (Due("ann"),)


def test_a_message_between_resets_the_count_of_passes() -> None:
    state = RoomState(Floor(round=1, going=True, turns=3, passes=2, speaking=(Due("ann"),)))
    assert end_turn(state, "ann", silent=True).floor.passes == 3
    assert end_turn(state, "ann", silent=False).floor.passes == 0


def test_used_turns_stay_used_after_a_crash() -> None:
    state = give_floor(opened("ann", "ben"), [Due("ann")], now=0.0)
    floor = recover_round(state).floor
    assert (floor.turns, floor.speaking) == (1, ())
    assert [due.name for due in floor.due] == ["ben"]
    assert next_move(floor, Rules(max_turns=1)) == Over(TURNS)


def test_a_member_that_was_cut_off_may_speak_again_first_at_the_cost_of_a_turn() -> None:
    state = give_floor(opened("ann", "ben"), [Due("ann", 2)], now=0.0)
    state = recover_round(state, ["ann"])
    assert due_of(state) == [("ann", 2), ("ben", 0)]
    assert give_floor(state, [Due("ann", 2)], now=0.0).floor.turns == 2


def call_of(name: str, first: int, length: int) -> Due:
    return Due(name, 0, (), (), ("ada",), first, first + length)


calls = st.lists(
    st.builds(call_of, st.sampled_from(NAMES), st.integers(1, 9), st.integers(0, 3)), max_size=5
)


@given(calls, calls, st.sets(st.sampled_from(NAMES)))
def test_a_kill_loses_no_call_of_a_member_that_speaks_again(
    speaking: list[Due], due: list[Due], again: set[str]
) -> None:
    """Law: what waited for a member that had the floor waits for it still, beside its own turn."""
    floor = Floor(going=True, speaking=merged(speaking, ()), due=merged(due, ()))
    left = recover_round(RoomState(floor=floor), again).floor.due
    assert len(left) == len({one.name for one in left})
    turns = [one for one in floor.speaking if one.name in again]
    for call in (*floor.due, *turns):
        (other,) = (one for one in left if one.name == call.name)
        assert all(covers(other, one) for one in range(call.first, call.last + 1))
    assert {one.name for one in left} == {one.name for one in (*floor.due, *turns)}


def test_several_may_speak_at_once_but_not_more_than_there_are_turns() -> None:
    floor = opened(*NAMES).floor
    assert next_move(floor, Rules(max_turns=2, concurrency=3)) == Give(floor.due[:2])
    assert next_move(floor, Rules(concurrency=2)) == Give(floor.due[:2])
    floor = give_floor(opened(*NAMES), [Due("ann"), Due("ben")], now=0.0).floor
    assert next_move(floor, Rules(concurrency=3)) == Wait(), "the next get what these have said"


def test_time_spent_waiting_for_a_person_does_not_age_a_round() -> None:
    state = waiting(replace(with_floor("ann"), opened=100.0), "ann")
    assert settle_turn(state, "ann", 30.0).opened == 130.0


def test_a_member_is_never_told_less_than_before() -> None:
    state = RoomState(seen={"ann": 5}, told={"ann": 2})
    after_all = shown_at_least(state, ["ann", "ben"], agents=3, people=4)
    assert (after_all.seen, after_all.told) == ({"ann": 5, "ben": 3}, {"ann": 4, "ben": 4})
