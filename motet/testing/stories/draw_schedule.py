"""Draws the schedule of a program, and the faults that are on in it.

Invariant: the first option of each choice is the simplest, so that Hypothesis shrinks a schedule to
first in, first out, or to one task that is held until nobody else can run.
"""

from __future__ import annotations

import msgspec

from motet.runtime.testing.policies import AT_REST, EACH
from motet.testing.stories.answering import Draw, below, between, happens, weighted
from motet.testing.stories.schedule import Schedule, ScheduleKind
from motet.testing.stories.target import Faults

__all__ = ["drawn_schedule", "swarmed"]

MOST_SCHEDULES = 1000
CHOICES = 40
"""The usual choices of the scheduler for each step of a program, with the answers to it."""
KINDS: tuple[tuple[ScheduleKind, float], ...] = (
    ("places", 0.45),
    ("holds", 0.2),
    ("pct", 0.15),
    ("speeds", 0.1),
    ("uniform", 0.1),
)
"""Of schedules. The first two are lists, which shrink to one task that is held."""
MOST_HOLDS = 4
PLACES = 2
"""The usual places of a tool at which its calls wait."""
MOST_TURNS = 6
MOST_DOUBLINGS = 7


def drawn_schedule(draw: Draw, chance: float, steps: int, tools: int) -> Schedule | None:
    """First in, first out, a few tasks that are held back, or a policy for all or a part of it.

    ``chance`` is that of any other order than the first; ``steps`` and ``tools`` are numbers of
    the program's, by which the points of its schedule are spread over all of it.
    """
    if not happens(draw, chance):
        return None
    kind = weighted(draw, KINDS)
    count = between(draw, 1, MOST_HOLDS) if kind in ("places", "holds") else 0
    if kind == "places":
        places: dict[tuple[int, int], int] = {}
        for _ in range(count):
            place = below(draw, PLACES * max(tools, 1))
            turn = max(EACH, between(draw, -MOST_TURNS, MOST_TURNS))
            places[place, turn] = _length(draw)
        return Schedule(kind, places=tuple((*at, places[at]) for at in sorted(places)))
    if kind == "holds":
        holds = {between(draw, 0, CHOICES * steps): _length(draw) for _ in range(count)}
        return Schedule(kind, holds=tuple(sorted(holds.items())))
    seed = between(draw, 0, MOST_SCHEDULES)
    depth = between(draw, 1, 3) if kind == "pct" else 1
    # Most often the whole run; a finding shrinks to a part of it, first from its end.
    points = CHOICES * (1 + steps)
    end = between(draw, 0, 4 * points)
    if end >= points:
        return Schedule(kind, seed=seed, depth=depth)
    length = between(draw, 0, 4 * points)
    first = max(0, end - length) if length < points else 0
    return Schedule(kind, seed=seed, depth=depth, first=first, end=end)


def _length(draw: Draw) -> int:
    """For how many choices a task is held; the simplest is until nobody else can run."""
    double = max(0, between(draw, -MOST_DOUBLINGS, MOST_DOUBLINGS + 1))
    return 2 ** (double - 1) if double else AT_REST


SWARMED = (
    "stall",
    "rate_limit",
    "server",
    "cut",
    "malformed",
    "late",
    "failing",
    "inside",
    "crash",
)
MEANT = 0.5
"""A fault with this chance is meant by its test, and always on."""


def swarmed(draw: Draw, faults: Faults) -> Faults:
    """A random half of the faults, each more frequent (Groce et al., "Swarm testing", 2012).

    A program with all faults at once rarely gets far, and one fault often hides another.
    """
    chances = {name: getattr(faults, name) for name in SWARMED}
    drawn = [name for name, chance in chances.items() if 0 < chance < MEANT]
    if not drawn:
        return faults
    on = between(draw, 0, 2 ** len(drawn) - 1)
    swarm = {
        name: min(1.0, 1.5 * chances[name]) if on >> number & 1 else 0.0
        for number, name in enumerate(drawn)
    }
    return msgspec.structs.replace(faults, **swarm)
