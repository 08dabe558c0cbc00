"""Draws with weights, the simplest way first, by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

__all__ = ["Draw", "below", "happens", "one_of", "weighted"]

T = TypeVar("T")

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
"""``draw`` of ``@st.composite``. Any: each strategy has its own values."""

GRAIN = 1000


def below(draw: Draw, ways: int) -> int:
    """One of so many ways; a single one takes no choice."""
    return draw(st.integers(0, ways - 1)) if ways > 1 else 0


def one_of(draw: Draw, values: Sequence[T]) -> T:
    """One of these."""
    return values[below(draw, len(values))]


def happens(draw: Draw, chance: float) -> bool:
    """Whether something happens; the simpler is that it does not."""
    if chance <= 0:
        return False
    rest = round(GRAIN * (1 - chance))
    drawn: int = draw(st.integers(0, GRAIN - 1))
    return drawn >= rest


def weighted(draw: Draw, ways: Sequence[tuple[T, float]]) -> T:
    """One of these by weight; the first is the simplest."""
    drawn: int = draw(st.integers(0, GRAIN - 1))
    left = drawn / GRAIN * sum(weight for _, weight in ways)
    for value, weight in ways:
        left -= weight
        if left < 0:
            return value
    return ways[0][0]
