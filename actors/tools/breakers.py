"""The breakers of a host's tools, one for each agent and tool.

Invariant: each attempt ends exactly once, whatever became of it; one that says nothing of its tool
(it was refused, denied, cancelled, or told the model to ask otherwise) gives its place back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, Self, TypeAlias

import attrs
import trio

from motet.actors.tools.breaker import Breaker, BreakerPolicy

Key: TypeAlias = tuple[str, str]
Ending: TypeAlias = Literal["succeeded", "failed", "abandoned"]


@attrs.define
class Attempt:
    """One call under its breaker, for as long as its block takes.

    Attributes:
        refusal: why it must not run.
        ending: what it said of its tool.
        opened: at its end, what people are told when this was the failure too many.
    """

    _breakers: Breakers
    _key: Key
    _epoch: int | None
    refusal: str = ""
    ending: Ending = "abandoned"
    opened: str = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._epoch is not None:
            self.opened = self._breakers.end(self._key, self._epoch, self.ending)


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
        """A place for one call; the block says by ``ending`` what became of it."""
        key, now = (agent, tool), trio.current_time()
        breaker, epoch = self._of(key).admit(now)
        self._keep(key, breaker)
        refusal = breaker.refusal(tool, now) if epoch is None else ""
        return Attempt(self, key, epoch, refusal)

    def taken_out(self, agent: str) -> dict[str, str]:
        """The tools that the agent is not offered now, each with what its model is told."""
        now = trio.current_time()
        return {
            tool: breaker.refusal(tool, now)
            for (owner, tool), breaker in self._breakers.items()
            if owner == agent and not breaker.offers(now)
        }

    def end(self, key: Key, epoch: int, ending: Ending) -> str:
        """Take what an attempt says; for :class:`Attempt` only."""
        now, before = trio.current_time(), self._of(key)
        match ending:
            case "succeeded":
                after = before.succeeded(epoch)
            case "failed":
                after = before.failed(epoch, now, self._chance())
            case "abandoned":
                after = before.abandoned(epoch)
        self._keep(key, after)
        opened = after.state == "open" and before.state != "open"
        return after.refusal(key[1], now) if opened else ""

    def _of(self, key: Key) -> Breaker:
        return self._breakers.get(key, self._fresh)

    def _keep(self, key: Key, breaker: Breaker) -> None:
        """Only what differs from a fresh one: most tools never fail."""
        if breaker == self._fresh:
            self._breakers.pop(key, None)
        else:
            self._breakers[key] = breaker
