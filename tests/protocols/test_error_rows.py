"""Rows of stored errors: plans of every list, damaged columns, and the figures of groups."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import migrate
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Writer
from motet.protocols.error_records import stored_error
from motet.protocols.error_rows import (
    DELETE_ROWS,
    FORGET,
    RESOLVE,
    Place,
    delete_batch,
    groups_query,
    insert_statement,
    list_query,
    oldest_query,
    resolve_key,
)
from motet.protocols.errors import GroupErrors, ListErrors
from motet.protocols.fingerprints import fingerprint
from motet.protocols.storage import Row, SqlValue
from motet.testing.errors import record


@pytest.fixture
def connection() -> Iterator[Connection]:
    with Location.memory() as location:
        opened = location.connect()
        migrate(opened)
        yield opened
        opened.close()


def plan(connection: Connection, sql: str, params: tuple[object, ...]) -> str:
    rows = connection.run(f"EXPLAIN QUERY PLAN {sql}", params)  # type: ignore[arg-type] # pyright: ignore  (values of a query)
    return "\n".join(str(row[-1]) for row in rows)


TAIL_SORTED = re.compile(r"SCAN error_tail\nSCAN \(subquery-\d+\)\nUSE TEMP B-TREE FOR ORDER BY")
T = TypeVar("T")


def pages(filters: Iterable[T]) -> Iterator[tuple[Place | None, T]]:
    for each in filters:
        yield None, each
        yield (7.0, 3), each


def test_no_filter_scans_a_table_or_sorts_more_than_the_tail(connection: Connection) -> None:
    """Law: every combination of filters, on every page, walks indexes in order."""
    given_ = itertools.product(*[(None, "x")] * 6, (None, "auth"), (None, True, False), (None, 5.0))
    for after, (owner, session, tool, agent, run, group, kind, resolved, start) in pages(given_):
        which = ListErrors(
            *(session, tool, start, None, 20, kind, owner, agent, run, group, resolved)  # type: ignore[arg-type] # pyright: ignore  (a kind)
        )
        found = plan(connection, *list_query(which, after, grouped=True))
        assert found.count("TEMP B-TREE") == 2, which  # of the tail, and of a page of it
        assert TAIL_SORTED.search(found), which
        assert "SCAN error_records" not in found, which
        assert "SCAN r" not in found, which


def test_no_list_of_groups_sorts_any_or_scans_more_than_those_of_the_tail(
    connection: Connection,
) -> None:
    given_ = itertools.product(*[(None, "x")] * 3, (None, "auth"), (None, True, False), (None, 5.0))
    for after, (owner, agent, tool, kind, resolved, start) in pages(given_):
        which = GroupErrors(owner, agent, tool, kind, resolved, start, 20)  # type: ignore[arg-type] # pyright: ignore  (a kind)
        found = plan(connection, *groups_query(which, after))
        assert "TEMP B-TREE" not in found, which
        assert "SCAN error_records" not in found, which
        assert found.count("error_groups_waiting") == 1, which
        assert found.replace("SCAN g USING INDEX error_groups_waiting", "").count("SCAN g") == 0


# 6,000 errors: each filter leaves a thousand of them and more, and each pair of filters three.
FILL = (
    """
INSERT INTO error_records (seq, id, timestamp, owner, session, tool, summary, kind, run_id,
    call_id, agent, user, fingerprint, bytes)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000),
    e AS (SELECT i, 'o' || (i % 4) AS owner, 't' || (i / 4 % 4) AS tool,
        'a' || (i / 16 % 4) AS agent, 'f' || (i / 64 % 4) AS fingerprint FROM n)
SELECT i, 'e' || i, i, owner, 's' || (i / 256 % 4), tool, '', 'unknown', 'r' || i, '', agent, '',
    fingerprint, 10
FROM e WHERE i <= 3 OR (owner = 'o1') + (tool = 't1') + (agent = 'a1') + (fingerprint = 'f1')
    + (i / 256 % 4 = 1) < 2
    """,
    "UPDATE error_records SET owner = 'o1', tool = 't1', agent = 'a1', fingerprint = 'f1',"
    " session = 's1' WHERE seq <= 3",
    "INSERT INTO agent_errors (seq, id, timestamp, session_id, tool_name, raw_error,"
    " short_summary) SELECT seq, id, timestamp, session, tool, '{}', '' FROM error_records",
    "UPDATE error_tail SET seq = 6000",
)
PARTS = {"owner": "o1", "tool_name": "t1", "agent": "a1", "fingerprint": "f1"}
SESSION = {"session_id": "s1"}  # its owner and its agent hardly ever differ
RARE = [
    {**dict(chosen), **more}
    for chosen in (
        *(one for count in (2, 3, 4) for one in itertools.combinations(PARTS.items(), count)),
        *((*SESSION.items(), (name, PARTS[name])) for name in ("tool_name", "fingerprint")),
    )
    for more in ({}, {"resolved": False}, {"kind": "unknown"})
]
"""All sets of filters, each of which leaves a thousand errors alone, that leave three together."""


class Steps:
    """Counts the steps of SQLite's virtual machine that a query takes, by tens."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.taken = 0
        connection.set_progress_handler(self._count, 10)

    def _count(self) -> bool:
        self.taken += 10
        return False

    def of(self, query: tuple[str, tuple[SqlValue, ...]]) -> tuple[int, int]:
        """The rows of a query, and its steps."""
        before = self.taken
        rows = self.connection.run(*query)
        return len(rows), self.taken - before


def test_filters_that_are_common_alone_and_rare_together_walk_few_rows(
    connection: Connection,
) -> None:
    """Law: on every page, steps depend on the rows that are shown, not on those of one filter."""
    connection.run("DROP TRIGGER error_stored; DROP TRIGGER error_tail_full")
    for sql in FILL:
        connection.run(sql)
    steps = Steps(connection)
    for after, which in pages(ListErrors(limit=5, **pair) for pair in RARE):  # type: ignore[arg-type] # pyright: ignore  (fields of it)
        found, taken = steps.of(list_query(which, after, grouped=True))
        assert found == (3 if after is None else 2 if after == (3.0, 3) else found)
        assert taken < 1_500, which
    connection.run("UPDATE error_records SET fingerprint = 'f9' WHERE tool = 't2'")
    for more in ({}, {"owner": "o1"}, {"agent": "a1"}, {"owner": "o1", "agent": "a1"}):
        never = ListErrors(tool_name="t1", fingerprint="f9", limit=5, **more)  # type: ignore[arg-type] # pyright: ignore  (fields of it)
        assert steps.of(list_query(never, grouped=True)) < (1, 500), never


GARBAGE = st.sampled_from(
    [
        "x'ff00'",
        "CAST(x'ff41' AS TEXT)",
        "9e999",
        "-1e300",
        "'{'",
        "'[1]'",
        "''",
        "x''",
        "7",
        "NULL",
    ]
)
COLUMNS = st.sampled_from(
    [
        "timestamp",
        "session_id",
        "tool_name",
        "raw_error",
        "short_summary",
        "kind",
        "arguments",
        "run_id",
        "call_id",
        "agent",
        "user",
        "fingerprint",
    ]
)
DERIVED = st.sampled_from(
    [
        "timestamp",
        "owner",
        "session",
        "tool",
        "summary",
        "kind",
        "run_id",
        "fingerprint",
        "resolved",
        "bytes",
    ]
)


@pytest.mark.parametrize("text", ["[1]", '"text"', "null", "7", "{not json", "[" * 9_000])
def test_a_raw_error_that_is_no_object_says_so(text: str) -> None:
    """It was None, which no reader of an error expects."""
    columns = {**asdict(record(1)), "raw_error": text, "arguments": None}
    found = stored_error(columns)
    assert str(found.raw_error["message"]).startswith("the stored row cannot be read: raw_error: ")
    assert found.malformed.startswith("raw_error: ")
    assert found.id == record(1).id


@pytest.mark.parametrize("time", ["'yesterday'", "9e999", "-1e300", "x'ff'"])
async def test_a_row_whose_time_is_none_says_so_and_ends_its_page(time: str) -> None:
    with Location.memory() as location:
        writer, readers = Writer(location), Readers(location)
        await writer.open()
        errors = SqliteErrors(writer.submit, readers)
        await errors.store([record(1), record(2), record(3)])
        other = location.connect()
        other.run(f"UPDATE agent_errors SET timestamp = {time} WHERE seq > 1")
        other.close()
        seen, cursor = dict[str, str](), None
        for _ in range(5):
            page = await errors.page(ListErrors(limit=1), cursor)
            seen |= {error.id: error.malformed[:10] for error in page.errors}
            if (cursor := page.cursor) is None:
                break
        assert seen == {
            record(1).id: "",
            record(2).id: "timestamp:",
            record(3).id: "timestamp:",
        }
        found = await errors.get(record(2).id)
        assert found is not None
        assert (found.timestamp, found.malformed[:10]) == (0, "timestamp:")
        await readers.aclose()
        await writer.aclose()


@given(st.lists(st.tuples(st.booleans(), COLUMNS, DERIVED, GARBAGE), min_size=1, max_size=4))
@settings(max_examples=40)
def test_a_damaged_row_costs_no_other_one(
    damage: list[tuple[bool, str, str, str]],
) -> None:
    """Law: whatever another program writes into a row, lists show the others, and it once."""

    async def main() -> None:
        with Location.memory() as location:
            writer, readers = Writer(location), Readers(location)
            await writer.open()
            errors = SqliteErrors(writer.submit, readers)
            await errors.store([record(1), record(2), record(3)])
            other = location.connect()
            for derived, column, narrow, value in damage:
                table, name = ("error_records", narrow) if derived else ("agent_errors", column)
                other.run(f"UPDATE OR IGNORE {table} SET {name} = {value} WHERE seq = 2")
            other.close()
            page = await errors.page(ListErrors(limit=9), None)
            ids = [error.id for error in page.errors]
            assert sorted(ids) == [record(n).id for n in (1, 2, 3)]
            for error in page.errors:
                assert error.id == record(2).id or not error.malformed
                assert isinstance(error.raw_error, dict)
            found = await errors.get(record(2).id)
            assert found is not None
            assert isinstance(found.raw_error, dict)
            assert found.raw_error or found.malformed
            await errors.groups(GroupErrors(limit=9))
            await readers.aclose()
            await writer.aclose()

    trio.run(main)


KEYS = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from("xy"),
    st.sampled_from("tv"),
    st.sampled_from(["f", "g"]),
    st.integers(0, 5),
)
STEPS = st.sampled_from(["store"] * 6 + ["forget", "resolve", "prune", "shrink", "rewrite"])


@given(st.lists(st.tuples(STEPS, KEYS), max_size=25))
@settings(max_examples=60)
def test_groups_count_the_stored_errors(
    steps: list[tuple[str, tuple[str, str, str, str, int]]],
) -> None:
    """Law: after any stores, successes, deletions, retention and updates, groups equal a recount.

    Only the times of a group also know of deleted errors.
    """
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)

        def run(sql: str, *params: SqlValue) -> tuple[Row, ...]:
            return connection.run(sql, params)

        def oldest() -> list[SqlValue]:
            return [seq for seq, _ in connection.run(*oldest_query())]

        for number, (step, (user, session, tool, group, at)) in enumerate(steps):
            if step == "forget":
                run(FORGET, session)
            elif step == "resolve":
                run(RESOLVE, *resolve_key(session, tool, []), 9.0)
            elif step == "prune":
                made = delete_batch(ListErrors(end=float(at), tool_name=tool))
                run(made.sql, *made.params)
            elif step == "shrink":
                run(DELETE_ROWS, str(oldest()[:at]))
            elif step == "rewrite":
                run("UPDATE agent_errors SET timestamp = ? WHERE session_id = ?", at, session)
            else:
                keys = {"user": user, "session": session, "tool": tool, "fingerprint": group}
                statement = insert_statement([record(number, **keys, at=float(at))])
                run(statement.sql, *statement.each[0])
            kept = run("SELECT timestamp, seq FROM error_records ORDER BY timestamp, seq")
            assert oldest() == [seq for _, seq in kept]
        counted = run(
            "SELECT owner, agent, fingerprint, count, open, newest FROM error_groups"
            " ORDER BY 1, 2, 3"
        )
        summed = run(
            "SELECT owner, agent, fingerprint, count(*), sum(resolved IS NULL), max(seq)"
            " FROM error_records GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        outside = run(
            "SELECT * FROM error_groups g JOIN error_records r USING (owner, agent, fingerprint)"
            " WHERE r.timestamp NOT BETWEEN g.first AND g.last"
        )
        connection.close()
    assert counted == summed
    assert outside == ()


def raw(message: str, **more: object) -> dict[str, object]:
    return {"message": message, "type": "OSError", **more}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("item 17 failed", "item 18231 failed"),
        ("no such file: '/tmp/a.txt'", "no such file: '/home/x/b.txt'"),
        ("run run_9b1d2c3e4f5a ended", "run run_00ffee112233 ended"),
        ("connect to 10.0.0.1:80 refused", "connect to 192.168.7.200:8080 refused"),
        ("at 2026-11-21T10:20:10Z: late", "at 2024-01-02T03:04:05Z: late"),
        ("object at 0x7f56a640b450", "object at 0x10"),
        ("GET https://a.example/x?y=1 failed", "GET http://b.example failed"),
        ("key [secret:openai:1f3a] is refused", "key [secret:openai:77aa] is refused"),
        ("cannot open /var/lib/a/1", "cannot open /srv/b"),
    ],
)
def test_errors_that_differ_in_their_data_are_equal(one: str, other: str) -> None:
    assert fingerprint("t", "unknown", raw(one)) == fingerprint("t", "unknown", raw(other))


def test_errors_that_differ_otherwise_are_not_equal() -> None:
    frames = ("a", 1), ("a", 2), ("b", 3)
    tracebacks = [f'  File "/x/{name}.py", line {line}, in f\n' for name, line in frames]
    made = [
        fingerprint("t", "unknown", raw("no route to host")),
        fingerprint("u", "unknown", raw("no route to host")),
        fingerprint("t", "timeout", raw("no route to host")),
        fingerprint("t", "unknown", raw("connection reset")),
        fingerprint("t", "unknown", raw("no route to host", type="ValueError")),
        *(fingerprint("t", "unknown", raw("no route", traceback=one)) for one in tracebacks),
    ]
    assert len(set(made)) == len(made) - 1
    assert made[-3] == made[-2], "two lines of one function"


@given(st.text(), st.text(), st.dictionaries(st.text(), st.none() | st.text() | st.integers()))
def test_a_fingerprint_raises_nothing_and_is_the_same_again(
    tool: str, kind: str, error: dict[str, object]
) -> None:
    assert fingerprint(tool, kind, error) == fingerprint(tool, kind, dict(error))
