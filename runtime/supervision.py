"""What a supervisor does when a child ends: pure arithmetic, after OTP (G9).

:class:`ChildTable` is told of starts and exits with their times, and answers with a
:class:`Decision`. It knows neither tasks nor clocks; ``supervisor.py`` executes what it decides.
The rules:

* an exit of a child that the table does not hold as running is stale and decides nothing;
* stops come in reverse start order, starts in start order;
* more than ``intensity`` restarts within ``period`` seconds escalate;
* a temporary child is never started again, also when its siblings are.
"""

from __future__ import annotations

from typing import Literal

import attrs
import msgspec

__all__ = ["ChildTable", "Decision", "ExitKind", "Restart", "Strategy", "Supervision"]

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
ExitKind = Literal["normal", "crashed"]


class Supervision(msgspec.Struct, frozen=True):
    """How an actor supervises its children.

    ``intensity`` restarts are allowed within any ``period`` seconds. The n-th restart in a row of a
    child waits ``backoff * backoff_factor ** (n - 1)`` seconds, at most ``backoff_max``, of which
    chance takes off up to the share ``jitter``. A child that lived for ``period`` seconds begins a
    new row. With ``backoff=0``, the default, restarts are immediate as in OTP.
    """

    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.0
    backoff: float = 0.0
    backoff_factor: float = 2.0
    backoff_max: float = 30.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.intensity < 0 or self.period <= 0:
            raise ValueError(
                f"intensity must be >= 0 and period > 0, not {self.intensity} and {self.period}"
            )
        if not (0 <= self.backoff <= self.backoff_max and self.backoff_factor >= 1):
            raise ValueError("back-off needs 0 <= backoff <= backoff_max and backoff_factor >= 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share between 0 and 1, not {self.jitter}")

    def delay(self, streak: int, chance: float) -> float:
        """Seconds before the ``streak``-th restart in a row; ``chance`` is in [0, 1)."""
        if self.backoff == 0:
            return 0.0
        # A long streak would overflow the power; 64 doublings are past any maximum.
        grown = self.backoff * self.backoff_factor ** min(streak - 1, 64)
        return min(grown, self.backoff_max) * (1 - self.jitter * chance)


class Decision(msgspec.Struct, frozen=True):
    """What to do now, in this order: stop, remove, start after ``delay``; or escalate."""

    stops: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    delay: float = 0.0
    escalate: bool = False


@attrs.define
class _Child:
    restart: Restart
    running: bool = False
    since: float = 0.0
    streak: int = 0


@attrs.define
class ChildTable:
    """The children of one supervisor in start order, and the restarts it has spent."""

    supervision: Supervision
    _children: dict[str, _Child] = attrs.field(factory=dict[str, _Child], init=False)
    _restarts: list[float] = attrs.field(factory=list[float], init=False)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the children that are starting or running, in start order."""
        return tuple(name for name, child in self._children.items() if child.running)

    def add(self, name: str, restart: Restart) -> None:
        """Take a new child into the table, last in start order and not yet started."""
        if name in self._children:
            raise ValueError(f"child {name!r} is in the table already")
        self._children[name] = _Child(restart)

    def remove(self, name: str) -> None:
        """Forget a child; no harm if it is not there."""
        self._children.pop(name, None)

    def starting(self, name: str, now: float) -> None:
        """An incarnation of ``name`` begins; from now on it can exit."""
        child = self._children[name]
        child.running = True
        child.since = now

    def exited(self, name: str, kind: ExitKind, now: float, chance: float) -> Decision:
        """Decide on the exit of ``name`` at time ``now``; ``chance`` in [0, 1) sets the jitter."""
        child = self._children.get(name)
        if child is None or not child.running:
            return Decision()
        child.running = False
        if child.restart == "temporary" or (child.restart == "transient" and kind == "normal"):
            self.remove(name)
            return Decision(removes=(name,))
        if not self._spend_restart(now):
            return self._give_up()
        long_lived = now - child.since >= self.supervision.period
        child.streak = 1 if long_lived else child.streak + 1
        return self._restart(name, self.supervision.delay(child.streak, chance))

    def _spend_restart(self, now: float) -> bool:
        self._restarts = [at for at in self._restarts if now - at <= self.supervision.period]
        self._restarts.append(now)
        return len(self._restarts) <= self.supervision.intensity

    def _give_up(self) -> Decision:
        stops = tuple(reversed(self.running))
        for child in self._children.values():
            child.running = False
        return Decision(stops=stops, escalate=True)

    def _restart(self, failed: str, delay: float) -> Decision:
        group = self._group(failed)
        stops = tuple(name for name in reversed(group) if self._children[name].running)
        removes = tuple(name for name in group if self._children[name].restart == "temporary")
        for name in group:
            self._children[name].running = False
        for name in removes:
            self.remove(name)
        starts = tuple(name for name in group if name not in removes)
        return Decision(stops=stops, removes=removes, starts=starts, delay=delay)

    def _group(self, failed: str) -> tuple[str, ...]:
        names = tuple(self._children)
        match self.supervision.strategy:
            case "one_for_one":
                return (failed,)
            case "one_for_all":
                return names
            case "rest_for_one":
                return names[names.index(failed) :]
