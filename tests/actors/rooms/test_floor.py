"""Rounds end, whatever is said in them; the floor is one, and turns are never given back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.rooms.floor import (
    Choose,
    Give,
    Over,
    Rules,
    Wait,
    after_a_crash,
    chosen,
    ended,
    next_move,
    opened,
    spoken,
    without_deep_calls,
)
from motet.actors.rooms.floor import given as floor_given
from motet.protocols.rooms import DEPTH, NOBODY, SILENT, TURNS, Due, Floor

NAMES = ["ann", "ben", "cid"]


def step(floor: Floor, rules: Rules, draw: st.DataObject) -> Floor:
    """What a room does next, where members say and call whatever they like."""
    floor, deep = without_deep_calls(floor, rules)
    match next_move(floor, rules, met=deep):
        case Over(reason):
            return ended(floor, reason)
        case Give(speakers):
            return floor_given(floor, speakers)
        case Choose():
            names = draw.draw(st.lists(st.sampled_from(NAMES), max_size=2))
            floor, reason = chosen(floor, names, NAMES)
            return ended(floor, reason) if reason else floor
        case Wait():
            name = draw.draw(st.sampled_from([due.name for due in floor.speaking]))
            called = draw.draw(st.lists(st.sampled_from(NAMES), unique=True))
            return spoken(floor, name, silent=draw.draw(st.booleans()), called=called)


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
    floor = opened(Floor(), called)
    for _ in range(rules.max_turns * 4 + 4):
        if not floor.going:
            break
        before = floor
        floor = step(floor, rules, data)
        assert floor.turns <= rules.max_turns
        assert floor.turns >= before.turns, "no turn is given back"
        assert len(floor.speaking) <= rules.concurrency
        assert len({due.name for due in floor.speaking}) == len(floor.speaking)
        assert all(due.depth <= rules.max_depth for due in floor.speaking)
    assert not floor.going
    assert floor.reason


def test_a_person_opens_a_round_with_fresh_counters_and_an_agent_does_not() -> None:
    floor = Floor(round=4, going=True, turns=7, passes=2, last="ann")
    assert opened(floor, ["ben"]) == Floor(round=5, going=True, due=(Due("ben"),), last="ann")
    speaking = floor_given(opened(Floor(), ["ann"]), [Due("ann")])
    assert spoken(speaking, "ann", silent=False, called=["ben"]).round == 1


def test_two_who_call_each_other_are_stopped_by_the_depth() -> None:
    rules, floor, order = Rules(max_turns=99, max_depth=3), opened(Floor(), ["ann"]), list[str]()
    while floor.going:
        floor, deep = without_deep_calls(floor, rules)
        move = next_move(floor, rules, met=deep)
        if isinstance(move, Over):
            floor = ended(floor, move.reason)
            break
        assert isinstance(move, Give)
        (speaker,) = move.speakers
        order.append(speaker.name)
        other = "ben" if speaker.name == "ann" else "ann"
        floor = spoken(
            floor_given(floor, move.speakers), speaker.name, silent=False, called=[other]
        )
    assert order == ["ann", "ben", "ann", "ben"], "the person's call, and three hops"
    assert floor.reason == DEPTH


def test_nobody_can_call_itself_and_nobody_waits_twice() -> None:
    floor = floor_given(opened(Floor(), ["ann", "ben"]), [Due("ann")])
    floor = spoken(floor, "ann", silent=False, called=["ann", "ben", "cid"])
    assert floor.due == (Due("ben"), Due("cid", 1))


def test_a_round_ends_when_all_have_passed_and_when_nobody_is_chosen() -> None:
    passed = Floor(round=1, going=True, turns=3, passes=3)
    assert chosen(passed, ["ann"], NAMES) == (passed, SILENT)
    open_still = Floor(round=1, going=True, turns=3, passes=2)
    assert chosen(open_still, [], NAMES) == (open_still, NOBODY)
    assert chosen(open_still, ["ann", "ann"], NAMES)[0].due == (Due("ann"),)


def test_a_word_between_makes_passes_count_anew() -> None:
    floor = Floor(round=1, going=True, turns=3, passes=2, speaking=(Due("ann"),))
    assert spoken(floor, "ann", silent=True).passes == 3
    assert spoken(floor, "ann", silent=False).passes == 0


def test_what_was_used_of_a_round_stays_used_after_a_crash() -> None:
    floor = floor_given(opened(Floor(), ["ann", "ben"]), [Due("ann")])
    floor = after_a_crash(floor)
    assert (floor.turns, floor.speaking, floor.due) == (1, (), (Due("ben"),))
    assert next_move(floor, Rules(max_turns=1)) == Over(TURNS)


def test_who_was_cut_off_may_speak_again_first_and_pays_for_it() -> None:
    floor = floor_given(opened(Floor(), ["ann", "ben"]), [Due("ann", 2)])
    floor = after_a_crash(floor, ["ann"])
    assert floor.due == (Due("ann", 2), Due("ben"))
    assert floor_given(floor, [Due("ann", 2)]).turns == 2


def test_several_may_speak_at_once_but_not_more_than_there_are_turns() -> None:
    floor = opened(Floor(), NAMES)
    assert next_move(floor, Rules(max_turns=2, concurrency=3)) == Give((Due("ann"), Due("ben")))
    assert next_move(floor, Rules(concurrency=2)) == Give((Due("ann"), Due("ben")))
    floor = floor_given(floor, [Due("ann"), Due("ben")])
    assert next_move(floor, Rules(concurrency=3)) == Wait(), "the next get what these have said"
