"""A SQLite connection with the types of our rows, so that apsw's loose ones stay in this file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import apsw

from motet.protocols.storage import Row, SqlValue

WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


class _Cursor(Protocol):
    """apsw's, which declares values as a union with Buffer that Python 3.11's typing lacks."""

    def execute(self, sql: str, params: Sequence[SqlValue], /) -> _Cursor: ...

    def executemany(self, sql: str, params: Sequence[Sequence[SqlValue]], /) -> Iterable[Row]: ...

    def fetchall(self) -> list[Row]: ...


class Connection(apsw.Connection):
    """Blocking; used by one thread at a time.

    All goes through one cursor, since all rows are fetched at once: a new one for each statement
    costs as much as the shortest of them.
    """

    def __init__(self, filename: str, flags: int = WRITE, vfs: str | None = None) -> None:
        super().__init__(filename, flags, vfs)
        # Else a statement whose plan could depend on its parameters is compiled at each use.
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._cursor = cast(_Cursor, self.cursor())

    def run(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        """Run statements to their end; all their rows. Raises ``apsw.Error``."""
        return tuple(self._cursor.execute(sql, params).fetchall())

    def run_each(self, sql: str, params: Sequence[Sequence[SqlValue]]) -> None:
        """Run one statement once for each of the parameters. Raises ``apsw.Error``."""
        for _ in self._cursor.executemany(sql, params):
            pass
