"""Sources of drawn values: Hypothesis, a seed, or numbers written down before.

Every drawn value results from a row of choices, each with at most 256 options, the first of which
is the simplest. So smaller choices are simpler examples, whatever the source. Each value has a row
of its own, so that it does not change when the values before it shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeAlias, cast

from motet.protocols.schema_values import Pick

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Draw: TypeAlias = "Callable[[SearchStrategy[bytes]], bytes]"
"""``draw`` of ``@st.composite``, or ``data.draw`` of ``st.data()``."""
Source: TypeAlias = "Draw | Random | int | Sequence[int] | Sequence[bytes]"
"""Choices: drawn by Hypothesis, so that they shrink; from a generator or a seed; or given: numbers
for all values, or a row of bytes for each value. A number counts modulo the number of options; a
missing one is 0."""

PLAIN = 0.5
"""The share of simplest choices of a random source."""
ROW = 24
"""Choices of Hypothesis for each value; those after them are 0."""


def choices_of(source: Source) -> Callable[[], Pick]:
    """Returns a function that gives the choices for the next value. Raises ``TypeError``."""
    match source:
        case int() if not isinstance(source, bool):
            chance = Random(source)
            return lambda: _rolled(chance)
        case Random():
            return lambda: _rolled(source)
        case Sequence() if not isinstance(source, str):
            return _written(source)
        case _ if callable(source):
            return lambda: _played(source(row_strategy()))
        case _:
            raise TypeError(
                "choices come from Hypothesis' draw, a random.Random, a seed or a list of "
                f"numbers, not {source!r}"
            )


@cache
def row_strategy() -> SearchStrategy[bytes]:
    """One row of choices, to be drawn before the run."""
    from hypothesis import strategies as st

    return st.binary(min_size=ROW, max_size=ROW).map(lambda row: row.rstrip(b"\0"))


def _rolled(chance: Random) -> Pick:
    """The first choice is random; the others are often the simplest, for readable values."""
    choices = count()
    return lambda ways: 0 if next(choices) and chance.random() < PLAIN else chance.randrange(ways)


def _written(source: Sequence[int] | Sequence[bytes]) -> Callable[[], Pick]:
    if not any(isinstance(one, bytes) for one in source):
        pick = _played(cast("Sequence[int]", source))
        return lambda: pick
    rows = iter(cast("Sequence[bytes]", source))
    return lambda: _played(next(rows, b""))


def _played(numbers: Sequence[int]) -> Pick:
    left = iter(numbers)
    return lambda ways: next(left, 0) % ways
