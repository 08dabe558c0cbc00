"""A simulated run of Trio that synchronous code drives, one call at a time.

``simulate.run`` runs a world from its beginning to its end. Here the world stands still between
calls of its driver: no task runs, and the clock stops, except within :meth:`call`, :meth:`steps`
and :meth:`close`. It is a guest run of Trio without a thread, which is possible because with a
simulated clock Trio never waits for the operating system.

Invariants: between calls no name of Trio, of ``random`` or of the guards is replaced, so that the
driver may use all of them, and may itself be in a run of Trio. There is one simulation at a time in
a process.
"""

from __future__ import annotations

import gc
import math
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import attrs
import outcome
import trio
from trio.testing import MockClock

from motet.runtime.outside import Outside, replaced
from motet.runtime.testing.guards import ALL_GUARDS, Guard, Guards
from motet.runtime.testing.policies import Chooser, Policy, Uniform, played
from motet.runtime.testing.scheduler import (
    Patch,
    Scheduler,
    alone,
    lift_shields,
    patched,
    rules_of,
    swapped_context,
)
from motet.runtime.testing.simulation import (
    Instrument,
    Recorder,
    Simulation,
    Stuck,
    logged,
    tasks_below,
    unfinished,
)
from motet.runtime.testing.threads import inline_threads

__all__ = ["EPOCH", "Interrupted", "Job", "SimulatedLoop"]

T = TypeVar("T")

EPOCH = 1_767_225_600.0
"""The wall time at which every simulated world begins: 2026-01-01, midnight UTC."""

MAX_STEPS = 200_000
PATIENCE = 86_400.0
"""Virtual seconds after which a call fails: timers may fire for ever while it waits."""

_ESCALATE_AFTER = 1_000  # steps between two means of ending a job that does not end
_RELIFT_AFTER = 20  # steps after which new shields are lifted


@attrs.define(eq=False)
class Job(Generic[T]):
    """A function that a driver has started in the world. ``result`` is None until it has ended."""

    name: str
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    result: outcome.Outcome[T] | None = None
    task: trio.lowlevel.Task | None = None

    @property
    def over(self) -> bool:
        return self.result is not None

    async def run(self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        """Call it. No error leaves it, whatever it is, since that would end the world."""
        self.task = trio.lowlevel.current_task()
        with self.scope:
            try:
                value = await function(*args)
            except BaseException as error:
                self.result = outcome.Error(error)
            else:
                self.result = outcome.Value(value)


class Interrupted(BaseException):
    """Leaves the call that drives the world; the world stays as it is at this step."""


class _Entrance:
    """The state of the process that belongs to one world: swapped in while the world is driven.

    Trio's run, the random state, the hooks of async generators, the clock, and the guards. Between
    two visits the driver has its own again.
    """

    def __init__(
        self, sim: Simulation, guards: Collection[Guard], refuse: Callable[[Exception], None]
    ) -> None:
        ids = random.Random(f"ids of {sim.seed}")
        self._sim = sim
        self._guards = Guards(guards, refuse)
        self._refuse = refuse
        self.off_by = 0.0
        self._outside = Outside(
            wall_time=lambda: EPOCH + self.off_by + sim.clock.current_time(),
            monotonic=sim.clock.current_time,
            boot_time=sim.clock.current_time,
            fresh_hex=lambda nbytes: ids.randbytes(nbytes).hex(),
        )
        self._rules: list[Patch] = rules_of(sim.scheduler)
        self._chance = random.Random(sim.seed).getstate()
        self._context: dict[str, Any] = {}
        self._hooks: Any = None  # a class of the interpreter that has no public name
        self._inside = False

    @contextmanager
    def entered(self, *, guarded: bool) -> Generator[None]:
        """Be in the world for the block; in a block of its own, nothing changes.

        Not ``guarded``: Trio may open its own sockets.
        """
        if self._inside:
            yield
            return
        self._inside = True
        try:
            with self._entered(guarded=guarded):
                yield
        finally:
            self._inside = False

    @contextmanager
    def _entered(self, *, guarded: bool) -> Generator[None]:
        outer = swapped_context(self._context)
        hooks = sys.get_asyncgen_hooks()
        if self._hooks is not None:
            sys.set_asyncgen_hooks(*self._hooks)
        chance, collecting = random.getstate(), gc.isenabled()
        gc.disable()  # it would run at times that no seed controls
        random.setstate(self._chance)
        try:
            with (
                patched(self._rules),
                logged(self._sim),
                replaced(self._outside),
                inline_threads(self._refuse),
                self._guards.installed(),
            ):
                self._guards.active = guarded
                yield
        finally:
            self._chance = random.getstate()
            random.setstate(chance)
            self._context = swapped_context(outer)
            self._hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()


_hidden_elsewhere = False


def _program_hides() -> bool:
    """Whether a program has hidden objects itself: there is one such list, which is then its own.

    Asked until it has: the list is counted object by object, tens of milliseconds for the modules
    of a test run, once for each world.
    """
    global _hidden_elsewhere
    _hidden_elsewhere = _hidden_elsewhere or gc.get_freeze_count() > 0
    return _hidden_elsewhere


@contextmanager
def _apart_from_garbage() -> Generator[None]:
    """Hide what is there from the garbage collector, and collect what the world has left.

    Within a world the collector is off. Afterwards it would look through all modules again and
    again, for a third of the time of a search.
    """
    if _program_hides():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


class _Steps(Instrument):
    """Has steps follow each other without the driver, as long as that would do nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 (Trio's signature)
        self._scheduler.go_on(self)


class SimulatedLoop:
    """A world with a driver. A context manager; leaving it ends all tasks of the world.

    ``choices`` give the schedule, as in ``simulate.run``; else ``policy`` makes it from ``seed``.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        choices: Iterable[int] | None = None,
        policy: Policy | None = None,
        guards: Collection[Guard] = ALL_GUARDS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.max_steps = max_steps
        self.clock = MockClock(autojump_threshold=0)
        self.scheduler = Scheduler(_chooser(seed, choices, policy))
        self.sim = Simulation(seed, self.clock, self.scheduler, ())
        self._recorder = Recorder(self.sim, sys.maxsize)
        self.scheduler.when_idle(self._look_idle)
        self._guards = guards
        self._entrance: _Entrance | None = None
        self._ticks: deque[Callable[[], object]] = deque()
        self._nursery: trio.Nursery | None = None
        self._ended: outcome.Outcome[None] | None = None
        self._idle = False
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._alone = ExitStack()
        self.refusal: Exception | None = None

    def __enter__(self) -> Self:
        self._alone.enter_context(alone())
        self._alone.enter_context(_apart_from_garbage())
        # Not before: the rules wrap Trio's functions as they are now.
        self._entrance = _Entrance(self.sim, self._guards, self.refuse)
        with self._on():
            trio.lowlevel.start_guest_run(
                self._world,
                run_sync_soon_threadsafe=self._ticks.append,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
                clock=self.clock,
                instruments=[self._recorder, _Steps(self.scheduler)],
            )
            self._drive(lambda: self._nursery is not None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self.refusal is not None:
            raise self.refusal

    # ------------------------------------------------------------------ driving

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.clock.current_time()

    def inside(self) -> AbstractContextManager[None]:
        """Stay in the world for a block of several calls, since each entrance takes time.

        What the block itself does has the world's clock and randomness, and is guarded.
        """
        return self._on()

    def jump(self, seconds: float) -> None:
        """Put the wall clock forward, or back. Virtual time goes on as before."""
        assert self._entrance is not None
        self._entrance.off_by += seconds

    def start(
        self, function: Callable[..., Awaitable[T]], *args: Any, name: str = "driver"
    ) -> Job[T]:
        """Start a job in the world. It runs while the world is driven."""
        if self._nursery is None or self._ended is not None:
            raise RuntimeError("the simulated world is not open: use it inside of its block")
        job: Job[T] = Job(name)
        with self._on():
            self._nursery.start_soon(job.run, function, args, name=name)
        return job

    def start_here(
        self, function: Callable[..., Awaitable[T]], *args: Any, name: str = "driver"
    ) -> Job[T]:
        """As :meth:`start`, for code inside the world, such as a function that :meth:`at` calls."""
        assert self._nursery is not None
        job: Job[T] = Job(name)
        self._nursery.start_soon(job.run, function, args, name=name)
        return job

    def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        name: str = "driver",
        patience: float = PATIENCE,
    ) -> T:
        """Run ``function`` in the world until it has returned, and return its value.

        Raises its error; :class:`Stuck` when no task of the world can ever run, or after
        ``max_steps`` steps or ``patience`` virtual seconds; and :class:`NotSimulated` when
        something real was used meanwhile.
        """
        with self._on():
            return self.wait(self.start(function, *args, name=name), patience)

    def wait(self, job: Job[T], patience: float = PATIENCE) -> T:
        """Drive the world until the job has ended; see :meth:`call`."""
        try:
            self.drive(lambda: job.over, patience)
        except Interrupted:
            raise
        except BaseException:
            with self._on():
                job.scope.cancel()
            raise
        assert job.result is not None
        if job.scope.cancel_called:
            raise RuntimeError(f"{job.name} was ended before it was done")
        return job.result.unwrap()

    def drive(self, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Run the world until ``until`` holds. Raises as :meth:`call` does."""
        with self._on():
            self._drive(until, patience)
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal

    def cancel(self, jobs: Sequence[Job[Any]]) -> None:
        """Cancel jobs, and run the world until they have ended."""
        with self._on():
            for job in jobs:
                job.scope.cancel()
            self._drive(lambda: all(job.over for job in jobs))

    def steps(self, count: int) -> int:
        """Run the world for ``count`` steps, or as many as it can; returns their number."""
        first, end = self.scheduler.steps, self.scheduler.steps + count
        with self._on():
            self._tick(lambda: self.scheduler.steps >= end)
        return self.scheduler.steps - first

    def at(self, step: int, strike: Callable[[], None]) -> None:
        """Call ``strike`` in the world after ``step`` steps, before the next one.

        It may raise :class:`Interrupted`. A later call of this method replaces an earlier one.
        """
        self._alarm = (step, strike)

    @contextmanager
    def in_order(self) -> Generator[None]:
        """Schedule first in, first out in the block, without using up choices."""
        before, self.scheduler.straight = self.scheduler.straight, True
        try:
            yield
        finally:
            self.scheduler.straight = before

    def end(self, job: Job[Any]) -> None:
        """End a job and all tasks it has started at once, as a killed process ends.

        It is cancelled, and its shields are lifted. Tasks that swallow the cancellation get
        :class:`Ended`.
        """
        limit = self.scheduler.steps + 2 * _ESCALATE_AFTER
        with self._on(), self.in_order():
            job.scope.cancel()
            # The tasks are looked up in each round: clean-ups may start tasks and enter shields.
            # Only a job that swallows the cancellation for long gets `Ended` at each of its steps.
            while not job.over and self._ended is None:
                below = list(tasks_below(job.task))
                lift_shields(below)
                if self.scheduler.steps > limit - _ESCALATE_AFTER:
                    self._recorder.doom(below)
                if self.scheduler.steps > limit:
                    raise Stuck(f"{job.name} would not end", unfinished(self.sim.trace))
                pause = self.scheduler.steps + _RELIFT_AFTER
                self._tick(lambda: job.over, pause)
            self._recorder.doom(())

    def close(self) -> None:
        """End all tasks of the world. Does nothing the second time."""
        try:
            if self._ended is None and self._nursery is not None:
                self._close()
        finally:
            self.sim.trace.forget_tasks()
            self._alone.close()

    def _close(self) -> None:
        with self._on(), self.in_order():
            assert self._nursery is not None
            self._nursery.cancel_scope.cancel()
            while self._ended is None:
                self._tick(lambda: False, self.scheduler.steps + _ESCALATE_AFTER)
                if self._ended is None:
                    self._recorder.force("the world was to end")

    # ------------------------------------------------------------------ inside

    async def _world(self) -> None:
        async with trio.open_nursery() as nursery:
            self._recorder.attach(nursery.cancel_scope)
            self._nursery = nursery
            await trio.sleep_forever()

    def _drive(self, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        end = self.now + patience
        self._tick(lambda: until() or self.now > end, self.scheduler.steps + self.max_steps)
        if self._ended is not None:
            self._ended.unwrap()
            raise RuntimeError("the simulated world has ended")
        if until():
            return
        if self.refusal is not None:
            raise self.refusal
        # Not over, and not refused: find out which of the limits has stopped it.
        if self._idle:
            why = "no task of the world can run, and no deadline will come"
        elif self.now > end:
            why = f"it was not over after {patience:g} virtual seconds"
        else:
            why = f"the world was still running after {self.max_steps} steps"
        raise Stuck(why, unfinished(self.sim.trace))

    def _tick(self, until: Callable[[], bool], last: int = sys.maxsize) -> None:
        """Run until ``until`` holds, or no task can ever run, at most up to step ``last``."""
        self._idle, scheduler = False, self.scheduler

        def pauses() -> bool:
            alarm = self._alarm
            try:
                return (
                    scheduler.steps > last
                    or (alarm is not None and scheduler.steps >= alarm[0])
                    or until()
                )
            except Exception:  # raised once more in the driver
                return True

        scheduler.pauses = pauses
        while not (until() or self._idle or self._ended) and self.scheduler.steps <= last:
            if self._alarm is not None and self.scheduler.steps >= self._alarm[0]:
                _, strike = self._alarm
                self._alarm = None
                strike()
            self._ticks.popleft()()
        if self.scheduler.failure is not None:
            raise self.scheduler.failure

    def _look_idle(self) -> None:
        """Called when no task has run for some passes: find out whether one ever will."""
        now = trio.lowlevel.current_statistics()
        if now.tasks_runnable == 0 and now.seconds_to_next_deadline == math.inf:
            self._idle = True

    def _done(self, ended: outcome.Outcome[None]) -> None:
        self._ended = ended

    def refuse(self, refusal: Exception) -> None:
        """Raise this from the call of the driver, even if the world swallows it."""
        self.refusal = self.refusal or refusal

    def _on(self) -> AbstractContextManager[None]:
        """Enter the world for a block."""
        if self._entrance is None:
            raise RuntimeError("the simulated world is not open: use it inside of its block")
        return self._entrance.entered(guarded=self._nursery is not None)


def _chooser(seed: int, choices: Iterable[int] | None, policy: Policy | None) -> Chooser:
    return played(choices) if choices is not None else (policy or Uniform()).start(seed)
