"""Draws the schedule of a program, and the faults that are on in it.

Invariant: the first option of each choice is the simplest, so that Hypothesis shrinks a schedule to
first in, first out, or to one task that is held until nobody else can run.
"""

from __future__ import annotations

import msgspec

from motet.runtime.testing.policies import AT_REST, EACH
from motet.testing.stories.choosing import Draw, below, between, happens, weighted
from motet.testing.stories.schedule import Schedule, ScheduleKind
from motet.testing.stories.target import Faults

__all__ = ["drawn_schedule", "swarmed"]

MOST_SCHEDULES = 1000
DOUBLINGS = (4, 10)
"""Holds are among the first 2 ** 4 to 2 ** 10 choices: nobody knows yet how many there are."""
MOST_CHOICES = 1 << DOUBLINGS[1]
KINDS: tuple[tuple[ScheduleKind, float], ...] = (
    ("places", 0.55),
    ("holds", 0.15),
    ("pct", 0.13),
    ("speeds", 0.07),
    ("uniform", 0.1),
)
"""Of schedules. The first two are lists, which shrink to one task that is held."""
MOST_HOLDS = 3
PLACES = 2
"""The usual places of a tool at which its calls wait."""
MOST_TURNS = 4
MOST_DOUBLINGS = 7


def drawn_schedule(draw: Draw, chance: float, tools: int) -> Schedule | None:
    """First in, first out, a few tasks that are held back, or a policy for all or a part of it.

    ``chance`` is that of any other order than the first; ``tools`` is the number of tools of the
    tested agents. It is drawn before the steps, since Hypothesis often makes the end of an example
    as simple as it can be.
    """
    if not happens(draw, chance):
        return None
    kind = weighted(draw, KINDS)
    count = max(1, between(draw, -MOST_HOLDS, MOST_HOLDS)) if kind in ("places", "holds") else 0
    if kind == "places":
        places: dict[tuple[int, int], int] = {}
        for _ in range(count):
            # The smaller of two: places have numbers as they are reached, so the first are there.
            most = PLACES * max(tools, 1)
            place = min(below(draw, most), below(draw, most))
            turn = max(EACH, between(draw, -3 * MOST_TURNS, MOST_TURNS))
            places[place, turn] = _length(draw)
        return Schedule(kind, places=tuple((*at, places[at]) for at in sorted(places)))
    if kind == "holds":
        holds = {_choice(draw): _length(draw) for _ in range(count)}
        return Schedule(kind, holds=tuple(sorted(holds.items())))
    seed = between(draw, 0, MOST_SCHEDULES)
    depth = between(draw, 1, 3) if kind == "pct" else 1
    # Most often the whole run; a finding shrinks to a part of it, first from its end.
    end = between(draw, 0, 4 * MOST_CHOICES)
    if end >= MOST_CHOICES:
        return Schedule(kind, seed=seed, depth=depth)
    length = between(draw, 0, 4 * MOST_CHOICES)
    first = max(0, end - length) if length < MOST_CHOICES else 0
    return Schedule(kind, seed=seed, depth=depth, first=first, end=end)


def _choice(draw: Draw) -> int:
    """The number of a choice."""
    return between(draw, 0, (1 << between(draw, *DOUBLINGS)) - 1)


def _length(draw: Draw) -> int:
    """For how many choices a task is held; the simplest is until nobody else can run."""
    double = max(0, between(draw, -2 * MOST_DOUBLINGS, MOST_DOUBLINGS + 1))
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
