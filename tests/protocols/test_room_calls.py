"""Calls by name: those of a text, and those that wait for a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.events import CallDropped
from motet.protocols.room_calls import (
    apart,
    collect,
    counted,
    covers,
    drop,
    mentioned,
    merged,
    not_here,
    noted,
    settled,
    strangers,
    taken,
    to_tell,
)
from motet.protocols.room_floor import end_round, open_round
from motet.protocols.rooms import Due, MemberInfo, RoomMessage, RoomState
from motet.protocols.sessions import Principal

MEMBERS = ["planner", "coder", "critic"]
ADA, BOB = Principal("ada"), Principal("bob")


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("@coder go", ["coder"]),
        ("@Coder, @planner: and @coder again", ["coder", "planner"]),
        ("ask @coder-two or @coders", []),
        ("mail me@coder or coder", []),
        ("see `@coder` and\n```\n@planner\n```", []),
        ("(@critic)", ["critic"]),
        ("@coder.", ["coder"]),
        ("@coder.py is a file", []),
        ("@all look", ["planner", "coder", "critic"]),
        ("@critic then @all", ["critic", "planner", "coder"]),
        ("@", []),
        ("see https://x/@coder and http://coder@critic/", []),
        ("see https://x/@coder @critic", ["critic"]),
        ("write \\@coder to call it", []),
        ("@coder/@critic", ["coder", "critic"]),
        ("see x.example/@coder, www.x.example/a/@critic", []),
        ("see x.example/@coder @critic", ["critic"]),
        ("> @coder look\nwell, @critic\n  >@planner", ["critic"]),
        ("is 3 > @coder", ["coder"]),
        ("_@coder_ and __@critic__", ["coder", "critic"]),
        ("me_@coder and @coder_x", []),
    ],
)
def test_a_name_behind_an_at_is_a_call(text: str, called: list[str]) -> None:
    assert list(mentioned(text, MEMBERS)) == called


def test_the_longest_name_is_the_one_that_is_called() -> None:
    assert mentioned("@ann-marie and @ann", ["ann", "ann-marie"]) == ("ann-marie", "ann")


@given(st.text(alphabet="@ coder`-.\n", max_size=30))
def test_only_names_are_called_each_once(text: str) -> None:
    """Law: the calls of any text are distinct members, and none of them is a stranger."""
    called = mentioned(text, ["coder", "code", "c"])
    assert set(called) <= {"coder", "code", "c"}
    assert len(set(called)) == len(called)
    assert not {"coder", "code", "c"}.intersection(strangers(text, ["coder", "code", "c"]))


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("@zed and @Zoe, please. @zed!", ["zed", "Zoe"]),
        ("@Coder and @all", []),
        ("mail me@zed.com, see https://x/@zed, `@zed` and \\@zed", []),
        ("install @types/node at @ 5 or @5pm", []),
        ("@coder-two.", ["coder-two"]),
        ("@José?", ["José"]),
        ("_@zed_, _@coder_ and > @zoe", ["zed", "zoe"]),
        ("> @zed, x.example/@zoe", []),
        (" ".join(f"@x{letter}" for letter in "abcdefgh"), ["xa", "xb", "xc", "xd", "xe"]),
    ],
)
def test_a_name_that_nobody_has_is_found(text: str, unknown: list[str]) -> None:
    assert list(strangers(text, MEMBERS)) == unknown


def test_a_notice_says_who_is_here() -> None:
    members = [MemberInfo("ann"), MemberInfo("ben")]
    assert not_here(["zed"], members) == "nobody here is called @zed: ann, ben"


def message(seq: int, author: str = "ada") -> RoomMessage:
    return RoomMessage(seq, author, "person", "hello", 1)


def test_two_calls_of_a_member_are_one_that_goes_back_to_both() -> None:
    first = Due("ann", 2, ("ben",), (ADA,), (), 3, 3)
    again = Due("ann", 0, (), (BOB,), ("bob",), 5, 5)
    joined = Due("ann", 0, ("ben",), (ADA, BOB), ("bob",), 3, 5)
    assert merged([first, Due("ben")], [again]) == (joined, Due("ben"))


def test_calls_wait_for_the_round_of_their_message() -> None:
    state = collect(RoomState(), message(1), ["ann", "ben"])
    state = collect(state, message(3, "bob"), ["ann"])
    now, later = taken(state, 1, ["ann", "ben"])
    assert [(one.name, one.last) for one in now] == [("ann", 1), ("ben", 1)]
    assert [(one.name, one.first, one.last) for one in later] == [("ann", 2, 3)]
    assert [one.name for one in taken(state, 3, None)[0]] == ["ann", "ben"]
    assert taken(state, 0, None)[0] == []


def test_a_call_that_its_member_has_read_in_its_turn_is_settled() -> None:
    state = collect(RoomState(told={"ann": 4}), message(4), ["ann", "ben"])
    assert [one.name for one in settled(state).calls] == ["ben"]
    state = collect(state, message(6), ["ann"])
    assert [(one.name, one.first) for one in settled(state).calls] == [("ann", 5), ("ben", 4)]


def test_a_dropped_call_has_a_number_and_a_chosen_member_had_none() -> None:
    state = drop(RoomState(drops=2), [Due("ben"), Due("ann", 1, ("cid",), (), ("ada",))], "stopped")
    assert state.dropped == (CallDropped("ann", ("ada", "cid"), "stopped", 0, 3),)
    assert state.drops == 3


def numbers(call: Due | CallDropped) -> set[int]:
    return {one for one in range(call.first, call.last + 1) if covers(call, one)}


@st.composite
def ranges(draw: st.DrawFn) -> Due:
    first, last = sorted(draw(st.tuples(st.integers(1, 12), st.integers(1, 12))))
    ended = [one for one in draw(st.sets(st.integers(1, 12))) if first < one < last]
    return Due("cid", 0, (), (ADA,), ("ada",), first, last, tuple(sorted(ended)))


@given(ranges(), st.lists(ranges(), max_size=2))
def test_a_dropped_call_goes_over_no_message_whose_call_waits_for_a_round_of_its_own(
    call: Due, waiting: list[Due]
) -> None:
    """Law: what is told as dropped is the rest of its messages, each once."""
    others = (Due("ann", 0, (), (ADA,), ("ada",), 1, 12),)
    state = drop(RoomState(), apart([call], (*waiting, *others)), "stopped")
    told = [number for one in state.dropped for number in numbers(one)]
    assert sorted(told) == sorted(numbers(call).difference(*map(numbers, waiting)))


def test_a_notice_has_a_number_and_no_secret() -> None:
    state = noted(RoomState(noticed=2), "ann has not answered: password=hunter2horse", "two")
    assert [one.number for one in state.notices] == [3, 4]
    assert counted(state) == (0, 4, 0)
    assert "ann has not answered" in state.notices[0].message
    assert "hunter2horse" not in str(state)


def test_a_round_that_opens_keeps_the_calls_that_wait_and_forgets_what_is_told() -> None:
    state = collect(drop(RoomState(), [Due("zed", 0, ("ann",))], "x"), message(1), ["ann"])
    state = open_round(noted(state, "lost"), heard=1, now=0.0)
    assert to_tell(state) == ([], [(1, state.notices[0])], [(1, state.dropped[0])])
    assert state.dropped, "nobody knows yet that its event is on disk"
    state = open_round(collect(state, message(2), ["ben"]), heard=2, now=0.0, told=(0, 1))
    assert [one.name for one in state.floor.due] == ["ann", "ben"]
    assert not state.dropped
    assert [one.message for one in state.notices] == ["lost"], "this one is not told yet"
    kept = end_round(state, "stopped", keep=True)
    assert [one.name for one in kept.floor.due] == ["ann", "ben"]
    ended = end_round(collect(state, message(3), ["ann"]), "stopped", heard=3)
    assert [(one.of, one.first, one.last) for one in ended.dropped] == [
        ("ann", 1, 3),
        ("ben", 2, 2),
    ]
    assert (ended.floor.due, ended.calls) == ((), ())
