"""Law: the text of a message is sent once, whatever of it was dropped or repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.edge_events import SentTexts, TextWithdrawn


@given(st.text(), st.data())
def test_whatever_is_dropped_or_repeated_the_text_of_a_message_is_sent_once(
    text: str, data: st.DataObject
) -> None:
    """Law: the sent text is always a beginning of the message, and all of it after the whole."""
    texts, told = SentTexts(), ""
    places = st.integers(0, len(text))
    for at, end in data.draw(st.lists(st.tuples(places, places).map(sorted), max_size=20)):
        told += texts.delta(0, at, text[at:end])
        assert text.startswith(told)
    told += texts.whole(0, text)
    assert told == text
    assert texts.delta(0, 0, text) == texts.whole(0, text) == ""


def test_a_message_that_differs_from_its_sent_text_is_withdrawn() -> None:
    texts = SentTexts()
    texts.delta(0, 0, "Half an ans")
    with pytest.raises(TextWithdrawn):
        texts.whole(0, "Another answer")
    assert texts.withdraw(0)
    assert not texts.withdraw(0)
    assert texts.delta(0, 0, "An") == "An"


def test_a_message_that_ends_in_fewer_spaces_is_the_same() -> None:
    texts = SentTexts()
    texts.delta(0, 0, "An answer.\n")
    assert texts.whole(0, "An answer.") == ""
