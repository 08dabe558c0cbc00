"""The breakers of a host's tools, one for each agent and tool.

Invariant: each attempt ends exactly once, whatever became of it; one that says nothing of its tool
(it was refused, denied, cancelled, or told the model to ask otherwise) gives its place back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import attrs
import trio

from motet.actors.tools.breaker import Breaker, BreakerPolicy

Key: TypeAlias = tuple[str, str]
Ending: TypeAlias = Literal["succeeded", "failed", "abandoned"]


@attrs.define
class Attempt:
    """One call under its breaker. ``refusal``: why it must not run; ``ending``: what it said.

    ``opened`` is set at its end: what people are told when this was the failure too many.
    """

    refusal: str = ""
    ending: Ending = "abandoned"
    opened: str = ""


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

    @contextmanager
    def attempt(self, agent: str, tool: str) -> Generator[Attempt]:
        """A place for one call; the block says by ``ending`` what became of it."""
        key = (agent, tool)
        breaker, epoch = self._of(key).admit(trio.current_time())
        self._keep(key, breaker)
        if epoch is None:
            yield Attempt(breaker.refusal(tool, trio.current_time()))
            return
        attempt = Attempt()
        try:
            yield attempt
        finally:
            attempt.opened = self._end(key, epoch, attempt.ending)

    def taken_out(self, agent: str) -> dict[str, str]:
        """The tools that the agent is not offered now, each with what its model is told."""
        now = trio.current_time()
        return {
            tool: breaker.refusal(tool, now)
            for (owner, tool), breaker in self._breakers.items()
            if owner == agent and not breaker.offers(now)
        }

    def _end(self, key: Key, epoch: int, ending: Ending) -> str:
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
