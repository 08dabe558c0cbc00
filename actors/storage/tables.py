"""The base of the actors over tables; the codec of their rows is ``motet.protocols.storage``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from motet.actors.storage.readers import Readers
from motet.protocols.storage import (
    DAY,
    LIST_LIMIT,
    Commit,
    ExpectationFailed,
    Query,
    Row,
    Rows,
    SqlValue,
    Transaction,
    clamped,
    decode_message,
    encode_message,
    role_of,
    storable,
    stored_form,
    struct,
    to_json,
    where,
)
from motet.runtime.outside import wall_time

__all__ = [
    "AT_ONCE",
    "DAY",
    "LIST_LIMIT",
    "Query",
    "TableStore",
    "clamped",
    "decode_message",
    "encode_message",
    "role_of",
    "rows_of",
    "storable",
    "stored_form",
    "struct",
    "to_json",
    "where",
]

T = TypeVar("T")

AT_ONCE = 256
"""Requests of one kind that may wait for commits together."""


def rows_of(sql: str, statements: Transaction, answer: Rows) -> tuple[Row, ...]:
    """The rows of one statement of a transaction, found by its SQL instead of its place."""
    return next(
        rows for statement, rows in zip(statements, answer, strict=True) if statement.sql == sql
    )


class TableStore:
    """The first base of an actor over tables; the second is ``Actor`` with its messages.

    Invariant: an answered write is on disk. Every request may raise a ``StorageError``.
    Cancelling an asker withdraws a write that waits; a write that is being committed is finished,
    and its outcome is delivered.

    Args:
        commit: runs a transaction and returns after its COMMIT.
        clock: Unix seconds.
    """

    def __init__(
        self, commit: Commit, readers: Readers, clock: Callable[[], float] = wall_time
    ) -> None:
        self._commit = commit
        self._readers = readers
        self._clock = clock

    async def _write(self, statements: Transaction) -> Rows:
        return await self._commit(statements)

    async def _succeeds(self, statements: Transaction) -> bool:
        """Write; False when a statement did not find the rows that it expects."""
        try:
            await self._write(statements)
        except ExpectationFailed:
            return False
        return True

    async def _read(
        self, decode: Callable[[Row], T], sql: str, params: tuple[SqlValue, ...] = ()
    ) -> tuple[T, ...]:
        return tuple(map(decode, await self._readers.read(sql, params)))

    async def _read_one(
        self, decode: Callable[[Row], T], sql: str, params: tuple[SqlValue, ...] = ()
    ) -> T | None:
        found = await self._readers.read(sql, params)
        return decode(found[0]) if found else None
