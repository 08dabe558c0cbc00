"""The task of a supervisor: it owns the children's nursery and executes the supervision table.

Invariants: every child runs in this nursery, so none outlives it; exits are decided one after the
other; once closing, no child is started. A child that ends while its group is being stopped is
not decided twice: exits carry the generation they belong to.

``supervision.py`` decides and ``lifecycle.py`` has the states; here is only the waiting in
between. Stopping a group takes time, and children crash, are stopped and are started meanwhile, so
after each wait the cells are looked up again by name.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import attrs
import trio

from motet.runtime.behaviour import Behaviour
from motet.runtime.errors import (
    ActorDead,
    NameTaken,
    RestartLimitExceeded,
    StartFailed,
    TooManyChildren,
)
from motet.runtime.feed import RestartEvent
from motet.runtime.foreign import shown
from motet.runtime.kernel import Kernel
from motet.runtime.lifecycle import LifeState
from motet.runtime.outside import foreign_code
from motet.runtime.stopping import StopPlan, at_once, within
from motet.runtime.supervision import (
    ChildTable,
    Decision,
    Directive,
    ExitKind,
    Restart,
    Supervision,
)
from motet.runtime.waits import Groups, RestartWait, Work, current_work

__all__ = ["Child", "Factory", "Supervisor", "bound"]

Factory = Callable[[], Behaviour[Any]]

_NOT_RESTARTED = "it ended, and its restart type does not restart it"


class Child(Protocol):
    """A child as its supervisor knows it; :class:`~.cell.Cell` is the only one."""

    name: str
    path: str
    state: LifeState
    generation: int
    failed_with: Exception | None
    is_final: bool
    was_ready: bool
    stop_grace: float | None

    @property
    def supervisor(self) -> Supervisor[Self] | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def is_occupied(self) -> bool: ...
    @property
    def turn(self) -> Work: ...
    def works(self) -> Iterator[Work]: ...
    def refuse_all_endless(self) -> None: ...
    def begin(self, nursery: trio.Nursery) -> None: ...
    def stop(self, plan: StopPlan, *, final: bool) -> None: ...
    def bury(self, reason: str) -> None: ...
    async def wait_started(self) -> None: ...
    async def wait_ended(self) -> None: ...
    def total_budget(self) -> float: ...
    def tree(self) -> Iterator[Self]: ...


B = TypeVar("B", bound=Behaviour[Any])
C = TypeVar("C", bound=Child)


def bound(factory: Callable[..., B], args: tuple[object, ...]) -> Callable[[], B]:
    """The factory that calls ``factory`` with ``args``."""
    return partial(factory, *args) if args else factory


@attrs.define
class _Busy(Generic[C]):
    """The restart that a supervisor is busy with, which it may have to interrupt.

    ``begun``: the member of a group restarted last, until it has started; ``waiting``: the wait for
    that; ``halting``: the members that are still to end.
    """

    begun: C | None = None
    waiting: trio.CancelScope | None = None
    halting: list[C] = attrs.field(factory=list)  # pyright: ignore[reportUnknownVariableType]

    def works(self) -> list[Work]:
        """What has to end before the next member is started."""
        works = [work for cell in self.halting for work in cell.works()]
        if self.begun is not None and self.begun.state == "starting":
            works.append(self.begun.turn)
        return works


class Supervisor(Generic[C]):
    """Starts, restarts and stops the children of one actor, or of the system (G2, G9).

    ``make`` is the class of the cells: it needs supervisors, so it cannot be imported here.
    """

    def __init__(
        self,
        kernel: Kernel,
        path: str,
        supervision: Supervision,
        make: Callable[[Kernel, Supervisor[C], str, Factory, C | None], C],
        *,
        escalate: Callable[[Exception], None],
        shut_down: Callable[[], None],
        on_child_end: Callable[[C, Exception | None], None] | None = None,
    ) -> None:
        self.path = path
        self.cells: dict[str, C] = {}  # in start order
        self.opened = trio.Event()
        self.ended = trio.Event()
        self.closing = False
        self._kernel = kernel
        self._make = make
        self._escalate = escalate
        self._shut_down = shut_down
        self._on_child_end = on_child_end
        self._table = ChildTable(supervision)
        self._exits: deque[tuple[C, int]] = deque()
        self._due: dict[str, float] = {}  # times of the restarts to come, by name
        # They accept mail, and begin when the child of the same name has ended.
        self._successors: dict[str, tuple[C, Restart]] = {}
        self._wake = trio.Event()
        self._serving = trio.CancelScope()
        self._plan = at_once()
        self._stopping: C | None = None
        self._busy: _Busy[C] = _Busy()
        self._budget_after = 0.0  # seconds that on_stop of the children stopped later may take
        self._nursery: trio.Nursery | None = None

    # ------------------------------------------------------------------ the task

    async def run(self) -> None:
        """The supervisor's task: serve until closed, then stop the children in reverse order."""
        current_work.set(None)  # inherited from the actor's turn, which does not wait for this
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if not self.closing:
                    for cell in self.cells.values():  # spawned before there was a nursery
                        self._begin(cell)
                self.opened.set()
                with self._serving:
                    await self._serve()
                await self._stop_children()
        finally:
            self.closing = True
            for cell in self.cells.copy().values():
                self._bury(cell, "its supervisor ended")
            self.opened.set()
            self.ended.set()

    async def _serve(self) -> None:
        while True:
            # Exits before restarts: their decision may stop or remove a child that is due.
            if self._exits:
                cell, generation = self._exits.popleft()
                if cell.generation == generation and self.cells.get(cell.name) is cell:
                    await self._decide(cell)
            elif self._busy.begun is not None:
                await self._wait_begun(self._busy.begun)
            elif self._due and min(self._due.values()) <= trio.current_time():
                self._begin_due()
            else:
                self._wake = trio.Event()
                with trio.move_on_at(min(self._due.values(), default=math.inf)):
                    await self._wake.wait()

    async def _decide(self, cell: C) -> None:
        error = cell.failed_with
        now = trio.current_time()
        kind: ExitKind = "normal" if error is None else "crashed"
        directive, failure = self._directive(error)
        decision = self._table.exited(cell.name, kind, now, self._kernel.chance(), directive)
        self._report(cell, decision)
        if decision.escalate:
            self._give_up(failure or self._limit(cell, error, alone=False))
            return
        if decision.gives_up:
            # All that its decision orders, unless it ends the siblings too: by the time that this
            # returns, its name may belong to a new child, which `_execute` would bury.
            self._bury_alone(cell, error)
            if not decision.shutdown:
                return
        if decision.shutdown:
            # Buried here, since `_execute` is not reached. The siblings are stopped when this task
            # has left `_serve`.
            self._bury(cell, _NOT_RESTARTED)
            self.closing = True
            self._serving.cancel()
            self._shut_down()
        else:
            await self._execute(decision, now)

    def _report(self, cell: C, decision: Decision) -> None:
        """Tell those who follow the restarts of the system."""
        error = None if cell.failed_with is None else shown(cell.failed_with)
        kind: Literal["restart", "give_up", "escalate"] = "restart"
        names = [name for name in decision.starts if name in self.cells]
        if decision.escalate or decision.gives_up:
            kind, names = "escalate" if decision.escalate else "give_up", [cell.name]
        for one in (self.cells[name] for name in names):
            restarts = one.restarts + (kind == "restart")
            self._kernel.restarts.add(
                RestartEvent(one.path, kind, cell.path, error, restarts, decision.delay)
            )

    def _directive(self, error: Exception | None) -> tuple[Directive, Exception | None]:
        """What ``decide`` says of ``error``, and the error to escalate, if it says that."""
        decide = self._table.supervision.decide
        if decide is None or error is None:
            return "restart", None
        try:
            with foreign_code:
                directive = decide(error)
                if directive not in ("restart", "stop", "escalate"):
                    raise ValueError(f"decide returned {directive!r}: restart, stop or escalate")
        except Exception as failure:
            return "escalate", failure
        return directive, error if directive == "escalate" else None

    async def _execute(self, decision: Decision, now: float) -> None:
        if decision.stops:
            await self._halt_group(decision)
        for name in decision.removes:
            if name in self.cells:
                self._bury(self.cells[name], _NOT_RESTARTED)
        for name in decision.starts:
            if name in self.cells:
                self._due[name] = now + decision.delay

    async def _halt_group(self, decision: Decision) -> None:
        self._busy.halting = [self.cells[name] for name in decision.stops if name in self.cells]
        try:
            # Those who wait for one of the group, which restarts after they have ended, would use
            # up the grace of their stop. So they learn of the failure now.
            for cell in self.cells.values():
                if not cell.is_occupied or cell in self._busy.halting:
                    cell.refuse_all_endless()
            while self._busy.halting:
                cell = self._busy.halting[0]
                # It may have been stopped and removed while this waited for the one before.
                if self.cells.get(cell.name) is cell:
                    await self._halt(cell, final=cell.name in decision.removes)
                del self._busy.halting[0]
        finally:
            self._busy.halting = []

    def before_restart(self, cell: C) -> Groups:
        """What has to end before ``cell`` is started again; see ``waits.py``.

        One node, so that a cycle tells whether it leads through a restart: this task ends the
        members of a group one after the other, and waits for the start of each. A child of
        ``one_for_one`` waits only for those that were due at the same time.
        """
        works = self._busy.works()
        if self._table.supervision.strategy == "one_for_one":
            due = self._due.get(cell.name, math.inf) <= trio.current_time()
            works = works if due else []
        return (
            ((Work(f"{self.path} (restart)", [RestartWait(self.path, works)]),),) if works else ()
        )

    async def _halt(self, cell: C, *, final: bool) -> None:
        self._due.pop(cell.name, None)
        cell.stop(within(cell.stop_grace), final=final)
        # No time limit: a new incarnation must never meet the old one.
        await cell.wait_ended()

    def _begin_due(self) -> None:
        """Begin the first child in start order that is due."""
        now = trio.current_time()
        cell = next(
            cell for cell in self.cells.values() if self._due.get(cell.name, now + 1) <= now
        )
        del self._due[cell.name]
        self._busy.begun = cell
        self._begin(cell)

    async def _wait_begun(self, cell: C) -> None:
        """Wait for the start of ``cell``, which the next one may use in its own.

        The exit of a sibling ends the wait, so that a start that hangs holds up no other decision.
        Children of ``one_for_one`` do not need each other: the restart of one that becomes due
        later ends it, too.
        """
        alone = self._table.supervision.strategy == "one_for_one"
        now = trio.current_time()
        until = min((at for at in self._due.values() if alone and at > now), default=math.inf)
        with trio.CancelScope(deadline=until) as waiting:
            self._busy.waiting = waiting
            await cell.wait_started()
        if alone or not waiting.cancelled_caught:
            self._busy.begun = None
        self._busy.waiting = None

    def _bury_alone(self, cell: C, error: Exception | None) -> None:
        """Bury a child that has spent its own restarts."""
        limit = self._limit(cell, error, alone=True)
        last = "it ended" if error is None else f"its last crash: {shown(error)}"
        spec = self._table.supervision
        times = f"more than {spec.intensity} restarts within {spec.period:g} s"
        self._bury(cell, f"it was given up after {times}, {last}", limit)

    def _limit(self, cell: C, error: Exception | None, *, alone: bool) -> RestartLimitExceeded:
        spec = self._table.supervision
        limit = RestartLimitExceeded(self.path, cell.name, spec.intensity, spec.period, alone=alone)
        limit.__cause__ = error
        return limit

    def _give_up(self, error: Exception) -> None:
        # The children are stopped when this task has left `_serve`, and the escalation ends the
        # actor above: both must find that no child can be started.
        self.closing = True
        self._serving.cancel()
        self._escalate(error)

    async def _stop_children(self) -> None:
        # One by one in reverse start order: an older sibling may be used until a younger one's
        # on_stop has returned.
        # First those between two incarnations, which have nothing to end: with their mail they
        # settle the asks that the others would wait for.
        for cell in reversed([cell for cell in self.cells.values() if not cell.is_occupied]):
            self.stop(cell, self._plan)
        budgets = [(cell, cell.total_budget()) for cell in self.cells.values()]
        self._budget_after = sum(budget for _, budget in budgets)
        for cell, budget in reversed(budgets):
            self._stopping = cell
            self._budget_after -= budget
            self.stop(cell, self._plan_of_next(cell))
            await cell.wait_ended()
        self._stopping = None

    def _plan_of_next(self, cell: C) -> StopPlan:
        """The plan for the child stopped now: it leaves the later ones time for their clean-ups."""
        now = trio.current_time()
        plan = self._plan.less(max(0.0, self._budget_after), now)
        return plan.at_most(cell.stop_grace, now)

    # ------------------------------------------------------------------ orders

    async def start(
        self,
        factory: Factory,
        name: str,
        restart: Restart,
        *,
        significant: bool = False,
    ) -> C:
        """Start a child and wait for its ``on_start``.

        Raises NameTaken, TooManyChildren, StartFailed, or ActorDead if the supervisor is closing.
        Cancelled: the child is stopped at once, and its clean-up awaited.
        """
        if not self.opened.is_set():
            await self.opened.wait()
        cell = self.spawn(factory, name, restart, significant=significant)
        try:
            await cell.wait_started()
        finally:
            if not cell.was_ready:
                await self._undo_start(cell)
        if not cell.was_ready:
            error = cell.failed_with
            reason = f"on_start raised {shown(error)}" if error is not None else "it was stopped"
            raise StartFailed(cell.path, reason) from error
        return cell

    def spawn(
        self,
        factory: Factory,
        name: str,
        restart: Restart,
        *,
        significant: bool = False,
    ) -> C:
        """Begin a child that accepts mail at once, without waiting for its start.

        If the start fails, its mail is settled with the reason. A supervisor whose task has not
        begun yet begins the child later.
        """
        self._check_name(name)
        if name in self.cells:
            raise NameTaken(f"{self.path}/{name}")
        limit = self._table.supervision.max_children
        if limit is not None and len(self.cells) >= limit:
            raise TooManyChildren(self.path, limit)
        self._table.add(name, restart, significant)
        try:
            cell = self._make(self._kernel, self, name, factory, None)
        except BaseException:
            self._table.remove(name)
            raise
        self._enter(cell)
        return cell

    def numbered(self, factory: Callable[..., object]) -> str:
        """A name for a child that gets none: of its class, with a number."""
        kind = str(getattr(factory, "__name__", ""))
        stem = kind.lower() if kind.isidentifier() else "actor"  # not <lambda>
        return next(name for n in self._kernel.numbers if (name := f"{stem}-{n}") not in self.cells)

    def spawn_next(self, factory: Factory, name: str, restart: Restart) -> C:
        """Create a child that is built when the ending child of the same name has ended.

        It accepts mail at once, so that no message is lost in between.
        """
        self._check_name(name)
        successor = self._make(self._kernel, self, name, factory, self.cells[name])
        self._successors[name] = (successor, restart)
        return successor

    def find(self, name: str) -> C | None:
        """The child of that name, or its successor if there is one."""
        successor = self._successors.get(name)
        return self.cells.get(name) if successor is None else successor[0]

    def stop(self, cell: C, plan: StopPlan) -> None:
        """Order a child to end for ever. Synchronous: ``cell.wait_ended`` waits.

        In the thread of the system, which the caller checks.
        """
        cell.stop(plan, final=True)
        if not cell.is_occupied:
            self._bury(cell, "it was stopped")

    def close(self, plan: StopPlan) -> None:
        """Order the end of all children, in reverse start order; ``ended`` is set after it."""
        self.closing = True
        self._plan = plan
        self._serving.cancel()
        if self._stopping is not None:
            self.stop(self._stopping, self._plan_of_next(self._stopping))

    def child_ended(self, cell: C, *, cancelled: bool) -> None:
        """An incarnation has ended. If another may follow, this supervisor's task decides that."""
        if self.closing or cancelled or cell.is_final or not cell.was_ready:
            why = "it ended" if cell.was_ready else f"it did not start: {shown(cell.failed_with)}"
            self._bury(cell, why)
            return
        self._exits.append((cell, cell.generation))
        self._wake.set()
        if self._busy.works():
            # It is started after those, so that whoever waits for it now waits for them as well.
            cell.refuse_all_endless()
        if self._busy.waiting is not None:
            self._busy.waiting.cancel()

    # ------------------------------------------------------------------ reading

    def below(self, path: str) -> C | None:
        """The cell at ``path``, or None. In as many steps as the path has names."""
        first = f"{self.path}/"
        cell: C | None = None
        supervisor: Supervisor[C] | None = self
        for name in path.removeprefix(first).split("/") if path.startswith(first) else ():
            cell = None if supervisor is None else supervisor.cells.get(name)
            if cell is None:
                return None
            supervisor = cell.supervisor
        return cell

    def tree(self) -> Iterator[C]:
        """All cells below, parents first, siblings in start order."""
        for cell in self.cells.copy().values():
            yield from cell.tree()

    def total_budget(self) -> float:
        """Seconds that all ``on_stop`` below may take, one after the other."""
        return sum(cell.total_budget() for cell in self.cells.values())

    # ------------------------------------------------------------------ within

    def _check_name(self, name: str) -> None:
        self._kernel.loop.check(self.path)
        if self.closing:
            raise ActorDead(self.path, "it is stopping, so it starts no children")
        if not name or "/" in name:
            raise ValueError(f"a name is not empty and has no '/': {name!r}")

    def _enter(self, cell: C) -> None:
        self.cells[cell.name] = cell
        if self._nursery is not None:
            self._begin(cell)

    def _begin(self, cell: C) -> None:
        assert self._nursery is not None
        self._table.starting(cell.name, trio.current_time())
        cell.begin(self._nursery)

    async def _undo_start(self, cell: C) -> None:
        cell.stop(at_once(), final=True)
        # The caller may be cancelled. The child it began must have ended before it continues.
        with trio.CancelScope(shield=True):
            await cell.wait_ended()
        self._bury(cell, "it did not start")

    def _bury(self, cell: C, reason: str, limit: RestartLimitExceeded | None = None) -> None:
        # Not present: it was buried before, or is a successor that never began.
        present = self.cells.get(cell.name) is cell
        if present:
            del self.cells[cell.name]
            self._due.pop(cell.name, None)
            self._table.remove(cell.name)
            if self._successors:
                self._begin_successor(cell.name, reason)
        cell.bury(reason)
        if present and not self.closing and self._on_child_end is not None:
            self._on_child_end(cell, limit)

    def _begin_successor(self, name: str, reason: str) -> None:
        successor, restart = self._successors.pop(name, (None, None))
        if successor is None or restart is None or successor.state == "dead":
            return
        if self.closing:
            successor.bury(reason)
            return
        self._table.add(name, restart)
        self._enter(successor)
