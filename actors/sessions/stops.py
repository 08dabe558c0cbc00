"""What a stop has asked for, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from motet.actors.tools.threads import held_by
from motet.protocols.sessions import StopReport

if TYPE_CHECKING:
    from motet.actors.sessions.run import Run


@attrs.frozen
class Stop:
    """What a stop has asked for.

    Attributes:
        runs: they end now, and may still have to clean up.
        already: the same of runs that somebody else had asked to end before.
        dropped: inputs taken out of their queue; they will never start, or, if the last host had
            begun them, not go on.
        unheard: ids of the runs of inputs that were not registered yet; they will never start.
    """

    runs: Sequence[Run] = ()
    already: Sequence[Run] = ()
    dropped: Sequence[Run] = ()
    unheard: Sequence[str] = ()

    async def wait(self) -> None:
        for run in (*self.runs, *self.already, *self.dropped):
            await run.ended.wait()

    def report(self) -> StopReport:
        """What has come of it by now."""
        never = [run for run in (*self.dropped, *self.runs) if run.never_starts]
        begun = [run for run in (*self.runs, *self.dropped) if run not in never]
        still_running = [run.id for run in (*begun, *self.already) if not run.result]
        return StopReport(
            stopped=[run.id for run in begun if run.result],
            already_stopping=[run.id for run in self.already],
            dropped_inputs=[*(run.id for run in never), *self.unheard],
            still_running=still_running,
            held_by=held_by(still_running),
        )
