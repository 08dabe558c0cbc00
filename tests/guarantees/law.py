"""A law, and the search for a schedule that breaks it.

Every law is tried on numbered schedules. The number decides all: the world, the policy, which of
the ready tasks runs next, the fault and its step. So a finding is repeated by its number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

import attrs

from motet.runtime.testing import DelayBounded, Fault, Outcome, Pct, Policy, Uniform, World, run
from motet.runtime.testing.scheduler import Patch, many_runs, patched

__all__ = ["ANY", "Finding", "Law", "Mutant", "Search", "first_finding", "planted"]

# The worlds make some eighty choices: horizons beyond that would waste delays and change points.
POLICIES: tuple[Policy, ...] = (Uniform(), DelayBounded(3, 80), Pct(3, 80))
# Those of hosts make some three hundred.
HOST_POLICIES: tuple[Policy, ...] = (Uniform(), DelayBounded(8, 400), Pct(4, 400))
MAX_STEPS = 5_000
SEARCH = 200  # schedules within which a planted defect has to be found

ANY = "all"
"""As the guarantee of a law: it is broken by a violation of any."""

# From the chance of one schedule, what is to go wrong in it.
Faults = Callable[[random.Random], Sequence[Fault]]


@attrs.frozen
class Law:
    """One guarantee: ``broken`` says how a schedule breaks it, or None."""

    guarantee: str
    broken: Callable[[int], str | None]


@attrs.frozen
class Mutant:
    """A kernel with one defect. ``patches`` are made anew for each search, with their state."""

    guarantee: str
    name: str
    patches: Callable[[], Iterable[Patch]]


@attrs.frozen
class Finding:
    """The first schedule that breaks a law, and how."""

    schedule: int
    how: str


def no_faults(_: random.Random) -> Sequence[Fault]:
    """Nothing goes wrong but what the world itself does."""
    return ()


@attrs.frozen
class Search:
    """The schedules of a world. Broken: ``guarantee`` does not hold, or the world fails."""

    guarantee: str
    world: World[object]
    faults: Faults = no_faults
    policies: Sequence[Policy] = POLICIES

    def __call__(self, number: int) -> str | None:
        return self.judged(self.run(number, traced=False))

    def run(self, number: int, *, traced: bool = True) -> Outcome[object]:
        """Run schedule ``number``."""
        return run(
            self.world,
            seed=number,
            policy=self.policies[number % len(self.policies)],
            faults=self.faults(random.Random(number)),
            max_steps=MAX_STEPS,
            traced=traced,
        )

    def judged(self, outcome: Outcome[object]) -> str | None:
        """How a run broke the guarantee, or None."""
        mine = [
            str(found) for found in outcome.violations if self.guarantee in (found.guarantee, ANY)
        ]
        if outcome.error is not None:
            mine.append(f"the world ended with {outcome.error!r}")
        return "; ".join(mine) or None


def first_finding(law: Law, schedules: Iterable[int]) -> Finding | None:
    """The first of ``schedules`` that breaks ``law``."""
    with many_runs():
        for number in schedules:
            how = law.broken(number)
            if how is not None:
                return Finding(number, how)
    return None


@contextmanager
def planted(mutant: Mutant) -> Generator[None]:
    """The kernel has the defect of ``mutant`` for the time of the block."""
    with patched(mutant.patches()):
        yield
