"""Who waits for what in this process: batches of calls, answers that are awaited, and deadlines.

Plain data, touched by one Trio thread. Invariants: an answer reaches whoever waits for it, or is
noted for the run that has just left; a call of a batch that runs in order begins its work when all
before it have ended, and asks for its approval as soon as one before it waits for its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from motet.actors.transcript.grammar import missing_result
from motet.protocols.approvals import ApprovalInfo, Mark, SuspendedState
from motet.protocols.chat import Call
from motet.protocols.events import AnyEvent

if TYPE_CHECKING:
    from motet.actors.runs.budget import Budget
    from motet.actors.runs.run import Run

Emit: TypeAlias = "Callable[[Run, AnyEvent], Awaitable[None]]"


async def _unheard(_run: Run, _event: AnyEvent) -> None:
    """There is no host that could tell."""


@attrs.define(eq=False)
class Standing:
    """The calls that a run is at.

    Attributes:
        step: the place of their assistant row among the rows of the run.
        in_order: their work is done one by one.
        suspended: what the run needs to go on later, as of now; None: it cannot.
        asked: one of them is on record as waiting, so that each that begins has to be too.
        began: ids of calls whose work has begun.
        held: ids of calls that wait for a person, each with its approval.
        left: ids of calls that are for later.
        look: called when another of them may come forward, while they are run in order.
    """

    run: Run
    calls: tuple[Call, ...]
    step: int
    in_order: bool
    suspended: Callable[[], SuspendedState] | None
    asked: bool = False
    began: set[str] = attrs.field(factory=set[str])
    held: dict[str, str] = attrs.field(factory=dict[str, str])
    left: set[str] = attrs.field(factory=set[str])
    look: Callable[[], None] | None = None
    _ended: set[str] = attrs.field(factory=set[str])
    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def waits(self) -> bool:
        """Whether a person could make it go on."""
        return bool(self.held or self.left)

    def place(self, call_id: str) -> int:
        """Where the result of a call stands among the rows of the run."""
        return self.step + 1 + [call.id for call in self.calls].index(call_id)

    def mark(self, call: Call) -> Mark:
        return Mark(self.place(call.id), missing_result(call, "unknown"))

    def marks(self) -> tuple[Mark, ...]:
        """For those that work now."""
        return tuple(self.mark(call) for call in self.calls if call.id in self.began - self._ended)

    def may_begin(self, index: int) -> bool:
        """In a batch that runs in order, whether a call may come forward: the one before it has
        ended, or waits for a person.

        Those behind one that is for later come forward too, so that they are asked for as well.
        """
        if not index:
            return True
        before = self.calls[index - 1].id
        return before in self._ended or before in self.held or before in self.left

    async def turn(self, call_id: str) -> bool:
        """In a batch that runs in order, wait until it may do its work; False: it is for later, as
        one before it is.
        """
        ids = [call.id for call in self.calls]
        before = ids[: ids.index(call_id)]
        while not self._ended.issuperset(before):
            if not self.left.isdisjoint(before):
                return False
            await self._changed.wait()
        return True

    def hold(self, call_id: str, approval: str) -> None:
        self.asked = True
        self.began.discard(call_id)
        self.held[call_id] = approval
        self._tell()

    def answered(self, call_id: str) -> None:
        self.held.pop(call_id, None)

    def leave(self, call_id: str) -> None:
        self.held.pop(call_id, None)
        self.left.add(call_id)
        self._tell()

    def end(self, call_id: str) -> None:
        self._ended.add(call_id)
        if self.in_order:
            self._tell()

    def _tell(self) -> None:
        if not self.in_order:
            return  # nobody waits for it
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        if self.look is not None:
            self.look()


@attrs.define(eq=False)
class Waiter:
    """Waits for one answer. ``info``: the answered approval."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    info: ApprovalInfo | None = None


class PendingApprovals:
    """All that waits in one host.

    Attributes:
        standings: the batches of live runs, by the ids of their runs.
        deadlines: when approvals expire, on Trio's clock.
        news, asked: set when there is a deadline that was not there before.
        timed: the scopes with the time-outs of calls at work, by their run and themselves.
        emit: publishes an event of a run; the host's.
    """

    def __init__(self) -> None:
        self.standings: dict[str, Standing] = {}
        self.deadlines: dict[str, float] = {}
        self.news = trio.Event()
        self.asked = trio.Event()
        self.timed: dict[tuple[str, str], trio.CancelScope] = {}
        self.emit: Emit = _unheard
        self._waiters: dict[str, Waiter] = {}
        self._paused: dict[trio.CancelScope, tuple[int, float, float]] = {}

    def __repr__(self) -> str:
        return f"<PendingApprovals waiting={len(self._waiters)} pending={len(self.deadlines)}>"

    @contextmanager
    def awaiting(self, approval: str) -> Generator[Waiter]:
        """A block that gets the answer, if one comes while it lasts."""
        waiter = self._waiters[approval] = Waiter()
        try:
            yield waiter
        finally:
            del self._waiters[approval]

    def expect(self, info: ApprovalInfo, life: float) -> None:
        """It expires in so many seconds."""
        self.deadlines[info.id] = trio.current_time() + life
        self.news.set()
        self.asked.set()

    def settled(self, info: ApprovalInfo) -> bool:
        """It has an answer, or needs none any more; whether a call waits here for that."""
        self.deadlines.pop(info.id, None)
        waiter = self._waiters.get(info.id)
        if waiter is None:
            return False
        waiter.info = info
        waiter.answered.set()
        return True

    @contextmanager
    def pausing(self, runs: Sequence[Run]) -> Generator[None]:
        """Time in here is neither the wall time of these runs, nor that of calls that wait for one.

        Whoever else waits for them too.
        """
        callers = [self.timed[run.caller] for run in runs if run.caller in self.timed]
        clocks = [*((run.scope, run.budget) for run in runs), *((one, None) for one in callers)]
        for scope, _ in clocks:
            count, since, deadline = self._paused.get(
                scope, (0, trio.current_time(), scope.deadline)
            )
            scope.deadline = inf
            self._paused[scope] = count + 1, since, deadline
        try:
            yield
        finally:
            for scope, budget in clocks:
                self._go_on(scope, budget)

    def _go_on(self, scope: trio.CancelScope, budget: Budget | None) -> None:
        count, since, deadline = self._paused.pop(scope)
        if count > 1:
            self._paused[scope] = count - 1, since, deadline
            return
        waited = trio.current_time() - since
        scope.deadline = deadline + waited
        if budget is not None:
            budget.started += waited
