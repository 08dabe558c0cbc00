"""Circuit breakers of tools: a failing tool is taken out, then tried again.

A tool has one :class:`~motet.runtime.breaker.Breaker` for each agent and person, and one for each
agent, which all its users share. A fault counts for its person only; a failure of the
infrastructure counts for all of them. A call needs a place under both.

Invariants: each attempt ends exactly once; one without a verdict on the tool, such as a negative
result, a refusal or a cancelled call, only frees its places; the memory is bounded, since the
breakers of the people who were longest without a verdict are forgotten.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import trio

from motet.actors.errors.classify import Verdict
from motet.runtime.breaker import Breaker, BreakerPolicy

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

    def open(self) -> int:
        """The number of breakers that refuse calls, or let one try."""
        every = (one for tools in self.scopes.values() for one in tools.values())
        return sum(one.state != "closed" for one in every)

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
            return Attempt(tool, scopes, refusal=refusal(refusing, tool, now))
        self._keep(shared, tool, for_all)
        self._keep(own, tool, theirs)
        return Attempt(tool, scopes, (first, second))

    def taken_out(self, agent: str, user: str, sender: str = "") -> dict[str, str]:
        """The tools that are not offered to this person now, each with a text for the model."""
        now = trio.current_time()
        return {
            tool: refusal(breaker, tool, now)
            for scope in ((agent, user, sender), (agent,))
            for tool, breaker in self.scopes.get(scope, {}).items()
            if not breaker.offers(now)
        }

    def end(self, attempt: Attempt, verdict: Verdict) -> str:
        """Count the attempt; returns a warning if this failure has opened a breaker, else ""."""
        if attempt.refusal or not (self.scopes or verdict in ("failed", "down")):
            return ""  # fresh breakers do not change
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
        return refusal(after, tool, now) if opened else ""

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


def refusal(breaker: Breaker, tool: str, now: float) -> str:
    """The text for a model whose call was not admitted."""
    if breaker.state == "half_open":
        when = "it is being tried right now"
    else:
        when = f"it can be tried again in {max(breaker.until - now, 0):.0f} s"
    return (
        f"Tool '{tool}' is taken out after {breaker.failures} failures in a row; {when}. "
        "Go on without it, or say what is missing."
    )
