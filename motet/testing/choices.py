"""Where what is drawn comes from: Hypothesis, a seed, or a list of numbers written down before.

Everything that motet.testing draws is a row of choices, each one of at most 256 ways of which the
first is the simplest. So whatever makes the choices, smaller ones are simpler examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from motet.actors.models.schema_patterns import Pick

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Draw: TypeAlias = "Callable[[SearchStrategy[int]], int]"
"""``draw`` of ``@st.composite``, or ``data.draw`` of ``st.data()``."""
Source: TypeAlias = "Draw | Random | Sequence[int] | int"
"""Choices: drawn by Hypothesis, so that they shrink; from a seed, by a generator of one's own or a
number; or the numbers themselves, each modulo the ways there are, and 0 after the last."""

WAYS = 256
"""The most ways that one choice has: one byte."""


def choices_of(source: Source) -> Pick:
    """Chooses one of so many ways, at most 256, by ``source``. Raises ``TypeError``."""
    match source:
        case bool():
            pass
        case int():
            return Random(source).randrange
        case Random():
            return source.randrange
        case Sequence():
            numbers = iter(source)
            return lambda ways: next(numbers, 0) % ways
        case _ if callable(source):
            return lambda ways: source(_below(ways)) if ways > 1 else 0
        case _:
            pass
    raise TypeError(
        f"choices come from Hypothesis' draw, a random.Random, a seed or a list of numbers, "
        f"not {source!r}"
    )


@cache
def _below(ways: int) -> SearchStrategy[int]:
    from hypothesis import strategies as st

    return st.integers(0, ways - 1)
