"""The supervision table: the decision on the end of a child, after OTP. Pure (G9).

:class:`ChildTable` takes starts and exits with their times, and returns a :class:`Decision`. It
uses neither tasks nor clocks; ``supervisor.py`` executes the decision. The rules:

* an exit of a child that the table does not hold as running is stale and decides nothing;
* stops come in reverse start order, starts in start order;
* more than ``intensity`` restarts within ``period`` seconds escalate;
* with ``give_up="child"`` they are counted for each child, and end only that child;
* a temporary child is never started again, also when its siblings are;
* a significant child that ends by itself, not to be restarted, may end the supervisor too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs
import msgspec

from motet.runtime.backoff import Backoff

__all__ = [
    "AutoShutdown",
    "ChildTable",
    "Decision",
    "Directive",
    "ExitKind",
    "GiveUp",
    "Refusals",
    "Restart",
    "Strategy",
    "Supervision",
]

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
ExitKind = Literal["normal", "crashed"]
Directive = Literal["restart", "stop", "escalate"]
AutoShutdown = Literal["never", "any", "all"]
GiveUp = Literal["all", "child"]


class Supervision(msgspec.Struct, frozen=True):
    """How an actor supervises its children.

    ``intensity`` restarts are allowed within any ``period`` seconds. The n-th restart in a row of a
    child waits ``backoff * backoff_factor ** (n - 1)`` seconds, at most ``backoff_max``, of which
    chance takes off up to the share ``jitter``. A child that lived for ``period`` seconds begins a
    new row. With ``backoff=0``, the default, restarts are immediate as in OTP.

    ``give_up`` says what one restart too many ends. ``all``: the restarts of all children are
    counted together, and the supervising actor crashes with all of them. ``child``: they are
    counted for each child alone, and only that child ends, for ever; for children that do not need
    one another, so with ``one_for_one`` only.

    ``decide`` chooses by the error of a crashed child. ``restart``: as declared by all the above.
    ``stop``: the child ends for ever, as a temporary one would. ``escalate``: the supervising actor
    crashes with this very error, and ends all its children. It must not wait. An error of its own
    escalates. It is not called for ends without an error. None: always restart.

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
    give_up: GiveUp = "all"
    decide: Callable[[Exception], Directive] | None = None

    def __post_init__(self) -> None:
        if self.intensity < 0 or self.period <= 0:
            raise ValueError(
                f"intensity must be >= 0 and period > 0, not {self.intensity} and {self.period}"
            )
        if not (0 <= self.backoff <= self.backoff_max and self.backoff_factor >= 1):
            raise ValueError("back-off needs 0 <= backoff <= backoff_max and backoff_factor >= 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a share between 0 and 1, not {self.jitter}")
        if self.give_up == "child" and self.strategy != "one_for_one":
            raise ValueError(
                f"give_up='child' is for children that do not need one another, so it goes with "
                f"one_for_one, not with {self.strategy}"
            )
        if self.max_children is not None and self.max_children < 0:
            raise ValueError(f"max_children must be >= 0 or None, not {self.max_children}")

    def delay(self, streak: int, chance: float) -> float:
        """Seconds before the ``streak``-th restart in a row; ``chance`` is in [0, 1)."""
        backoff = Backoff(self.backoff, self.backoff_factor, self.backoff_max, self.jitter)
        return backoff.delay(streak, chance)


class Decision(msgspec.Struct, frozen=True):
    """The orders to execute, in this order: stop, remove, start after ``delay``; or escalate.

    ``gives_up``: the removed child has spent its own restarts.
    ``shutdown``: after the stops, the supervisor itself is to end, in order.
    """

    stops: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    delay: float = 0.0
    escalate: bool = False
    shutdown: bool = False
    gives_up: bool = False


_NOTHING = Decision()


@attrs.define
class _Child:
    restart: Restart
    significant: bool = False
    running: bool = False
    since: float = 0.0
    streak: int = 0
    restarts: list[float] | None = None  # of this child, if each has a limit of its own


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

    def exited(
        self,
        name: str,
        kind: ExitKind,
        now: float,
        chance: float,
        directive: Directive = "restart",
    ) -> Decision:
        """Decide on the exit of ``name`` at time ``now``; ``chance`` in [0, 1) sets the jitter.

        ``directive``: what ``decide`` has said of a crash.
        """
        child = self._children.get(name)
        if child is None or not child.running:
            return _NOTHING
        child.running = False
        if directive == "escalate":
            return self._give_up()
        # First the ends that want no restart: they count against no limit.
        normal = child.restart == "transient" and kind == "normal"
        if child.restart == "temporary" or normal or directive == "stop":
            return self._let_go(name, child)
        if self.supervision.give_up == "child":
            child.restarts = [*self._recent(child.restarts or [], now), now]
            if len(child.restarts) > self.supervision.intensity:
                return msgspec.structs.replace(self._let_go(name, child), gives_up=True)
        elif not self._spend_restart(now):
            return self._give_up()
        # The back-off is per child, and forgives after a period. The limit above is for the whole
        # group, since siblings that fail in turn are as bad as one that fails each time.
        long_lived = now - child.since >= self.supervision.period
        child.streak = 1 if long_lived else child.streak + 1
        return self._restart(name, self.supervision.delay(child.streak, chance))

    def _let_go(self, name: str, child: _Child) -> Decision:
        # Removed before the look at the others: "all" means all that are left.
        self.remove(name)
        if child.significant and self._shuts_down():
            return Decision(stops=self._stop_all(), removes=(name,), shutdown=True)
        return Decision(removes=(name,))

    def _recent(self, restarts: list[float], now: float) -> list[float]:
        return [at for at in restarts if now - at <= self.supervision.period]

    def _spend_restart(self, now: float) -> bool:
        self._restarts = [*self._recent(self._restarts, now), now]
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


@attrs.frozen
class _Refusal:
    times: int  # given up in a row
    until: float
    forgotten: float
    reason: str


class Refusals:
    """Names that were given up, and until when nobody may start them again. Pure.

    The n-th time in a row, a name is refused for ``period * backoff_factor ** (n - 1)`` seconds, at
    most ``backoff_max`` if that is longer than ``period``, of which chance takes off up to
    ``jitter``. Not being given up for another ``period`` after that ends the row.
    """

    __slots__ = ("_backoff", "_period", "_refused")

    def __init__(self, supervision: Supervision) -> None:
        self._period = period = supervision.period
        most = max(period, supervision.backoff_max)
        self._backoff = Backoff(period, supervision.backoff_factor, most, supervision.jitter)
        self._refused: dict[str, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def given_up(self, name: str, reason: str, now: float, chance: float) -> None:
        """Refuse ``name`` from ``now`` on; ``chance`` is in [0, 1)."""
        before = self._refused.pop(name, None)
        times = 1 if before is None or before.forgotten <= now else before.times + 1
        until = now + self._backoff.delay(times, chance)
        # The oldest first: each is forgotten at the latest when the longest delay has passed, so
        # that names that nobody visits again do not fill the memory.
        while self._refused:
            oldest = next(iter(self._refused))
            if self._refused[oldest].forgotten > now:
                break
            del self._refused[oldest]
        self._refused[name] = _Refusal(times, until, until + self._period, reason)

    def reason(self, name: str, now: float) -> str | None:
        """The reason why ``name`` may not be started at ``now``; None: it may."""
        refusal = self._refused.get(name)
        if refusal is None or refusal.until <= now:
            return None
        return f"{refusal.reason}; it may be tried again in {refusal.until - now:.3g} s"
