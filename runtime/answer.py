"""What a resumed task is given: a value, for less than ``outcome.Value`` costs.

Every wait that ends makes one, so making and unwrapping it counts. Invariant: unlike Trio's own it
may be given to any number of waits; none of them can change it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Final, TypeVar

import outcome

__all__ = ["WOKEN", "Answer"]

Y = TypeVar("Y")


class Answer(outcome.Outcome[object]):
    """A value, for ``trio.lowlevel.reschedule``."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: Final = value

    def unwrap(self) -> object:
        return self.value

    def send(self, gen: Generator[Y, object, object]) -> Y:
        return gen.send(self.value)

    async def asend(self, agen: AsyncGenerator[Y, object]) -> Y:
        return await agen.asend(self.value)

    def __repr__(self) -> str:
        return f"Answer({self.value!r})"


WOKEN: Final = Answer(None)  # for a wait that nobody asks for its result
