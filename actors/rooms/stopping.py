"""The stop of a room: whoever speaks is asked to end in one step, and then waited for.

Invariant: asking needs neither the room's actor nor the disk; from then on nobody has the floor
until a person speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from motet.actors.sessions.run import Run
from motet.actors.tools.threads import held_by
from motet.protocols.sessions import StopReport

if TYPE_CHECKING:
    from motet.actors.rooms.place import Place


@attrs.frozen
class RoomStop:
    """What a stop of a room has asked for. ``asked``: ids of the runs that nobody had before."""

    place: Place
    runs: Sequence[Run]
    asked: Sequence[str]

    async def wait(self) -> None:
        """Until they have ended, and the room waits for a person."""
        for run in self.runs:
            await run.ended.wait()
        await self.place.idle.wait()

    def report(self) -> StopReport:
        """What has come of it by now."""
        still_running = [run.id for run in self.runs if not run.result]
        return StopReport(
            stopped=[run.id for run in self.runs if run.id in self.asked and run.result],
            already_stopping=[run.id for run in self.runs if run.id not in self.asked],
            still_running=still_running,
            held_by=held_by(still_running),
        )


def stop_room(place: Place, why: str) -> RoomStop:
    """Ask all who speak to end, now; nothing is awaited."""
    runs = place.speaker.wake()
    return RoomStop(place, runs, place.stop(why))
