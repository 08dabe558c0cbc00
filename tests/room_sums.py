"""The sums of rooms as triggers on the table of runs keep them, beside those of the product.

The triggers are those of an earlier schema: they see each change of a run, whatever statement makes
it. So a statement on ``runs`` that forgets the sums makes the two tables differ. The accounts of
rounds are younger than the triggers: ``tests/protocols/test_room_costs.py`` has their law.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import cache
from unittest.mock import patch

from motet.actors.storage import schema
from motet.actors.storage.connection import Connection
from motet.protocols.room_costs import TRIGGERS
from motet.protocols.storage import Row

TABLE = "triggered_costs"
WATCH = f"""
{TRIGGERS.replace("room_costs", TABLE)}
CREATE TRIGGER room_deleted AFTER DELETE ON room_costs
BEGIN DELETE FROM {TABLE} WHERE room = old.room; END;"""
IS_WATCHED = f"SELECT 1 FROM sqlite_schema WHERE name = '{TABLE}'"
DIFFERENCES = f"""
SELECT room, user, hour, sum(turns), sum(tokens), sum(nanos) FROM (
    SELECT * FROM room_costs WHERE room NOT GLOB '*#*'
    UNION ALL SELECT room, user, hour, -turns, -tokens, -nanos FROM {TABLE})
GROUP BY room, user, hour HAVING sum(turns) <> 0 OR sum(tokens) <> 0 OR sum(nanos) <> 0"""
"""By room, user and hour: by how much the sums are higher than they should be."""


@cache
def watched_database(steps: tuple[str, ...] = schema.MIGRATIONS) -> bytes:
    with closing(Connection(":memory:")) as made:
        made.deserialize("main", _new_database(steps))  # pyright: ignore  # a Buffer
        made.run(WATCH)
        return made.serialize("main")


_new_database, _close = schema.new_database, Connection.close


@contextmanager
def watched() -> Generator[list[Row]]:
    """New databases have the triggers; the differences when their connections are closed."""
    found: list[Row] = []

    def close(self: Connection, force: bool = False) -> None:
        try:
            if self.run(IS_WATCHED):
                found.extend(self.run(DIFFERENCES))
        except Exception as error:  # a closed or torn database has no sums
            error.add_note("not compared")
        _close(self, force)

    with (
        patch.object(schema, "new_database", watched_database),
        patch.object(Connection, "close", close),
    ):
        yield found
