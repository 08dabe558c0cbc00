"""The scheduler of a simulation, and the only file that uses Trio's private names.

Trio runs all runnable tasks as one batch, in a random order made by a shuffle. The replaced shuffle
leaves one task in the batch and returns the others to the run queue, so that a task may be delayed
for any number of steps. Permuting the batch would not do: in a batch every task runs once, and "A
waits for one step while B takes four" could not happen.

Two other orders would differ from run to run, because Trio iterates over sets or breaks ties by
``id``: that in which a cancellation reaches several tasks (here: oldest task first), and that in
which scopes with the same deadline expire (here: first entered, first expired). They matter where
an abort function has effects, and those of an actor's mailbox do.

The names are pinned by ``tests/runtime/testing/test_canary.py``. Leaving :func:`scheduling`
restores all of them. Another thread that runs Trio meanwhile is not affected.
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
from trio.testing import MockClock

from motet.runtime.testing.policies import Chooser

__all__ = [
    "Abandoned",
    "Patch",
    "Scheduler",
    "age",
    "alone",
    "lift_shields",
    "many_runs",
    "now",
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

# The owner, the name of the attribute, and its new value.
Patch = tuple[object, str, object]

# Trio's own tasks: they run first, and are no choice.
_TRIOS = ("<init>", "<TrioToken.run_sync_soon task>")

# Passes of Trio's loop without a runnable task, after which there may never be one. In the first of
# them the clock jumps or `wait_all_tasks_blocked` returns, if there is a deadline or such a task.
_IDLE_PASSES = 3

_busy = threading.Lock()
_ordered_in: int | None = None  # the thread of `many_runs`


class Abandoned(Exception):
    """The loop was dropped without unwinding, since the world did not end."""


class _Delays:
    """The delays of a schedule: planned by step, and the one in force.

    At most one task is held at a time: a second delay ends the first.
    """

    __slots__ = ("held", "hit", "planned", "until")

    def __init__(self) -> None:
        self.planned: dict[int, int] = {}  # steps to lengths
        self.hit: Task | None = None  # the last task that was held, also when it runs again
        self.held: Task | None = None
        self.until = 0

    def hold(self, task: Task, until: int) -> None:
        """Leave ``task`` out of the choice until step ``until``."""
        self.hit = self.held = task
        self.until = until

    def held_in(self, ready: list[Task], step: int) -> Task | None:
        """The held task; releases it when its time is over or it is the only one that can run."""
        if self.held is not None and (
            step >= self.until or len(ready) == 1 or self.held not in ready
        ):
            self.held = None
        return self.held


class Scheduler:
    """Stands in for Trio's random number generator. Counts steps and records the choices.

    ``taken`` and ``widths`` have an entry for every point with more than one ready task: the choice
    and the number of ready tasks.
    """

    def __init__(self, choose: Chooser) -> None:
        self.steps = 0
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.failure: Exception | None = None  # of the chooser; first in, first out from then on
        self.abandoned = False
        self._choose = choose
        self._idle: Callable[[], None] | None = None
        self._idle_passes = 0
        self._queue: list[Task] = []  # ready and not chosen yet, in the order of their turn
        self.straight = False  # first in, first out, and no choice is recorded
        self._delays = _Delays()
        self._batch: list[Task] = []  # Trio's, which it takes its next task from
        self._before: Callable[[list[Task]], None] | None = None
        self._thread = threading.get_ident()
        self.pauses: Callable[[], bool] = lambda: True  # whether the driver of a guest run is next

    @property
    def delayed(self) -> Task | None:
        """The task that :meth:`delay` has hit."""
        return self._delays.hit

    def when_idle(self, idle: Callable[[], None]) -> None:
        """Call ``idle`` when no task has run for some passes; it must not raise."""
        self._idle = idle

    def choose_by(self, choose: Chooser) -> None:
        """Use another chooser from now on."""
        self._choose = choose

    def delay(self, step: int, length: int) -> None:
        """Delay the task that would take step ``step`` for ``length`` steps of others."""
        self._delays.planned[step] = length

    # ------------------------------------------------------------------ called by Trio

    def random(self) -> float:
        """Trio without deterministic scheduling reverses a batch below 0.5: never."""
        return 1.0

    def shuffle(self, batch: list[Task]) -> None:
        """Leave the one task in ``batch`` that runs next. The batch is sorted by age."""
        # Trio's generator is one for the process: another thread gets the shuffle it would have.
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
        self._batch = batch
        # All that waited are in the batch again, since they were returned to the run queue. With
        # the same length there is nothing new.
        new: list[Task] = []
        if len(self._queue) != len(batch):
            waited = set(self._queue)
            new = [task for task in batch if task not in waited] if waited else batch
        task = self._chosen(new)
        if self._queue:
            # They stay runnable for Trio: its clock must not jump while they wait.
            _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._queue)
            batch[:] = [task]

    def go_on(self, caller: trio.abc.Instrument) -> None:
        """After a step: choose the next task at once, if Trio would change nothing before that.

        Trio looks for input, deadlines and calls from outside between two batches. With batches of
        one task that is a tenth of the time of a simulation. So the next task is put into the same
        batch, unless there is something to find. ``caller`` is the instrument that Trio calls now;
        it must be the last, since the others see the numbers of the step that ends.
        """
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        runq = runner.runq
        if not runq:
            return
        deadlines, entries = runner.deadlines._heap, runner.entry_queue
        hooks: dict[str, dict[object, None]] = runner.instruments.data
        descriptors = getattr(runner.io_manager, "_registered", None)  # None: not on Unix
        if (
            self.abandoned
            or entries.queue
            or entries.idempotent_queue
            or (deadlines and deadlines[0][0] <= now(runner.clock))
            or descriptors is None
            or len(descriptors) > 1  # others than the one of the entry queue
            or next(reversed(hooks["after_task_step"])) is not caller
            or "before_io_wait" in hooks
            or "after_io_wait" in hooks
            or (runner.is_guest and self.pauses())  # whose host is called between two batches
        ):
            return
        # Those that have waited are its first, see `shuffle`.
        new: list[Task] = list(runq)[len(self._queue) :] if self._queue else list(runq)
        if len(new) > 1:
            new.sort(key=age)
        task = self._chosen(new)
        runq.clear()
        if self._queue:
            runq.extend(self._queue)
        self._batch.append(task)

    # ------------------------------------------------------------------ within

    def _chosen(self, new: list[Task]) -> Task:
        """The next task. ``new`` are those that have become ready, by age; the others wait."""
        ready = self._queue + new if new else self._queue
        for task in new:
            if task.name in _TRIOS:
                ready.remove(task)
                ready.insert(0, task)
        if ready[0].name in _TRIOS:
            task, self._queue = ready[0], ready[1:]
        elif len(ready) == 1 and not self._delays.planned:  # most often
            self.steps += 1
            self._delays.held = None
            task, self._queue = ready[0], []
        else:
            task, self._queue = self._next(ready)
        return task

    def _next(self, ready: list[Task]) -> tuple[Task, list[Task]]:
        """Choose the task of the next step; returns it and the queue of the others."""
        self.steps += 1
        task, rest = self._turn(ready)
        length = self._delays.planned.pop(self.steps, None)
        if length is not None and rest:
            self._delays.hold(task, self.steps + length)
            return self._turn([task, *rest])
        return task, rest

    def _turn(self, ready: list[Task]) -> tuple[Task, list[Task]]:
        # This runs at every step: without a held task it costs one comparison.
        held = self._delays.held and self._delays.held_in(ready, self.steps)
        if held is not None:
            ready = [task for task in ready if task is not held]
        index = self._choice(ready) if len(ready) > 1 and not self.straight else 0
        rest = ready[index + 1 :] + ready[:index]
        if held is not None:
            rest.append(held)
        return ready[index], rest

    def _choice(self, ready: list[Task]) -> int:
        index = 0
        if self.failure is None:
            # An exception from here would be raised in Trio's loop, and end it without unwinding.
            try:
                index = self._choose(ready) % len(ready)
            except Exception as error:
                self.failure = error
        self.taken.append(index)
        self.widths.append(len(ready))
        return index

    def patches(self) -> list[Patch]:
        """The replacements that make this Trio's random number generator."""
        self._before = _run._r.shuffle
        return [(_run, "_r", self), (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)]


def now(clock: Any) -> float:
    """Its time. Asked at every step: one that stands still need not look at the real clock."""
    still = clock.__class__ is MockClock and not clock._rate
    time: float = clock._virtual_base if still else clock.current_time()
    return time


@contextmanager
def scheduling(scheduler: Scheduler) -> Generator[None]:
    """Use ``scheduler`` in every ``trio.run`` of this thread. One at a time in a process."""
    with alone(), patched(rules_of(scheduler)):
        yield


@contextmanager
def alone() -> Generator[None]:
    """Claim the only simulation of the process. Raises RuntimeError if there is one."""
    if not _busy.acquire(blocking=False):
        raise RuntimeError("there is a simulation in this process already: run one after the other")
    try:
        yield
    finally:
        _busy.release()


def rules_of(scheduler: Scheduler) -> list[Patch]:
    """The replacements for ``scheduler``; one list for all parts of one run of Trio."""
    orders = [] if _ordered_in == threading.get_ident() else _orders()
    return [*scheduler.patches(), *orders]


def _orders() -> list[Patch]:
    return [*_cancellations_by_age(), *_deadlines_in_order()]


@contextmanager
def many_runs() -> Generator[None]:
    """Around many simulations in this thread: the methods of Trio's classes are replaced once.

    For after each replacement the interpreter looks up all attributes of the class anew, which
    takes a fifteenth of a small world's time. In between, cancellations and deadlines of other runs
    of Trio in this thread come in the order of a simulation too.
    """
    global _ordered_in
    before = _ordered_in
    with patched(_orders() if before is None else ()):
        _ordered_in = before or threading.get_ident()
        try:
            yield
        finally:
            _ordered_in = before


def swapped_context(context: dict[str, Any]) -> dict[str, Any]:
    """Make ``context`` the state of Trio's current run in this thread; returns the state before.

    So a guest run is current only while it is driven, and its host may be in another run.
    """
    present: dict[str, Any] = _run.GLOBAL_RUN_CONTEXT.__dict__
    before = dict(present)
    present.clear()
    present.update(context)
    return before


@contextmanager
def patched(patches: Iterable[Patch]) -> Generator[None]:
    """Set attributes during the block."""
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
    """Have a cancellation reach the oldest task first, not in the order of a set."""
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
        # Trio recalculates the children of a status by recursion. Only the outermost call sorts:
        # the inner ones collect into its list.
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
    """Have scopes with the same deadline expire in the order in which they were entered."""
    order = itertools.count()
    push = _run.heappush

    def add(deadlines: Any, deadline: float, scope: trio.CancelScope) -> None:
        push(deadlines._heap, (deadline, next(order), scope))
        deadlines._active += 1

    return [(_run.Deadlines, "add", add)]


def age(task: Task) -> int:
    """The creation number of the task."""
    number: int = cast(Any, task)._counter
    return number


def lift_shields(tasks: Iterable[Task]) -> None:
    """Remove every shield above ``tasks``, so that a cancellation from outside reaches them."""
    # Tasks share what is above them, and Trio computes a scope anew also when nothing has changed.
    lifted: set[int] = set()
    for task in tasks:
        status: Any = cast(Any, task)._cancel_status
        while status is not None and id(status) not in lifted:
            lifted.add(id(status))
            if status._scope.shield:
                status._scope.shield = False
            status = status._parent


def throw(task: Task, error: BaseException) -> None:
    """Raise ``error`` from the wait of a task that is about to take a step."""
    private = cast(Any, task)
    if private._next_send is not None:  # else it has not begun
        private._next_send = outcome.Error(error)


def _keep_for_ever(tasks: frozenset[Task]) -> None:
    """Leak the tasks: their coroutines cannot be closed outside of Trio without warnings.

    A module's variable would hold them only until the interpreter ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tasks))


def thread_cache() -> type:
    """The class that starts every thread of Trio, new or idle."""
    cache: type = _thread_cache.ThreadCache
    return cache


def threads_of_trio() -> ModuleType:
    """The module of ``trio.to_thread`` and ``from_thread``, which starts and calls threads.

    Used of its names: ``start_thread_soon``, ``_send_message_to_trio`` and ``RunSync``.
    """
    module: ModuleType = _threads
    return module


def processes_of_trio() -> ModuleType:
    """The module of ``trio.run_process``, which starts the program by ``_open_process``."""
    module: ModuleType = _subprocess
    return module
