"""The shell around the supervision table: it owns the children's nursery, and does what is decided.

Invariants: every child runs in this nursery, so none outlives it; exits are decided on one after
the other; once closing, nothing is started any more. A child that ends while its group is being
stopped is not decided on twice: exits carry the generation they belong to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

import trio

from motet.runtime.behaviour import Behaviour
from motet.runtime.errors import (
    ActorDead,
    NameTaken,
    RestartLimitExceeded,
    StartFailed,
    TooManyChildren,
)
from motet.runtime.kernel import Kernel
from motet.runtime.lifecycle import LifeState
from motet.runtime.stopping import StopPlan, at_once, within
from motet.runtime.supervision import ChildTable, Decision, ExitKind, Restart, Supervision
from motet.runtime.waits import current_work

__all__ = ["Child", "Factory", "Supervisor"]

Factory = Callable[[], Behaviour[Any]]


class Child(Protocol):
    """A child as its supervisor knows it; :class:`~.cell.Cell` is the only one."""

    name: str
    path: str
    state: LifeState
    restart: Restart
    generation: int
    failed_with: Exception | None
    is_final: bool
    was_ready: bool

    @property
    def is_occupied(self) -> bool: ...
    def begin(self, nursery: trio.Nursery) -> None: ...
    def stop(self, plan: StopPlan, *, final: bool) -> None: ...
    def bury(self, reason: str) -> None: ...
    async def wait_started(self) -> None: ...
    async def wait_ended(self) -> None: ...
    def total_budget(self) -> float: ...
    def tree(self) -> Iterator[Self]: ...


C = TypeVar("C", bound=Child)


class Supervisor(Generic[C]):
    """Starts, restarts and stops the children of one actor, or of the system (G2, G9).

    ``make`` is the class of the cells: it needs supervisors, so it cannot be imported here.
    """

    def __init__(
        self,
        kernel: Kernel,
        path: str,
        supervision: Supervision,
        make: Callable[[Kernel, Supervisor[C], str, Factory, Restart], C],
        *,
        escalate: Callable[[Exception], None],
        wind_up: Callable[[], None],
        tell_end: Callable[[C], None] | None = None,
    ) -> None:
        self.path = path
        self.cells: dict[str, C] = {}  # in start order
        self.opened = trio.Event()
        self.ended = trio.Event()
        self.closing = False
        self._kernel = kernel
        self._make = make
        self._escalate = escalate
        self._wind_up = wind_up
        self._tell_end = tell_end
        self._table = ChildTable(supervision)
        self._exits: deque[tuple[C, int]] = deque()
        self._due: dict[str, float] = {}  # restarts to come, by name
        self._heirs: dict[str, C] = {}  # accept mail, and begin when their namesakes have ended
        self._wake = trio.Event()
        self._serving = trio.CancelScope()
        self._plan = at_once()
        self._stopping: C | None = None
        self._need_after = 0.0  # seconds that the clean-ups of those stopped later have declared
        self._nursery: trio.Nursery | None = None

    # ------------------------------------------------------------------ its task

    async def run(self) -> None:
        """The supervisor's task: serve until closed, then stop the children in reverse order."""
        current_work.set(None)  # inherited from the actor's turn, which waits for nothing here
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
            if self._exits:
                cell, generation = self._exits.popleft()
                if cell.generation == generation and self.cells.get(cell.name) is cell:
                    await self._decide(cell)
            elif self._due and min(self._due.values()) <= trio.current_time():
                await self._start_due()
            else:
                self._wake = trio.Event()
                with trio.move_on_at(min(self._due.values(), default=math.inf)):
                    await self._wake.wait()

    async def _decide(self, cell: C) -> None:
        error = cell.failed_with
        now = trio.current_time()
        kind: ExitKind = "normal" if error is None else "crashed"
        decision = self._table.exited(cell.name, kind, now, self._kernel.chance())
        if decision.escalate:
            self._give_up(cell, error)
        elif decision.shutdown:
            self._bury(cell, "it ended, and its restart type wants no restart")
            self.closing = True
            self._serving.cancel()
            self._wind_up()
        else:
            await self._execute(decision, now)

    async def _execute(self, decision: Decision, now: float) -> None:
        for name in decision.stops:
            # One that somebody stopped while this waited for another is gone.
            if name in self.cells:
                await self._halt(self.cells[name], final=name in decision.removes)
        for name in decision.removes:
            if name in self.cells:
                self._bury(self.cells[name], "it ended, and its restart type wants no restart")
        for name in decision.starts:
            if name in self.cells:
                self._due[name] = now + decision.delay

    async def _halt(self, cell: C, *, final: bool) -> None:
        self._due.pop(cell.name, None)
        cell.stop(within(None), final=final)
        # Without limit: a new incarnation must never meet the old one.
        await cell.wait_ended()

    async def _start_due(self) -> None:
        now = trio.current_time()
        for name in [name for name in self.cells if self._due.get(name, math.inf) <= now]:
            if name not in self._due or name not in self.cells:
                continue
            del self._due[name]
            cell = self.cells[name]
            self._begin(cell)
            await cell.wait_started()
            if cell.failed_with is not None and self._exits:
                return  # this start failed: decide on it before the next ones

    def _give_up(self, cell: C, error: Exception | None) -> None:
        spec = self._table.supervision
        limit = RestartLimitExceeded(self.path, cell.name, spec.intensity, spec.period)
        limit.__cause__ = error
        self.closing = True
        self._serving.cancel()
        self._escalate(limit)

    async def _stop_children(self) -> None:
        needs = [(cell, cell.total_budget()) for cell in self.cells.values()]
        self._need_after = sum(need for _, need in needs)
        for cell, need in reversed(needs):
            self._stopping = cell
            self._need_after -= need
            self.stop(cell, self._plan_of_next())
            await cell.wait_ended()
        self._stopping = None

    def _plan_of_next(self) -> StopPlan:
        """What is stopped later has clean-ups too: no handler may use up their time."""
        return self._plan.less(max(0.0, self._need_after), trio.current_time())

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
            reason = f"on_start raised {error!r}" if error is not None else "it was stopped"
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
        """Begin a child that accepts mail at once; as ``start``, but nobody waits for its start.

        If that fails, its mail is settled with the reason. A supervisor that is not open yet begins
        it when it is.
        """
        self._check_name(name)
        if name in self.cells:
            raise NameTaken(f"{self.path}/{name}")
        limit = self._table.supervision.max_children
        if limit is not None and len(self.cells) >= limit:
            raise TooManyChildren(self.path, limit)
        self._table.add(name, restart, significant)
        try:
            cell = self._make(self._kernel, self, name, factory, restart)
        except BaseException:
            self._table.remove(name)
            raise
        self._enter(cell)
        return cell

    def spawn_next(self, factory: Factory, name: str, restart: Restart) -> C:
        """A child that begins when the one of its name, which is ending, has ended.

        It accepts mail at once, so that none is lost in between.
        """
        self._check_name(name)
        heir = self._heirs[name] = self._make(self._kernel, self, name, factory, restart)
        return heir

    def find(self, name: str) -> C | None:
        """The child of that name, or the one that follows it."""
        return self._heirs.get(name) or self.cells.get(name)

    def stop(self, cell: C, plan: StopPlan) -> None:
        """Order a child to end for ever. Synchronous: ``cell.wait_ended`` waits."""
        cell.stop(plan, final=True)
        if not cell.is_occupied:
            self._bury(cell, "it was stopped")

    def close(self, plan: StopPlan) -> None:
        """Order the end of all children, in reverse start order; ``ended`` tells when."""
        self.closing = True
        self._plan = plan
        self._serving.cancel()
        if self._stopping is not None:
            self.stop(self._stopping, self._plan_of_next())

    def child_ended(self, cell: C, *, cancelled: bool) -> None:
        """An incarnation has ended: what follows is decided in this supervisor's task."""
        if self.closing or cancelled or cell.is_final or not cell.was_ready:
            why = "it ended" if cell.was_ready else f"it did not start: {cell.failed_with!r}"
            self._bury(cell, why)
            return
        self._exits.append((cell, cell.generation))
        self._wake.set()

    # ------------------------------------------------------------------ looking

    def tree(self) -> Iterator[C]:
        """All cells below, parents first, siblings in start order."""
        for cell in self.cells.copy().values():
            yield from cell.tree()

    def total_budget(self) -> float:
        """Seconds that all clean-ups below have declared, one after the other."""
        return sum(cell.total_budget() for cell in self.cells.values())

    # ------------------------------------------------------------------ within

    def _check_name(self, name: str) -> None:
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
        # The caller may be cancelled; what it began must have ended before it goes on.
        with trio.CancelScope(shield=True):
            await cell.wait_ended()
        self._bury(cell, "it did not start")

    def _bury(self, cell: C, reason: str) -> None:
        present = self.cells.get(cell.name) is cell
        if present:
            del self.cells[cell.name]
            self._due.pop(cell.name, None)
            self._table.remove(cell.name)
            self._let_follow(cell.name, reason)
        cell.bury(reason)
        if present and not self.closing and self._tell_end is not None:
            self._tell_end(cell)

    def _let_follow(self, name: str, reason: str) -> None:
        heir = self._heirs.pop(name, None)
        if heir is None or heir.state == "dead":
            return
        if self.closing:
            heir.bury(reason)
            return
        self._table.add(name, heir.restart)
        self._enter(heir)
