"""When a server runs, and when it may be started again: a table and a little arithmetic.

Pure; the actor in ``client.py`` carries it out. Two rules: only what the table allows happens, and
who fails rests twice as long each time, until it has stayed well for :data:`WELL` seconds.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import attrs

State: TypeAlias = Literal["stopped", "starting", "ready", "stopping"]
Event: TypeAlias = Literal["wanted", "listed", "idle", "ended"]
"""Somebody needs it; it has started and told its tools; nobody has used it; it is gone."""

FIRST = 0.5
FACTOR = 2.0
LONGEST = 60.0
JITTER = 0.1
"""Share of a wait that chance takes off, so that many hosts do not come back at once."""
WELL = 60.0
"""Seconds after which an end is no longer counted with those before it."""

TABLE: dict[tuple[State, Event], State] = {
    ("stopped", "wanted"): "starting",
    ("starting", "listed"): "ready",
    ("starting", "ended"): "stopped",
    ("ready", "idle"): "stopping",
    ("ready", "ended"): "stopped",
    ("stopping", "ended"): "stopped",
}


@attrs.frozen
class Upkeep:
    """Where a server stands.

    Attributes:
        failures: how often in a row it has ended by itself.
        not_before: time before which it is not started again.
        since: when it was ready; minus infinity when it is not.
    """

    state: State = "stopped"
    failures: int = 0
    not_before: float = -math.inf
    since: float = -math.inf

    def after(self, event: Event, now: float, chance: float = 0.0) -> Upkeep:
        """Where it stands then. ``chance`` is from 0 to 1. Raises ``ValueError`` off the table."""
        state = TABLE.get((self.state, event))
        if state is None:
            raise ValueError(f"a server that is {self.state} cannot be {event}")
        if event == "listed":
            return attrs.evolve(self, state=state, since=now)
        if event != "ended":
            return attrs.evolve(self, state=state)
        if self.state == "stopping":
            return Upkeep()
        well = self.state == "ready" and now - self.since >= WELL
        failures = 1 if well else self.failures + 1
        return Upkeep(state, failures, now + delay(failures, chance))

    def wait(self, now: float) -> float:
        """Seconds until it may be started."""
        return max(0.0, self.not_before - now)


def delay(failures: int, chance: float) -> float:
    """Seconds that a server rests after the n-th failure in a row."""
    longest = min(LONGEST, FIRST * FACTOR ** min(failures - 1, 32))
    return longest * (1 - JITTER * chance)
