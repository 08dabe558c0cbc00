"""A circuit breaker: what keeps failing is left alone for a while, then tried again. Pure.

    closed ──5 failures──▶ open ──time──▶ half_open ──2 successes──▶ closed
                            ▲────────────one failure──────┘

A state machine without a clock: times are seconds of any monotonic clock. Laws: it opens at the
fifth failure in a row; each opening lasts twice as long as the one before it, up to the cap, until
it closes; half-open admits one call at a time; only calls that this state has admitted change it.
Source: contradiction 36, errors specification section 4.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from motet.runtime.backoff import Backoff

State: TypeAlias = Literal["closed", "open", "half_open"]


class BreakerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``base``, ``cap``: seconds. ``jitter``: the largest random cut of a delay, as a fraction."""

    failures: int = 5
    successes: int = 2
    base: float = 30.0
    cap: float = 600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.failures < 1 or self.successes < 1:
            raise ValueError("breaker.failures and breaker.successes must be at least 1")
        if not 0 < self.base <= self.cap or not 0 <= self.jitter < 1:
            raise ValueError("breaker: 0 < base <= cap and 0 <= jitter < 1 must hold")

    def delay(self, opens: int, chance: float = 0.0) -> float:
        """Seconds of the ``opens``-th opening in a row. ``chance``: from [0, 1)."""
        return Backoff(self.base, 2.0, self.cap, self.jitter).delay(opens, chance)


class Breaker(msgspec.Struct, frozen=True):
    """One breaker; transitions return the next one.

    Attributes:
        failures: in a row, while closed.
        successes: probes that succeeded, while half-open.
        opens: openings since it was last closed.
        until: when an open one may be tried again.
        probing: a probe is under way.
        epoch: number of the state; a call's end counts only in the epoch that admitted it.
    """

    policy: BreakerPolicy = BreakerPolicy()
    state: State = "closed"
    failures: int = 0
    successes: int = 0
    opens: int = 0
    until: float = 0.0
    probing: bool = False
    epoch: int = 0

    def offers(self, now: float) -> bool:
        """Whether a call would be admitted now, but for a probe under way."""
        return self.state != "open" or now >= self.until

    def admit(self, now: float) -> tuple[Breaker, int | None]:
        """The next state, and the epoch that admits the call; None refuses it."""
        match self.state:
            case "closed":
                return self, self.epoch
            case "open" if now < self.until:
                return self, None
            case "open":
                half = self._entered("half_open", successes=0, probing=True)
                return half, half.epoch
            case "half_open" if self.probing:
                return self, None
            case "half_open":
                return replace(self, probing=True), self.epoch

    def succeeded(self, epoch: int) -> Breaker:
        if epoch != self.epoch or self.state == "open":
            return self
        if self.state == "closed":
            return replace(self, failures=0)
        if self.successes + 1 >= self.policy.successes:
            return self._entered("closed", failures=0, opens=0)
        return replace(self, successes=self.successes + 1, probing=False)

    def failed(self, epoch: int, now: float, chance: float = 0.0) -> Breaker:
        """``chance``: from [0, 1), for the jitter of an opening."""
        if epoch != self.epoch or self.state == "open":
            return self
        failures = self.failures + 1
        if self.state == "closed" and failures < self.policy.failures:
            return replace(self, failures=failures)
        opens = self.opens + 1
        until = now + self.policy.delay(opens, chance)
        return self._entered("open", failures=failures, opens=opens, until=until)

    def abandoned(self, epoch: int) -> Breaker:
        """After a cancelled or denied call: no verdict, but a probe's place is free again."""
        return replace(self, probing=False) if epoch == self.epoch else self

    def _entered(
        self,
        state: State,
        *,
        failures: int | None = None,
        successes: int = 0,
        opens: int | None = None,
        until: float = 0.0,
        probing: bool = False,
    ) -> Breaker:
        return Breaker(
            policy=self.policy,
            state=state,
            failures=self.failures if failures is None else failures,
            successes=successes,
            opens=self.opens if opens is None else opens,
            until=until,
            probing=probing,
            epoch=self.epoch + 1,
        )
