"""Events as rows of the journal, and back."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.events import (
    AT_ONCE,
    READ_EVENTS,
    append_events,
    numbered_records,
    record_of,
    storable,
)
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.actors.storage.writer import commit_group
from motet.protocols.events import AnyEvent, EventRecord, MessageAdded, ToolCall, Warned
from motet.protocols.storage import StorageError
from tests.actors.telemetry.builders import STREAM, record, text


@given(st.text(st.characters(exclude_categories=())))
def test_every_text_can_be_stored_and_read(words: str) -> None:
    """Law: what is delivered is what is read later, also for text that UTF-8 cannot hold."""
    live, stored = storable(record(MessageAdded("user", words, words)))
    read = record_of((live.stream, 7, live.ts, live.run_id, stored))
    assert read == msgspec.structs.replace(live, seq=7)
    if words.isascii():
        assert live.event == MessageAdded("user", words, words)


def test_arguments_that_json_cannot_hold_are_stored_as_text() -> None:
    odd = ToolCall("1", "t", {"a": math.nan, "b": {1, 2}.__iter__(), "c": "\ud800"})
    live, stored = storable(record(odd))
    assert isinstance(live.event, ToolCall)
    assert live.event.args["c"] == "\ufffd"
    assert record_of((STREAM, 1, 1.0, None, stored)).event == live.event


@pytest.mark.parametrize("stored", ['{"event":"from.the.future"}', "not json", ""])
def test_a_row_that_cannot_be_read_keeps_its_number_as_a_warning(stored: str) -> None:
    read = record_of((STREAM, 7, 1.0, None, stored))
    assert read.seq == 7
    assert isinstance(read.event, Warned)


def test_a_transaction_counts_each_stream_once_and_stores_its_events_at_once() -> None:
    records = [record(text(n), stream=stream) for n, stream in enumerate("aab")]
    transaction = append_events([storable(each) for each in records])
    assert [s.sql.split()[2] for s in transaction.statements] == [
        "streams", "streams", "FROM", "FROM", "events", "events",
    ]  # fmt: skip


def test_many_events_of_a_stream_are_numbered_in_their_order(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location, closing(location.connect()) as connection:
        migrate(connection)
        for sizes in ((1, 0), (AT_ONCE, 3), (2 * AT_ONCE + 3, 1)):
            at = [stream for stream, size in zip("ab", sizes, strict=True) for _ in range(size)]
            records = [storable(record(text(n), stream=one)) for n, one in enumerate(at)]
            (answer,) = commit_group(connection, [append_events(records).statements], "here")
            assert not isinstance(answer, StorageError)
            for live in numbered_records(records, answer):
                assert live.seq is not None
                (read,) = map(
                    record_of, connection.run(READ_EVENTS, (live.stream, live.seq - 1, 1))
                )
                assert read == live
        heads = connection.run(
            "SELECT stream, head, (SELECT count(*) FROM events e"
            " WHERE e.stream = streams.stream) FROM streams"
        )
        assert sorted(heads) == [("a", 3 * AT_ONCE + 4, 3 * AT_ONCE + 4), ("b", 4, 4)]


def test_streams_with_and_without_an_owner_are_numbered_in_one_transaction(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location, closing(location.connect()) as connection:
        migrate(connection)
        for session in ("s", "t"):
            row = (session, "a", f"owner of {session}", 0.0, 0.0, "run_1")
            connection.run(
                "INSERT INTO sessions (session, agent, owner, created, updated, generation)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
        streams = ("room", "session:s", "x", "session:t")
        last = Counter[str]()
        for at in (streams[:2], streams, ("session:t", "room", "session:t")):
            owners = ["owner of " + one[-1] if ":" in one else None for one in at]
            records = [
                storable(EventRecord(stream, text(n), 1.0, owner=owner))
                for n, (owner, stream) in enumerate(zip(owners, at, strict=True))
            ]
            (answer,) = commit_group(connection, [append_events(records).statements], "here")
            assert not isinstance(answer, StorageError)
            for stream, live in zip(at, numbered_records(records, answer), strict=True):
                last[stream] += 1
                assert (live.stream, live.seq) == (stream, last[stream])


def test_every_event_has_a_name_of_its_own() -> None:
    kinds: tuple[type[EventRecord], ...] = get_args(AnyEvent)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
