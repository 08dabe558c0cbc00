"""Defects of the fan-out: results in another order, calls that harm each other, no limit."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

from motet.runtime import fanout
from motet.runtime.fanout import _FanOut
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]

# Any: of which type the results are does not matter to a defect.
_Fan = _FanOut[Any]


def _sort_as_strings() -> list[Patch]:
    """Results are sorted by their ids as strings: 10 before 2."""
    gather = fanout.gather_ordered

    async def gather_sorted(*args: Any, **kwargs: Any) -> list[Any]:
        results: list[Any] = await gather(*args, **kwargs)
        return [results[index] for index in sorted(range(len(results)), key=str)]

    return [(fanout, "gather_ordered", gather_sorted)]


def _order_by_end() -> list[Patch]:
    """Results come in the order in which the calls ended."""
    settle, run = _Fan._settle, _Fan.run

    async def settle_and_note(fan: _Fan, index: int) -> None:
        try:
            await settle(fan, index)
        finally:
            fan.results.append(fan.results[index])

    async def run_and_cut(fan: _Fan, limit: int) -> None:
        size = len(fan.results)
        try:
            await run(fan, limit)
        finally:
            fan.results[:size] = fan.results[size:] + fan.results[: 2 * size - len(fan.results)]
            del fan.results[size:]

    return [(_FanOut, "_settle", settle_and_note), (_FanOut, "run", run_and_cut)]


def _fail_together() -> list[Patch]:
    """The first failure ends all calls."""
    gather = fanout.gather_ordered

    async def gather_all_or_nothing(*args: Any, **kwargs: Any) -> list[Any]:
        return await gather(*args, **{**kwargs, "isolate": False})

    return [(fanout, "gather_ordered", gather_all_or_nothing)]


def _know_no_limit() -> list[Patch]:
    run = _Fan.run

    async def run_all(fan: _Fan, limit: int) -> None:
        await run(fan, len(fan.results))

    return [(_FanOut, "run", run_all)]


MUTANTS = (
    Mutant("G8", "sorts results as strings", _sort_as_strings),
    Mutant("G8", "orders results by their ends", _order_by_end),
    Mutant("G8", "fails as a whole", _fail_together),
    Mutant("G8", "knows no limit", _know_no_limit),
)
