"""What there is to be written of unfinished runs, on its way to disk: together, a little later.

A plain object that the host makes once: runs add to it by a call, the store writes, and what waits
stays when the store is restarted. Most of it never needs to be written: a run that ends within
:data:`PATIENCE` stores its rows with its end, and one that runs calls stores them with the calls.
Once the oldest has waited so long, all that is left goes in one transaction.
Invariants: a statement is on disk, or counted as lost, at most ``PATIENCE`` and a commit after it
was added, unless its run took it along; at most :data:`LIMIT` wait, more make who adds wait, or
are lost where nobody writes any more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from motet.actors.storage import session_sql as sql
from motet.protocols.chat import ChatMessage
from motet.protocols.storage import Statement, StorageError
from motet.runtime import MotetRuntimeError
from motet.runtime.outside import wall_time

PATIENCE = 0.005
"""Seconds for which a statement may wait for others. A kill loses at most what is that young."""
LIMIT = 256

Write: TypeAlias = Callable[[tuple[Statement, ...]], Awaitable[object]]

_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Waiting:
    since: float
    statements: list[Statement] = attrs.field(factory=list[Statement])


class RunJournal:
    """Collects, for :meth:`run` to write.

    ``lost`` counts what could not be written; ``closed``: whoever wrote has ended.
    """

    def __init__(self) -> None:
        self.lost = 0
        self.closed = False
        self._waiting: dict[str, _Waiting] = {}
        self._count = 0
        self._added = trio.Event()
        self._room = trio.Event()

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

    async def begin(self, run_id: str) -> None:
        """Note that a queued run starts now."""
        await self.add(run_id, sql.begin(run_id, wall_time()))

    async def note(self, run_id: str, step: int, row: ChatMessage) -> None:
        """Note a row of an unfinished run."""
        await self.add(run_id, sql.record(run_id, step, row))

    def pending(self, run_id: str) -> tuple[Statement, ...]:
        """What is not on disk yet of this run, for a transaction that takes it along."""
        waiting = self._waiting.get(run_id)
        return () if waiting is None else tuple(waiting.statements)

    def written(self, run_id: str, statements: tuple[Statement, ...]) -> None:
        """Forget these statements of a run: they are on disk, or useless."""
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
        """Forget all of a run: it has ended."""
        waiting = self._waiting.pop(run_id, None)
        if waiting is not None:
            self._count -= len(waiting.statements)
            self._room.set()

    async def run(self, write: Write) -> None:
        """Write what has come together, for ever. Cancelled: what waits is not written."""
        self.closed = False
        if self._waiting:
            self._added.set()
        try:
            while True:
                await self._added.wait()
                self._added = trio.Event()
                while self._waiting:
                    # Of most runs nothing gets so old: a turn without calls takes less time.
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
        """Only one of them may be what cannot be written."""
        for run_id, waiting in taken.items():
            for statement in waiting:
                try:
                    await write((statement,))
                except (StorageError, MotetRuntimeError) as error:
                    self._lose(run_id, error)

    def _lose(self, run_id: str, why: object) -> None:
        self.lost += 1
        _log.warning("run %s goes on without a row of its journal: %s", run_id, why)
