"""Scheduling policies: the choice of the runnable task that takes the next step. Pure.

The ready tasks are in a queue. A choice is a number: that many tasks are moved from the head of
the queue to its end, and the next one runs. Hence 0 is first in, first out; the sum of the choices
is the number of delays in the sense of delay-bounded scheduling (Emmi, Qadeer, Rakamaric, 2011);
and every schedule is one list of choices, independent of the policy that made it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

__all__ = ["Chooser", "DelayBounded", "Pct", "Policy", "Uniform", "next_choices", "played"]

# Takes the queue of ready tasks (at least two); returns how many of them to move to its end.
Chooser = Callable[[Sequence[object]], int]


class Policy(Protocol):
    """A scheduling policy; ``start`` makes the chooser of one run."""

    def start(self, seed: int) -> Chooser: ...


class Uniform(msgspec.Struct, frozen=True):
    """Any ready task with the same probability, at every step. A delay of a task has no bound."""

    def start(self, seed: int) -> Chooser:
        """A chooser that draws from ``seed``."""
        chance = random.Random(seed).random
        return lambda ready: int(chance() * len(ready))


class DelayBounded(msgspec.Struct, frozen=True):
    """First in, first out, but for ``delays`` delays among the first ``horizon`` choices."""

    delays: int = 2
    horizon: int = 200

    def start(self, seed: int) -> Chooser:
        """A chooser whose delays are drawn from ``seed``."""
        chance = random.Random(seed)
        left = [0] * self.horizon
        for _ in range(self.delays):
            left[chance.randrange(self.horizon)] += 1
        return played(left)


class Pct(msgspec.Struct, frozen=True):
    """Priorities with ``depth - 1`` change points among the first ``horizon`` choices.

    Finds a defect that needs ``depth`` ordered steps of n tasks with a chance of at least
    1 / (n * horizon ** (depth - 1)) (Burckhardt et al., "A randomized scheduler with probabilistic
    guarantees of finding bugs", 2010). A task chosen ``patience`` times in a row gets the lowest
    priority, since a task that polls would starve all others.
    """

    depth: int = 3
    horizon: int = 200
    patience: int = 200

    def start(self, seed: int) -> Chooser:
        """A chooser whose priorities and change points are drawn from ``seed``."""
        return _Priorities(self, random.Random(seed)).choose


class _Priorities:
    """The state of one run under :class:`Pct`."""

    def __init__(self, spec: Pct, chance: random.Random) -> None:
        self._patience = spec.patience
        self._chance = chance
        self._changes = {chance.randrange(spec.horizon) for _ in range(spec.depth - 1)}
        self._priority: dict[object, float] = {}
        self._lowest = 0.0
        self._choice = -1
        self._last: object = None
        self._running = 0

    def choose(self, ready: Sequence[object]) -> int:
        # At a change point, or after `patience` steps in a row, the best task falls to the lowest
        # priority so far. Between these, one task runs until it waits.
        self._choice += 1
        best = self._best(ready)
        self._running = self._running + 1 if ready[best] is self._last else 1
        self._last = ready[best]
        if self._choice not in self._changes and self._running <= self._patience:
            return best
        self._lowest -= 1
        self._priority[ready[best]] = self._lowest
        return self._best(ready)

    def _best(self, ready: Sequence[object]) -> int:
        """The index of the task with the highest priority; a new task draws one."""
        best, highest = 0, -math.inf
        for index, task in enumerate(ready):
            priority = self._priority.get(task)
            if priority is None:
                priority = self._priority[task] = self._chance.random()
            if priority > highest:
                best, highest = index, priority
        return best


def played(choices: Iterable[int]) -> Chooser:
    """Play ``choices``, each modulo the number of ready tasks; after the last, all are 0."""
    source = iter(choices)
    return lambda ready: next(source, 0) % len(ready)


def next_choices(taken: Sequence[int], widths: Sequence[int]) -> tuple[int, ...] | None:
    """The choices of the next run of an exhaustive, depth-first search; None after the last.

    ``taken`` are the choices of the run before, ``widths`` the numbers of ready tasks at each.
    """
    for last in reversed(range(len(widths))):
        choice = taken[last] if last < len(taken) else 0
        if choice + 1 < widths[last]:
            return (*taken[:last], *[0] * (last - len(taken)), choice + 1)
    return None
