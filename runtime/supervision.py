"""The supervision table: the decision on the end of a child, after OTP. Pure (G9).

:class:`ChildTable` takes starts and exits with their times, and returns a :class:`Decision`. It
uses neither tasks nor clocks; ``supervisor.py`` executes the decision. The rules:

* an exit of a child that the table does not hold as running is stale and decides nothing;
* stops come in reverse start order, starts in start order;
* more than ``intensity`` restarts within ``period`` seconds escalate;
* a temporary child is never started again, also when its siblings are;
* a significant child that ends by itself, not to be restarted, may end the supervisor too.
"""

from __future__ import annotations

from typing import Literal

import attrs
import msgspec

from motet.runtime.backoff import Backoff

__all__ = [
    "AutoShutdown",
    "ChildTable",
    "Decision",
    "ExitKind",
    "Restart",
    "Strategy",
    "Supervision",
]

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
ExitKind = Literal["normal", "crashed"]
AutoShutdown = Literal["never", "any", "all"]


class Supervision(msgspec.Struct, frozen=True):
    """How an actor supervises its children.

    ``intensity`` restarts are allowed within any ``period`` seconds. The n-th restart in a row of a
    child waits ``backoff * backoff_factor ** (n - 1)`` seconds, at most ``backoff_max``, of which
    chance takes off up to the share ``jitter``. A child that lived for ``period`` seconds begins a
    new row. With ``backoff=0``, the default, restarts are immediate as in OTP.

    ``auto_shutdown``: the supervising actor ends normally, and with it all its children, when
    ``any`` or ``all`` of its significant children have ended by themselves. ``max_children`` limits
    the children at a time, those that wait for their restart included; None: no limit.
    """

    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.0
    backoff: float = 0.0
    backoff_factor: float = 2.0
    backoff_max: float = 30.0
    jitter: float = 0.1
    auto_shutdown: AutoShutdown = "never"
    max_children: int | None = None

    def __post_init__(self) -> None:
        if self.intensity < 0 or self.period <= 0:
            raise ValueError(
                f"intensity must be >= 0 and period > 0, not {self.intensity} and {self.period}"
            )
        if not (0 <= self.backoff <= self.backoff_max and self.backoff_factor >= 1):
            raise ValueError("back-off needs 0 <= backoff <= backoff_max and backoff_factor >= 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share between 0 and 1, not {self.jitter}")
        if self.max_children is not None and self.max_children < 0:
            raise ValueError(f"max_children must be >= 0 or None, not {self.max_children}")

    def delay(self, streak: int, chance: float) -> float:
        """Seconds before the ``streak``-th restart in a row; ``chance`` is in [0, 1)."""
        backoff = Backoff(self.backoff, self.backoff_factor, self.backoff_max, self.jitter)
        return backoff.delay(streak, chance)


class Decision(msgspec.Struct, frozen=True):
    """The orders to execute, in this order: stop, remove, start after ``delay``; or escalate.

    ``shutdown``: after the stops, the supervisor itself is to end, in order.
    """

    stops: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    delay: float = 0.0
    escalate: bool = False
    shutdown: bool = False


_NOTHING = Decision()


@attrs.define
class _Child:
    restart: Restart
    significant: bool = False
    running: bool = False
    since: float = 0.0
    streak: int = 0


class ChildTable:
    """The children of one supervisor in start order, and the restarts it has spent."""

    __slots__ = ("_children", "_restarts", "supervision")

    def __init__(self, supervision: Supervision) -> None:
        self.supervision = supervision
        self._children: dict[str, _Child] = {}
        self._restarts: list[float] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the children that are starting or running, in start order."""
        # A list inside, which takes half the time of a generator.
        return tuple([name for name, child in self._children.items() if child.running])

    def is_running(self, name: str) -> bool:
        """Whether the child is starting or running; False for a name that is not in the table."""
        child = self._children.get(name)
        return child is not None and child.running

    def add(self, name: str, restart: Restart, significant: bool = False) -> None:
        """Add a new child, last in start order and not yet started."""
        if name in self._children:
            raise ValueError(f"child {name!r} is in the table already")
        if significant and restart == "permanent":
            raise ValueError(
                f"child {name!r} is permanent, so it never ends by itself: "
                "a significant child is transient or temporary"
            )
        if significant and self.supervision.auto_shutdown == "never":
            raise ValueError(
                f"child {name!r} is significant, but its supervisor never shuts down by itself: "
                "declare Supervision(auto_shutdown=...)"
            )
        self._children[name] = _Child(restart, significant)

    def remove(self, name: str) -> None:
        """Forget a child. Does nothing if there is none of that name."""
        self._children.pop(name, None)

    def starting(self, name: str, now: float) -> None:
        """An incarnation of ``name`` begins, so that an exit of it counts from now on."""
        child = self._children[name]
        child.running = True
        child.since = now

    def exited(self, name: str, kind: ExitKind, now: float, chance: float) -> Decision:
        """Decide on the exit of ``name`` at time ``now``; ``chance`` in [0, 1) sets the jitter."""
        child = self._children.get(name)
        if child is None or not child.running:
            return _NOTHING
        child.running = False
        # First the ends that want no restart: they count against no limit.
        if child.restart == "temporary" or (child.restart == "transient" and kind == "normal"):
            # Removed before the look at the others: "all" means all that are left.
            self.remove(name)
            if child.significant and self._shuts_down():
                return Decision(stops=self._stop_all(), removes=(name,), shutdown=True)
            return Decision(removes=(name,))
        if not self._spend_restart(now):
            return self._give_up()
        # The back-off is per child, and forgives after a period. The limit above is for the whole
        # group, since siblings that fail in turn are as bad as one that fails each time.
        long_lived = now - child.since >= self.supervision.period
        child.streak = 1 if long_lived else child.streak + 1
        return self._restart(name, self.supervision.delay(child.streak, chance))

    def _spend_restart(self, now: float) -> bool:
        self._restarts = [at for at in self._restarts if now - at <= self.supervision.period]
        self._restarts.append(now)
        return len(self._restarts) <= self.supervision.intensity

    def _shuts_down(self) -> bool:
        if self.supervision.auto_shutdown == "any":
            return True
        return not any(child.significant for child in self._children.values())

    def _give_up(self) -> Decision:
        return Decision(stops=self._stop_all(), escalate=True)

    def _stop_all(self) -> tuple[str, ...]:
        stops = tuple(reversed(self.running))
        for child in self._children.values():
            child.running = False
        return stops

    def _restart(self, failed: str, delay: float) -> Decision:
        # The siblings count as not running from here on, though they still have to be stopped. So
        # an exit of a sibling while it is being stopped is stale and decides nothing.
        stops: list[str] = []
        removes: list[str] = []
        starts: list[str] = []
        for name in self._group(failed):
            child = self._children[name]
            if child.running:
                child.running = False
                stops.append(name)
            (removes if child.restart == "temporary" else starts).append(name)
        for name in removes:
            self.remove(name)
        stops.reverse()
        return Decision(
            stops=tuple(stops), removes=tuple(removes), starts=tuple(starts), delay=delay
        )

    def _group(self, failed: str) -> tuple[str, ...]:
        names = tuple(self._children)
        match self.supervision.strategy:
            case "one_for_one":
                return (failed,)
            case "one_for_all":
                return names
            case "rest_for_one":
                return names[names.index(failed) :]
