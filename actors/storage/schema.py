"""The tables, as a list of steps that only ever grows.

Invariants: step n takes a database from version n to n + 1, in one transaction with its
``user_version``; a step that was released is never edited. Rows of ``messages`` are never
changed, nor removed one by one: a reset and a compaction move ``sessions.start_pos``.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache

from motet.actors.storage.connection import Connection, copy_image
from motet.protocols import error_tables, room_changes, room_costs, room_newcomers, room_tables
from motet.protocols import host_tables as tables
from motet.protocols.storage import SchemaTooNew

MIGRATIONS: tuple[str, ...] = (
    tables.FIRST,
    tables.RESULTS,
    tables.MEMORIES,
    tables.ESCALATIONS,
    tables.FORGETTING,
    tables.TRACES,
    tables.SUMMARIES,
    tables.AGENTS,
    tables.TEAMS,
    tables.APPROVALS,
    tables.ROOMS,
    tables.TOKENS,
    tables.QUEUES,
    tables.RECOVERY,
    tables.ROOM_PEOPLE,
    tables.GATEWAY,
    tables.MODELS,
    tables.GENERATIONS,
    tables.WORKSPACES,
    tables.PROPOSED,
    tables.ESCALATION_HISTORY,
    error_tables.TABLES,
    tables.ROOM_RIGHTS,
    error_tables.INDEXES,
    error_tables.SEQUELS,
    tables.RUN_EVENTS,
    error_tables.INDEXED_LATER,
    room_changes.STEP,
    tables.ROOM_ROLES,
    error_tables.PARTS,
    room_changes.REPLIES,
    room_costs.TRIGGERS,
    room_newcomers.STEP,
    room_costs.NO_TRIGGERS,
    room_tables.STEP,
    tables.UNSETTLED_TRACES,
    error_tables.LONGER_TAIL,
    tables.OPEN_RUNS,
    error_tables.WAITING_GROUPS,
    error_tables.SLICED_TAIL,
    tables.FORGOTTEN_STREAMS,
)
VERSION = len(MIGRATIONS)


def migrate(connection: Connection, steps: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a database to the newest version, or leave it as it was. Blocking.

    Raises ``SchemaTooNew`` for a database that a newer motet has written.
    """
    # Nobody writes between this look and the copy, since the lock of the location is ours.
    version = _version(connection)
    if version == len(steps):
        return
    new = version == 0 and not connection.run("SELECT 1 FROM sqlite_schema LIMIT 1")
    if new and connection.run("PRAGMA page_size") == ((4096,),):  # as SQLite and the image have it
        copy_image(new_database(steps), connection)
    else:
        _take(connection, steps)


@cache
def new_database(steps: tuple[str, ...] = MIGRATIONS) -> bytes:
    """A database that has taken these steps, without rows and not in WAL mode.

    A new host copies it, since the steps take half of its start.
    """
    with closing(Connection(":memory:")) as made:
        made.run("PRAGMA auto_vacuum = INCREMENTAL")
        _take(made, steps)
        made.run("PRAGMA incremental_vacuum")  # of what steps have dropped
        return made.serialize("main")


def _take(connection: Connection, steps: tuple[str, ...]) -> None:
    """Take the steps that the database lacks, in one transaction."""
    connection.create_scalar_function(  # pyright: ignore  # a Buffer: see connection.py
        "error_fingerprint", error_tables.old_fingerprint, 4, deterministic=True
    )
    # A step may make a table anew that others refer to. The setting is of no use in a transaction.
    ((enforced,),) = connection.run("PRAGMA foreign_keys")
    connection.run("PRAGMA foreign_keys = OFF")
    connection.run("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(steps):
            raise SchemaTooNew(
                f"the database has version {version}, this motet knows versions up to "
                f"{len(steps)}: install the motet that wrote it, or a newer one"
            )
        for step in steps[version:]:
            connection.run(step)
        connection.run(f"PRAGMA user_version = {len(steps)}")
        connection.run("COMMIT")
    finally:
        if connection.in_transaction:
            connection.run("ROLLBACK")
        connection.run(f"PRAGMA foreign_keys = {enforced}")


def _version(connection: Connection) -> int:
    ((version,),) = connection.run("PRAGMA user_version")
    assert isinstance(version, int)
    return version
