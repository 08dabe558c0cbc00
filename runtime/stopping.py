"""The deadline of a stop, how it is shared, and the report (G2).

A stop has one deadline, ``until``. Running handlers may use the time up to it, except the budgets
of the clean-ups that follow. With a grace of at least twice the budgets, each clean-up has its
whole budget. A shorter grace is shared: each gets half of the remaining time in turn, so that
handlers get some time too, and no clean-up gets none. At the deadline the kernel's own shields end
as well: no actor outlives it by more than a step per task.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Iterator

import attrs
import msgspec
import trio

__all__ = [
    "DEFAULT_GRACE",
    "Ledger",
    "Leftover",
    "StopPlan",
    "StopReport",
    "at_once",
    "blocking_tasks",
    "stack_of",
    "wait_bounded",
    "within",
]

DEFAULT_GRACE = 5.0  # seconds, the shutdown value of OTP

# From its cancellation on, an actor takes a few steps to its end: its tasks, its turn, its
# clean-up, its supervisor and its parent each see the end of the one before.
_STEPS_PER_TASK = 8


class Leftover(msgspec.Struct, frozen=True):
    """A task or clean-up that a stop could not end in order: the actor, the reason, the stack."""

    path: str
    what: str
    stack: str = ""


class StopReport(msgspec.Struct, frozen=True):
    """The result of a stop (G2).

    ``ended`` paths in the order they ended; ``abandoned`` clean-ups that failed or overran their
    budget and were cut; ``still_running`` tasks that ignore cancellation, with their stacks.
    """

    ended: tuple[str, ...] = ()
    abandoned: tuple[Leftover, ...] = ()
    still_running: tuple[Leftover, ...] = ()

    @property
    def complete(self) -> bool:
        """Nothing was cut and nothing is left."""
        return not self.abandoned and not self.still_running


class Ledger:
    """The paths that a stop has ended, and the clean-ups it cut, collected while it runs."""

    __slots__ = ("abandoned", "ended")

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.abandoned: list[Leftover] = []

    def report(self, still_running: Iterator[Leftover]) -> StopReport:
        return StopReport(tuple(self.ended), tuple(self.abandoned), tuple(still_running))


@attrs.frozen
class StopPlan:
    """The times of a stop in Trio's clock: begin, deadline, and cancellation of the handlers."""

    began: float
    until: float
    patient: bool  # whether running handlers may finish
    ledger: Ledger

    def cancel_at(self, need: float, now: float) -> float:
        """When to cancel handlers, so that clean-ups of ``need`` seconds can follow."""
        return self._until(need, now) if self.patient else now

    def less(self, need: float, now: float) -> StopPlan:
        """The plan for actors that have to end ``need`` seconds before this one.

        If the whole plan is shorter than twice that: after half of the remaining time.
        """
        return StopPlan(self.began, self._until(need, now), self.patient, self.ledger)

    def at_most(self, seconds: float | None, now: float) -> StopPlan:
        """The plan for one actor that declares how long its end may take."""
        if seconds is None or not self.patient:
            return self
        return StopPlan(now, min(self.until, now + seconds), seconds > 0, self.ledger)

    def _until(self, need: float, now: float) -> float:
        if math.isinf(self.until):
            return self.until
        # Too little for all: half of the remaining time is for the handlers and clean-ups now, half
        # for those that follow. Each of these applies the same rule, so that all get some.
        if need > (self.until - self.began) / 2:
            need = min(need, max(0.0, self.until - now) / 2)
        return self.until - need


def within(grace: float | None) -> StopPlan:
    """The plan for ``stop(grace)``; None means five seconds, 0 means cancel now."""
    seconds = DEFAULT_GRACE if grace is None else grace
    if seconds < 0:
        raise ValueError(f"grace is a number of seconds, so >= 0, not {seconds}")
    now = trio.current_time()
    return StopPlan(now, now + seconds, patient=seconds > 0, ledger=Ledger())


def at_once() -> StopPlan:
    """The plan to cancel handlers now; each clean-up has its own budget, and all no deadline."""
    return StopPlan(-math.inf, math.inf, patient=False, ledger=Ledger())


async def wait_bounded(
    wait: Callable[[], Awaitable[object]], ended: Callable[[], bool], plan: StopPlan, tasks: int
) -> None:
    """Wait for the end of a stop until the plan's deadline, then a few steps for each task."""
    # At the deadline every scope of the kernel is cancelled, but the tasks still have to take their
    # last steps. These are counted in checkpoints and not in seconds, so the stop returns on time
    # even if a task ignores its cancellation.
    with trio.move_on_at(plan.until):
        await wait()
    for _ in range(_STEPS_PER_TASK * (tasks + 1)):
        if ended():
            return
        await trio.lowlevel.checkpoint()


def blocking_tasks(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """The innermost tasks below ``task``: those that keep the others waiting."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    if not children:
        yield task
    for child in children:
        yield from blocking_tasks(child)


def stack_of(task: trio.lowlevel.Task) -> str:
    """The stack of a waiting task, innermost frame last, in the form of a traceback."""
    return "".join(traceback.StackSummary.extract(task.iter_await_frames()).format())
