"""Scheduling policies: the choice of the runnable task that takes the next step. Pure.

The ready tasks are in a queue. A choice is a number: that many tasks are moved from the head of
the queue to its end, and the next one runs. Hence 0 is first in, first out; the sum of the choices
is the number of delays in the sense of delay-bounded scheduling (Emmi, Qadeer, Rakamaric, 2011);
and every schedule is one list of choices, independent of the policy that made it.

No policy is best. A depth-first one (:class:`Pct`) finds at once that a task may come before
another one, and hardly ever that two meet at one step; a random walk is the other way round. So the
default, :class:`Mixed`, takes each seed's policy from a portfolio.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

__all__ = [
    "AT_REST",
    "EACH",
    "Chooser",
    "DelayBounded",
    "Holds",
    "Mixed",
    "Pct",
    "Places",
    "Policy",
    "Speeds",
    "Uniform",
    "next_choices",
    "played",
    "within",
]

AT_REST = 0
"""The length of a hold that ends only when no other task can run."""

EACH = 0
"""Each turn at a place."""

_LONGEST = 7
"""Holds of a bounded length have up to 2 ** 7 choices, on a logarithmic scale."""

_SELDOM = (1 / 16, 1 / 32, 1 / 64)
_OFTEN = (1 / 4, 1 / 8)
_HELD = (1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Rates of change points, for depth 2 and above it, and of holds; each run draws one of them."""

_SPEEDS = 5
_FASTER = 4

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
    guarantees of finding bugs", 2010), if the run has ``horizon`` choices: a horizon that is ten
    times too long makes the defect ten times rarer. ``horizon`` None: unknown; then each choice is
    a change point at a rate that is drawn for the run, seldom for depth 2 and often above it.

    A task chosen ``patience`` times in a row gets the lowest priority, since a task that polls
    would starve all others.
    """

    depth: int = 3
    horizon: int | None = 200
    patience: int = 200

    def start(self, seed: int) -> Chooser:
        """A chooser whose priorities and change points are drawn from ``seed``."""
        return _Priorities(self, random.Random(seed)).choose


class _Priorities:
    """The state of one run under :class:`Pct`."""

    def __init__(self, spec: Pct, chance: random.Random) -> None:
        self._patience = spec.patience
        self._chance = chance
        self._rate = 0.0
        self._changes: set[int] = set()
        if spec.horizon is not None:
            self._changes = {chance.randrange(spec.horizon) for _ in range(spec.depth - 1)}
        elif spec.depth > 1:
            self._rate = chance.choice(_SELDOM if spec.depth == 2 else _OFTEN)
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
        changes = self._choice in self._changes
        if self._rate and self._chance.random() < self._rate:
            changes = True
        if not changes and self._running <= self._patience:
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


class Speeds(msgspec.Struct, frozen=True):
    """A random walk in which some tasks are up to 256 times as fast as others."""

    def start(self, seed: int) -> Chooser:
        """A chooser whose speeds and steps are drawn from ``seed``."""
        chance = random.Random(seed)
        speeds: dict[object, float] = {}

        def choose(ready: Sequence[object]) -> int:
            for task in ready:
                if task not in speeds:
                    speeds[task] = float(_FASTER) ** -chance.randrange(_SPEEDS)
            return chance.choices(range(len(ready)), [speeds[task] for task in ready])[0]

        return choose


class Holds(msgspec.Struct, frozen=True):
    """First in, first out, but tasks are held back at some choices.

    ``points`` are pairs: the number of a choice, from 0, and the number of choices for which the
    task whose turn it is waits; :data:`AT_REST`: until no other task can run. Without points they
    are drawn from the seed, at a rate that is drawn too. The longest holds are the likeliest, since
    they alone find that a task may be overtaken by all that another one does.
    """

    points: tuple[tuple[int, int], ...] = ()

    def start(self, seed: int) -> Chooser:
        """A chooser of these holds, or of those that are drawn from ``seed``."""
        if self.points:
            lengths = dict(self.points)
            return _Holding(lambda choice, _: lengths.get(choice)).choose
        chance = random.Random(seed)
        rate = chance.choice(_HELD)

        def drawn(_: int, task: object) -> int | None:  # noqa: ARG001 (of a holding)
            if chance.random() >= rate:
                return None
            return AT_REST if chance.random() < 0.5 else 2 ** chance.randrange(_LONGEST + 1)

        return _Holding(drawn).choose


class Places(msgspec.Struct, frozen=True):
    """First in, first out, but tasks are held back where they wait in the code.

    ``points`` are triples: the number of a place, from 0, in the order in which tasks at it first
    had their turn; the number of a task's turn at this place, from 1, or :data:`EACH`; and for how
    many choices the task waits, as for :class:`Holds`.

    A race is between two places in the code, wherever in a long run it happens. So holds by place
    find it more often than holds by time, if the places are few: those of the tested program.
    """

    points: tuple[tuple[int, int, int], ...]

    def start(self, place_of: Callable[[object], object | None]) -> Chooser:
        """A chooser; ``place_of`` gives the place of a task, None where none is held."""
        lengths = {(place, turn): length for place, turn, length in self.points}
        numbers: dict[object, int] = {}
        turns: dict[int, int] = {}

        def at(_: int, task: object) -> int | None:
            place = place_of(task)
            if place is None:
                return None
            number = numbers.setdefault(place, len(numbers))
            turn = turns[number] = turns.get(number, 0) + 1
            return lengths.get((number, turn), lengths.get((number, EACH)))

        return _Holding(at).choose


class _Holding:
    """The state of one run in which tasks are held. ``length_at`` gives the length of a hold."""

    def __init__(self, length_at: Callable[[int, object], int | None]) -> None:
        self._length_at = length_at
        self._choice = -1
        self._until: dict[object, float] = {}  # held tasks, and the choice at which each goes on

    def choose(self, ready: Sequence[object]) -> int:
        self._choice += 1
        first = self._first(ready)
        length = self._length_at(self._choice, ready[first])
        if length is None:
            return first
        self._until[ready[first]] = self._choice + length if length else math.inf
        return self._first(ready)

    def _first(self, ready: Sequence[object]) -> int:
        """The index of the first task that is not held; if all are, the hold of one ends."""
        for task, until in list(self._until.items()):
            # One that is not ready has run, for it alone could, or waits for something else now.
            if until <= self._choice or task not in ready:
                del self._until[task]
        for index, task in enumerate(ready):
            if task not in self._until:
                return index
        del self._until[ready[0]]
        return 0


class Mixed(msgspec.Struct, frozen=True):
    """A policy of the portfolio for each seed: the default of all worlds.

    ``horizon`` is the number of choices of the run, such as that of a first run of the same world;
    None: unknown. Any eight seeds in a row take the whole portfolio.
    """

    horizon: int | None = None

    def start(self, seed: int) -> Chooser:
        """The chooser of the policy that ``seed`` takes."""
        return self.policy(seed).start(seed)

    def policy(self, seed: int) -> Policy:
        """The policy that ``seed`` takes."""
        # The shares are such that with four tasks of twenty steps each, an order of two steps (the
        # last of one task before the first of another) takes five schedules, and a step that must
        # fall between two neighbours of another task takes twenty to sixty.
        first, deep = Pct(1, self.horizon), Pct(3, None)
        portfolio: tuple[Policy, ...] = (
            Uniform(),
            first,
            deep,
            Pct(2, self.horizon),
            Holds(),
            first,
            Speeds(),
            Pct(3, self.horizon),
        )
        return portfolio[seed % len(portfolio)]


def within(choose: Chooser, first: int, end: int) -> Chooser:
    """First in, first out, but from choice ``first`` up to ``end`` as ``choose`` says.

    It is asked at each choice, so that what it says does not depend on the part that is used.
    """
    choice = -1

    def chosen(ready: Sequence[object]) -> int:
        nonlocal choice
        choice += 1
        index = choose(ready)
        return index if first <= choice < end else 0

    return chosen


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
