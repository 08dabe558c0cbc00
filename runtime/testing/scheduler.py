"""One task at a time, chosen by us: the only file that touches Trio's private names.

Trio runs all tasks that are runnable as one batch, in a random order that a shuffle decides. The
replaced shuffle leaves one task in the batch and gives the others back to the run queue, so that a
task may be delayed for as long as we like. Permuting the batch would not do: in a batch every task
runs once, and "A waits for one step while B takes four" could not happen.

What else would differ from run to run, because Trio iterates over sets or breaks ties by ``id``:
the order in which a cancellation reaches several tasks (now: oldest task first), and the order in
which scopes with the same deadline expire (now: that of their entering). The order matters where
an abort function has effects, and those of an actor's mailbox do.

The names are pinned by ``tests/runtime/testing/test_canary.py``. Nothing here lasts: leaving
:func:`scheduling` restores all of it. Another thread that runs Trio meanwhile is not affected.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import outcome
import trio

from motet.runtime.testing.policies import Chooser

__all__ = [
    "Abandoned",
    "Patch",
    "Scheduler",
    "age",
    "alone",
    "lift_shields",
    "patched",
    "processes_of_trio",
    "rules_of",
    "scheduling",
    "swapped_context",
    "thread_cache",
    "threads_of_trio",
]

# Any: these are private, so Trio promises no types for them.
_run: Any = __import__("trio._core._run", fromlist=["_run"])
_thread_cache: Any = __import__("trio._core._thread_cache", fromlist=["_thread_cache"])
_threads: Any = __import__("trio._threads", fromlist=["_threads"])
_subprocess: Any = __import__("trio._subprocess", fromlist=["_subprocess"])

Task = trio.lowlevel.Task

# Of what, which attribute, set to what.
Patch = tuple[object, str, object]

# Trio's own tasks: whose turn it is among them is no choice.
_TRIOS = ("<init>", "<TrioToken.run_sync_soon task>")

# Passes of Trio's loop in which nothing ran, after which nothing ever may: in the first of them
# the clock jumps or `wait_all_tasks_blocked` returns, if there is a deadline or such a task.
_IDLE_PASSES = 3

_busy = threading.Lock()


class Abandoned(Exception):
    """The loop was dropped without unwinding, since the world would not end."""


class Scheduler:
    """What Trio takes for its random number generator. Counts steps, notes the choices made.

    ``taken`` and ``widths`` have an entry for every point with more than one ready task.
    """

    def __init__(self, choose: Chooser) -> None:
        self.steps = 0
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.failure: Exception | None = None  # of the chooser; first in, first out from then on
        self.abandoned = False
        self.delayed: Task | None = None  # whom `delay` hit
        self._choose = choose
        self._idle: Callable[[], None] | None = None
        self._idle_passes = 0
        self._queue: list[Task] = []  # ready before, not chosen: in the order of their turn
        self.straight = False  # first in, first out, and no choice is noted
        self._delay_at: dict[int, int] = {}
        self._held: Task | None = None
        self._held_until = 0
        self._before: Callable[[list[Task]], None] | None = None
        self._thread = threading.get_ident()

    def when_idle(self, idle: Callable[[], None]) -> None:
        """Call ``idle`` when nothing has run for a while; it must not raise."""
        self._idle = idle

    def choose_by(self, choose: Chooser) -> None:
        """Have another chooser decide from now on."""
        self._choose = choose

    def delay(self, step: int, length: int) -> None:
        """Keep the task whose turn is ``step`` from running for ``length`` steps of others."""
        self._delay_at[step] = length

    # ------------------------------------------------------------------ what Trio calls

    def random(self) -> float:
        """Trio without deterministic scheduling reverses half of its batches: never."""
        return 1.0

    def shuffle(self, batch: list[Task]) -> None:
        """Leave the one task in ``batch`` that runs next. The batch is sorted by age."""
        if threading.get_ident() != self._thread:
            if self._before is not None:
                self._before(batch)
            return
        if self.abandoned:
            _keep_for_ever(frozenset(_run.GLOBAL_RUN_CONTEXT.runner.tasks))
            raise Abandoned
        if not batch:
            self._idle_passes += 1
            if self._idle_passes > _IDLE_PASSES and self._idle is not None:
                self._idle()
            return
        self._idle_passes = 0
        ready = self._ready(batch)
        if ready[0].name in _TRIOS:
            task, self._queue = ready[0], ready[1:]
        else:
            task, self._queue = self._next(ready)
        if self._queue:
            # They stay runnable for Trio: its clock must not jump while they wait.
            _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._queue)
            batch[:] = [task]

    # ------------------------------------------------------------------ within

    def _ready(self, batch: list[Task]) -> list[Task]:
        """The batch as a queue: first those that waited, in their order, then the new, by age."""
        queue = self._queue
        if len(queue) == len(batch):
            return queue
        waited = set(queue)
        new = [task for task in batch if task not in waited] if queue else batch
        ready = queue + new
        for task in new:
            if task.name in _TRIOS:
                ready.remove(task)
                ready.insert(0, task)
        return ready

    def _next(self, ready: list[Task]) -> tuple[Task, list[Task]]:
        """Choose for the next step; the chosen task, and the queue of the others."""
        self.steps += 1
        task, rest = self._turn(ready)
        length = self._delay_at.pop(self.steps, None)
        if length is not None and rest:
            self.delayed = self._held = task
            self._held_until = self.steps + length
            return self._turn([task, *rest])
        return task, rest

    def _turn(self, ready: list[Task]) -> tuple[Task, list[Task]]:
        held = self._held
        if held is not None:
            if self.steps >= self._held_until or len(ready) == 1 or held not in ready:
                self._held = held = None
            else:
                ready = [task for task in ready if task is not held]
        index = self._choice(ready) if len(ready) > 1 and not self.straight else 0
        rest = ready[index + 1 :] + ready[:index]
        if held is not None:
            rest.append(held)
        return ready[index], rest

    def _choice(self, ready: list[Task]) -> int:
        index = 0
        if self.failure is None:
            # An exception in here would be one in Trio's loop, and end it without unwinding.
            try:
                index = self._choose(ready) % len(ready)
            except Exception as error:
                self.failure = error
        self.taken.append(index)
        self.widths.append(len(ready))
        return index

    def patches(self) -> list[Patch]:
        """What makes this Trio's random number generator."""
        self._before = _run._r.shuffle
        return [(_run, "_r", self), (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)]


@contextmanager
def scheduling(scheduler: Scheduler) -> Generator[None]:
    """Let ``scheduler`` decide in every ``trio.run`` of this thread. One at a time in a process."""
    with alone(), patched(rules_of(scheduler)):
        yield


@contextmanager
def alone() -> Generator[None]:
    """Be the only simulation of the process. Raises RuntimeError: there is one."""
    if not _busy.acquire(blocking=False):
        raise RuntimeError("there is a simulation in this process already: run one after the other")
    try:
        yield
    finally:
        _busy.release()


def rules_of(scheduler: Scheduler) -> list[Patch]:
    """What lets ``scheduler`` decide; the same list each time that one run of Trio goes on."""
    return [*scheduler.patches(), *_cancellations_by_age(), *_deadlines_in_order()]


def swapped_context(context: dict[str, Any]) -> dict[str, Any]:
    """Make ``context`` that of the run that is on in this thread; returns what it was before.

    So that a guest run is there only while it is driven, and its host may be in another run.
    """
    present: dict[str, Any] = _run.GLOBAL_RUN_CONTEXT.__dict__
    before = dict(present)
    present.clear()
    present.update(context)
    return before


@contextmanager
def patched(patches: Iterable[Patch]) -> Generator[None]:
    """Set attributes for the time of the block."""
    before: list[Patch] = []
    try:
        for owner, name, value in patches:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _cancellations_by_age() -> list[Patch]:
    """A cancellation reaches the oldest task first, not in the order of a set."""
    recalculate = _run.CancelStatus.recalculate
    attempt = _run.Task._attempt_delivery_of_any_pending_cancel
    thread = threading.get_ident()
    reached: list[Task] | None = None

    def collect(task: Task) -> None:
        if reached is None or threading.get_ident() != thread:
            attempt(task)
        else:
            reached.append(task)

    def recalculate_sorted(status: Any) -> None:
        nonlocal reached
        nothing_to_sort = not status._children and len(status._tasks) < 2
        if nothing_to_sort or reached is not None or threading.get_ident() != thread:
            recalculate(status)
            return
        found = reached = cast("list[Task]", [])
        try:
            recalculate(status)
        finally:
            reached = None
        for task in sorted(found, key=age):
            attempt(task)

    return [
        (_run.CancelStatus, "recalculate", recalculate_sorted),
        (_run.Task, "_attempt_delivery_of_any_pending_cancel", collect),
    ]


def _deadlines_in_order() -> list[Patch]:
    """Scopes with the same deadline expire in the order in which they were entered."""
    order = itertools.count()
    push = _run.heappush

    def add(deadlines: Any, deadline: float, scope: trio.CancelScope) -> None:
        push(deadlines._heap, (deadline, next(order), scope))
        deadlines._active += 1

    return [(_run.Deadlines, "add", add)]


def age(task: Task) -> int:
    """The number of the task in the order of creation."""
    number: int = cast(Any, task)._counter
    return number


def lift_shields(tasks: Iterable[Task]) -> None:
    """Lift every shield above ``tasks``, so that a cancellation from outside reaches them."""
    for task in tasks:
        status: Any = cast(Any, task)._cancel_status
        while status is not None:
            status._scope.shield = False
            status = status._parent


def throw(task: Task, error: BaseException) -> None:
    """Let ``error`` be what the task, which is about to take a step, gets from its wait."""
    private = cast(Any, task)
    if private._next_send is not None:  # else it has not begun
        private._next_send = outcome.Error(error)


def _keep_for_ever(tasks: frozenset[Task]) -> None:
    """Outside of Trio their coroutines cannot be closed in order, and would complain of it.

    A module's variable would hold them only until the interpreter ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tasks))


def thread_cache() -> type:
    """The class through which every thread of Trio is started, new or idle before."""
    cache: type = _thread_cache.ThreadCache
    return cache


def threads_of_trio() -> ModuleType:
    """The module of ``trio.to_thread`` and ``from_thread``: how they start and reach a thread.

    Of its names, ``start_thread_soon``, ``_send_message_to_trio`` and ``RunSync`` are used.
    """
    module: ModuleType = _threads
    return module


def processes_of_trio() -> ModuleType:
    """The module of ``trio.run_process``, which starts its program by ``_open_process``."""
    module: ModuleType = _subprocess
    return module
