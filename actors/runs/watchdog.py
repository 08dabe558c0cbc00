"""Announces runs that make no progress, and what they wait on.

Invariant: it ends nothing and waits for nothing but time; a run is not delayed by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from motet.actors.errors.log import Logger
from motet.actors.runs.run import Run
from motet.actors.runs.table import RunTable
from motet.protocols.events import AnyEvent, RunStalled

Announce: TypeAlias = Callable[[Run, AnyEvent], Awaitable[None]]
"""Publishes an event of a run."""

CHECKS = 10
"""Checks in the time after which a run is stalled."""
SOONEST, LATEST = 0.5, 30.0


def hear(table: RunTable, run_id: str, event: AnyEvent) -> None:
    """Note an event as progress of its run, and of the runs that wait for it."""
    run = table.runs.get(run_id)
    if run is None or isinstance(event, RunStalled):
        return
    now = table.now()
    run.progress.note(event, now)
    while run is not None and run.lineage.caller is not None:
        run = table.runs.get(run.lineage.caller[0])
        if run is not None:
            run.progress.touch(now)


async def watch(table: RunTable, limit: float, announce: Announce, log: Logger) -> None:
    """Announce each run of a host that has stalled for ``limit`` seconds. Runs for ever."""
    while True:
        await trio.sleep(min(max(limit / CHECKS, SOONEST), LATEST))
        now = trio.current_time()
        for run in list(table.runs.values()):
            seconds = run.progress.stalled(now, limit) if run.is_running else None
            if seconds is not None:
                run.progress.announced = True
                waits_on = run.progress.waits_on(stopping=run.is_stopping)
                log.warning("stalled", run=run.id, session=run.session, on=waits_on)
                await announce(run, RunStalled(round(seconds, 1), waits_on))
