"""The tables, as a list of steps that only ever grows.

Invariants: step n takes a database from version n to n + 1, in one transaction with its
``user_version``; a step that was released is never edited. Rows of ``messages`` are never
changed, nor removed one by one: a reset and a compaction move ``sessions.start_pos``.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache

from motet.actors.storage.connection import Connection, copy_image
from motet.protocols import error_tables
from motet.protocols.host_tables import MIGRATIONS as MIGRATIONS
from motet.protocols.host_tables import SIGN, SIGNED, digest
from motet.protocols.host_tables import WRITTEN_BY as WRITTEN_BY
from motet.protocols.storage import SchemaDiffers, SchemaTooNew
from motet.protocols.version import __version__
from motet.runtime.outside import wall_time

VERSION = len(MIGRATIONS)


def migrate(connection: Connection, steps: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a database to the newest version, or leave it as it was. Blocking.

    Raises ``SchemaTooNew`` for a database that a newer motet has written, ``SchemaDiffers`` for one
    of another build.
    """
    # Nobody writes between this look and the copy, since the lock of the location is ours.
    version = _version(connection)
    if version == len(steps):
        _refuse_others(connection, steps)
        _sign(connection, steps, wall_time())
        return
    new = version == 0 and not connection.run("SELECT 1 FROM sqlite_schema LIMIT 1")
    if new and connection.run("PRAGMA page_size") == ((4096,),):  # as SQLite and the image have it
        copy_image(new_database(steps), connection)
    else:
        _take(connection, steps)
    _sign(connection, steps, wall_time())


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
        _refuse_others(connection, steps[:version])
        for step in steps[version:]:
            connection.run(step)
        _sign(connection, steps)
        connection.run(f"PRAGMA user_version = {len(steps)}")
        connection.run("COMMIT")
    finally:
        if connection.in_transaction:
            connection.run("ROLLBACK")
        connection.run(f"PRAGMA foreign_keys = {enforced}")


def _sign(connection: Connection, steps: tuple[str, ...], now: float | None = None) -> None:
    """Record that this motet has the database, and when its retention begins to count."""
    mine = (__version__, digest(steps))
    if connection.run(SIGNED) and connection.run(f"{WRITTEN_BY} WHERE aged > 0") != (mine,):
        connection.run(SIGN, (*mine, now))


def _refuse_others(connection: Connection, steps: tuple[str, ...]) -> None:
    found = connection.run(WRITTEN_BY) if connection.run(SIGNED) else ()
    if found and found[0][1] != digest(steps):
        raise SchemaDiffers(
            f"another build of motet ({found[0][0]}) wrote the database: its tables are not those"
            f" of this one ({__version__}), though both have version {len(steps)}: use that build"
        )


def _version(connection: Connection) -> int:
    ((version,),) = connection.run("PRAGMA user_version")
    assert isinstance(version, int)
    return version
