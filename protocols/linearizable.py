"""Linearizability: do concurrent operations look as if each happened at once, in some order?

The search of Wing and Gong (1993) with the memory of Lowe and of porcupine: of the same set of
operations in the same state of the model, one order is tried. Pure, for any model.

Invariant: an operation without an answer may have happened at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

__all__ = ["Operation", "linearization", "shown"]

M = TypeVar("M")
S = TypeVar("S")


class Operation(msgspec.Struct, Generic[M], frozen=True):
    """One operation of a client.

    Attributes:
        client: whose it is.
        message: what was asked.
        called, returned: the times of its call and its answer; ``returned`` None: no answer came.
        answer: the answer.
        told: it has no answer of its own; ``returned`` is when it must have happened.
    """

    client: str
    message: M
    called: int
    returned: int | None = None
    answer: object = None
    told: bool = False


def linearization(
    history: Sequence[Operation[M]], initial: S, step: Callable[[S, M], tuple[S, object]]
) -> tuple[int, ...] | None:
    """An order of operations, by number, that explains all answers; None: there is none.

    ``step`` gives the next state and the answer of the sequential model; it must not change the
    state that it gets.
    """
    required = sum(1 << n for n, one in enumerate(history) if one.returned is not None)
    tried: set[tuple[int, object]] = set()
    stack: list[tuple[int, S, tuple[int, ...]]] = [(0, initial, ())]
    while stack:
        done, state, order = stack.pop()
        if done & required == required:
            return order
        key = done, _key(state)
        if key in tried:
            continue
        tried.add(key)
        for number in reversed(_next(history, done)):
            one = history[number]
            after, answer = step(state, one.message)
            if one.returned is None or one.told or answer == one.answer:
                stack.append((done | 1 << number, after, (*order, number)))
    return None


def _next(history: Sequence[Operation[M]], done: int) -> list[int]:
    """The operations that may be next: those that were called before another had to be over."""
    left = [number for number in range(len(history)) if not done >> number & 1]
    over = min((_end(history[number]) for number in left), default=0)
    return [number for number in left if history[number].called <= over]


def _end(one: Operation[M]) -> float:
    return float("inf") if one.returned is None else one.returned


def _key(state: object) -> object:
    try:
        hash(state)
    except TypeError:
        return repr(state)
    return state


def shown(history: Sequence[Operation[M]]) -> list[str]:
    """A line for each operation, by its call."""
    lines: list[str] = []
    for one in sorted(history, key=lambda op: op.called):
        end = "no answer" if one.returned is None else f"{one.returned}"
        answer = "" if one.told or one.returned is None else f" -> {one.answer!r}"
        lines.append(f"{one.called:>4} to {end:>9}  {one.client}: {one.message!r}{answer}")
    return lines
