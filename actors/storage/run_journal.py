"""Write-behind journal of unfinished runs: their rows go to disk together, a few ms later.

A plain object that the host makes once: runs add to it by a call, the session store writes, and
waiting statements survive a restart of that store. Most statements are never written: a run that
ends within :data:`PATIENCE` stores its rows with its end, and a run with calls stores them with the
intent of the calls. Once the oldest has waited that long, all go in one transaction. Invariants: a
statement is on disk, or counted as lost, at most ``PATIENCE`` and a commit after it was added,
unless another transaction of its run has written it; at most :data:`LIMIT` wait. With more, the
adding run waits; if the writer has ended, the statement is lost and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from motet.actors.storage.tables import encode_message
from motet.protocols.chat import ChatMessage
from motet.protocols.storage import Statement, StorageError
from motet.runtime import MotetRuntimeError
from motet.runtime.outside import wall_time

PATIENCE = 0.005
"""Seconds for which a statement may wait for others. A kill loses at most what is that young."""
LIMIT = 256

Write: TypeAlias = Callable[[tuple[Statement, ...]], Awaitable[object]]

_BEGIN_RUN = (
    "UPDATE runs SET status = 'running', updated = ? WHERE run_id = ? AND status = 'queued'"
)

# A row that comes after its run has ended would outlive the run: it is not added.
_ADD_STEP = """
INSERT INTO steps (run_id, step, body)
SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body"""

_log = logging.getLogger(__name__)


def add_step(run_id: str, step: int, row: ChatMessage, *, must: bool = False) -> Statement:
    """Store one row. ``must``: the statement fails when the run is unknown or has ended."""
    body = encode_message(row)
    return Statement(_ADD_STEP, (run_id, step, body), changes=1 if must else None)


@attrs.define(eq=False)
class _Waiting:
    since: float
    statements: list[Statement] = attrs.field(factory=list[Statement])


class RunJournal:
    """Collects statements, for :meth:`run` to write.

    ``lost`` counts the statements that could not be written; ``closed``: :meth:`run` has ended.
    """

    def __init__(self) -> None:
        self.lost = 0
        self.closed = False
        self._waiting: dict[str, _Waiting] = {}
        self._count = 0
        self._added = trio.Event()
        self._room = trio.Event()

    async def begin(self, run_id: str, now: float | None = None) -> None:
        """A queued run starts, at ``now`` or now."""
        await self.add(run_id, Statement(_BEGIN_RUN, (wall_time() if now is None else now, run_id)))

    async def note(self, run_id: str, step: int, row: ChatMessage) -> None:
        """Journal one row of a run that goes on."""
        await self.add(run_id, add_step(run_id, step, row))

    async def add(self, run_id: str, statement: Statement) -> None:
        """Have a statement written. A checkpoint only while there is no room."""
        while self._count >= LIMIT:
            if self.closed:
                self._lose(run_id, "nobody writes it")
                return
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
        waiting = self._waiting.get(run_id)
        if waiting is None:
            waiting = self._waiting[run_id] = _Waiting(trio.current_time())
            self._added.set()
        waiting.statements.append(statement)
        self._count += 1

    def pending(self, run_id: str) -> tuple[Statement, ...]:
        """The statements of a run that are not on disk yet, for a transaction that writes them."""
        waiting = self._waiting.get(run_id)
        return () if waiting is None else tuple(waiting.statements)

    def written(self, run_id: str, statements: tuple[Statement, ...]) -> None:
        """Drop these statements of a run: they are on disk, or lost."""
        waiting = self._waiting.get(run_id)
        if waiting is None:
            return
        done = {id(statement) for statement in statements}
        left = [statement for statement in waiting.statements if id(statement) not in done]
        self._count -= len(waiting.statements) - len(left)
        waiting.statements = left
        if not left:
            del self._waiting[run_id]
        self._room.set()

    def discard(self, run_id: str) -> None:
        """Drop all statements of a run: it has ended."""
        waiting = self._waiting.pop(run_id, None)
        if waiting is not None:
            self._count -= len(waiting.statements)
            self._room.set()

    async def run(self, write: Write) -> None:
        """Write for ever. On cancellation waiting statements stay, for the next writer."""
        self.closed = False
        if self._waiting:
            self._added.set()
        try:
            while True:
                await self._added.wait()
                self._added = trio.Event()
                while self._waiting:
                    # Computed anew after each sleep: most runs end, and withdraw their statements,
                    # before these are due. A fixed timer would write some of them for nothing.
                    due = min(one.since for one in self._waiting.values()) + PATIENCE
                    if due > trio.current_time():
                        await trio.sleep_until(due)
                    else:
                        await self._flush(write)
        finally:
            self.closed = True
            self._room.set()

    async def _flush(self, write: Write) -> None:
        taken = {run_id: tuple(one.statements) for run_id, one in self._waiting.items()}
        try:
            await write(tuple(one for waiting in taken.values() for one in waiting))
        except (StorageError, MotetRuntimeError):
            await self._one_by_one(taken, write)
        finally:
            for run_id, waiting in taken.items():
                self.written(run_id, waiting)

    async def _one_by_one(self, taken: dict[str, tuple[Statement, ...]], write: Write) -> None:
        """After a failed batch: one bad statement must not cost the others."""
        for run_id, waiting in taken.items():
            for statement in waiting:
                try:
                    await write((statement,))
                except (StorageError, MotetRuntimeError) as error:
                    self._lose(run_id, error)

    def _lose(self, run_id: str, why: object) -> None:
        self.lost += 1
        _log.warning("run %s goes on without a row of its journal: %s", run_id, why)
