"""The waits for people in one process: calls that wait, awaited answers, and deadlines.

Plain data, touched by one Trio thread. Invariants: an answer reaches the call that waits for it, or
is noted for the run that has just been suspended; a call of a step that runs in order begins when
all before it are done, and asks for its approval as soon as one before it waits for its own.
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
from motet.protocols.run_states import BEGINS, PENDING, CallEvent, CallStates

if TYPE_CHECKING:
    from motet.actors.runs.run import Run

Emit: TypeAlias = "Callable[[Run, AnyEvent], Awaitable[None]]"


@attrs.define(eq=False)
class CallApprovals:
    """The calls of one tool step, as those see them that let calls begin.

    Attributes:
        step: the place of their assistant row among the rows of the run.
        in_order: their tools run one by one.
        capture: gives what the run needs to be resumed, as of now; None: it cannot be suspended.
        journalled: waits until the calls are on disk; to be called while they are ``watched``.
        is_journalled: they are on disk.
        on_record: the run can be resumed from disk, so that each call that begins is recorded too.
        held: the calls that have not begun on record, so that one that begins is recorded, too.
        asked: the approvals that were asked for, by the ids of their calls.
        stale: calls whose arguments quote a message that was changed since: they do not begin.
    """

    run: Run
    calls: tuple[Call, ...]
    states: CallStates
    step: int
    in_order: bool
    capture: Callable[[], SuspendedState] | None
    on_record: bool = False
    held: frozenset[str] = frozenset()
    is_journalled: bool = False
    journalled: Callable[[], Awaitable[None]] | None = None
    asked: dict[str, str] = attrs.field(factory=dict[str, str])
    stale: set[str] = attrs.field(factory=set[str])
    _look: Callable[[], None] | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def waits(self) -> bool:
        """Whether a person's answer lets the run continue."""
        return self.states.has_any(*PENDING)

    @property
    def only_waits(self) -> bool:
        """Whether the run does nothing but wait for people."""
        return self.waits and not self.states.has_any(*BEGINS)

    def place(self, call_id: str) -> int:
        """The place of a call's result among the rows of the run."""
        return self.step + 1 + [call.id for call in self.calls].index(call_id)

    def mark(self, call: Call) -> Mark:
        return Mark(self.place(call.id), missing_result(call, "unknown"))

    def marks(self) -> tuple[Mark, ...]:
        """Of the calls whose tools run now, or are about to."""
        return tuple(self.mark(call) for call in self.calls if self.states[call.id] in BEGINS)

    def watch(self, journalled: Callable[[], Awaitable[None]], look: Callable[[], None]) -> None:
        """Call ``look`` when another one of an ordered step may be asked, until :meth:`forget`."""
        self.journalled, self._look = journalled, look

    def forget(self) -> None:
        """The calls have ended. Without this, the step would wait for the garbage collector."""
        self.journalled = self._look = None

    def may_ask(self, index: int) -> bool:
        """In an ordered step, whether a call may be taken to its gates.

        It may when the one before it is done, and also when that one waits or is suspended, so that
        people are asked for all of them at once.
        """
        return not index or self.states[self.calls[index - 1].id] in {"done", *PENDING}

    async def turn(self, call_id: str) -> bool:
        """In an ordered step, wait until the call may begin; False: one before it is suspended."""
        ids = [call.id for call in self.calls]
        before = ids[: ids.index(call_id)]
        while not all(self.states[one] == "done" for one in before):
            if any(self.states[one] == "suspended" for one in before):
                return False
            await self._changed.wait()
        return True

    def move(self, call_id: str, event: CallEvent) -> None:
        """Make a transition; in an ordered step, have the later calls look for their turn."""
        self.states.move(call_id, event)
        if self.in_order and event in ("ask", "suspend", "report"):
            changed, self._changed = self._changed, trio.Event()
            changed.set()
            if self._look is not None:
                self._look()


@attrs.define(eq=False)
class Waiter:
    """Waits for one answer. ``info``: the answered approval."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    info: ApprovalInfo | None = None


class PendingApprovals:
    """All that waits for people in one host.

    Attributes:
        steps: the tool steps of live runs, by the ids of their runs.
        deadlines: when approvals expire, on Trio's clock.
        times: the same in Unix seconds, as they are stored; also of some that are settled.
        changed: set when there is a new deadline.
        call_scopes: the time-outs of running calls, by (run, call).
        emit: publishes an event of a run; the host's.
    """

    def __init__(self, emit: Emit) -> None:
        self.steps: dict[str, CallApprovals] = {}
        self.deadlines: dict[str, float] = {}
        self.times: dict[str, float] = {}
        self.changed = trio.Event()
        self.call_scopes: dict[tuple[str, str], trio.CancelScope] = {}
        self.emit = emit
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

    def expect(self, approval: str, life: float, at: float | None = None) -> None:
        """Let it expire in so many seconds, or ``at`` a time in Unix seconds if that is earlier."""
        self.deadlines[approval] = trio.current_time() + life
        if at is not None:
            self.times[approval] = at
        self.changed.set()

    def look_at_clock(self, now: float) -> None:
        """Let those expire whose time is over by the wall clock: Trio's has not seen that it was
        put forward, or that the machine slept.
        """
        self.times = {one: at for one, at in self.times.items() if one in self.deadlines}
        for approval, at in self.times.items():
            if at <= now and self.deadlines[approval] != inf:
                self.expect(approval, 0)

    async def any_pending(self) -> None:
        """Wait until an approval is pending."""
        while not self.deadlines:
            await self._changes(inf)

    async def expired(self) -> str:
        """Wait until an approval expires; its id. Its deadline is infinite until it is settled."""
        while True:
            first = min(self.deadlines, key=self.deadlines.__getitem__, default=None)
            await self._changes(inf if first is None else self.deadlines[first])
            if first is not None and self.deadlines.get(first, inf) <= trio.current_time():
                self.deadlines[first] = inf
                return first

    async def _changes(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            await self.changed.wait()
        # Only one that is set is replaced: others may wait for it too.
        if self.changed.is_set():
            self.changed = trio.Event()

    def settle(self, info: ApprovalInfo) -> bool:
        """Forget a pending approval that is settled; whether a call has waited here for it."""
        self.deadlines.pop(info.id, None)
        waiter = self._waiters.get(info.id)
        if waiter is None:
            return False
        waiter.info = info
        waiter.answered.set()
        return True

    @contextmanager
    def paused(self, runs: Sequence[Run]) -> Generator[None]:
        """A block whose time counts against no limit of these runs and of calls that wait for them.

        Blocks overlap when several calls wait: a clock stands still until the last one has ended.
        """
        callers = [run.lineage.caller for run in runs]
        calls = [self.call_scopes[one] for one in callers if one in self.call_scopes]
        budgets = [one.lineage.budget for one in runs if one.lineage.budget is not None]
        now = trio.current_time()
        for scope in calls:
            count, since, deadline = self._paused.get(scope, (0, now, scope.deadline))
            scope.deadline = inf
            self._paused[scope] = count + 1, since, deadline
        for budget in budgets:
            budget.pause(now)
        for run in runs:
            run.follow_budget()
        try:
            yield
        finally:
            now = trio.current_time()
            for scope in calls:
                self._unpause(scope, now)
            for budget in budgets:
                budget.resume(now)
            for run in runs:
                run.follow_budget()

    def _unpause(self, scope: trio.CancelScope, now: float) -> None:
        count, since, deadline = self._paused.pop(scope)
        if count > 1:
            self._paused[scope] = count - 1, since, deadline
        else:
            scope.deadline = deadline + now - since
