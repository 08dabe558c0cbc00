"""Tells of runs that make no progress, and what they wait on. The Trio side of ``progress``.

Invariant: it ends nothing and waits for nothing but time; a run that it tells of is not delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from motet.protocols.events import AnyEvent, RunStalled

if TYPE_CHECKING:
    from motet.actors.runs.services import Services
    from motet.actors.runs.table import RunTable

CHECKS = 10
"""Looks in the time after which a run is stalled."""
SOONEST, LATEST = 0.5, 30.0


def hear(table: RunTable, run_id: str, event: AnyEvent) -> None:
    """An event of a run is a sign of it, and of those who wait for it."""
    run = table.runs.get(run_id)
    if run is None or isinstance(event, RunStalled):
        return
    now = table.now()
    run.progress.note(event, now)
    while run is not None and run.caller is not None:
        run = table.runs.get(run.caller[0])
        if run is not None:
            run.progress.heard(now)


async def watch(services: Services, limit: float) -> None:
    """Look after all runs of a host, for ever."""
    while True:
        await trio.sleep(min(max(limit / CHECKS, SOONEST), LATEST))
        now = trio.current_time()
        for run in list(services.table.runs.values()):
            seconds = run.progress.stalled(now, limit) if run.state == "running" else None
            if seconds is not None:
                run.progress.told = True
                waits_on = run.progress.waits_on(stopping=bool(run.stop_reason))
                services.log.warning("stalled", run=run.id, session=run.session, on=waits_on)
                await services.emit(run, RunStalled(round(seconds, 1), waits_on))
