"""A SQLite connection with the types of our rows, so that apsw's loose ones stay in this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import apsw

from motet.protocols.storage import Row, SqlValue


class Connection(apsw.Connection):
    """Blocking; used by one thread at a time."""

    def run(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        """Run statements to their end; all their rows. Raises ``apsw.Error``."""
        # apsw declares values as a union with Buffer, which is not in Python 3.11's typing.
        return tuple(cast("list[Row]", self.execute(sql, params).fetchall()))  # pyright: ignore

    def run_each(self, sql: str, params: Sequence[Sequence[SqlValue]]) -> None:
        """Run one statement once for each of the parameters. Raises ``apsw.Error``."""
        for _ in self.executemany(sql, params):  # pyright: ignore
            pass
