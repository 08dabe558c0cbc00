"""The choices that make a program: numbers, odds, parts, and lists of parts.

A program is drawn choice by choice, and each helper here makes its simplest option the first, so
that a program shrinks towards the simplest one.

Hypothesis follows each new example with five copies of it in which one part takes the place of
another one with the same label (a mutation). A label names a strategy, so nearly all choices of a
program have the same one: the copies differed from their original in a seed or in a text, and five
of six programs searched where one had searched before. So each part gets a label of its own here.
Without two of a kind nothing is copied, and every program is a new one. Equal calls and repeated
steps, which the copies found, are drawn on purpose instead.

While it shrinks a program, two of three tries are programs that it has tried before, since many
choices mean the same. :class:`Known` rejects those before a host opens for them.

Invariants: the same choices give the same labels and the same program. A part can be deleted as a
whole, since the next one can be read in its place. No program that has failed is rejected.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from typing import Any, TypeAlias, TypeVar, cast

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.control import cleanup, current_build_context
from hypothesis.errors import StopTest, UnsatisfiedAssumption

__all__ = [
    "FIRST_ELEMENT",
    "FIRST_OPTION",
    "GRAIN",
    "Draw",
    "Known",
    "below",
    "between",
    "happens",
    "one_of",
    "option",
    "several",
    "unlike",
    "value_of",
    "weighted",
    "whole",
]

T = TypeVar("T")

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
"""``draw`` of ``@st.composite``. Any: each strategy has its own values."""

GRAIN = 100
"""The resolution of probabilities: low, so that a choice shrinks in few tries."""

_FIRST_LABEL = 1 << 40
FIRST_ELEMENT = 1 << 41
"""Labels from here on are those of elements of lists, which can be left out one by one."""
FIRST_OPTION = 1 << 42
"""Labels from here on are those of options: without one, its choices are a single 0."""


class _Unlike:
    """``draw`` of one program, whose parts have labels by their number in it.

    Attributes:
        integer: draws a number without a part of its own, in half of the time; None: this version
            of Hypothesis has no such function.
    """

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self._numbers = count(_FIRST_LABEL)
        data: Any = getattr(draw, "__self__", None)  # the program's choices, which have no type
        self.integer: Callable[..., int] | None = getattr(data, "draw_integer", None)

    def __call__(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self._draw(strategy, label=next(self._numbers))

    def element(self, strategy: st.SearchStrategy[Any]) -> Any:
        """An element of a list."""
        return self._draw(strategy, label=FIRST_ELEMENT + next(self._numbers))

    def option(self, strategy: st.SearchStrategy[Any]) -> Any:
        """What there may be, or not."""
        return self._draw(strategy, label=FIRST_OPTION + next(self._numbers))


def unlike(draw: Draw) -> Draw:
    """``draw`` that gives each part a label of its own, by its number in the program.

    A version of Hypothesis whose ``draw`` takes no label draws as it always does.
    """
    return _Unlike(draw) if "label" in inspect.signature(draw).parameters else draw


@cache
def _integers(least: int, most: int) -> st.SearchStrategy[int]:
    """Cached, since making a strategy takes longer than drawing from it."""
    return st.integers(least, most)


def between(draw: Draw, least: int, most: int) -> int:
    """A number from ``least``, the simplest, to ``most``, or 0 if that lies between them."""
    if isinstance(draw, _Unlike) and draw.integer is not None:
        return draw.integer(least, most)
    return whole(draw, least, most)


def whole(draw: Draw, least: int, most: int) -> int:
    """As :func:`between`, but the bounds are likelier than other numbers."""
    drawn: int = draw(_integers(least, most))
    return drawn


def below(draw: Draw, ways: int) -> int:
    """A number below ``ways``; a single option takes no choice."""
    return between(draw, 0, ways - 1) if ways > 1 else 0


def one_of(draw: Draw, values: Sequence[T]) -> T:
    """One of these."""
    return values[below(draw, len(values))]


def happens(draw: Draw, chance: float) -> bool:
    """True with probability ``chance``; False is the simpler outcome."""
    return chance > 0 and below(draw, GRAIN) >= round(GRAIN * (1 - chance))


def weighted(draw: Draw, ways: Sequence[tuple[T, float]]) -> T:
    """One of these by weight; the first is the simplest."""
    left = below(draw, GRAIN) / GRAIN * sum(weight for _, weight in ways)
    for value, weight in ways:
        left -= weight
        if left < 0:
            return value
    return ways[0][0]


def value_of(draw: Draw, given: object) -> object:
    """A value that a project gives: one of its strategy, or the value itself."""
    return draw(given) if isinstance(given, st.SearchStrategy) else given  # pyright: ignore[reportUnknownArgumentType]


def option(draw: Draw, make: Callable[[], T]) -> T:
    """What ``make`` draws, whose first choice is whether there is anything at all; 0: nothing."""
    one = _Part(make)
    drawn: T = draw.option(one) if isinstance(draw, _Unlike) else draw(one)
    return drawn


class _Part(st.SearchStrategy[T]):
    """The choices of a function, as one part, which can be deleted as a whole."""

    def __init__(self, make: Callable[[], T]) -> None:
        super().__init__()
        self._make = make

    def do_draw(self, data: Any) -> T:  # noqa: ARG002 (`make` has it by its `draw`)
        return self._make()


def several(
    draw: Draw, make: Callable[[], T], *, least: int = 0, most: int, about: int
) -> Iterator[T]:
    """Parts by ``make``, from ``least`` up to ``most``, and on average somewhat under ``about``.

    Each begins with the choice that there is one, and after the last one comes the choice that
    there is no other, so that what follows any of them can be read in its place.
    """
    for number in range(most):
        element = _Part(partial(_or_end, draw, make, about, forced=number < least))
        found = draw.element(element) if isinstance(draw, _Unlike) else draw(element)
        if found is None:
            return
        yield found[0]
    if isinstance(draw, _Unlike) and draw.integer is not None:
        draw.integer(0, about, forced=0)


def _or_end(draw: Draw, make: Callable[[], T], about: int, *, forced: bool) -> tuple[T] | None:
    """The next of several, or their end, the simpler option, once in ``about`` times."""
    if below(draw, about + 1) == 0 and not forced:
        return None
    return (make(),)


class Known:
    """The programs of one strategy that have passed since one has failed, by what they are as data.

    Choices with which a program has run always let it run, and a program that has failed always
    runs, since Hypothesis takes another end of the same choices for a flaky test. The last
    execution of a finding, which Hypothesis reports, ends all of it.
    """

    def __init__(self) -> None:
        self._ran: set[int] = set()
        self._failed: set[bytes] = set()
        self._passed: set[bytes] = set()

    def meet(self, program: bytes) -> None:
        """Reject a program that is known to pass; remember how it ends otherwise."""
        context = current_build_context()
        choices: object = getattr(context.data, "choices", None)
        if context.is_final or not isinstance(choices, tuple) or len(self._ran) > _MANY:
            self._ran.clear()
            self._failed.clear()
            self._passed.clear()
            return
        path = hash(cast("tuple[object, ...]", choices))
        if path not in self._ran and program in self._passed and program not in self._failed:
            reject()
        cleanup(partial(self._over, program, path))

    def _over(self, program: bytes, path: int) -> None:
        error = sys.exc_info()[1]  # of the test, which Hypothesis cleans up after
        if isinstance(error, StopTest | UnsatisfiedAssumption):
            return
        if error is not None:
            self._failed.add(program)
            return
        self._ran.add(path)
        if self._failed:
            self._passed.add(program)


_MANY = 100_000
"""Programs that are remembered at most."""
