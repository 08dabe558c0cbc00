"""Migrations: whole steps, once each, never backwards."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.schema import MIGRATIONS, VERSION, WRITTEN_BY, migrate
from motet.protocols import host_tables
from motet.protocols.storage import SchemaDiffers, SchemaTooNew, stream_digest
from motet.protocols.version import __version__

TABLES = {
    "agent_errors", "agents", "approval_grants", "approvals", "conversations", "error_groups",
    "error_parts", "error_sequels", "error_tail",
    "error_records", "escalations",
    "events", "idempotency", "memories", "messages", "results", "resumptions", "room_invites",
    "room_costs", "room_messages", "room_people", "room_reads", "room_summaries",
    "rooms", "runs", "sessions", "spans", "steps", "streams", "summaries", "team_task_needs",
    "team_tasks", "tokens", "traces", "upkeep",
}  # fmt: skip


def test_a_new_database_gets_every_table_and_the_version(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        connection = location.connect()
        migrate(connection)
        found = connection.run(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            " AND name NOT LIKE 'memories_text%'"
        )
        assert {name for (name,) in found} == TABLES
        assert connection.run("PRAGMA user_version") == ((VERSION,),)


def _contents(connection: Connection) -> list[object]:
    tables = connection.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
    rows = [connection.run(f'SELECT * FROM "{name}"') for (name,) in tables]
    return [connection.run("SELECT type, name, tbl_name, sql FROM sqlite_schema"), *rows]


@pytest.mark.parametrize("page_size", [4096, 8192])
def test_a_new_database_is_as_if_it_had_taken_each_step(tmp_path: Path, page_size: int) -> None:
    """Also one that another program has made, with larger pages; and it stays in WAL mode."""
    location = Location.directory(tmp_path)
    with location:
        made = Connection(str(tmp_path / "motet.db"))
        made.run(f"PRAGMA page_size = {page_size}; VACUUM")
        made.close()
        connection = location.connect()
        migrate(connection)
        slowly = Connection(":memory:")
        slowly.run("PRAGMA user_version = 0")
        for count in range(1, VERSION + 1):
            slowly.run("CREATE TABLE IF NOT EXISTS not_new (x)")
            migrate(slowly, MIGRATIONS[:count])
        slowly.run("DROP TABLE not_new")
        for one in (connection, slowly):
            assert one.run("SELECT aged > 0 FROM upkeep") == ((1,),)
            one.run("UPDATE upkeep SET aged = 1.0")
        assert _contents(connection) == _contents(slowly)
        connection.close()
        again = location.connect(read_only=True)
        assert again.run("PRAGMA journal_mode") == (("wal",),)
        assert again.run("PRAGMA integrity_check") == (("ok",),)
        assert again.run("PRAGMA page_size") == ((page_size,),)
        again.close()


def test_a_table_of_somebody_elses_outlives_the_migration() -> None:
    with Location.memory() as location:
        connection = location.connect()
        connection.run("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
        migrate(connection)
        assert connection.run("SELECT x FROM theirs") == ((1,),)
        assert connection.run("PRAGMA user_version") == ((VERSION,),)


def test_an_old_database_gets_only_the_steps_it_lacks() -> None:
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        migrate(connection)
        migrate(connection, (*MIGRATIONS, "ALTER TABLE tokens ADD COLUMN seen REAL"))
        assert connection.run("PRAGMA user_version") == ((VERSION + 1,),)
        assert connection.run("SELECT seen FROM tokens") == ()


def test_an_old_database_forgets_the_names_of_streams_that_were_deleted() -> None:
    before = MIGRATIONS[: MIGRATIONS.index(host_tables.FORGOTTEN_STREAMS)]
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection, before)
        connection.run(
            "INSERT INTO sessions (session, agent, owner, created, updated)"
            " VALUES ('a' || char(0) || 'b', 'x', 'ann', 1, 2);"
            "INSERT INTO rooms (name, owner, state, created, updated) VALUES ('r', '', '{}', 1, 2);"
            "INSERT INTO events VALUES ('session:early', 1, 1, 'warning', NULL, '{}')"
        )
        stay = {"session:a\0b", "session:early", "room:r", "host"}
        for stream in (*stay, "session:a", "room:r/1"):
            connection.run("INSERT INTO streams (stream, head) VALUES (?, 7)", (stream,))
        migrate(connection)
        left = {stream for (stream,) in connection.run("SELECT stream FROM streams WHERE head = 7")}
        assert left == {*stay, stream_digest("session:a"), stream_digest("room:r/1")}


def test_a_newer_database_is_refused_and_not_changed() -> None:
    with Location.memory() as location:
        connection = location.connect()
        connection.run("PRAGMA user_version = 99")
        with pytest.raises(SchemaTooNew, match="version 99"):
            migrate(connection)
        assert not connection.in_transaction
        assert connection.run("SELECT count(*) FROM sqlite_schema") == ((0,),)


def test_a_step_that_fails_leaves_no_half_of_it() -> None:
    with Location.memory() as location:
        connection = location.connect()
        with pytest.raises(apsw.SQLError):
            migrate(connection, ("CREATE TABLE a (x); CREATE TABLE a (x)",))
        assert connection.run("SELECT count(*) FROM sqlite_schema") == ((0,),)
        assert connection.run("PRAGMA user_version") == ((0,),)


def test_two_builds_of_one_number_notice_each_other() -> None:
    """Given a database of another branch, whose last step differs, when it is opened, then it is
    refused and stays as it was; and so it is when this build has more steps."""
    other = (*MIGRATIONS[:-1], MIGRATIONS[-1] + "CREATE TABLE of_a_branch (x);")
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection, other)
        before = _contents(connection)
        for steps in (MIGRATIONS, (*MIGRATIONS, "CREATE TABLE more (x)")):
            with pytest.raises(SchemaDiffers, match="another build of motet"):
                migrate(connection, steps)
            assert _contents(connection) == before
        migrate(connection, other)


def test_a_database_says_which_motet_has_opened_it_last() -> None:
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        connection.run("UPDATE upkeep SET motet = '0.0.7'")
        migrate(connection)
        ((motet, _),) = connection.run(WRITTEN_BY)
        assert motet == __version__
