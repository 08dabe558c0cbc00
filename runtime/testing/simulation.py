"""The inside of a simulated run: the object that a world gets, and the instruments of the loop.

Invariants: the instruments never raise, since Trio drops one that does; an error in a user's law
becomes the error of the run. A world that does not end is ended by four means, each after a while:
it is cancelled; then all shields are lifted; then every wait raises :class:`Ended`; then the loop
is dropped.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import trio
from trio.testing import MockClock

from motet.runtime.foreign import HarnessEnd
from motet.runtime.snapshot import Statistics
from motet.runtime.system import System
from motet.runtime.testing.faults import Fault, InjectedCrash
from motet.runtime.testing.invariants import Asks, Turns, Violation, Watch, changes
from motet.runtime.testing.probe import cell_at, crash, stop
from motet.runtime.testing.scheduler import Scheduler, lift_shields, now, throw
from motet.runtime.testing.trace import Trace, awaited_by, drivers, normalised, position

__all__ = [
    "Ended",
    "Instrument",
    "Recorder",
    "Simulation",
    "Stuck",
    "Watcher",
    "logged",
    "tasks_below",
    "unfinished",
]

_ESCALATE_AFTER = 1000  # steps between two means of ending a world


class Stuck(Exception):
    """The world did not end: no task can ever run, or it took too many steps.

    ``tasks`` are the unfinished tasks, each with the line where it waits.
    """

    def __init__(self, why: str, tasks: Sequence[str]) -> None:
        listed = "".join(f"\n  {task}" for task in tasks)
        super().__init__(f"{why}; {len(tasks)} unfinished tasks:{listed}")
        self.tasks = tuple(tasks)


class Ended(HarnessEnd):
    """Raised in the tasks of a world that swallows its cancellation."""


class Simulation:
    """The object that a world gets: to mark targets of faults, and to report to the laws.

    ``random`` is drawn from the seed and not from the schedule, so that a world stays the same
    while its schedule shrinks. Handlers report to ``asks`` and ``turns`` (G1, G3, G5).
    """

    def __init__(
        self, seed: int, clock: MockClock, scheduler: Scheduler, faults: Sequence[Fault]
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = clock
        self.trace = Trace()
        self.violations: list[Violation] = []
        self.struck: list[Fault] = []
        self.error: Exception | None = None  # of the run itself; replaces the world's
        self.asks = Asks(self.violated)
        self.turns = Turns(self.violated)
        self.watch_list = Watch(self.violated, self._changed)
        self.targets: list[str] = []  # of faults, in the order of marking
        self.laws: list[tuple[str, Callable[[], str | None]]] = []
        self.scheduler = scheduler
        self._scopes: dict[str, trio.CancelScope] = {}
        self._faults = faults
        self.faulty_steps = frozenset([fault.step for fault in faults])
        self._watcher: Watcher | None = None
        self._broken: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------ for the world

    @property
    def step(self) -> int:
        """The current step, from 1."""
        return self.scheduler.steps

    def watch(self, system: System, *paths: str) -> System:
        """Check the guarantees of ``system`` after every step; crash, stop and kill find it.

        The actors at ``paths`` are marked as :meth:`may_hit` does.
        """
        self.watch_list.systems.append(system)
        self.may_hit(*paths)
        self._look_on()
        return system

    def unwatch(self) -> None:
        """Check no system from now on, since they will be taken apart, not stopped in order."""
        self.watch_list = Watch(self.violated, self._changed)

    def may_hit(self, *paths: str) -> None:
        """Mark actors of watched systems as targets of crash, stop and kill."""
        self.targets += [path for path in paths if path not in self.targets]

    def may_cancel(self, name: str, scope: trio.CancelScope | None = None) -> trio.CancelScope:
        """Mark a scope, or a new one, as a target of cancel: ``with sim.may_cancel("asker"):``."""
        if name.startswith("/"):
            raise ValueError(f"a scope's name does not begin with '/', as paths do: {name!r}")
        if name in self._scopes:
            raise ValueError(f"there is a scope {name!r} already: name each differently")
        scope = scope if scope is not None else trio.CancelScope()
        self._scopes[name] = scope
        self.targets.append(name)
        return scope

    def law(self, name: str, check: Callable[[], str | None]) -> None:
        """Call ``check`` after every step. A text it returns says how the law ``name`` is broken.

        Must not wait, and must not change anything.
        """
        self.laws.append((name, check))
        self._look_on()

    def note(self, what: str, who: str = "world") -> None:
        """Write a line into the trace; ``who`` names the lane, by a path or freely."""
        self.trace.add(self.step, self.clock.current_time(), who, what)

    def violated(self, guarantee: str, who: str, detail: str) -> None:
        """Report a broken guarantee. For each guarantee and ``who`` the first report counts."""
        if (guarantee, who) in self._broken:
            return
        self._broken.add((guarantee, who))
        self.violations.append(Violation(guarantee, self.step, who, detail))
        self.note(f"BREAKS {guarantee}: {detail}", who)

    # ------------------------------------------------------------------ for the run

    def fail(self, error: Exception) -> None:
        """End the run with ``error``, even if the world swallows it. The first error counts."""
        self.error = self.error or error

    def strike(self) -> None:
        """Before a step: apply the faults that are due."""
        step = self.step
        for fault in self._faults:
            if fault.step == step and self._hit(fault):
                self.struck.append(fault)
                self.note(f"FAULT: {fault.kind}", fault.target or self._delayed())

    def end(self) -> None:
        """The world has ended in order: check that nothing is left."""
        self.watch_list.end()
        self.asks.end()

    def _delayed(self) -> str:
        task = self.scheduler.delayed
        return self.trace.label(task) if task is not None else "world"

    def _hit(self, fault: Fault) -> bool:
        if fault.kind == "delay":
            return self.scheduler.delayed is not None
        if fault.kind == "cancel":
            scope = self._scopes.get(fault.target)
            if scope is None or scope.cancel_called:
                return False
            scope.cancel()
            return True
        cell = cell_at(self.watch_list.systems, fault.target)
        if cell is None:
            return False
        if fault.kind == "crash":
            return crash(cell, InjectedCrash(f"injected at step {fault.step}"))
        return stop(cell, fault.grace if fault.kind == "stop" else 0.0)

    def _look_on(self) -> None:
        if self._watcher is None:
            self._watcher = Watcher(self)
            trio.lowlevel.add_instrument(self._watcher)

    def _changed(self, path: str, before: Statistics | None, now: Statistics) -> None:
        if not self.trace.muted:
            self.trace.add(self.step, self.clock.current_time(), path, lambda: changes(before, now))


class Instrument(trio.abc.Instrument):
    """An instrument of the simulator, which takes no time to add.

    Trio compares every attribute of an instrument with that of the base class, which took longer
    than fifteen steps of a world.
    """

    def __dir__(self) -> Iterable[str]:
        return [name for name in vars(type(self)) if not name.startswith("_")]


class Watcher(Instrument):
    """Checks the laws after every step. Added only when there is a law or a watched system."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 (Trio's signature)
        sim = self._sim
        try:
            sim.watch_list.look()
            for name, check in sim.laws:
                detail = check()
                if detail is not None:
                    sim.violated(name, "world", detail)
        except Exception as error:
            sim.fail(error)
        sim.scheduler.go_on(self)


class Recorder(Instrument):
    """Writes the trace, applies the faults, and ends a world that does not end by itself."""

    def __init__(self, sim: Simulation, max_steps: int) -> None:
        self._sim = sim
        self._max_steps = max_steps
        self._scope: trio.CancelScope | None = None
        self._seen = 0
        self._forced = 0  # means of ending the world that have been used
        self._doomed: frozenset[trio.lowlevel.Task] = frozenset()
        self.survived = False

    def attach(self, scope: trio.CancelScope) -> None:
        """The scope around the whole world."""
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        sim = self._sim
        step = sim.scheduler.steps
        if step == self._seen:
            return  # a step of Trio's own
        self._seen = step
        if step == 1:
            task.name = "world"
        try:
            if not sim.trace.muted:
                sim.trace.add(step, now(sim.clock), sim.trace.label(task), position(task))
            if step in sim.faulty_steps:
                sim.strike()
        except Exception as error:
            sim.fail(error)
        if self._forced > 2 or task in self._doomed:
            throw(task, Ended())
        if step > self._max_steps:
            self._max_steps += _ESCALATE_AFTER
            self.force(f"the world was still running after {step - 1} steps")

    def doom(self, tasks: Iterable[trio.lowlevel.Task]) -> None:
        """Raise :class:`Ended` in these tasks, and no others, at every step they still take."""
        self._doomed = frozenset(tasks)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        trace = self._sim.trace
        if not trace.muted and not task.name.startswith("<"):  # not one of Trio's own
            trace.add(self._seen, self._sim.clock.current_time(), trace.label(task), "ends")

    def idle(self) -> None:
        """No task has run for some passes: end a world in which none ever can."""
        now = trio.lowlevel.current_statistics()
        if now.tasks_runnable == 0 and now.seconds_to_next_deadline == math.inf:
            self.force("no task of the world can run, and no deadline will come")

    def after_run(self) -> None:
        self.survived = True

    def force(self, why: str) -> None:
        """End the world by the next means: cancel, lift the shields, throw, drop the loop."""
        sim = self._sim
        if sim.error is None:
            sim.fail(Stuck(why, unfinished(sim.trace)))
        self._forced += 1
        if self._scope is None or self._forced > 3:
            sim.scheduler.abandoned = True
        elif self._forced == 1:
            self._scope.cancel()
        elif self._forced == 2:
            lift_shields(tasks_below(trio.lowlevel.current_root_task()))


def tasks_below(task: trio.lowlevel.Task | None) -> Iterator[trio.lowlevel.Task]:
    """The task and all of its descendants."""
    if task is None:
        return
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks_below(child)


def unfinished(trace: Trace) -> list[str]:
    """The unfinished tasks of the world, each with the line where it waits."""
    root = trio.lowlevel.current_root_task()
    there = [task for task in tasks_below(root) if not task.name.startswith("<")]
    return sorted(f"{trace.label(task)}, {_waits_at(task)}" for task in there)


def _waits_at(task: trio.lowlevel.Task) -> str:
    trio_files = trio.__file__.removesuffix("__init__.py")
    where = "not begun"
    for frame in _await_frames(task):
        code = frame.f_code
        if code.co_filename.startswith(trio_files):
            break
        where = f"waits in {code.co_qualname} at {code.co_filename}:{frame.f_lineno}"
    return where


def _await_frames(task: trio.lowlevel.Task) -> Iterator[FrameType]:
    """As :meth:`trio.lowlevel.Task.iter_await_frames`, through what steps a coroutine by hand."""
    drives: Any = None  # Any: a local variable of a function of somebody else
    for frame, _ in task.iter_await_frames():
        variable = drivers.get(frame.f_code)
        if variable is None:
            yield frame
        else:
            drives = frame.f_locals.get(variable)
    while drives is not None:
        inner: FrameType | None = getattr(drives, "cr_frame", None)
        if inner is None:
            return
        yield inner
        drives = awaited_by(drives)


class _WorldLog(logging.Handler):
    """Writes into the trace of the current run, if there is one."""

    sim: Simulation | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.sim is not None and not self.sim.trace.muted:
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            self.sim.note(normalised(text), "log")


_LOG = _WorldLog(logging.WARNING)  # one for all runs: there is one run at a time


@contextmanager
def logged(sim: Simulation) -> Generator[None]:
    """Redirect the warnings and errors of ``motet`` into the trace."""
    logger = logging.getLogger("motet")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate, _LOG.sim = [_LOG], False, sim
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate, level = before
        _LOG.sim = None
        if logger.level != level:
            logger.setLevel(level)
