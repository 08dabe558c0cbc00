"""The rows of the benchmark, the implementations in them, and their goals.

The goals are the project's own. The goal of a bounded row is a bound on motet's value; the goal of
any other is a ratio: how many times as fast as the row's reference motet has to be. Of ``1/s`` more
is better, of all other units less.
"""

from __future__ import annotations

import msgspec

__all__ = ["MOTET", "RATE", "Case", "Row"]

MOTET = "motet"
RATE = "1/s"


class Case(msgspec.Struct, frozen=True):
    """One implementation of a row's work: a function of a module, called with a count.

    It returns its value in the row's unit, or several values of which ``figure`` is the row's:
    cases that differ in nothing else are measured together. ``package`` is what it needs besides
    this project's own dependencies; where that is not installed, the case is skipped.
    """

    impl: str
    module: str
    function: str
    count: int
    package: str | None = None
    goal: float | None = None  # for motet against this implementation, if it has one of its own
    figure: int = 0


class Row(msgspec.Struct, frozen=True):
    """One kind of work. ``reference`` is the implementation that ratios are taken against."""

    name: str
    unit: str
    cases: tuple[Case, ...]
    reference: str | None = None
    goal: float | None = None
    bounded: bool = False  # the goal is a bound on motet's value, not a ratio
    rounds: int | None = None  # at most so many: a round of it takes long

    @property
    def more_is_better(self) -> bool:
        return self.unit == RATE
