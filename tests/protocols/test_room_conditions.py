"""Conditions that end a round: by author, by tool, by any function, and joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.room_conditions import (
    Condition,
    MaxTurns,
    SpokenBy,
    TextMention,
    ToolCalled,
    When,
)
from motet.protocols.rooms import Floor, RoomMessage, RoomView, Used

NAMES = ("ann", "ben", "cid")


def view(authors: list[str], used: list[tuple[str, str]], turns: int = 0) -> RoomView:
    said = [RoomMessage(1, "alice", "person", "ann tool DONE", 1)]
    said += [RoomMessage(at, who, "agent", f"I am {who}", 1) for at, who in enumerate(authors, 2)]
    floor = Floor(1, going=True, turns=turns, used=tuple(Used(*one) for one in used))
    return RoomView("r", (), (), tuple(said), floor, 8)


authors = st.lists(st.sampled_from(NAMES), max_size=5)
calls = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(("save", "send"))), max_size=4)
plain: st.SearchStrategy[Condition] = (
    st.builds(MaxTurns, st.integers(1, 5))
    | st.builds(SpokenBy, st.sampled_from(NAMES) | st.sets(st.sampled_from(NAMES), min_size=1))
    | st.builds(ToolCalled, st.sampled_from(("save", "send")), st.none() | st.sampled_from(NAMES))
    | st.sampled_from((When(bool), When(lambda room: not room)))
    | st.builds(TextMention, st.sampled_from(NAMES))
)


@given(plain, plain, authors, calls, st.integers(0, 6))
def test_or_and_and_are_those_of_logic(
    one: Condition, other: Condition, said: list[str], used: list[tuple[str, str]], turns: int
) -> None:
    """Law: ``|`` is met when one is, ``&`` when both are, with the reasons of those."""
    room = view(said, used, turns)
    first, second = one.met(room), other.met(room)
    assert (one | other).met(room) == (first or second)
    assert bool((one & other).met(room)) == bool(first and second)
    assert all(part in (one & other).met(room) for part in (first, second) if first and second)


@given(authors, calls)
def test_authors_and_tools_are_found(said: list[str], used: list[tuple[str, str]]) -> None:
    room = view(said, used)
    for name in NAMES:
        assert bool(SpokenBy(name).met(room)) == (name in said)
        assert bool(ToolCalled("save", name).met(room)) == ((name, "save") in used)
    assert bool(ToolCalled("send").met(room)) == any(tool == "send" for _, tool in used)
    assert bool(SpokenBy(("ann", "ben")).met(room)) == bool({"ann", "ben"} & set(said))


def test_people_do_not_count_and_reasons_say_who() -> None:
    room = view(["ben"], [("ben", "save")])
    assert SpokenBy("alice").met(room) == ""
    assert SpokenBy("ben").met(room) == "ben has spoken"
    assert ToolCalled("save").met(room) == "ben has called save"
    assert When(lambda one: len(one.round) == 2, "two messages").met(room) == "two messages"
    for wrong in (lambda: SpokenBy(()), lambda: ToolCalled(""), lambda: When(lambda _: True, "")):
        with pytest.raises(ValueError, match="must be"):
            wrong()
