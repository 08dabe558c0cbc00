"""The rows of the benchmark, the implementations in them, and their goals.

The goal of a bounded row is a bound on motet's value; the goal of any other row is a ratio: how
many times as fast as the row's reference motet must be. For ``1/s`` more is better, for all other
units less.
"""

from __future__ import annotations

import msgspec

__all__ = ["MOTET", "RATE", "Case", "Row"]

MOTET = "motet"
RATE = "1/s"


class Case(msgspec.Struct, frozen=True):
    """One implementation of a row's work: a function of a module, called with a count.

    It returns its value in the row's unit, or several values of which ``figure`` is the row's
    index: cases that differ in nothing else are measured together. ``package`` is its dependency
    beyond the project's own; without it the case is skipped.
    """

    impl: str
    module: str
    function: str
    count: int
    package: str | None = None
    goal: float | None = None  # for motet against this implementation, if it has one of its own
    figure: int = 0


class Row(msgspec.Struct, frozen=True):
    """One kind of work. ``reference`` is the implementation to compare with."""

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
