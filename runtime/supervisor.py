"""The shell around the supervision table: it owns the children's nursery, and does what is decided.

Invariants: every child runs in this nursery, so none outlives it; exits are decided on one after
the other; once closing, nothing is started any more. A child that ends while its group is being
stopped is not decided on twice: exits carry the generation they belong to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio

from motet.runtime.errors import (
    ActorDead,
    NameTaken,
    RestartLimitExceeded,
    StartFailed,
    TooManyChildren,
)
from motet.runtime.stopping import StopPlan, at_once, within
from motet.runtime.supervision import ChildTable, Decision, ExitKind, Restart, Supervision
from motet.runtime.waits import current_work

if TYPE_CHECKING:
    from motet.runtime.actor import Actor
    from motet.runtime.cell import Cell
    from motet.runtime.system import System

__all__ = ["Supervisor"]

Ts = TypeVarTuple("Ts")


class Supervisor:
    """Starts, restarts and stops the children of one actor, or of the system (G2, G9)."""

    def __init__(
        self,
        system: System,
        path: str,
        supervision: Supervision,
        escalate: Callable[[Exception], None],
        wind_up: Callable[[], None],
        tell_end: Callable[[Cell], None] | None = None,
    ) -> None:
        self.path = path
        self.cells: dict[str, Cell] = {}  # in start order
        self.opened = trio.Event()
        self.ended = trio.Event()
        self.closing = False
        self._system = system
        self._escalate = escalate
        self._wind_up = wind_up
        self._tell_end = tell_end
        self._table = ChildTable(supervision)
        self._exits: deque[tuple[Cell, int]] = deque()
        self._due: dict[str, float] = {}  # restarts to come, by name
        self._heirs: dict[str, Cell] = {}  # accept mail, and begin when their namesakes have ended
        self._wake = trio.Event()
        self._serving = trio.CancelScope()
        self._plan = at_once()
        self._stopping: Cell | None = None
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

    async def _decide(self, cell: Cell) -> None:
        error = cell.failed_with
        now = trio.current_time()
        kind: ExitKind = "normal" if error is None else "crashed"
        decision = self._table.exited(cell.name, kind, now, self._system.chance())
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
                await self._halt(self.cells[name], leave=name in decision.removes)
        for name in decision.removes:
            if name in self.cells:
                self._bury(self.cells[name], "it ended, and its restart type wants no restart")
        for name in decision.starts:
            if name in self.cells:
                self._due[name] = now + decision.delay

    async def _halt(self, cell: Cell, *, leave: bool) -> None:
        self._due.pop(cell.name, None)
        cell.stop(within(None), leave=leave)
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

    def _give_up(self, cell: Cell, error: Exception | None) -> None:
        spec = self._table.supervision
        limit = RestartLimitExceeded(self.path, cell.name, spec.intensity, spec.period)
        limit.__cause__ = error
        self.closing = True
        self._serving.cancel()
        self._escalate(limit)

    async def _stop_children(self) -> None:
        needs = [(cell, cell.cleanup_need()) for cell in self.cells.values()]
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
        factory: Callable[[], Actor[Any]],
        name: str,
        restart: Restart,
        *,
        significant: bool = False,
    ) -> Cell:
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
        factory: Callable[[], Actor[Any]],
        name: str,
        restart: Restart,
        *,
        significant: bool = False,
    ) -> Cell:
        """Begin a child that accepts mail at once; as ``start``, but nobody waits for its start.

        If that fails, its mail is settled with the reason. A supervisor that is not open yet begins
        it when it is.
        """
        from motet.runtime.cell import Cell

        self._check_name(name)
        if name in self.cells:
            raise NameTaken(f"{self.path}/{name}")
        limit = self._table.supervision.max_children
        if limit is not None and len(self.cells) >= limit:
            raise TooManyChildren(self.path, limit)
        self._table.add(name, restart, significant)
        try:
            cell = Cell(self._system, self, name, factory, restart)
        except BaseException:
            self._table.remove(name)
            raise
        self._enter(cell)
        return cell

    def spawn_next(self, factory: Callable[[], Actor[Any]], name: str, restart: Restart) -> Cell:
        """A child that begins when the one of its name, which is ending, has ended.

        It accepts mail at once, so that none is lost in between.
        """
        from motet.runtime.cell import Cell

        self._check_name(name)
        heir = self._heirs[name] = Cell(self._system, self, name, factory, restart)
        return heir

    def find(self, name: str) -> Cell | None:
        """The child of that name, or the one that follows it."""
        return self._heirs.get(name) or self.cells.get(name)

    def stop(self, cell: Cell, plan: StopPlan) -> None:
        """Order a child to end for ever. Synchronous: ``cell.wait_ended`` waits."""
        cell.stop(plan, leave=True)
        if not cell.is_occupied:
            self._bury(cell, "it was stopped")

    def close(self, plan: StopPlan) -> None:
        """Order the end of all children, in reverse start order; ``ended`` tells when."""
        self.closing = True
        self._plan = plan
        self._serving.cancel()
        if self._stopping is not None:
            self.stop(self._stopping, self._plan_of_next())

    def adopt(self, run: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str) -> None:
        """Run what belongs to one of the children, in the same nursery as that child."""
        assert self._nursery is not None
        self._nursery.start_soon(run, *args, name=name)

    def child_ended(self, cell: Cell, *, cancelled: bool) -> None:
        """An incarnation has ended: what follows is decided in this supervisor's task."""
        if self.closing or cancelled or cell.leaving or not cell.was_ready:
            why = "it ended" if cell.was_ready else f"it did not start: {cell.failed_with!r}"
            self._bury(cell, why)
            return
        self._exits.append((cell, cell.generation))
        self._wake.set()

    # ------------------------------------------------------------------ looking

    def tree(self) -> Iterator[Cell]:
        """All cells below, parents first, siblings in start order."""
        for cell in self.cells.copy().values():
            yield from cell.tree()

    def cleanup_need(self) -> float:
        """Seconds that all clean-ups below have declared, one after the other."""
        return sum(cell.cleanup_need() for cell in self.cells.values())

    # ------------------------------------------------------------------ within

    def _check_name(self, name: str) -> None:
        if self.closing:
            raise ActorDead(self.path, "it is stopping, so it starts no children")
        if not name or "/" in name:
            raise ValueError(f"a name is not empty and has no '/': {name!r}")

    def _enter(self, cell: Cell) -> None:
        self.cells[cell.name] = cell
        if self._nursery is not None:
            self._begin(cell)

    def _begin(self, cell: Cell) -> None:
        assert self._nursery is not None
        self._table.starting(cell.name, trio.current_time())
        cell.begin(self._nursery)

    async def _undo_start(self, cell: Cell) -> None:
        cell.stop(at_once(), leave=True)
        # The caller may be cancelled; what it began must have ended before it goes on.
        with trio.CancelScope(shield=True):
            await cell.wait_ended()
        self._bury(cell, "it did not start")

    def _bury(self, cell: Cell, reason: str) -> None:
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
