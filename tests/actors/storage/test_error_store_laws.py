"""Laws of the error store: unique ids, filters, whole texts, foreign sessions, groups, cancels."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.storage.connection import Connection
from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import migrate
from motet.protocols.chat import JsonObject
from motet.protocols.error_rows import list_query
from motet.protocols.errors import GetError, ListErrors, StoredError, StoreError
from motet.protocols.redaction.redact import (
    LARGE,
    TEXT_LIMIT,
    is_large,
    redact,
    redacted_head,
    truncate_texts,
)
from motet.protocols.storage import ConstraintFailed, DiskFull, Rows, Transaction
from motet.runtime import open_system
from motet.runtime.describe import is_id
from motet.runtime.exceptions import serialize_error
from tests.actors.errors.builders import failure, open_store
from tests.actors.storage.test_error_store import model
from tests.protocols.redaction.builders import alike

NOW = 1_732_230_214.0


@pytest.mark.slow
@pytest.mark.parametrize("clients", [10, pytest.param(200, marks=pytest.mark.sweep)])
async def test_errors_of_one_second_have_ids_of_their_own(clients: int) -> None:
    """Law: ids are unique, also where, of 100,000, one in 170 six-digit suffixes is drawn again."""
    ids: list[str] = []
    with Location.memory() as location:
        async with open_store(location, clock=lambda: NOW, keep_raw=True) as opened:

            async def client() -> None:
                for _ in range(500):
                    ids.append((await opened.store.ask(failure())).id)

            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(client)
            ((count,),) = await opened.readers.read("SELECT count(*) FROM agent_errors")
    assert len(ids) == len(set(ids)) == count == 500 * clients
    assert all(is_id(made) for made in ids)
    assert {made[:19] for made in ids} == {"err_20241121_230334"}


SESSIONS, TOOLS = st.sampled_from(["a", "b", "é"]), st.sampled_from(["x", "y"])
KINDS = st.sampled_from(["timeout", "auth", "unknown"])
MOMENTS = st.sampled_from([0.0, 1.0, 1.000001, 2.5])
ERRORS = st.lists(st.tuples(SESSIONS, TOOLS, KINDS, MOMENTS), max_size=12)
FILTERS = st.builds(
    ListErrors,
    st.none() | SESSIONS,
    st.none() | TOOLS,
    st.none() | MOMENTS,
    st.none() | MOMENTS,
    st.integers(0, 5),
    st.none() | KINDS,
)


@given(ERRORS, st.lists(FILTERS, min_size=1, max_size=6))
@settings(max_examples=30)
def test_a_list_equals_a_filter_in_python(
    errors: list[tuple[str, str, str, float]], filters: list[ListErrors]
) -> None:
    """Law: list(filter) equals the filter over all that was stored, in the same order."""
    moments = iter([moment for *_, moment in errors])

    async def main() -> None:
        with Location.memory() as location:
            async with open_store(location, clock=lambda: next(moments)) as opened:
                stored: list[StoredError] = []
                for session, tool, kind, _ in errors:
                    request = StoreError(session, tool, {"message": "m"}, "m", kind)  # type: ignore[arg-type] # pyright: ignore  (a strategy's text)
                    stored.append(await opened.store.ask(request))
                for wanted in filters:
                    of_kind = [e for e in stored if wanted.kind in (None, e.kind)]
                    assert await opened.store.ask(wanted) == model(of_kind, wanted)
                for error in stored:
                    for session in ("a", "b", "é", "nobody", ""):
                        found = await opened.store.ask(GetError(error.id, session))
                        assert found == (error if session == error.session_id else None)

    trio.run(main)


CODES = ["\x1b[31m", "\x1b[0m", "\x9b1m", "\0", "\x07", "\r\n", "\ud800", "\udfff", "\u2028"]
TEXTS = st.lists(
    st.sampled_from(CODES) | st.text(st.characters(exclude_categories=()), max_size=20), max_size=8
).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from([ValueError, OSError, KeyError]))
@settings(max_examples=30)
def test_an_exception_is_read_back_unchanged_except_for_secrets(
    texts: list[str], kind: Callable[[str], Exception]
) -> None:
    """Law: get(store(error)) == redact(raw(error)), whatever characters the error is made of."""
    raws = [serialize_error(kind(text)) for text in texts]

    async def main() -> None:
        with Location.memory() as location:
            async with open_store(location) as opened:
                for raw in raws:
                    stored = await opened.store.ask(StoreError("s", "t", raw, "m"))
                    assert stored.raw_error == redact(raw)
                    assert await opened.store.ask(GetError(stored.id, "s")) == stored

    trio.run(main)


@pytest.mark.parametrize("megabytes", [2, pytest.param(10, marks=pytest.mark.sweep)])
async def test_megabytes_are_made_ready_in_a_thread_and_come_back_whole(
    monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    threads: set[int] = set()

    def noting(text: str, **options: Any) -> tuple[str, int]:
        threads.add(threading.get_ident())
        return redacted_head(text, **options)

    monkeypatch.setattr("motet.actors.errors.capture.redacted_head", noting)
    text = "no such file: \x1b[31m/tmp/ö\x1b[0m\n" * 35_000 * megabytes
    assert len(text) > 1_000_000 * megabytes
    with Location.memory() as location:
        async with open_store(location) as opened:
            stored = await opened.store.ask(StoreError("s", "t", {"message": text}, "m"))
            assert stored.raw_error == {"message": text}
            assert await opened.store.ask(GetError(stored.id, "s")) == stored
    assert threads
    assert threads.isdisjoint({threading.get_ident()})


def test_only_values_that_take_long_count_as_large() -> None:
    assert not is_large({"message": "x" * 10_000, "n": [1, 2.0, None, True]})
    assert is_large({"message": "x" * LARGE})
    assert is_large({"x" * LARGE: 1})
    assert is_large({"deep": [{"items": list(range(LARGE))}]})


def test_texts_beyond_any_use_keep_their_head_and_tail() -> None:
    text = "head " + "x " * TEXT_LIMIT + "tail"
    short = cast("str", cast("JsonObject", truncate_texts({"m": text, "n": [1]}))["m"])
    assert short.startswith("head x")
    assert short.endswith("x tail")
    assert len(short) < TEXT_LIMIT + 100
    assert "characters left out ...]" in short
    assert truncate_texts({"m": "short"}) == {"m": "short"}


def test_no_secret_is_cut_in_half_by_the_end_of_a_head() -> None:
    key = "sk-" + "a1" * 20
    for shift in range(0, 60, 7):
        text = "word " * 13_100 + "x" * shift + f" {key} " + "word " * 100
        head, left_out = redacted_head(text)
        assert left_out > 0
        assert "a1a1" not in head
    head, left_out = redacted_head(f"a {key}")
    assert (alike(head), left_out) == ("a [REDACTED]", 0)


class Choosy:
    """Takes no transaction in which a row has the forbidden summary, as a full disk might not."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem
        self.sizes: list[int] = []

    async def submit(self, transaction: Transaction) -> Rows:
        rows = transaction[0].each
        self.sizes.append(len(rows))
        await trio.lowlevel.checkpoint()
        if any(row[5] == "forbidden" for row in rows):
            raise self.problem
        return ((),)


@pytest.mark.parametrize("problem", [DiskFull("no room"), ConstraintFailed("refused")])
async def test_one_error_that_cannot_be_stored_costs_no_other_of_its_group(
    problem: Exception,
) -> None:
    outcomes: dict[str, str] = {}
    choosy = Choosy(problem)
    async with open_system() as system:
        with Location.memory() as location:
            store = await system.start(
                lambda: ErrorStore(choosy.submit, Readers(location)), name="errors"
            )

            async def put(summary: str) -> None:
                try:
                    outcomes[summary] = (await store.ask(failure(summary))).id
                except (DiskFull, ConstraintFailed) as error:
                    outcomes[summary] = str(error)

            async with trio.open_nursery() as nursery:
                for summary in ("first", "one", "forbidden", "two", "three"):
                    nursery.start_soon(put, summary)
    assert outcomes.pop("forbidden") == str(problem)
    assert all(is_id(made) for made in outcomes.values())
    assert max(choosy.sizes) > 1, "they were written together"


async def test_a_stop_finishes_begun_writes() -> None:
    """Its asker may have left: then nobody else would know of the error."""
    with Location.memory() as location:
        async with open_store(location) as opened:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(opened.store.ask, failure("begun"))
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await opened.store.stop()
            rows = await opened.readers.read("SELECT short_summary FROM agent_errors")
    assert rows in ((), (("begun",),))


@pytest.mark.parametrize(
    ("request_", "index"),
    [
        (ListErrors(limit=9), "agent_errors_timestamp"),
        (ListErrors("s", limit=9), "agent_errors_session"),
        (ListErrors(None, "t", 5.0, limit=9), "agent_errors_tool"),
        (ListErrors("s", "t", 5.0, 9.0, 9), "agent_errors_session_tool"),
        (ListErrors("s", kind="auth", limit=9), "agent_errors_session"),
    ],
)
def test_every_list_walks_an_index_and_sorts_the_tail_only(
    request_: ListErrors, index: str
) -> None:
    with Location.memory() as location:
        connection: Connection = location.connect()
        migrate(connection)
        sql, params = list_query(request_)
        plan = " ".join(str(row[-1]) for row in connection.run(f"EXPLAIN QUERY PLAN {sql}", params))
        connection.close()
    assert f"INDEX {index} " in f"{plan} "
    assert plan.count("TEMP B-TREE") == 2  # of all that matches in the tail, and of a page of it
    assert re.search(r"SCAN error_tail SCAN \(subquery-\d+\) USE TEMP B-TREE FOR ORDER BY", plan)
