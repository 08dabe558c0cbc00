"""A cached context of a session equals the one on disk."""

from __future__ import annotations

import tracemalloc

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.storage import session_transcripts as compactions
from motet.actors.storage.location import Location
from motet.actors.storage.run_access import CONTEXT, ContextCache
from motet.actors.storage.run_access import ROW as ROW_BYTES
from motet.actors.storage.tables import decode_message, encode_message
from motet.actors.transcript.history import EMPTY_SCAN
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.sessions import (
    DeleteSession,
    FinishRun,
    LoadContext,
    MarkFlushed,
    ResetSession,
    SessionContext,
    StoreSummary,
)
from tests.actors.sessions.store_builders import ROWS, Store, open_store

ROW = UserMessage("hi")
ONE = SessionContext(rows=(ROW,))


WEIGHT = 10 + ROW_BYTES + CONTEXT
"""Of :data:`ONE`, as these tests have it."""


def known_one(room: int = 10_000) -> ContextCache:
    contexts = ContextCache(room)
    contexts.end_read("s", contexts.begin_read("s"), ONE, 10)
    return contexts


def test_a_read_context_is_cached_and_grows_with_stored_rows() -> None:
    contexts = known_one()
    with contexts.changing("s") as change:
        assert contexts.get("s") is None
        change.add([ROW], 5)
    assert contexts.get("s") == SessionContext(rows=(ROW, ROW))


def test_a_change_without_added_rows_evicts_the_session() -> None:
    contexts = known_one()
    with contexts.changing("s"):
        pass
    assert contexts.get("s") is None


def test_a_read_that_overlaps_a_change_is_not_cached() -> None:
    contexts = ContextCache()
    before = contexts.begin_read("s")
    with contexts.changing("s"):
        beside = contexts.begin_read("s")
        contexts.end_read("s", before, ONE, 1)
    contexts.end_read("s", beside, ONE, 1)
    assert contexts.get("s") is None


def test_of_two_changes_at_once_neither_is_kept() -> None:
    contexts = known_one()
    with contexts.changing("s") as first:
        with contexts.changing("s") as second:
            second.add([ROW], 1)
        first.add([ROW], 1)
    assert contexts.get("s") is None


def test_the_least_lately_used_goes_when_the_room_is_full() -> None:
    contexts = known_one(room=2 * WEIGHT + 5)
    contexts.end_read("t", contexts.begin_read("t"), ONE, 10)
    assert contexts.get("s") == ONE
    contexts.end_read("u", contexts.begin_read("u"), ONE, 10)
    assert contexts.get("t") is None
    assert contexts.get("s") == contexts.get("u") == ONE


@pytest.mark.parametrize(("turns", "text"), [(1, "hi"), (10, "hi"), (10, "x" * 200)])
def test_the_cache_counts_about_what_it_holds(turns: int, text: str) -> None:
    """Short contexts too, whose objects are larger than their text; a sixth of them was counted."""
    said = (UserMessage(text), AssistantMessage(text=text))
    bodies = [encode_message(one) for _ in range(turns) for one in said]
    contexts, sessions = ContextCache(room=1 << 40), 300
    tracemalloc.start()
    try:
        for number in range(sessions):
            name = f"agent:ops:direct:{number}"
            rows = tuple(decode_message(body) for body in bodies)
            found = SessionContext(rows=rows, generation=f"run_{number:012x}")
            contexts.end_read(name, contexts.begin_read(name), found, sum(map(len, bodies)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < contexts.size / held < 1.5


OPERATIONS = ("run", "twice", "bad", "reset", "summary", "flushed", "delete", "forget")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from("st")), max_size=12))
def test_a_loaded_context_equals_the_one_on_disk(script: list[tuple[str, str]]) -> None:
    """After every history of writes, loading gives what reading the rows would give."""

    async def scenario() -> None:
        with Location.memory() as location:
            async with open_store(location, check_messages=False) as store:
                for number, (operation, session) in enumerate(script):
                    await play(store, operation, session, f"r{number}")
                    for one in "st":
                        found = await store.database.readers.read(compactions.CONTEXT, (one,))
                        assert await store.ref.ask(LoadContext(one)) == compactions.context(found)

    trio.run(scenario)


async def play(store: Store, operation: str, session: str, run: str) -> None:
    context = await store.ref.ask(LoadContext(session))
    match operation:
        case "run":
            await store.complete(run, session=session)
        case "twice":
            await store.accept(run, session=session)
            await store.accept(f"{run}b", session=session)
            async with trio.open_nursery() as nursery:
                for each in (run, f"{run}b"):
                    nursery.start_soon(store.ref.ask, FinishRun(each, "completed", ROWS))
                nursery.start_soon(store.ref.ask, LoadContext(session))
        case "bad":
            await store.accept(run, session=session)
            await store.ref.ask(FinishRun(run, "completed", (UserMessage("bad \ud800"),)))
        case "summary":
            last = context.start_pos + len(context.rows) - 1
            await store.ref.ask(StoreSummary(session, context.start_pos, last, "short"))
        case "flushed":
            await store.ref.ask(MarkFlushed(session, context.start_pos))
        case "delete":
            await store.ref.ask(DeleteSession(session))
        case "reset" if context.rows:
            await store.ref.ask(ResetSession(session))
        case _:
            pass


def test_a_scan_is_extended_and_evicted_with_its_rows() -> None:
    contexts = known_one()
    assert contexts.scan("s") == EMPTY_SCAN.extended_to((ROW,))
    with contexts.changing("s") as change:
        assert contexts.scan("s") == EMPTY_SCAN
        change.add([ROW], 5)
    assert contexts.scan("s") == EMPTY_SCAN.extended_to((ROW, ROW))
    with contexts.changing("s"):
        pass
    assert contexts.scan("s") == EMPTY_SCAN


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 40))
def test_a_correction_is_seen_however_many_sessions_are_corrected(
    sessions: list[int], since: int
) -> None:
    """Law: what was read of a session before a correction of it is known to be old afterwards, and
    the cache keeps few names.
    """
    contexts = ContextCache(most_corrected=2)
    read = dict.fromkeys(range(5), 0)
    for at, session in enumerate(sessions):
        if at == since:
            read = {one: contexts.corrected(str(one)) for one in range(5)}
        with contexts.correcting(str(session)):
            pass
        assert len(contexts._corrected) <= 2  # pyright: ignore[reportPrivateUsage]
    for session in sessions[since:]:
        assert contexts.corrected(str(session)) != read[session]
