"""How long a stop may take, and what came of it (G2).

A stop has one end, ``until``. Running handlers may use the time up to it, less what the clean-ups
that follow have declared. A grace of twice what they have declared gives each of them all it has
declared; a shorter one is shared, half of what is left to each in turn. At the end the runtime
lifts its own shields: nothing of ours outlives it by more than a step per task.
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

DEFAULT_GRACE = 5.0  # seconds; as OTP's shutdown value

# From its cancellation on, an actor takes a few steps to its end: its tasks, its turn, its
# clean-up, its supervisor and its parent each see the end of the one before.
_STEPS_PER_TASK = 8


class Leftover(msgspec.Struct, frozen=True):
    """Something a stop could not end in good order: whose it is, what, and where it stands."""

    path: str
    what: str
    stack: str = ""


class StopReport(msgspec.Struct, frozen=True):
    """What a stop did (G2).

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


@attrs.define
class Ledger:
    """What a stop has ended and what it had to leave, collected while it runs."""

    ended: list[str] = attrs.field(factory=list[str])
    abandoned: list[Leftover] = attrs.field(factory=list[Leftover])

    def report(self, still_running: Iterator[Leftover]) -> StopReport:
        return StopReport(tuple(self.ended), tuple(self.abandoned), tuple(still_running))


@attrs.frozen
class StopPlan:
    """When the handlers are cancelled and when everything has to be over, in Trio's clock."""

    began: float
    until: float
    patient: bool  # whether running handlers may finish
    ledger: Ledger

    def cancel_at(self, need: float, now: float) -> float:
        """When to cancel handlers after which clean-ups of ``need`` seconds follow."""
        return self._until(need, now) if self.patient else now

    def less(self, need: float, now: float) -> StopPlan:
        """The plan for what has to end ``need`` seconds before this one.

        If there is no time for twice that in the whole plan: or at half time.
        """
        return StopPlan(self.began, self._until(need, now), self.patient, self.ledger)

    def _until(self, need: float, now: float) -> float:
        if math.isinf(self.until):
            return self.until
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
    """Cancel handlers now; every clean-up has its own budget and no common end."""
    return StopPlan(-math.inf, math.inf, patient=False, ledger=Ledger())


async def wait_bounded(
    wait: Callable[[], Awaitable[object]], ended: Callable[[], bool], plan: StopPlan, tasks: int
) -> None:
    """Wait for the end of a stop until the plan's end, then a few steps for each live task."""
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
    """Where a task waits, innermost frame last, as a traceback shows it."""
    return "".join(traceback.StackSummary.extract(task.iter_await_frames()).format())
