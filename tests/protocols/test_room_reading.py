"""Earlier messages of a room: the count of those that are not shown, and the pages. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.errors import InputValidation
from motet.protocols.room_calls import read_also
from motet.protocols.room_copies import corrected
from motet.protocols.room_floor import unread
from motet.protocols.room_presence import CountUnshown
from motet.protocols.room_reading import (
    MOST_BYTES,
    has_turn,
    number_of,
    page_of,
    people_of,
    unshown,
    unshown_lines,
)
from motet.protocols.rooms import Due, Floor, RoomMessage, RoomState, Waiting
from motet.protocols.sessions import Principal

ADA, BOB = Principal("ada"), Principal("bob")


def message(seq: int, text: str = "a", **more: object) -> RoomMessage:
    return RoomMessage(seq, "ada", "person", text, 1, **more)  # type: ignore[arg-type]


def messages() -> st.SearchStrategy[list[RoomMessage]]:
    one = st.tuples(st.sampled_from(["person", "ann", "ben"]), st.booleans())
    return st.lists(one, max_size=12).map(
        lambda kinds: [
            RoomMessage(
                seq,
                "ada" if who == "person" else who,
                "person" if who == "person" else "agent",
                "a",
                1,
                deleted=deleted,
            )
            for seq, (who, deleted) in enumerate(kinds, 1)
        ]
    )


@given(messages(), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
def test_shown_and_unshown_messages_are_all_new_ones_of_others(
    said: list[RoomMessage], seen: int, told: int, heard: int, most: int
) -> None:
    """The law, for all cursors; without a part of the messages it is asked of the store."""
    state = RoomState(seen={"ann": seen}, told={"ann": told}, heard=heard)
    shown = unread(state, said, "ann", most)
    new = [
        one
        for one in said
        if not one.deleted
        and (told < one.seq <= heard if one.kind == "person" else seen < one.seq)
        and one.author != "ann"
    ]
    assert unshown(state, said, "r", "ann", shown) == len(new) - len(shown)
    if len(said) - min(seen, told) >= 2:
        numbers = tuple(one.seq for one in shown)
        asked = CountUnshown("r", "ann", seen, told, heard, len(said), numbers)
        assert unshown(state, said[-1:], "r", "ann", shown) == asked


def test_the_line_says_how_many() -> None:
    assert unshown_lines(41) == ["[41 earlier messages are not shown.]"]
    assert unshown_lines(1) == ["[1 earlier message is not shown.]"]
    assert unshown_lines(0) == []
    assert unshown_lines(None) == ["[Earlier messages may not be shown.]"]


@pytest.mark.parametrize(
    ("label", "thread", "number"),
    [
        (12, 0, 12),
        ("12", 0, 12),
        (" [#12] ", 0, 12),
        ("", 0, None),
        ("12", 12, 1),
        ("#12.3", 12, 4),
        ("", 12, None),
    ],
)
def test_a_number_is_read_as_it_stands_in_front_of_a_text(
    label: str | int, thread: int, number: int | None
) -> None:
    assert number_of(label, thread) == number


@pytest.mark.parametrize(
    ("label", "thread"), [("the last", 0), ("12.3", 0), ("-1", 0), ("7", 12), ("12.x", 12)]
)
def test_what_is_no_number_here_is_refused_with_an_example(label: str, thread: int) -> None:
    with pytest.raises(InputValidation, match="such as 12"):
        number_of(label, thread)


def test_a_page_has_the_last_messages_that_fit_and_names_the_next_one() -> None:
    shown, text = page_of([message(seq) for seq in (3, 4, 5)])
    assert [one.seq for one in shown] == [3, 4, 5]
    assert text.splitlines() == [
        "[#3 person ada] a",
        "[#4 person ada] a",
        "[#5 person ada] a",
        "[Earlier ones: before=3]",
    ]
    assert page_of([message(1)])[1].endswith("\n[There are none before.]")
    assert page_of([]) == ((), "[There are no messages before that.]")
    long = [message(seq, "ä" * 2_000) for seq in range(1, 9)]
    shown, text = page_of(long)
    assert [one.seq for one in shown] == [7, 8]
    assert "before=7]" in text
    assert len(text.encode()) < MOST_BYTES + 100


@given(st.text(max_size=20), st.integers(0, 9_000))
def test_a_message_larger_than_a_page_is_cut_and_can_still_be_withdrawn(
    word: str, times: int
) -> None:
    shown, text = page_of([message(7, word * times)])
    assert [one.seq for one in shown] == [7]
    assert len(text.encode()) < MOST_BYTES + 200
    gone = corrected(text, "7", "[#7 withdrawn person ada]")
    left = "[#7 withdrawn person ada]", "[Earlier ones: before=7]"
    rest = "[The rest of this message is left out.]"
    lines = tuple(line for line in gone.split("\n") if line)  # the ends of its lines stay
    assert lines in (left, (left[0], rest, left[1]))


def test_a_withdrawn_message_has_no_people() -> None:
    said = [message(1, asked_by=(ADA,)), message(2, asked_by=(BOB,), deleted=True), message(3)]
    assert people_of(said) == (ADA,)


def test_only_the_turn_that_has_read_them_answers_more_people() -> None:
    ann, ben = Due("ann", asked_by=(ADA,)), Due("ben", asked_by=(ADA,))
    waits = Waiting("run", 1, 0.0, asked_by=(ADA,))
    state = RoomState(Floor(1, True, speaking=(ann, ben)), waiting={"ann": waits, "cy": waits})
    after = read_also(state, "ann", [BOB, ADA])
    assert [one.asked_by for one in after.floor.speaking] == [(ADA, BOB), (ADA,)]
    assert after.waiting["ann"].asked_by == (ADA, BOB)
    assert after.waiting["cy"] == waits
    assert read_also(state, "ann", [ADA]) == state
    assert [has_turn(state, name) for name in ("ann", "cy", "dan")] == [True, True, False]
