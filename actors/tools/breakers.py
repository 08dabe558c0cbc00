"""Circuit breakers of tools: a failing tool is taken out, then tried again.

    closed ──5 failures──▶ open ──time──▶ half_open ──2 successes──▶ closed
                            ▲────────────one failure──────┘

:class:`Breaker` is a state machine without a clock: times are seconds of any monotonic clock. Laws:
it opens at the fifth failure in a row; each opening lasts twice as long as the one before it, up to
the cap, until it closes; half-open admits one call at a time; only calls that this state has
admitted change it. Source: contradiction 36, errors specification section 4.

A tool has one breaker for each agent and person, and one for each agent, which all its users share.
A fault counts for its person only; a failure of the infrastructure counts for all of them. A call
needs a place under both.

Invariants of :class:`Breakers`: each attempt ends exactly once; one without a verdict on the tool,
such as a negative result, a refusal or a cancelled call, only frees its places; the memory is
bounded, since the breakers of the people who were longest without a verdict are forgotten.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.classify import Verdict
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
    """One tool's breaker; transitions return the next one.

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
        """Whether the tool belongs in the list a model is given."""
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

    def refusal(self, tool: str, now: float) -> str:
        """The text for a model whose call was not admitted."""
        if self.state == "half_open":
            when = "it is being tried right now"
        else:
            when = f"it can be tried again in {max(self.until - now, 0):.0f} s"
        return (
            f"Tool '{tool}' is taken out after {self.failures} failures in a row; {when}. "
            "Go on without it, or say what is missing."
        )

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


Scope: TypeAlias = tuple[str, ...]
"""An agent, its user and, in a group, the author; or an agent alone, for all of its users."""
SCOPES = 4_096
"""People with agents, whose breakers are kept."""


class Attempt(msgspec.Struct, frozen=True):
    """One call under its breakers, until :meth:`Breakers.end`.

    Attributes:
        epochs: those that admitted it, of the breaker of all users and of its person's.
        refusal: why it must not run; empty if it may.
    """

    tool: str
    scopes: tuple[Scope, Scope]
    epochs: tuple[int, int] = (0, 0)
    refusal: str = ""


class Breakers:
    """On Trio's clock. ``chance`` gives numbers from [0, 1) for the jitter.

    Attributes:
        scopes: the breakers that differ from a fresh one, by tool: most tools never fail.
    """

    def __init__(
        self, policy: BreakerPolicy | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        self._fresh = Breaker(policy or BreakerPolicy())
        self._chance = chance
        self.scopes: OrderedDict[Scope, dict[str, Breaker]] = OrderedDict()

    def __repr__(self) -> str:
        kept = ((scope, *one) for scope, tools in self.scopes.items() for one in tools.items())
        return f"<Breakers { {'/'.join((*scope, tool)): b.state for scope, tool, b in kept} }>"

    def attempt(self, agent: str, tool: str, user: str, sender: str = "") -> Attempt:
        """Admit or refuse one call; :meth:`end` must follow, however the call ends.

        ``sender``: the author, in a group for which the user speaks.
        """
        scopes = shared, own = (agent,), (agent, user, sender)
        if shared not in self.scopes and own not in self.scopes:
            return Attempt(tool, scopes, (self._fresh.epoch, self._fresh.epoch))
        now = trio.current_time()
        for_all, first = self._of(shared, tool).admit(now)
        theirs, second = self._of(own, tool).admit(now)
        if first is None or second is None:  # no place is taken: both stay as they are
            refusing = for_all if first is None else theirs
            return Attempt(tool, scopes, refusal=refusing.refusal(tool, now))
        self._keep(shared, tool, for_all)
        self._keep(own, tool, theirs)
        return Attempt(tool, scopes, (first, second))

    def taken_out(self, agent: str, user: str, sender: str = "") -> dict[str, str]:
        """The tools that are not offered to this person now, each with a text for the model."""
        now = trio.current_time()
        return {
            tool: breaker.refusal(tool, now)
            for scope in ((agent, user, sender), (agent,))
            for tool, breaker in self.scopes.get(scope, {}).items()
            if not breaker.offers(now)
        }

    def end(self, attempt: Attempt, verdict: Verdict) -> str:
        """Count the attempt; returns a warning if this failure has opened a breaker, else ""."""
        if attempt.refusal:
            return ""
        counting: dict[Verdict, tuple[Verdict, Verdict]] = {
            "succeeded": ("succeeded", "succeeded"),
            "failed": ("abandoned", "failed"),
            "down": ("failed", "abandoned"),
            "abandoned": ("abandoned", "abandoned"),
        }
        ended = zip(attempt.scopes, attempt.epochs, counting[verdict], strict=True)
        warnings = [self._end(attempt.tool, *one) for one in ended]
        return next(filter(None, warnings), "")

    def _end(self, tool: str, scope: Scope, epoch: int, verdict: Verdict) -> str:
        if scope not in self.scopes and verdict != "failed":
            return ""  # a fresh breaker does not change
        before, now = self._of(scope, tool), trio.current_time()
        match verdict:
            case "succeeded":
                after = before.succeeded(epoch)
            case "failed":
                after = before.failed(epoch, now, self._chance())
            case _:
                after = before.abandoned(epoch)
        self._keep(scope, tool, after)
        opened = after.state == "open" and before.state != "open"
        return after.refusal(tool, now) if opened else ""

    def _of(self, scope: Scope, tool: str) -> Breaker:
        return self.scopes.get(scope, {}).get(tool, self._fresh)

    def _keep(self, scope: Scope, tool: str, breaker: Breaker) -> None:
        if breaker != self._fresh:
            self.scopes.setdefault(scope, {})[tool] = breaker
            self.scopes.move_to_end(scope)
            if len(self.scopes) > SCOPES:
                self.scopes.popitem(last=False)
        elif tools := self.scopes.get(scope):
            tools.pop(tool, None)
            if not tools:
                del self.scopes[scope]
