"""Lists of stored errors among a million: every combination of filters, pages and groups.

The database has 600 sessions of 40 users, seven agents and 25 tools; errors are the more often
equal, the more common they are (Zipf's law). Half of the values of a request are those of one
error, so that there are rows; the other half are drawn alone, so that most combinations are rare
or empty. Each request is made for a first page, one in the middle and the last one.

Figures are CPU time of the process, since the time on a clock also has what other programs take,
and of each request the least of some rounds, between which all others are made.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import product
from math import inf
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import attrs
import msgspec

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.protocols.error_rows import Place, cursor_of, error_of, groups_query, list_query
from motet.protocols.errors import (
    ErrorProtocol,
    ErrorType,
    GroupErrors,
    ListErrors,
    PageErrors,
)
from motet.runtime import ActorRef

T = TypeVar("T")

START = 1_700_000_000.0
PAGE = 20
ROUNDS = 3
USERS, SESSIONS, AGENTS, TOOLS, TEXTS = 40, 600, 7, 25, 2_000

Listed: TypeAlias = tuple[ListErrors, Place | None]
Grouped: TypeAlias = tuple[GroupErrors, Place | None]
_OURS = (
    "tbl_name IN ('agent_errors', 'error_records', 'error_groups', 'error_tail')"
    " AND sql IS NOT NULL"
)

# Ranks: n ** u of an even u is the rank of Zipf's law. Sessions differ less. One call of a hundred
# is of another agent, so that some pairs of an agent and a tool are rare.
_FILL = """
WITH RECURSIVE
    n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1),
    u (i, a, b, c, d) AS MATERIALIZED (SELECT i, {even}, {even}, {even}, {even} FROM n),
    r (i, session, text, is_resolved, is_other) AS MATERIALIZED
        (SELECT i, CAST(?3 * pow(a, 1.5) AS INT), CAST(pow(?4, b) AS INT) - 1, c < 0.3, d < 0.01
        FROM u),
    e AS (SELECT *, session % ?5 AS user, (text * 7 + session % 5) % ?6 AS tool FROM r)
INSERT INTO error_records (seq, id, timestamp, owner, session, tool, summary, kind, run_id,
    call_id, agent, user, fingerprint, bytes, resolved)
SELECT i + 1, printf('err_20231114_221320_%06x', i), ?2 + i, 'u' || user, 's' || session,
    't' || tool, 'summary', CASE tool % 7 WHEN 0 THEN 'auth' WHEN 3 THEN 'timeout'
    ELSE 'unknown' END, 'r' || (i / 10), 'c', 'a' || iif(is_other, 0, session % ?7), 'u' || user,
    printf('%016x', text * 31 + tool), 200, iif(is_resolved, ?2 + ?1, NULL)
FROM e
""".format(even="(random() & 0xffffff) / 16777216.0")
_COPY = (
    "INSERT INTO agent_errors (seq, id, timestamp, session_id, tool_name, raw_error,"
    " short_summary, kind, run_id, call_id, agent, user, fingerprint)"
    " SELECT seq, id, timestamp, session, tool, ?, summary, kind, run_id, call_id, agent, user,"
    " fingerprint FROM error_records",
    "INSERT INTO error_groups (owner, agent, fingerprint, tool, kind, count, open, first, last,"
    " newest, shown) SELECT owner, agent, fingerprint, tool, kind, count(*),"
    " sum(resolved IS NULL), min(timestamp), max(timestamp), max(seq), max(timestamp)"
    " FROM error_records GROUP BY 1, 2, 3",
    "UPDATE error_groups SET shown_facet = facet",
    "UPDATE error_tail SET seq = (SELECT max(seq) FROM error_records)",
)


def build(folder: Path, rows: int, raw: str) -> None:
    """A database with so many errors, one for each second. Blocking.

    Tables are filled first, in place of triggers that do it row by row, then indexed.
    """
    with Location.directory(folder) as location:
        connection = location.connect()
        migrate(connection)
        connection.run("PRAGMA synchronous = OFF")
        made = connection.run(f"SELECT type, name, sql FROM sqlite_schema WHERE {_OURS}")
        later = [(kind, name, sql) for kind, name, sql in made if kind != "table"]
        connection.run("BEGIN")
        for kind, name, _ in later:
            connection.run(f"DROP {kind} IF EXISTS {name}")
        connection.run(_FILL, (rows, START, SESSIONS, TEXTS, USERS, TOOLS, AGENTS))
        copy, *others = _COPY
        connection.run(copy, (raw,))
        for other in others:
            connection.run(other)
        for _, _, sql in later:
            connection.run(str(sql))
        connection.run("COMMIT")
        connection.close()


@attrs.frozen
class Requests:
    """Draws requests. ``samples``: stored errors, whose values filters have together."""

    rng: random.Random
    rows: int
    samples: list[tuple[str, ...]]

    @classmethod
    def among(cls, connection: Connection, rows: int, seed: int = 8) -> Requests:
        rng = random.Random(seed)
        columns = "owner, session, tool, agent, run_id, fingerprint, kind"
        chosen = [rng.randrange(rows) + 1 for _ in range(400)]
        sql = f"SELECT {columns} FROM error_records WHERE seq = ?"
        found = [connection.run(sql, (seq,))[0] for seq in chosen]
        return cls(rng, rows, [tuple(map(str, row)) for row in found])

    def lists(self, rounds: int) -> list[Listed]:
        """Every combination of filters so many times, each for three pages, in any order."""
        made: list[Listed] = []
        for wanted, at in product(product((False, True), repeat=6), range(rounds)):
            owner, session, tool, agent, run, group = self._values(wanted, alone=at % 2 == 1)
            which = ListErrors(
                *(session, tool, self._time(0.5), self._time(0.3), PAGE, self._kind()),
                *(owner, agent, run, group, self._resolved()),
            )
            made += [(which, place) for place in self._places()]
        self.rng.shuffle(made)
        return made

    def groups(self, rounds: int) -> list[Grouped]:
        """As :meth:`lists`, of groups."""
        made: list[Grouped] = []
        for (of, by, with_), at in product(product((False, True), repeat=3), range(rounds)):
            wanted = of, False, with_, by, False, False
            owner, _, tool, agent, *_ = self._values(wanted, alone=at % 2 == 1)
            which = GroupErrors(
                owner, agent, tool, self._kind(), self._resolved(), self._time(0.3), PAGE
            )
            made += [(which, place) for place in self._places()]
        self.rng.shuffle(made)
        return made

    def _values(self, wanted: tuple[bool, ...], *, alone: bool) -> list[str | None]:
        of = self.rng.choice(self.samples)
        rows = [self.rng.choice(self.samples) if alone else of for _ in wanted]
        return [rows[n][n] if is_wanted else None for n, is_wanted in enumerate(wanted)]

    def _kind(self) -> ErrorType | None:
        kinds: tuple[Literal["auth", "timeout", "unknown"] | None, ...]
        kinds = (None, None, None, "auth", "timeout", "unknown")
        return self.rng.choice(kinds)

    def _resolved(self) -> bool | None:
        return self.rng.choice((None, None, True, False))

    def _time(self, share: float) -> float | None:
        return START + self.rng.randrange(self.rows) if self.rng.random() < share else None

    def _places(self) -> tuple[Place | None, ...]:
        middle = self.rng.randrange(self.rows)
        return None, (START + middle, middle), (START + self.rng.randrange(200), 100)


async def lists(store: ActorRef[ErrorProtocol], asked: list[Listed]) -> list[float]:
    """Seconds of CPU of each page."""

    async def page(one: Listed) -> object:
        which, place = one
        return await store.ask(PageErrors(which, None if place is None else cursor_of(place)))

    return await each(page, asked)


async def groups(store: ActorRef[ErrorProtocol], asked: list[Grouped]) -> list[float]:
    async def page(one: Grouped) -> object:
        which, place = one
        cursor = None if place is None else cursor_of(place)
        return await store.ask(msgspec.structs.replace(which, cursor=cursor))

    return await each(page, asked)


async def bare_lists(connection: Connection, asked: list[Listed]) -> list[float]:
    """The same on a connection that blocks its loop."""

    async def page(one: Listed) -> object:
        return [error_of(row) for row in connection.run(*list_query(*one, grouped=True))]

    return await each(page, asked)


async def bare_groups(connection: Connection, asked: list[Grouped]) -> list[float]:
    async def page(one: Grouped) -> object:
        return connection.run(*groups_query(*one))

    return await each(page, asked)


async def each(query: Callable[[T], Awaitable[object]], asked: list[T]) -> list[float]:
    """CPU seconds of each: the least of some rounds, since other programs only add to it."""
    least = [inf] * len(asked)
    for _ in range(ROUNDS):
        for at, one in enumerate(asked):
            began = time.process_time()
            await query(one)
            least[at] = min(least[at], time.process_time() - began)
    return least


def p99(seconds: list[float]) -> float:
    """In milliseconds."""
    return statistics.quantiles(seconds, n=100)[98] * 1000
