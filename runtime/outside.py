"""The outside world: the time of day, the machine's clock, fresh ids, and code of others.

All code in ``runtime`` and ``actors`` gets these from here and not from the operating system, so
that a simulation can derive them from its seed (G12). Random numbers come from the module
``random``, which a simulation seeds. Secrets do not come from here, since a seeded token could be
guessed.

Invariant: a replacement is valid for the whole process, and only while a simulation runs, of which
there is one at a time.

:class:`UnderWay` names code of others that runs for somebody, such as a tool for a run, so that a
stop which has to wait for it can say where it is (G2).
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

import attrs
import trio
from trio.lowlevel import RunVar

from motet.runtime.foreign import divided, is_plain
from motet.runtime.stopping import blocking_tasks

__all__ = [
    "Outside",
    "UnderWay",
    "age_of",
    "all_under_way",
    "boot_time",
    "current_under_way",
    "foreign_code",
    "foreign_text",
    "fresh_hex",
    "held_by",
    "is_cancelled",
    "monotonic",
    "replaced",
    "steady_time",
    "wall_time",
]


# As the times of processes in /proc: unlike the monotonic clock, it counts the machine's sleep.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_time() -> float:
    return time.clock_gettime(_BOOT)


@attrs.frozen
class Outside:
    """The sources; the defaults are the real ones."""

    wall_time: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    boot_time: Callable[[], float] = _boot_time
    fresh_hex: Callable[[int], str] = secrets.token_hex


_now = Outside()


def wall_time() -> float:
    """Seconds since 1970, as ``time.time``."""
    return _now.wall_time()


def boot_time() -> float:
    """Seconds since the machine has started, as the times of processes count them."""
    return _now.boot_time()


def steady_time() -> float:
    """Seconds since 1970 by the wall clock as it was at first, so that it never jumps.

    In a task of Trio only; the first call of a run of Trio reads the wall clock.
    """
    try:
        start = _start.get()
    except LookupError:
        _start.set(start := wall_time() - boot_time())
    return start + boot_time()


_start: RunVar[float] = RunVar("motet start")


def age_of(then: float) -> float:
    """Seconds since a time by the wall clock of an earlier life, which may have been put back
    since: never below 0. A time of 0 is none, and 0 seconds old.
    """
    return max(0.0, wall_time() - then) if then else 0.0


def monotonic() -> float:
    """Seconds of a clock that never goes back, as ``time.monotonic``."""
    return _now.monotonic()


def fresh_hex(nbytes: int) -> str:
    """Random bytes in hexadecimal, for unique ids."""
    return _now.fresh_hex(nbytes)


@contextmanager
def replaced(outside: Outside) -> Generator[None]:
    """Use the sources of ``outside`` in the block."""
    global _now
    before, _now = _now, outside
    try:
        yield
    finally:
        _now = before


# ---------------------------------------------------------------------- code of others


class _Edge:
    """Around code of others: ``with foreign_code:``.

    An error of the block that is no ``Exception`` leaves it as :func:`divided` says, by the state
    of the current task. The two parts of a group leave it together, in a group: the scope that is
    cancelled takes its part out.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or kind is None:
            return
        if kind is not trio.Cancelled and is_plain(kind):  # it leaves as it is
            return
        in_task = trio.lowlevel.in_trio_task()
        cancelled = in_task and is_cancelled()
        if kind is trio.Cancelled and cancelled:  # as almost always
            return
        failure, going_on = divided(error, cancelled=cancelled, in_task=in_task)
        if failure is error or failure is None:
            return
        if going_on is None:
            raise failure from failure.__cause__
        both = "a failure, and errors that go on"
        raise BaseExceptionGroup(both, (failure, going_on)) from None


foreign_code: Final = _Edge()


class _TextEdge:
    """Around methods of foreign objects that are called to describe them: ``with foreign_text:``.

    They await nothing, and run in any thread: there, ``Cancelled`` and ``GeneratorExit`` are
    failures as any other. What has to go on leaves the block as it is.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or kind is None or is_plain(kind):
            return
        failure, going_on = divided(error, cancelled=False)
        if failure is not None and going_on is None:
            raise failure from failure.__cause__


foreign_text: Final = _TextEdge()


def is_cancelled() -> bool:
    """Whether the next checkpoint of the current task raises ``Cancelled``."""
    # Of a cancelled scope. A deadline that has merely passed is no cancellation yet.
    return trio.current_effective_deadline() == -math.inf


@attrs.define(eq=False)
class UnderWay:
    """Code of others that the current task runs for ``owner``: ``with UnderWay(owner, what)``.

    Attributes:
        owner: an id, such as that of a run.
        what: in words, such as ``tool 'grind'``.
        thread: the thread that it runs in, or 0.
        worked: seconds that it took in a thread, of real time whatever Trio's clock shows.
        start: called in the step in which it begins; False: it must not begin any more.
        waits_for: what it waits for before it begins, such as a thread.
        begun: whether it has begun.
        began: on Trio's clock; ``since``: in seconds since the start of the machine.
    """

    owner: str
    what: str
    task: trio.lowlevel.Task = attrs.field(factory=trio.lowlevel.current_task, repr=False)
    thread: int = 0
    worked: float = 0.0
    start: Callable[[], bool] = attrs.field(default=lambda: True, repr=False)
    waits_for: str = ""
    begun: bool = False
    began: float = attrs.field(factory=trio.current_time)
    since: float = attrs.field(factory=boot_time)
    _all: dict[UnderWay, None] = attrs.field(factory=dict["UnderWay", None], repr=False)

    def __enter__(self) -> Self:
        self._all = all_under_way()
        self._all[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        del self._all[self]

    def begin(self) -> bool:
        """It begins in this step, if it has not yet; False: it must not."""
        self.begun = self.begun or self.start()
        return self.begun

    def describe(self) -> str:
        """Its owner, and the line at which it is now."""
        if not self.begun and self.waits_for:
            return f"{self.owner}: {self.what} has not begun: it waits for {self.waits_for}"
        if self.thread:
            frame = sys._current_frames().get(self.thread)  # pyright: ignore[reportPrivateUsage]  # it is documented
            frames = [] if frame is None else [*traceback.walk_stack(frame)][::-1]
            how = "runs in a thread, which nothing can end"
        else:
            task = next(blocking_tasks(self.task))
            frames, how = [*task.iter_await_frames()], "has not ended yet"
        return f"{self.owner}: {self.what} {how}: it is in {_place(frames)}"


def current_under_way() -> UnderWay | None:
    """The innermost code of others that the current task has begun, if any."""
    task = trio.lowlevel.current_task()
    return next((one for one in reversed(all_under_way()) if one.task is task), None)


def held_by(owners: Collection[str]) -> list[str]:
    """The code of others that these still wait for, with its function and line."""
    return [one.describe() for one in all_under_way() if one.owner in owners]


_LIBRARIES = tuple(
    f"{Path(module).parent}/" for module in (os.__file__, trio.__file__, Path(__file__).parent)
)
"""The folders of Python's own modules, usually with all that was installed; of Trio; of motet."""


def _place(frames: list[tuple[FrameType, int]]) -> str:
    """The innermost function that is neither of motet nor of a library, and its line."""
    if not frames:
        return "no Python code"
    own = [one for one in frames if not one[0].f_code.co_filename.startswith(_LIBRARIES)]
    frame, line = (own or frames)[-1]
    # The file without its folder, which is private to the host.
    return f"{frame.f_code.co_name}, {Path(frame.f_code.co_filename).name} line {line}"


_under_way: RunVar[dict[UnderWay, None]] = RunVar("motet under way")


def all_under_way() -> dict[UnderWay, None]:
    """All such code of this run of Trio, the oldest first."""
    try:
        return _under_way.get()
    except LookupError:
        _under_way.set({})
        return _under_way.get()
