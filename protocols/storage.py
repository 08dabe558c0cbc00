"""What the database actor is asked: whole transactions as data."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from motet.protocols.messages import Request

SqlValue: TypeAlias = int | float | str | None
Row: TypeAlias = tuple[SqlValue, ...]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement with its positional parameters.

    ``expect`` is the number of rows it must return (None: any), ``changes`` the number that it must
    insert, update or delete, which costs a third of having them returned. With any other number the
    whole transaction is rolled back and ``ExpectationFailed`` names the statement's index.
    ``each``: run it once for each of these parameters instead; its rows are then nobody's concern.
    """

    sql: str
    params: tuple[SqlValue, ...] = ()
    expect: int | None = None
    each: tuple[tuple[SqlValue, ...], ...] = ()
    changes: int | None = None


class Transact(Request[tuple[tuple[Row, ...], ...]], frozen=True, tag="storage.transact"):
    """Run statements in one transaction; answered after COMMIT with each statement's rows.

    Many transactions share a commit; one that fails is rolled back alone.
    """

    statements: tuple[Statement, ...]


def storable(text: str) -> str:
    """The text as UTF-8 can hold it: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
