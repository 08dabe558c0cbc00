"""How long stored errors are kept: by age, by the room they take, or for ever.

Invariants: the oldest go first; at most :data:`BATCH` rows go in one transaction, so that no
other writer waits longer than for one of them; a limit that is not set deletes nothing. Room that
becomes free is used for new rows; the file itself does not shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import attrs
import trio

from motet.actors.errors.rows import where
from motet.actors.errors.summary import summarize
from motet.actors.log import logger
from motet.actors.storage.readers import Readers
from motet.protocols.errors import ListErrors
from motet.protocols.messages import Request
from motet.protocols.storage import Row, SqlValue, Statement, Transact
from motet.runtime import Actor, ActorRef, handles
from motet.runtime.outside import wall_time

BATCH = 1_000
INTERVAL = 3_600.0
"""Seconds between two looks of a host."""
DAY = 86_400.0
MEGABYTE = 1_000_000

_SIZE = "octet_length(raw_error) + octet_length(short_summary) + 400"
"""Bytes of a row and of what indexes keep of it, about."""
SIZE = f"SELECT coalesce(sum({_SIZE}), 0) FROM agent_errors"
_OLDEST = f"SELECT seq, {_SIZE} FROM agent_errors ORDER BY timestamp, seq LIMIT {BATCH}"
_OLDEST_UNTIL = "DELETE FROM agent_errors WHERE seq IN (SELECT value FROM json_each(?)) RETURNING 1"

log = logger(__name__)


class PruneErrors(Request[int], frozen=True, tag="errors.prune"):
    """Delete what is past its time or its room now; how many errors that were."""


@attrs.frozen
class Keep:
    """What is kept: errors of the last ``days``, and of those ``megabytes``. None: all."""

    days: float | None = None
    megabytes: float | None = None

    def __bool__(self) -> bool:
        return self.days is not None or self.megabytes is not None


class Runs(Protocol):
    """Runs one statement, in a transaction of its own; its rows."""

    async def __call__(self, statement: Statement) -> tuple[Row, ...]: ...


def delete_batch(request: ListErrors) -> Statement:
    """Delete up to a batch of the errors that match, the oldest first; a row for each."""
    condition, params = where(request)
    chosen = f"SELECT seq FROM agent_errors{condition} ORDER BY timestamp, seq LIMIT {BATCH}"
    sql = f"DELETE FROM agent_errors WHERE seq IN ({chosen}) RETURNING 1"
    return Statement(sql, tuple(params))


def count(request: ListErrors) -> tuple[str, list[SqlValue]]:
    """The query that counts the errors that match."""
    condition, params = where(request)
    return f"SELECT count(*) FROM agent_errors{condition}", params


async def prune_matching(write: Runs, request: ListErrors) -> int:
    """Delete all errors that match, in batches; how many there were. A cancel leaves the rest."""
    deleted = 0
    while True:
        gone = len(await write(delete_batch(request)))
        deleted += gone
        if gone < BATCH:
            return deleted


async def prune_to_size(read: Runs, write: Runs, limit: float) -> int:
    """Delete the oldest errors until the others take at most ``limit`` bytes."""
    ((size,),) = await read(Statement(SIZE))
    excess = float(size or 0) - limit
    deleted = 0
    while excess > 0:
        going: list[int] = []
        for seq, taken in await read(Statement(_OLDEST)):
            if excess <= 0:
                break
            going.append(int(seq or 0))
            excess -= float(taken or 0)
        if not going:
            break
        deleted += len(await write(Statement(_OLDEST_UNTIL, (str(going),))))
    return deleted


class ErrorRetention(Actor[PruneErrors]):
    """Looks once when it starts and then every hour. A look that fails is logged, and repeated."""

    cleanup_budget: ClassVar[float] = 2.0

    def __init__(
        self,
        database: ActorRef[Transact],
        readers: Readers,
        keep: Keep,
        clock: Callable[[], float] = wall_time,
        interval: float = INTERVAL,
    ) -> None:
        self._database = database
        self._readers = readers
        self._keep = keep
        self._clock = clock
        self._interval = interval

    async def on_start(self) -> None:
        self.start_soon(self._run, name="retention")

    @handles(PruneErrors)
    async def prune(self, _request: PruneErrors) -> int:
        """Cancelled between two batches, the rest stays. Raises ``StorageError``."""
        deleted = 0
        if self._keep.days is not None:
            past = self._clock() - self._keep.days * DAY
            deleted += await prune_matching(self._write, ListErrors(end=past))
        if self._keep.megabytes is not None:
            deleted += await prune_to_size(self._read, self._write, self._keep.megabytes * MEGABYTE)
        return deleted

    async def _run(self) -> None:
        while True:
            try:
                deleted = await self.prune(PruneErrors())
            except Exception as error:
                log.warning("errors_not_pruned", reason=summarize(error))
            else:
                log.info("errors_pruned", count=deleted)
            await trio.sleep(self._interval)

    async def _read(self, statement: Statement) -> tuple[Row, ...]:
        return await self._readers.read(statement.sql, statement.params)

    async def _write(self, statement: Statement) -> tuple[Row, ...]:
        (rows,) = await self._database.ask(Transact((statement,)))
        return rows
