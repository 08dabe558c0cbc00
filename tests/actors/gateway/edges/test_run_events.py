"""Laws: the text of a message is sent once, and a conversation is found by its newest state."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.gateway import idempotency as conversations
from motet.actors.gateway.edges.run_events import SentTexts, TextWithdrawn
from motet.actors.gateway.idempotency import MemoryConversations, state_digest
from motet.actors.storage.idempotency import SqliteConversations
from motet.actors.storage.location import Location
from motet.protocols.gateway_stores import Conversations
from tests.actors.storage.builders import open_database


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


Notes = list[tuple[str, str]]
NOTES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=30)


async def one_newest_state(known: Conversations, notes: Notes) -> None:
    states: dict[str, str] = {}
    for session, state in notes:
        await known.note(session, state)
        states = {s: kept for s, kept in states.items() if kept != state} | {session: state}
    for state in "xyz":
        found = [session for session, newest in states.items() if newest == state]
        assert await known.find(state) == (found[0] if found else None)


@given(NOTES)
def test_a_conversation_has_one_newest_state(notes: Notes) -> None:
    """Law: a state leads to the session that was in it last, unless that went on since."""
    trio.run(one_newest_state, MemoryConversations(), notes)


@settings(max_examples=10)
@given(NOTES)
def test_a_stored_conversation_has_one_newest_state(notes: Notes) -> None:
    """Law: the same, on a real disk."""

    async def check() -> None:
        with Location.memory() as location:
            async with open_database(location) as database:
                stored = SqliteConversations(database.writer.submit, database.readers)
                await one_newest_state(stored, notes)

    trio.run(check)


async def test_without_a_disk_the_least_recent_conversation_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "MOST_CONVERSATIONS", 2)
    known = MemoryConversations()
    for session in "abac":
        await known.note(session, session)
    assert [await known.find(state) for state in "abc"] == ["a", None, "c"]


def test_a_conversation_is_that_of_one_user_with_one_agent() -> None:
    said = [("user", "hi"), ("assistant", "Hello.")]
    spaced = [("user", "hi "), ("assistant", "Hello.\n")]
    assert state_digest("ada", "helper", said) == state_digest("ada", "helper", spaced)
    others = {
        state_digest("bob", "helper", said),
        state_digest("ada", "other", said),
        state_digest("ada", "helper", said[:1]),
        state_digest("ada", "helper", [("user", "hi"), ("user", "Hello.")]),
    }
    assert len(others - {state_digest("ada", "helper", said)}) == 4
