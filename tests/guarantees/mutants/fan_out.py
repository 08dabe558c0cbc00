"""Defects of the fan-out: results in another order, calls that harm each other, no limit."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import trio
from trio.lowlevel import Abort, RaiseCancelT

from motet.runtime import asks, gather
from motet.runtime.asks import Asks, _OneOfMany
from motet.runtime.gather import Cut, Settled, _FanOut
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]

# Any: of which type the results are does not matter to a defect.
_Fan = _FanOut[Any]
_Many = Asks[Any]


def _sort_as_strings() -> list[Patch]:
    """Results are sorted by their ids as strings: 10 before 2."""
    original = gather.gather_ordered

    async def gather_sorted(*args: Any, **kwargs: Any) -> list[Any]:
        results: list[Any] = await original(*args, **kwargs)
        return [results[index] for index in sorted(range(len(results)), key=str)]

    return [(gather, "gather_ordered", gather_sorted)]


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
    original = gather.gather_ordered

    async def gather_all_or_nothing(*args: Any, **kwargs: Any) -> list[Any]:
        return await original(*args, **{**kwargs, "isolate": False})

    return [(gather, "gather_ordered", gather_all_or_nothing)]


def _know_no_limit() -> list[Patch]:
    run = _Fan.run

    async def run_all(fan: _Fan, limit: int) -> None:
        await run(fan, len(fan.results))

    return [(_FanOut, "run", run_all)]


# ---------------------------------------------------------------------- asks of one task


def _ask_all_at_once() -> list[Patch]:
    ask_each = asks.ask_each

    async def ask_all(*args: Any, **kwargs: Any) -> list[Any]:
        return await ask_each(*args, **{**kwargs, "limit": 1000})

    return [(asks, "ask_each", ask_all)]


def _leave_the_running() -> list[Patch]:
    """Who is cancelled goes on at once, and the handlers that run with what they do."""

    async def leave(many: _Many, *_: object) -> None:
        many._under_way.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def let_go(many: _Many, _: RaiseCancelT) -> Abort:
        many._parked = False
        return Abort.SUCCEEDED

    def end(many: _Many, ask: _OneOfMany, became: Settled[Any] | None) -> None:
        if ask in many._under_way:
            original_end(many, ask, became)

    original_end = _Many.end
    return [(Asks, "__aexit__", leave), (Asks, "_abort", let_go), (Asks, "end", end)]


def _tell_finished_as_cut() -> list[Patch]:
    """A handler that finishes after its deadline is reported as cut."""
    end = _Many.end

    def end_cut(many: _Many, ask: _OneOfMany, became: Settled[Any] | None) -> None:
        end(many, ask, became if ask.cancelled_at is None else Cut(started=True))

    return [(Asks, "end", end_cut)]


def _ask_by_their_ends() -> list[Patch]:
    """Entries are in the order in which the asks ended."""
    ask_each = asks.ask_each

    async def ask_and_mix(*args: Any, **kwargs: Any) -> list[Any]:
        results: list[Any] = await ask_each(*args, **kwargs)
        return results[1:] + results[:1]

    return [(asks, "ask_each", ask_and_mix)]


MUTANTS = (
    Mutant("G8", "sorts results as strings", _sort_as_strings),
    Mutant("G8", "orders results by their ends", _order_by_end),
    Mutant("G8", "fails as a whole", _fail_together),
    Mutant("G8", "knows no limit", _know_no_limit),
    Mutant("G8", "asks all at once", _ask_all_at_once),
    Mutant("G8", "leaves running asks", _leave_the_running),
    Mutant("G8", "tells finished asks as cut", _tell_finished_as_cut),
    Mutant("G8", "mixes up the asks", _ask_by_their_ends),
)
