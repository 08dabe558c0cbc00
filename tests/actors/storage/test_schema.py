"""Migrations: whole steps, once each, never backwards."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from motet.actors.storage.location import Location
from motet.actors.storage.schema import MIGRATIONS, VERSION, migrate
from motet.protocols.storage import SchemaTooNew

TABLES = {
    "agent_errors", "agents", "approval_grants", "approvals", "conversations", "error_groups",
    "error_records", "escalations",
    "events", "idempotency", "memories", "messages", "results", "resumptions", "room_messages",
    "rooms", "runs", "sessions", "spans", "steps", "streams", "summaries", "team_task_needs",
    "team_tasks", "tokens", "traces",
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


def test_an_old_database_gets_only_the_steps_it_lacks() -> None:
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        migrate(connection)
        migrate(connection, (*MIGRATIONS, "ALTER TABLE tokens ADD COLUMN seen REAL"))
        assert connection.run("PRAGMA user_version") == ((VERSION + 1,),)
        assert connection.run("SELECT seen FROM tokens") == ()


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
