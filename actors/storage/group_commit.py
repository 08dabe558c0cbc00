"""Group commit without a committer: whoever comes first works for all who wait.

While one commit runs, those who arrive wait. When it ends, the first of them leads: it takes all
that wait, commits them together and wakes each. A lone writer so pays for no second task, and a
crowd shares one COMMIT; there is nothing to start, stop or lose. (Log-structured stores know this
as the leader/follower scheme of the write queue.)

Invariants: an item that was withdrawn is never committed; one that was taken gets its true
outcome, however often its task is cancelled meanwhile; at most one commit runs at a time; while
items wait, there is a leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from motet.actors.storage.errors import StorageError

T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen
class CommitStatistics:
    """What a writer did since it started: groups, the items in them; how many items wait."""

    commits: int
    items: int
    waiting: int


@attrs.define(eq=False)
class _Entry(Generic[T, R]):
    item: T
    result: R | StorageError
    task: trio.lowlevel.Task | None = None
    """Who waits for it; None while nobody is parked."""
    taken: bool = False


class GroupCommit(Generic[T, R]):
    """Turns ``commit``, which handles many items, into :meth:`submit`, which handles one.

    ``commit`` gets the items in order of arrival and returns one result each, an error being one
    to raise. It must refuse to be cancelled.
    """

    def __init__(self, commit: Callable[[list[T]], Awaitable[Sequence[R | StorageError]]]):
        self._commit = commit
        self._waiting: list[_Entry[T, R]] = []
        self._led = False
        self._commits = 0
        self._items = 0

    async def submit(self, item: T) -> R:
        """Have ``item`` committed with all that wait.

        Cancellation: withdraws an item that waits. Once it was taken, its outcome is delivered.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        entry: _Entry[T, R] = _Entry(item, StorageError("the commit broke off: outcome unknown"))
        self._waiting.append(entry)
        if self._led:
            await self._settled_or_chosen(entry)
        if not entry.taken:
            await self._lead()
        if isinstance(entry.result, StorageError):
            raise entry.result
        return entry.result

    def statistics(self) -> CommitStatistics:
        return CommitStatistics(self._commits, self._items, len(self._waiting))

    async def _settled_or_chosen(self, entry: _Entry[T, R]) -> None:
        """Park until a leader has settled the entry, or has left the lead to it."""

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            if entry.taken:
                return trio.lowlevel.Abort.FAILED
            self._waiting.remove(entry)
            return trio.lowlevel.Abort.SUCCEEDED

        entry.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        entry.task = None

    async def _lead(self) -> None:
        """Commit all that wait, this task's own item among them."""
        self._led = True
        group, self._waiting = self._waiting, []
        for entry in group:
            entry.taken = True
        self._commits += 1
        self._items += len(group)
        try:
            results = await self._commit([entry.item for entry in group])
            for entry, result in zip(group, results, strict=True):
                entry.result = result
        finally:
            # The one place where entries are settled. Nothing here awaits.
            for entry in group:
                _wake(entry)
            self._led = bool(self._waiting)
            if self._led:
                _wake(self._waiting[0])


def _wake(entry: _Entry[T, R]) -> None:
    if entry.task is not None:
        trio.lowlevel.reschedule(entry.task)
