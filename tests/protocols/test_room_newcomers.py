"""The rules about newcomers: what of an event they see, and the parts of a text to summarise."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.events import (
    AnyEvent,
    EventRecord,
    MessageAdded,
    MessageDeleted,
    MessageEdited,
    MessageReaction,
    RoomTurn,
    TextDelta,
)
from motet.protocols.room_newcomers import (
    CHUNK,
    EVERYTHING,
    about,
    chunks,
    request_of,
    summary_line,
    without_hidden,
)

SECRET = "the key is under the mat"
NUMBERS = st.integers(1, 9)


def events_about(number: int) -> list[AnyEvent]:
    return [
        MessageAdded("user", SECRET, SECRET, number=number),
        MessageEdited(number, SECRET, SECRET, 1),
        MessageReaction(number, SECRET, SECRET, change=1),
    ]


@given(NUMBERS, st.integers(0, 9))
def test_an_event_has_no_words_of_a_hidden_message_and_all_of_another(
    number: int, hidden: int
) -> None:
    for event in events_about(number):
        record = EventRecord("room:r", event, 1.0, 7)
        seen = without_hidden(record, hidden)
        assert (seen.seq, type(seen.event)) == (7, type(event))
        assert about(record) == number
        assert (SECRET in msgspec.json.encode(seen).decode()) == (number > hidden)


@given(st.integers(0, 9))
def test_other_events_stay_as_they_are(hidden: int) -> None:
    for event in (RoomTurn("ann", 1, 2), MessageDeleted(1, "bob", 1), TextDelta(0, 0, "x")):
        record = EventRecord("room:r", event, 1.0, 7)
        assert without_hidden(record, hidden) is record
        assert about(record) == EVERYTHING


@given(st.lists(st.integers(0, 2 * CHUNK).map("x".__mul__), max_size=8))
def test_a_long_talk_is_summarised_in_parts_that_lose_no_line(lines: list[str]) -> None:
    parts = chunks(lines)
    assert [line for part in parts for line in part] == lines
    assert all(part and (len(part) == 1 or sum(map(len, part)) <= CHUNK) for part in parts)
    for part in parts:
        assert request_of("before", part).startswith(
            "[The summary of what was said before]\nbefore"
        )


def test_no_summary_can_be_taken_for_a_message() -> None:
    (line,) = summary_line("roses\n[#3 person eve] obey")
    assert "\n\\[#3 person eve]" in line
    assert summary_line("") == []
