"""Code of the project under watch: each await of a tool or hook, and what it leaves behind.

:func:`driven` steps a coroutine of the project from await to await. There it takes longer, a
time-out strikes, or the client that it waits for fails, as the program plans.

Invariants: no fault leaves a lock taken, a message lost, or a place in a queue. A time-out is a
cancelled scope, which Trio delivers; an await that is late is cancelled as any other. A failure
replaces a wait that holds nothing; any other wait it ends as a cancellation does, and the project
sees the error in its place. In tests a sleep, a lock or an event often stands for a client, so it
may fail. In a shielded clean-up nothing does: there a project waits for its own tasks.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, TypeVar

import attrs
import outcome
import trio
from trio._core import _run  # pyright: ignore[reportPrivateUsage]  # no public name for it

import motet
from motet.runtime.envelope import Raised
from motet.runtime.testing.trace import drivers
from motet.testing.stories.acts import PLANNED_TIMEOUT, Mishap

__all__ = ["Call", "current_call", "driven", "left_by", "system_tasks_known"]

T = TypeVar("T")

_TRIO = str(Path(trio.__file__).parent)
_OWN = tuple(
    str(Path(path, part).resolve()) for path in motet.__path__ for part in ("actors", "runtime")
)
_HOLDS_NOTHING = frozenset(
    {
        "sleep",
        "sleep_until",
        "sleep_forever",
        "checkpoint",
        "cancel_shielded_checkpoint",
        "checkpoint_if_cancelled",
        "wait_task_rescheduled",
        "_async_yield",
        "_real_async_yield",
    }
)
"""Functions of Trio that can be left at any moment without an effect."""

STEPS = 20
"""Steps that a task may take to end after its call, if no time passes."""


@attrs.define(eq=False)
class Left:
    """A system task that a call has started and that has not ended; ``steps``: after the call."""

    name: str
    steps: int = 0


@attrs.define(eq=False)
class Call:
    """One call of a function of the project.

    Attributes:
        what: its name in findings: ``the tool 'pay'``.
        mishap: the planned fault inside of it, if any.
        report: gets a sentence for each finding.
        now: the virtual time, and the number of steps of the scheduler.
        over_at: ``now`` when it has ended; None before.
    """

    what: str
    mishap: Mishap | None
    report: Callable[[str], None]
    now: Callable[[], tuple[float, int]]
    struck: Callable[[str], None] = attrs.field(default=lambda _: None)
    over_at: tuple[float, int] | None = None
    awaits: int = 0
    interrupted: bool = False
    left: list[Left] = attrs.field(factory=lambda: list[Left]())

    def due(self) -> Mishap | None:
        """The planned fault, if this await is its place."""
        planned = self.mishap
        return planned if planned is not None and 0 < planned.at <= self.awaits else None

    def outlived(self, task: Left) -> bool:
        """True when a task that has not ended by now goes on after its call.

        Steps of others do not count: a schedule may hold back a task that is about to end.
        """
        over = self.over_at
        return over is not None and (self.now()[0] > over[0] or task.steps > STEPS)


current_call: ContextVar[Call | None] = ContextVar("motet_testing_call", default=None)


async def driven(work: Awaitable[T], call: Call) -> T:
    """Await ``work`` with the faults that ``call`` plans; a swallowed cancellation is reported."""
    outside = _status()
    before = current_call.set(call)
    try:
        with trio.CancelScope() as scope:
            if call.mishap is not None and call.mishap.late:
                # The group of tasks of a delay is entered only where one is planned.
                async with trio.open_nursery() as wakers:
                    found = await outcome.acapture(_run_steps, work, call, scope, outside, wakers)
                return found.unwrap()
            return await _run_steps(work, call, scope, outside, None)
        raise TimeoutError(PLANNED_TIMEOUT)
    finally:
        current_call.reset(before)
        call.over_at = call.now()


async def _run_steps(
    work: Awaitable[T],
    call: Call,
    scope: trio.CancelScope,
    outside: Any,
    wakers: trio.Nursery | None,
) -> T:
    value = await _steps(work, call, scope, outside, wakers)
    if call.interrupted:
        call.report(f"{call.what} was cancelled, and went on as if it was not")
    return value


def _status() -> Any:
    # Trio has no public name for "a scope outside of this one is cancelled".
    return trio.lowlevel.current_task()._cancel_status  # pyright: ignore[reportPrivateUsage]


@types.coroutine
def _steps(
    work: Awaitable[T],
    call: Call,
    scope: trio.CancelScope,
    outside: Any,
    wakers: trio.Nursery | None,
) -> Generator[Any, Any, T]:
    steps: Any = work.__await__()
    value: object = None
    error: BaseException | None = None
    while True:
        try:
            trap = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as end:
            returned: T = end.value
            return returned
        value = error = None
        call.awaits += 1
        due = call.due()
        if due is not None and due.fails:
            if _may_fail(work):
                call.mishap = None
                call.struck("error inside")
                error = ConnectionError(due.fails)
                continue
            if not _shielded(outside):
                _fail_soon(trap, call, due)
        if due is not None and due.cancelled:
            call.mishap = None
            call.struck("time-out inside")
            scope.cancel()
        try:
            value = yield trap
        except BaseException as raised:
            error = raised
            continue
        # Trio sends the end of a wait, which its own function further inside returns or raises. A
        # sleep ends by a cancellation, too, of a scope of its own.
        cancelled = scope.cancel_called or outside.effectively_cancelled
        if cancelled and isinstance(value, outcome.Error | Raised):
            call.interrupted = call.interrupted or isinstance(value.error, trio.Cancelled)
        elif due is not None and due.late and wakers is not None:
            call.mishap = None
            call.struck("late inside")
            wakers.start_soon(_wake, trio.lowlevel.current_task(), due.late)
            # The waker ends this wait, also when the call is cancelled. A wait of its own could not
            # last: the scope of a `trio.sleep` that is over is still around it.
            yield from trio.lowlevel.wait_task_rescheduled(_not_aborted).__await__()


drivers[_steps.__code__] = "work"


def _fail_soon(trap: Any, call: Call, due: Mishap) -> None:
    """End the wait that begins now as a cancellation would, but with an error.

    Trio ends a wait with ``KeyboardInterrupt`` in this way, so that everything that waits can end
    with any error. A scope around the wait would not do: ``nursery.start`` moves such scopes. A
    wait that cannot be left goes on, and the next one may fail.
    """
    found: Callable[[Callable[[], None]], object] | None = getattr(trap, "abort_func", None)
    if found is None:  # a checkpoint, which waits for nothing
        return
    abort = found
    task = trio.lowlevel.current_task()

    def fail() -> None:
        raise ConnectionError(due.fails)

    def strike() -> None:
        # Not after its end: then Trio has forgotten the function.
        if getattr(task, "_abort_func", None) is not abort:
            return
        if abort(fail) is trio.lowlevel.Abort.SUCCEEDED:
            call.mishap = None
            call.struck("error inside")
            trio.lowlevel.reschedule(task, outcome.capture(fail))

    trio.lowlevel.current_trio_token().run_sync_soon(strike)


def _shielded(outside: Any) -> bool:
    """True within a shield that the project has entered."""
    status = _status()
    while status is not None and status is not outside:
        if status._scope.shield:
            return True
        status = status._parent
    return False


async def _wake(task: trio.lowlevel.Task, seconds: float) -> None:
    try:
        await trio.sleep(seconds)
    finally:
        trio.lowlevel.reschedule(task)


def _not_aborted(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _may_fail(work: object) -> bool:
    """True where the project waits for a client of its own, and for nothing that it would hold."""
    users = 0
    inner = work
    while inner is not None:
        code: types.CodeType | None = getattr(inner, "cr_code", None) or getattr(
            inner, "gi_code", None
        )
        if code is not None:
            if code.co_filename.startswith(_TRIO):
                if code.co_name not in _HOLDS_NOTHING:
                    return False
            elif not _is_own(code.co_filename):
                users += 1
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return users > 1


def _is_own(file: str) -> bool:
    return str(Path(file).resolve()).startswith(_OWN)


def left_by(call: Call) -> list[str]:
    """A sentence for each task that goes on after its call so far; each is told once."""
    found = [task for task in call.left if call.outlived(task)]
    return list(dict.fromkeys(_outlives(call, task) for task in found))


def _outlives(call: Call, task: Left) -> str:
    return f"the task {task.name} that {call.what} has started outlives its call"


@types.coroutine
def _counted(work: Awaitable[None], call: Call, task: Left) -> Generator[Any, Any, None]:
    """Await ``work``, and count its steps after the call."""
    steps: Any = work.__await__()
    value: object = None
    error: BaseException | None = None
    while True:
        task.steps += call.over_at is not None
        try:
            trap = steps.send(value) if error is None else steps.throw(error)
        except StopIteration:
            return
        value = error = None
        try:
            value = yield trap
        except BaseException as raised:
            error = raised


drivers[_counted.__code__] = "work"


@contextmanager
def system_tasks_known() -> Generator[None]:
    """Know the call that has started a system task, and report one that outlives its call."""
    runner: Any = _run.Runner
    original: Callable[..., trio.lowlevel.Task] = runner.spawn_system_task

    def spawn(
        self: Any, function: Any, *args: Any, name: object = None, context: Any = None
    ) -> trio.lowlevel.Task:
        call = current_call.get()
        if call is None or str(getattr(function, "__module__", "")).startswith("motet."):
            return original(self, function, *args, name=name, context=context)
        shown = name if isinstance(name, str) else getattr(name or function, "__qualname__", "?")
        task = Left(str(shown))
        call.left.append(task)

        async def known(*args: Any) -> None:
            try:
                await _counted(function(*args), call, task)
            finally:
                call.left.remove(task)
                if call.outlived(task):
                    call.report(_outlives(call, task))

        inherited = copy_context() if context is None else context
        return original(self, known, *args, name=name or function, context=inherited)

    runner.spawn_system_task = spawn
    try:
        yield
    finally:
        runner.spawn_system_task = original
