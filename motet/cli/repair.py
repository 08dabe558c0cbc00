"""``motet doctor --repair``: a sound database from all rows of a damaged one that can be read.

The recovery of SQLite's own shell finds nothing in a database with our tables, and its library has
none. So the rows are read with queries that begin on both sides of each damaged part. Invariants: a
host that starts at any moment of the exchange finds either the old database, an empty file, which
it refuses, or the new one; the damaged files stay beside it, under another name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import attrs

from motet.actors.storage.connection import Connection, copy_image, storage_error
from motet.actors.storage.location import DATABASE_FILE, FILES, Location
from motet.actors.storage.schema import MIGRATIONS, VERSION, new_database
from motet.cli.exits import OK
from motet.protocols.errors import NotFound
from motet.protocols.storage import Row, SchemaTooNew, SqlValue

MADE, ASIDE = f"{DATABASE_FILE}.repaired", f"{DATABASE_FILE}.damaged"
HEADER = 100
"""Bytes before the first page's own content."""
PROBES = 200_000
"""Queries that look for rows between two damaged parts of one table."""

_TABLES = """
SELECT name, wr FROM pragma_table_list
WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
ORDER BY wr"""
_TRIGGERS = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
_REST = (
    # A number that was used once is never used again.
    "INSERT INTO streams (stream, head) SELECT stream, max(seq) FROM events WHERE true"
    " GROUP BY stream ON CONFLICT (stream) DO UPDATE SET head = max(head, excluded.head)",
    "INSERT INTO memories_text (memories_text) VALUES ('rebuild')",
    # Only now, when its triggers are there again: they count the groups anew.
    "DELETE FROM error_records WHERE seq NOT IN (SELECT seq FROM agent_errors)",
)


def repair(state: Path) -> int:
    """Replace a damaged database by what can be read of it. Prints what was done; the exit code.

    Raises ``StateInUse`` while a host uses it, ``NotFound`` without a database, ``StorageError``
    for one of a newer motet, and for a file in which nothing can be read.
    """
    file, made = state / DATABASE_FILE, state / MADE
    if not file.is_file():
        raise NotFound(f"there is no database in {state}: no host has used it")
    if not file.stat().st_size and made.exists():
        made.rename(file)  # the last repair was cut off in the middle of the exchange
    with Location.directory(state):
        if not _damage(file):
            print(f"{file} is sound: nothing to repair")
            return OK
        with TemporaryDirectory(prefix="repair-", dir=state) as folder:
            try:
                saved = _saved(_copy(file, Path(folder)), made)
            except apsw.Error as error:
                raise storage_error(error, f"the database {file}") from error
        aside = _exchanged(file, made)
    for table, count in saved.rows.items():
        if count:
            print(f"  {count:>9,} {table.replace('_', ' ')}")
    if saved.dropped:
        print(f"  {saved.dropped:>9,} more belonged to records that are lost")
    print(f"repaired {file}; the damaged one is {aside}: delete it when nothing is missing")
    return OK


def _damage(file: Path) -> str:
    """What SQLite says about a database; nothing about a sound one."""
    try:
        with closing(Connection(str(file), apsw.SQLITE_OPEN_READONLY)) as connection:
            ((said, *_),) = connection.run("PRAGMA quick_check(1)")
            return "" if said == "ok" else str(said)
    except apsw.Error as error:
        return str(error)


def _copy(file: Path, folder: Path) -> Path:
    """A copy with its log, as long as its first page says, or SQLite would read none of it."""
    copy = folder / DATABASE_FILE
    for end in FILES[:2]:
        if (part := file.with_name(file.name + end)).exists():
            shutil.copyfile(part, folder / part.name)
    with copy.open("rb+") as opened:
        head, size = opened.read(HEADER), copy.stat().st_size
        page = int.from_bytes(head[16:18]) or 4096
        pages = int.from_bytes(head[28:32])
        if size < pages * page <= 64 * size:
            opened.truncate(pages * page)
    return copy


# The tables


@attrs.define
class Saved:
    """Rows by their tables, and the number of those that were dropped again."""

    rows: dict[str, int] = attrs.field(factory=dict[str, int])
    dropped: int = 0


def _saved(copy: Path, made: Path) -> Saved:
    """Make a new database of the rows of a damaged one."""
    made.unlink(missing_ok=True)
    saved, seen = Saved(), set[str]()
    version = _version(copy)
    with closing(Connection(str(copy))) as source, closing(Connection(str(made))) as target:
        copy_image(new_database(MIGRATIONS[:version]), target)
        triggers = target.run(_TRIGGERS)
        target.run("PRAGMA foreign_keys = OFF")
        target.run("BEGIN")
        for name, _ in triggers:
            target.run(f"DROP TRIGGER {name}")
        for name, is_keyed in target.run(_TABLES):
            table = _table(target, str(name), bool(is_keyed))
            if not table.name.startswith("memories_text"):
                saved.rows[table.name] = _moved(table, source, target, seen)
        for _, sql in triggers:
            target.run(str(sql))
        for statement in _REST if version == VERSION else ():
            target.run(statement)
        saved.dropped = _without_orphans(target)
        if not saved.rows.get("sessions") and not saved.rows.get("rooms"):
            raise apsw.CorruptError("nothing of worth can be read")
        target.run("COMMIT")
    return saved


def _version(copy: Path) -> int:
    """Of the damaged database; its tables can be named afterwards. Raises ``apsw.Error``."""
    try:
        return _named(copy)
    except apsw.CorruptError:
        _mend_schema(copy)
        return _named(copy)


def _named(copy: Path) -> int:
    with closing(Connection(str(copy))) as source:
        ((version,),) = source.run("PRAGMA user_version")
        source.run("SELECT count(*) FROM sqlite_schema")
        source.run("PRAGMA wal_checkpoint(TRUNCATE)")
    number = int(version or 0)
    if number > VERSION:
        raise SchemaTooNew(f"the database has version {number}: repair it with its own motet")
    return number or VERSION


def _mend_schema(copy: Path) -> None:
    """Take lost pages of the list of tables from a new database, where the first is the same.

    Raises ``apsw.CorruptError`` where one is another: then tables begin at other pages.
    """
    image = new_database()
    with closing(Connection(":memory:")) as fresh:
        fresh.deserialize("main", image)  # pyright: ignore  # a Buffer: see connection.py
        found = fresh.run("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema'")
    with copy.open("rb+") as opened:
        lost = list[int]()
        for page in sorted(int(page or 0) for (page,) in found):
            start, end = (page - 1) * 4096 + (HEADER if page == 1 else 0), page * 4096
            opened.seek(start)
            if (there := opened.read(end - start)) != image[start:end]:
                if page == 1 or any(there):
                    raise apsw.CorruptError("the list of its tables is damaged")
                lost.append(start)
        for start in lost:
            opened.seek(start)
            opened.write(image[start : start + 4096])


@attrs.frozen
class _Table:
    """``columns``: those that are stored. ``keys``: of its order; of most tables ``rowid``."""

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def is_keyed(self) -> bool:
        return self.keys != ("rowid",)


def _table(target: Connection, name: str, is_keyed: bool) -> _Table:
    rows = target.run("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,))
    columns = tuple(str(column) for column, _ in rows)
    if not is_keyed:
        return _Table(name, columns, ("rowid",))
    keys = sorted((int(place), str(column)) for column, place in rows if place)
    return _Table(name, columns, tuple(column for _, column in keys))


def _moved(table: _Table, source: Connection, target: Connection, seen: set[str]) -> int:
    """Copy the rows of a table that can be read; their number. ``seen``: texts of all rows."""
    extra = () if table.is_keyed else ("rowid",)
    into = ", ".join((*extra, *table.columns))
    marks = ", ".join("?" * (len(extra) + len(table.columns)))
    insert = f"INSERT OR IGNORE INTO {table.name} ({into}) VALUES ({marks})"
    first = True
    for row in _rows(table, source, seen):
        if first:
            target.run(f"DELETE FROM {table.name}")  # as a new database has them
            first = False
        with suppress(apsw.ConstraintError):
            target.run(insert, row)
        seen.update(value for value in row if isinstance(value, str) and len(value) < 300)
    ((count,),) = target.run(f"SELECT count(*) FROM {table.name}")
    return int(count or 0)


def _rows(table: _Table, source: Connection, seen: set[str]) -> Iterator[Row]:
    """The rows of a table from its begin, from its end, and of what is between as much as can be.

    A row may come twice.
    """
    extra = () if table.is_keyed else ("rowid",)
    what = f"SELECT {', '.join((*extra, *table.columns))} FROM {table.name}"
    up, down = (
        f" ORDER BY {', '.join(f'{key} {way}' for key in table.keys)}" for way in ("ASC", "DESC")
    )
    walk = _Walk(source)
    yield from walk.rows(what + up)
    if walk.ended:
        return
    low = walk.last
    yield from walk.rows(what + down)
    if table.is_keyed:
        for key in _candidates(table.keys[0], seen):
            for way in (up, down):
                yield from walk.rows(f"{what} WHERE {table.keys[0]} = ?{way}", (key,))
        return
    gaps = [(low, walk.last)]
    while gaps and walk.queries < PROBES:
        after, before = gaps.pop()
        if not (isinstance(after, int) and isinstance(before, int) and before - after > 1):
            continue
        half = (after + before) // 2
        yield from walk.rows(f"{what} WHERE rowid > ? AND rowid < ?{up}", (half, before), half)
        if not walk.ended:
            gaps.append((_number(walk.last, half), before))
        yield from walk.rows(
            f"{what} WHERE rowid > ? AND rowid <= ?{down}", (after, half), half + 1
        )
        if not walk.ended:
            gaps.append((after, _number(walk.last, half + 1)))


def _number(value: SqlValue, default: int) -> int:
    return value if isinstance(value, int) else default


def _candidates(key: str, seen: set[str]) -> list[str]:
    """Values that the first column of a key may have: other tables name them."""
    if key == "stream":
        return [f"{kind}:{name}" for name in sorted(seen) for kind in ("session", "room")]
    return sorted(seen)


class _Walk:
    """Runs queries to their end or to the damage.

    Attributes:
        last: the first value of the last row; None: there was none.
        ended: the last query has met no damage.
        queries: so far.
    """

    def __init__(self, source: Connection) -> None:
        self._source = source
        self.last: SqlValue = None
        self.ended = True
        self.queries = 0

    def rows(
        self, sql: str, params: Sequence[SqlValue] = (), last: SqlValue = None
    ) -> Iterator[Row]:
        self.last, self.ended = last, True
        self.queries += 1
        try:
            for row in self._source.execute(sql, params):  # pyright: ignore  # see connection.py
                self.last = row[0]
                yield row
        except apsw.Error:
            self.ended = False


def _without_orphans(target: Connection) -> int:
    """Drop rows whose session or run is lost: nobody could be shown them. Their number."""
    dropped = 0
    while orphans := target.run('SELECT DISTINCT "table", rowid FROM pragma_foreign_key_check'):
        for table, rowid in orphans:
            target.run(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        dropped += len(orphans)
    return dropped


def _exchanged(file: Path, made: Path) -> Path:
    """Put the new database into its place; the name of the damaged one."""
    number = 1
    while (aside := file.with_name(f"{ASIDE}-{number}")).exists():
        number += 1
    os.link(file, aside)
    empty = file.with_name(f"{file.name}.new")
    empty.write_bytes(b"")
    empty.rename(file)
    for end in FILES[1:]:
        if (part := file.with_name(file.name + end)).exists():
            part.rename(aside.with_name(aside.name + end))
    made.rename(file)
    return aside
