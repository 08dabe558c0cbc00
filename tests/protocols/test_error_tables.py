"""Indexes of errors: what lists show never depends on them, and one store writes few pages."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import MIGRATIONS, migrate
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Writer
from motet.protocols.error_rows import (
    COLUMNS,
    DELETE_ROWS,
    FORGET,
    RESOLVE,
    count_query,
    groups_query,
    insert_statement,
    list_query,
    resolve_key,
)
from motet.protocols.error_tables import BURST, INDEX_TAIL, INDEXED_LATER, SLICE, TAIL
from motet.protocols.errors import GroupErrors, ListErrors
from motet.protocols.room_changes import ChangedMessages, scrub
from motet.protocols.rooms import RoomMessage
from motet.testing.errors import record

INDEX = "UPDATE error_tail SET seq = (SELECT coalesce(max(seq), 0) FROM agent_errors)"
"""As the trigger does with a long tail."""
OPS = st.sampled_from(
    ["store"] * 6 + ["index"] * 2 + ["resolve", "forget", "delete", "changed", "old"]
)
USERS, SESSIONS, TOOLS, GROUPS = (
    st.sampled_from(one) for one in (["u", "v"], ["s", "z"], ["t", "w"], ["f", "g"])
)
FILTERS = st.builds(
    ListErrors,
    *(st.none() | SESSIONS, st.none() | TOOLS, st.none() | st.just(2.0), st.none() | st.just(3.0)),
    st.integers(1, 4),
    owner=st.none() | USERS,
    agent=st.none() | st.just("a"),
    fingerprint=st.none() | GROUPS,
    resolved=st.none() | st.booleans(),
)


class Table:
    """The rows of a database of errors, and the same filters in Python."""

    def __init__(self, connection: Connection) -> None:
        self.run = connection.run
        names = "seq, timestamp, owner, session, tool, agent, fingerprint, resolved IS NOT NULL"
        self.rows = connection.run(f"SELECT {names} FROM error_records ORDER BY timestamp, seq")

    def expected(self, which: ListErrors) -> list[object]:
        wanted = (which.owner, which.session_id, which.tool_name, which.agent, which.fingerprint)
        return [
            seq
            for seq, at, *values, resolved in reversed(self.rows)
            if all(one in (None, value) for one, value in zip(wanted, values, strict=True))
            and (which.start is None or float(at or 0) >= which.start)
            and (which.end is None or float(at or 0) <= which.end)
            and which.resolved in (None, bool(resolved))
        ]

    def listed(self, which: ListErrors) -> list[object]:
        """By pages."""
        found: list[object] = []
        after: tuple[float, int] | None = None
        while rows := self.run(*list_query(which, after, grouped=True)):
            found += [row[-1] for row in rows]
            after = float(rows[-1][1] or 0), int(rows[-1][-1] or 0)
        return found

    def groups(self) -> list[object]:
        found: list[object] = []
        after: tuple[float, int] | None = None
        while rows := self.run(*groups_query(GroupErrors(limit=2), after)):
            found += [tuple(row[:9]) for row in rows]
            after = float(rows[-1][8] or 0), int(rows[-1][-1] or 0)
        return found


@given(
    st.lists(st.tuples(OPS, USERS, SESSIONS, TOOLS, GROUPS, st.integers(0, 4)), max_size=20),
    st.lists(FILTERS, min_size=1, max_size=5),
)
@settings(max_examples=25)
def test_lists_do_not_depend_on_the_errors_that_are_indexed(
    ops: list[tuple[str, str, str, str, str, int]], filters: list[ListErrors]
) -> None:
    """Law: after any stores, changes, successes and deletions, whichever errors were indexed before
    them, pages show each error and each group once, in their order.
    """
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        for number, (op, user, session, tool, group, at) in enumerate(ops):
            if op == "index":
                connection.run(INDEX)
            elif op == "resolve":
                connection.run(RESOLVE, (*resolve_key(session, tool, []), 9.0))
            elif op == "forget":
                connection.run(FORGET, (session,))
            elif op == "delete":
                connection.run(DELETE_ROWS, (f"[{at + 1}]",))
            else:
                made = record(number, user=user, session=session, tool=tool, fingerprint=group)
                statement = insert_statement([made])
                connection.run_each(statement.sql, statement.each)
                if op == "changed":
                    connection.run("UPDATE agent_errors SET timestamp = ? WHERE seq % 2", (at,))
                if op == "old":  # by another program, in a place before all others
                    connection.run(
                        f"INSERT INTO agent_errors (seq, {COLUMNS}) SELECT ?, 'old' || {COLUMNS}"
                        " FROM agent_errors WHERE id = ?",
                        (-number, made.id),
                    )
        table = Table(connection)
        for which in filters:
            assert table.listed(which) == table.expected(which)
            assert connection.run(*count_query(which)) == ((len(table.expected(which)),),)
        columns = "fingerprint, owner, agent, tool, kind, count, open, first, last"
        groups = connection.run(f"SELECT {columns} FROM error_groups ORDER BY last DESC, id DESC")
        assert table.groups() == [*groups]
        connection.close()


def test_an_error_that_is_stored_alone_writes_few_pages(tmp_path: Path) -> None:
    """An error in two dozen indexes would write as many pages."""
    with Location.directory(tmp_path) as location:
        connection = location.connect()
        migrate(connection)

        def store(first: int, count: int, together: int = 1) -> int:
            before = written(connection)
            for number in range(first, first + count, together):
                statement = insert_statement([record(number + n) for n in range(together)])
                connection.run("BEGIN")
                connection.run_each(statement.sql, statement.each)
                connection.run("COMMIT")
            return written(connection) - before

        tail = "SELECT count(*) FROM error_records WHERE indexed = 0"
        store(1, TAIL - 1)
        connection.run(INDEX_TAIL)
        assert connection.run(tail) == ((TAIL - 1,),)
        store(TAIL, BURST - TAIL, TAIL)
        assert connection.run(tail) == ((BURST - 1,),)
        assert store(BURST, SLICE) <= 6.5 * SLICE
        assert connection.run(tail) == ((BURST - 1,),)
        store(BURST + SLICE, 1)
        assert connection.run(tail) == ((BURST - SLICE,),)
        while connection.run(INDEX_TAIL):
            pass
        assert connection.run(tail) < ((TAIL,),)
        connection.close()


def written(connection: Connection) -> int:
    pages: int = connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
    return pages


async def test_a_store_of_the_version_before_goes_on(tmp_path: Path) -> None:
    """Its errors are listed with new ones, with their groups and what was resolved."""
    with Location.directory(tmp_path) as location:
        connection = location.connect()
        migrate(connection, MIGRATIONS[: MIGRATIONS.index(INDEXED_LATER)])
        for number in range(1, 9):
            made = record(number, session="s" if number % 2 else "z", fingerprint=f"f{number % 3}")
            statement = insert_statement([made])
            connection.run_each(statement.sql, statement.each)
        connection.run("UPDATE error_records SET resolved = 9.0 WHERE seq <= 2")
        migrate(connection)
        statement = insert_statement([record(9, fingerprint="f1"), record(10, fingerprint="new")])
        connection.run_each(statement.sql, statement.each)
        connection.close()
        readers, writer = Readers(location), Writer(location)
        errors = SqliteErrors(writer.submit, readers)
        page = await errors.page(ListErrors(limit=20), None)
        assert [error.id for error in page.errors] == [record(n).id for n in range(10, 0, -1)]
        assert [error.resolved for error in page.errors[-2:]] == [9.0, 9.0]
        groups = (await errors.groups(GroupErrors(limit=9))).groups
        counts = [(group.fingerprint, group.count, group.open) for group in groups]
        assert counts == [("new", 1, 1), ("f1", 4, 3), ("f2", 3, 2), ("f0", 2, 2)]
        await readers.aclose()


@given(
    st.lists(st.tuples(st.sampled_from(("quotes", "joined", "says")), SESSIONS, GROUPS)),
    st.sets(st.integers(0, 9)),
    st.integers(0, 10),
)
@settings(max_examples=25)
def test_a_changed_message_changes_the_errors_that_quote_it_and_nothing_else_of_them(
    errors: list[tuple[str, str, str]], resolved: set[int], indexed: int
) -> None:
    """Law: whichever are indexed or resolved, the errors of the room's sessions have the new text,
    their other columns, their groups and those of other sessions are as before.
    """
    texts = {
        "quotes": (r'{"message":"no"}', r'{"task":"[#1 person ada] hi\n[#2 person ada] a secret"}'),
        "joined": (r'{"message":"not for: [#2 person ada] a secret"}', ""),
        "says": (r'{"message":"a secret"}', ""),
    }
    gone = RoomMessage(2, "ada", "person", "", 1, 1.0, edited=2.0, deleted=True)
    known = ChangedMessages()
    known.keep("room:den", gone)
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        connection.run(
            "INSERT INTO sessions (session, agent, owner, created, updated)"
            " VALUES ('s', 'a', 'room:den', 1, 1)"
        )
        for number, (kind, session, group) in enumerate(errors):
            user = "room:den" if session == "s" else "u"
            raw, given = texts[kind]
            made = record(number, user=user, session=session, fingerprint=group)
            made = msgspec.structs.replace(made, raw_error=raw, arguments=given)
            statement = insert_statement([made])
            connection.run_each(statement.sql, statement.each)
            known_now = known.corrected(made)
            hidden = session == "s" and kind != "says"
            assert ("secret" in known_now.raw_error + known_now.arguments) != hidden
            if number in resolved:
                connection.run("UPDATE error_records SET resolved = 7 WHERE seq = ?", (number + 1,))
            if number == indexed:
                connection.run(INDEX)

        def rows(sql: str) -> list[object]:
            return [*connection.run(sql)]

        derived = "SELECT seq, id, timestamp, owner, resolved, indexed FROM error_records"
        groups = "SELECT fingerprint, owner, agent, tool, kind, count, open, first, last, newest"
        watched = (derived, f"{groups} FROM error_groups", "SELECT * FROM error_tail")
        others = (
            "SELECT * FROM agent_errors WHERE session_id <> 's' OR raw_error LIKE '%\"a secret%'"
        )
        before = [rows(sql) for sql in (*watched, others)]
        for statement in scrub("den", gone, "a secret"):
            connection.run(statement.sql, statement.params)
        assert [rows(sql) for sql in (*watched, others)] == before
        kept = "SELECT seq FROM agent_errors WHERE session_id = 's' AND raw_error || "
        kept += "coalesce(arguments, '') LIKE '%] a secret%'"
        assert not rows(kept)
        columns = groups.removesuffix(", newest")
        assert Table(connection).groups() == rows(
            f"{columns} FROM error_groups ORDER BY last DESC, id DESC"
        )
        connection.close()
