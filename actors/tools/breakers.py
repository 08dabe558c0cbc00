"""The breakers of a host's tools, one for each agent and tool.

Invariant: each attempt ends exactly once, whatever became of it; one that says nothing of its tool
(it was refused, denied, cancelled, or told the model to ask otherwise) gives its place back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
import trio

from motet.actors.tools.breaker import Breaker, BreakerPolicy

Key: TypeAlias = tuple[str, str]
Ending: TypeAlias = Literal["succeeded", "failed", "abandoned"]


class Attempt(msgspec.Struct):
    """One call under its breaker, until :meth:`Breakers.end`.

    Attributes:
        epoch: that admitted it; None: it must not run, and ``refusal`` says why.
        ending: what it said of its tool.
    """

    key: Key
    epoch: int | None
    refusal: str = ""
    ending: Ending = "abandoned"


class Breakers:
    """Looks at trio's clock. ``chance`` gives numbers from [0, 1) for the jitter."""

    def __init__(
        self, policy: BreakerPolicy | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        self._fresh = Breaker(policy or BreakerPolicy())
        self._chance = chance
        self._breakers: dict[Key, Breaker] = {}

    def __repr__(self) -> str:
        return f"<Breakers { ({'/'.join(key): b.state for key, b in self._breakers.items()}) }>"

    def attempt(self, agent: str, tool: str) -> Attempt:
        """A place for one call, which has to be given to :meth:`end` whatever becomes of it."""
        key = agent, tool
        breaker = self._breakers.get(key)
        if breaker is None:
            return Attempt(key, self._fresh.epoch)  # a fresh one admits all
        now = trio.current_time()
        breaker, epoch = breaker.admit(now)
        self._keep(key, breaker)
        return Attempt(key, epoch, breaker.refusal(tool, now) if epoch is None else "")

    def taken_out(self, agent: str) -> dict[str, str]:
        """The tools that the agent is not offered now, each with what its model is told."""
        if not self._breakers:
            return {}
        now = trio.current_time()
        return {
            tool: breaker.refusal(tool, now)
            for (owner, tool), breaker in self._breakers.items()
            if owner == agent and not breaker.offers(now)
        }

    def end(self, attempt: Attempt) -> str:
        """Take what it says; what people are told when this was the failure too many."""
        key, epoch = attempt.key, attempt.epoch
        before = self._breakers.get(key)
        if epoch is None or (before is None and attempt.ending != "failed"):
            return ""  # a fresh one stays as it is
        before, now = before or self._fresh, trio.current_time()
        match attempt.ending:
            case "succeeded":
                after = before.succeeded(epoch)
            case "failed":
                after = before.failed(epoch, now, self._chance())
            case "abandoned":
                after = before.abandoned(epoch)
        self._keep(key, after)
        opened = after.state == "open" and before.state != "open"
        return after.refusal(key[1], now) if opened else ""

    def _keep(self, key: Key, breaker: Breaker) -> None:
        """Only what differs from a fresh one: most tools never fail."""
        if breaker == self._fresh:
            self._breakers.pop(key, None)
        else:
            self._breakers[key] = breaker
