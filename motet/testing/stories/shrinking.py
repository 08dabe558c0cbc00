"""The shrinking of a finding: steps and answers are left out first, and details take no ages.

Hypothesis deletes a few choices at a time, makes each number smaller, and does not know that a step
is one thing. In a program of many answers it tried a thousand programs before it came to leaving
out what has nothing to do with the finding. This pass comes before its own; it is delta debugging
(Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002) by the elements
of the lists of a program, each of which has its choices together. It ends when many tries in a row
have made the finding hardly smaller: a number that falls one by one would take as many programs.

Invariant: a Hypothesis that has other names inside shrinks as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from hypothesis.internal.conjecture import shrinker as conjecture

from motet.testing.stories.choosing import FIRST_ELEMENT, FIRST_OPTION

__all__ = ["leave_out_elements"]

Place: TypeAlias = tuple[int, int]
"""The choices of an element: the first, and the one after the last."""

STALL = 200
"""Tries in a row that make a finding hardly smaller, after which it is taken as it is. Two of three
are programs that are known to pass, and are not run."""
HARDLY = 0.95

_NEEDED = ("initial_coarse_reduction", "consider_new_nodes", "check_calls", "calls")
_installed: list[bool] = []


def leave_out_elements() -> None:
    """Have Hypothesis try this pass first, for all that it shrinks in this process."""
    # Any: Hypothesis promises no types for its inside.
    shrinker: Any = getattr(conjecture, "Shrinker", None)
    if _installed or shrinker is None or not all(hasattr(shrinker, name) for name in _NEEDED):
        return
    _installed.append(True)
    original: Callable[[Any], None] = shrinker.initial_coarse_reduction

    def first(self: Any) -> None:
        if _places(self, inner=False):  # it is a program
            _limit(self)
            for inner in (False, True):
                _leave_out(self, inner=inner)
            _without_options(self)
        original(self)

    shrinker.initial_coarse_reduction = first


def _limit(shrinker: Any) -> None:
    """Have it stop when the finding gets hardly smaller."""
    original: Callable[[], None] = shrinker.check_calls
    size, at = len(shrinker.nodes), shrinker.calls

    def check() -> None:
        nonlocal size, at
        if len(shrinker.nodes) <= HARDLY * size:
            size, at = len(shrinker.nodes), shrinker.calls
        if shrinker.calls - at > STALL:
            raise conjecture.StopShrinking
        original()

    shrinker.check_calls = check


def _leave_out(shrinker: Any, *, inner: bool) -> None:
    """Try without each half of the elements, then without each quarter, and so on."""
    places = _places(shrinker, inner=inner)
    length, at = (len(places) + 1) // 2, 0
    while places:
        if at >= len(places):
            if length == 1:
                return
            length, at = (length + 1) // 2, 0
        gone = places[at : at + length]
        if shrinker.consider_new_nodes(_without(shrinker.nodes, gone)):
            places = _places(shrinker, inner=inner)
        else:
            at += length


def _without_options(shrinker: Any) -> None:
    """Try without each option, such as the schedule, and with the first seed."""
    nodes = shrinker.nodes
    shrinker.consider_new_nodes([*_zero(nodes[:1]), *nodes[1:]])
    number = 0
    while True:
        nodes = shrinker.nodes
        options = [one for one in shrinker.spans if one.label >= FIRST_OPTION]
        if number >= len(options):
            return
        start, end = options[number].start, options[number].end
        if start < end:
            zero = _zero(nodes[start : start + 1])
            shrinker.consider_new_nodes([*nodes[:start], *zero, *nodes[end:]])
        number += 1


def _zero(nodes: Sequence[Any]) -> list[Any]:
    """The choices as their first values; one that is no number, such as bytes, as it is."""
    return [one.copy(with_value=0) if type(one.value) is int else one for one in nodes]


def _places(shrinker: Any, *, inner: bool) -> list[Place]:
    """The elements of the lists of a program; ``inner``: of the lists within these."""
    found: list[Place] = []
    end = 0
    for span in shrinker.spans:  # in the order of their beginnings
        if not FIRST_ELEMENT <= span.label < FIRST_OPTION or span.start == span.end:
            continue
        is_inner = span.start < end
        end = max(end, span.end)
        # The end of a list is an element of a single choice, too.
        if is_inner == inner and span.end - span.start > 1:
            found.append((span.start, span.end))
    return found


def _without(nodes: Sequence[Any], gone: Sequence[Place]) -> list[Any]:
    left: list[Any] = []
    at = 0
    for start, end in gone:
        left += nodes[at:start]
        at = end
    return [*left, *nodes[at:]]
