"""Draws with weights, the simplest way first, by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

__all__ = ["Draw", "below", "between", "happens", "one_of", "weighted"]

T = TypeVar("T")

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
"""``draw`` of ``@st.composite``. Any: each strategy has its own values."""

GRAIN = 100
"""Few, since each way that is taken is shrunk to the first that means the same."""


@cache
def _integers(least: int, most: int) -> st.SearchStrategy[int]:
    """Made once: to make a strategy takes longer than to draw from it."""
    return st.integers(least, most)


def between(draw: Draw, least: int, most: int) -> int:
    """A number from ``least``, the simplest, to ``most``."""
    drawn: int = draw(_integers(least, most))
    return drawn


def below(draw: Draw, ways: int) -> int:
    """One of so many ways; a single one takes no choice."""
    return between(draw, 0, ways - 1) if ways > 1 else 0


def one_of(draw: Draw, values: Sequence[T]) -> T:
    """One of these."""
    return values[below(draw, len(values))]


def happens(draw: Draw, chance: float) -> bool:
    """Whether something happens; the simpler is that it does not."""
    return chance > 0 and below(draw, GRAIN) >= round(GRAIN * (1 - chance))


def weighted(draw: Draw, ways: Sequence[tuple[T, float]]) -> T:
    """One of these by weight; the first is the simplest."""
    left = below(draw, GRAIN) / GRAIN * sum(weight for _, weight in ways)
    for value, weight in ways:
        left -= weight
        if left < 0:
            return value
    return ways[0][0]
