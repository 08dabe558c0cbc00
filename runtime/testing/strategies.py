"""Hypothesis strategies for schedules and faults; they shrink towards first in, first out.

Hypothesis comes with the extra ``test`` and is imported when a strategy is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from motet.runtime.testing.faults import Fault, FaultKind

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["HypothesisMissing", "faults", "schedules"]


class HypothesisMissing(ImportError):
    """The strategies need Hypothesis."""


def _require_hypothesis() -> None:
    try:
        import hypothesis  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise HypothesisMissing(
            "motet.runtime.testing.strategies needs an optional package: pip install 'motet[test]'"
        ) from error


def schedules(length: int = 64) -> SearchStrategy[tuple[int, ...]]:
    """The first ``length`` choices of a run, which continues first in, first out.

    One byte of Hypothesis for each choice, drawn before the run, so that a schedule shrinks with
    the rest of the example: to fewer and smaller delays, that is to zeros.
    """
    _require_hypothesis()
    from hypothesis import strategies as st

    return st.binary(min_size=length, max_size=length).map(_without_last_zeros)


def faults(
    kind: FaultKind, targets: Sequence[str] = ("",), max_step: int = 200
) -> SearchStrategy[Fault]:
    """A fault of ``kind`` at a step up to ``max_step``; shrinks to early steps, first targets."""
    _require_hypothesis()
    from hypothesis import strategies as st

    return st.builds(
        Fault,
        kind=st.just(kind),
        step=st.integers(1, max_step),
        target=st.sampled_from(targets),
    )


def _without_last_zeros(data: bytes) -> tuple[int, ...]:
    return tuple(data.rstrip(b"\0"))
