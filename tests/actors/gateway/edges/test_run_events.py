"""Laws: the text of a message is sent once, and a conversation is found by its newest state."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.gateway import idempotency as conversations
from motet.actors.gateway.idempotency import MemoryConversations, state_digest
from motet.actors.storage.idempotency import SqliteConversations
from motet.actors.storage.location import Location
from motet.protocols.gateway_stores import Conversations
from tests.actors.storage.builders import open_database

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
