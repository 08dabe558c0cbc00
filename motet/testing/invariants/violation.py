"""What an invariant says when it does not hold, and the error that a test fails with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from motet.testing.invariants.snapshot import Snapshot

if TYPE_CHECKING:
    from motet.testing.stories.bound import BoundProgram

__all__ = ["Finding", "Invariant", "InvariantBroken", "Violation", "name_of"]

Finding: TypeAlias = str
"""A sentence: what is wrong, with the names of the run, the session and the call."""

Invariant: TypeAlias = Callable[[Snapshot], Iterable[Finding]]
"""Gives a sentence for everything that is wrong; nothing when all is well."""


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold. ``guarantee``: ``G1`` to ``G16``, empty for others."""

    invariant: str
    sentence: Finding
    guarantee: str = ""

    def __str__(self) -> str:
        number = f" ({self.guarantee})" if self.guarantee else ""
        return f"{self.invariant}{number}: {self.sentence}"


class InvariantBroken(AssertionError):
    """At least one invariant does not hold.

    Attributes:
        violations: all that was found at that moment.
        program: what was executed, if it was one of :func:`motet.testing.programs`.
    """

    def __init__(
        self,
        violations: Sequence[Violation],
        lanes: str | Callable[[], str] = "",
        program: BoundProgram | None = None,
        test: str | Callable[[], str] = "",
    ) -> None:
        super().__init__(*violations)
        self.violations = tuple(violations)
        self.program = program
        self._lanes = lanes
        self._test = test

    # Most errors are never read: while an example shrinks, each try that fails raises one.

    @cached_property
    def lanes(self) -> str:
        """The last events, one lane for each actor."""
        return self._lanes if isinstance(self._lanes, str) else self._lanes()

    @cached_property
    def test(self) -> str:
        """The program as a test that can be pasted into a file; empty without a program."""
        return self._test if isinstance(self._test, str) else self._test()

    def __str__(self) -> str:
        parts = ["\n".join(map(str, self.violations))]
        if self.test:
            parts.append(f"As a test:\n\n{self.test}")
        if self.lanes:
            parts.append(f"The last events:\n\n{self.lanes}")
        return "\n\n".join(parts)


def name_of(invariant: Invariant) -> str:
    """How an invariant is called in a violation."""
    name = str(getattr(invariant, "__name__", "") or invariant)
    return name.removeprefix("mt.invariants.")
