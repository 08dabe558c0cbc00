"""Defects of the stop: it returns early, waits for ever, leaves tasks, or drains the mail first."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from motet.runtime import ref as ref_module
from motet.runtime import system as system_module
from motet.runtime.cell import Cell
from motet.runtime.incarnation import Incarnation
from motet.runtime.stopping import StopPlan
from motet.runtime.supervisor import Supervisor
from motet.runtime.system import System
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _return_early() -> list[Patch]:
    """The stop is ordered, and its caller goes on at once."""

    async def do_not_wait(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    return [(ref_module, "wait_bounded", do_not_wait), (system_module, "wait_bounded", do_not_wait)]


def _never_cancel() -> list[Patch]:
    """Running handlers have all the time in the world, whatever the grace is."""

    def never(plan: StopPlan, need: float, now: float) -> float:
        return math.inf

    return [(StopPlan, "cancel_at", never)]


def _reserve_no_time() -> list[Patch]:
    """Handlers use up the whole grace, and nothing of it is left for the clean-ups."""

    def as_it_is(plan: StopPlan, need: float, now: float) -> StopPlan:
        return plan

    return [(StopPlan, "less", as_it_is)]


def _leak_background_tasks() -> list[Patch]:
    """Tasks of an actor run in its supervisor's nursery, and outlive it."""

    def start_soon(
        life: Incarnation, fn: Callable[..., Awaitable[object]], *args: object, name: str | None
    ) -> None:
        nursery = life.owner.nursery
        assert nursery is not None
        nursery.start_soon(partial(fn, *args), name=f"{life.owner.path} {name}")

    return [(Incarnation, "start_soon", start_soon)]


# ---------------------------------------------------------------------- control overtakes


def _drain_before_the_stop() -> list[Patch]:
    """An order to stop takes its place behind the queued mail."""
    stop = Cell.stop

    def stop_after_mail(cell: Cell, plan: StopPlan, *, final: bool) -> None:
        if cell.mailbox.queue and cell.incarnation is not None and cell.incarnation.ready:
            trio.lowlevel.spawn_system_task(_stop_later, stop, cell, plan, final)
        else:
            stop(cell, plan, final=final)

    return [(Cell, "stop", stop_after_mail)]


async def _stop_later(stop: Callable[..., None], cell: Cell, plan: StopPlan, final: bool) -> None:
    while cell.mailbox.queue and cell.is_occupied:
        await trio.sleep(0.25)
    stop(cell, attrs.evolve(plan, until=math.inf), final=final)


def _kill_politely() -> list[Patch]:
    """A kill lets the running handler finish, as a stop does."""
    cancel_at = StopPlan.cancel_at

    def as_a_stop(plan: StopPlan, need: float, now: float) -> float:
        return cancel_at(attrs.evolve(plan, patient=True, until=math.inf), need, now)

    return [(StopPlan, "cancel_at", as_a_stop)]


def _supervise_in_turn() -> list[Patch]:
    """A child's end waits until its parent has handled its mail."""
    decide = Supervisor[Cell]._decide

    async def decide_in_turn(supervisor: Supervisor[Cell], child: Cell) -> None:
        parent = next((c for c in _cells(supervisor) if c.path == supervisor.path), None)
        while parent is not None and (parent.mailbox.queue or parent.mailbox.running):
            await trio.sleep(0.25)
        await decide(supervisor, child)

    return [(Supervisor, "_decide", decide_in_turn)]


def _cells(supervisor: Supervisor[Cell]) -> list[Cell]:
    system = supervisor._kernel
    assert isinstance(system, System)
    return list(system._root.tree())


MUTANTS = (
    Mutant("G2", "returns before the end", _return_early),
    Mutant("G2", "never cancels handlers", _never_cancel),
    Mutant("G2", "leaves no time to clean up", _reserve_no_time),
    Mutant("G2", "leaks background tasks", _leak_background_tasks),
    Mutant("G6", "stops behind the queue", _drain_before_the_stop),
    Mutant("G6", "kills as politely as it stops", _kill_politely),
    Mutant("G6", "supervises behind the mail", _supervise_in_turn),
)
