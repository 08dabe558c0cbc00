"""An invariant as a function of a snapshot, and the violation that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from motet.testing.invariants.snapshot import Snapshot

__all__ = ["Finding", "Invariant", "Violation", "name_of"]

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


def name_of(invariant: Invariant) -> str:
    """How an invariant is called in a violation."""
    name = str(getattr(invariant, "__name__", "") or invariant)
    return name.removeprefix("mt.invariants.")
