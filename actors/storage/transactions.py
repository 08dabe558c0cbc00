"""Many transactions, one COMMIT. Blocking and without Trio: it runs in the writer's thread.

A group is run as if nothing in it failed, as is almost always so. When one of several fails, all
are rolled back and run again, each with a savepoint inside the group's, so that it can be rolled
back alone: a savepoint costs as much as a short transaction, and a crowd would pay it for nothing.
Invariants: nothing is reported as stored before COMMIT returned; when the COMMIT fails, every
transaction of the group failed, those included that had failed before: they may have failed on
rows that no longer exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import apsw

from motet.actors.storage.connection import Connection
from motet.actors.storage.errors import ExpectationFailed, StorageError, storage_error
from motet.protocols.storage import Row, Statement

Transaction: TypeAlias = tuple[Statement, ...]
Rows: TypeAlias = tuple[tuple[Row, ...], ...]
"""The rows of each statement of a transaction."""


def commit_group(
    connection: Connection, group: Sequence[Transaction], where: str
) -> list[Rows | StorageError]:
    """Run and commit a group; the outcome of each transaction at its index. Never raises."""
    try:
        _begin(connection)
        outcomes = _outcomes(connection, group, where)
        connection.run("COMMIT")
    except _GroupLost:
        # Only one of them may be too large for the disk: each gets a commit of its own.
        return [commit_group(connection, [alone], where)[0] for alone in group]
    except Exception as error:
        _roll_back(connection)
        return [storage_error(error, where) for _ in group]
    return outcomes


class _GroupLost(Exception):
    """SQLite rolled back the whole group, as it does for instance when the disk is full."""


def _begin(connection: Connection) -> None:
    """Take the write lock: twice the busy timeout is what another program may hold it."""
    try:
        connection.run("BEGIN IMMEDIATE")
    except apsw.BusyError:
        connection.run("BEGIN IMMEDIATE")


def _outcomes(
    connection: Connection, group: Sequence[Transaction], where: str
) -> list[Rows | StorageError]:
    try:
        return [_execute(connection, transaction) for transaction in group]
    except Exception:
        if len(group) == 1:
            raise
    if connection.in_transaction:
        connection.run("ROLLBACK")
    _begin(connection)
    return [_attempt(connection, transaction, where) for transaction in group]


def _attempt(connection: Connection, transaction: Transaction, where: str) -> Rows | StorageError:
    connection.run("SAVEPOINT member")
    try:
        rows = _execute(connection, transaction)
    # Whatever a parameter or a statement does wrong is that transaction's, not the group's.
    except Exception as error:
        if not connection.in_transaction:
            raise _GroupLost from error
        connection.run("ROLLBACK TO member")
        connection.run("RELEASE member")
        return storage_error(error, where)
    connection.run("RELEASE member")
    return rows


def _execute(connection: Connection, transaction: Transaction) -> Rows:
    rows: list[tuple[Row, ...]] = []
    for index, statement in enumerate(transaction):
        if statement.each:
            connection.run_each(statement.sql, statement.each)
            rows.append(())
            continue
        found = connection.run(statement.sql, statement.params)
        if statement.expect is not None and len(found) != statement.expect:
            raise ExpectationFailed(index, statement.expect, len(found))
        if statement.changes is not None and (changed := connection.changes()) != statement.changes:
            raise ExpectationFailed(index, statement.changes, changed, "changed")
        rows.append(found)
    return tuple(rows)


def _roll_back(connection: Connection) -> None:
    with suppress(apsw.Error):
        if connection.in_transaction:
            connection.run("ROLLBACK")
