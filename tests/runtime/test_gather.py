"""Calls at once: ordered, isolated, limited (G8)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.runtime.gather import Cut, Done, Failed, Settled, gather_ordered

Call = Callable[[], Awaitable[int]]


class Bench:
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.started: list[int] = []
        self.ended: list[int] = []

    def call(self, index: int, seconds: float, fails: bool = False) -> Call:
        return partial(self._call, index, seconds, fails)

    async def _call(self, index: int, seconds: float, fails: bool) -> int:
        self.started.append(index)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(seconds)
            if fails:
                raise ValueError(index)
            return index * index
        finally:
            self.running -= 1
            self.ended.append(index)


def _shown(results: list[Settled[int]]) -> list[str]:
    return [repr(r.error) if isinstance(r, Failed) else repr(r) for r in results]


_CALLS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12)


@given(calls=_CALLS, limit=st.integers(1, 6))
def test_results_are_those_of_sequential_calls(calls: list[tuple[int, bool]], limit: int) -> None:
    """Law: entry i is the outcome of call i in any order of ends, and at most k run."""

    async def main() -> tuple[list[str], list[str], Bench]:
        alone, together = Bench(), Bench()
        serial = await gather_ordered(
            [alone.call(i, s, f) for i, (s, f) in enumerate(calls)], limit=1
        )
        parallel = await gather_ordered(
            [together.call(i, s, f) for i, (s, f) in enumerate(calls)], limit=limit
        )
        return _shown(serial), _shown(parallel), together

    serial, parallel, bench = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert parallel == serial
    assert bench.most <= limit
    assert sorted(bench.ended) == list(range(len(calls)))
    if limit == 1:
        assert bench.started == list(range(len(calls)))


@given(calls=_CALLS, limit=st.integers(1, 6), deadline=st.floats(0, 12))
def test_a_deadline_cuts_only_the_calls_that_have_not_ended(
    calls: list[tuple[int, bool]], limit: int, deadline: float
) -> None:
    """Law: a call is cut if and only if it had not ended at the deadline, and none runs on."""

    async def main() -> tuple[list[Settled[int]], Bench]:
        bench = Bench()
        results = await gather_ordered(
            [bench.call(i, s, f) for i, (s, f) in enumerate(calls)], limit=limit, deadline=deadline
        )
        assert bench.running == 0
        return results, bench

    results, bench = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(results) == len(calls)
    for index, result in enumerate(results):
        match result:
            case Cut(started=started):
                assert started == (index in bench.started)
            case Done(value=value):
                assert value == index * index
            case Failed():
                assert calls[index][1]


async def test_a_call_that_finishes_at_the_deadline_keeps_its_value() -> None:
    async def stubborn() -> int:
        with trio.CancelScope(shield=True):
            await trio.sleep(0)
        return 7

    called: list[int] = []

    async def next_one() -> int:
        called.append(1)
        return 8

    scope_time = trio.current_time()
    results = await gather_ordered([stubborn, next_one], limit=1, deadline=scope_time)
    assert results == [Cut(started=False), Cut(started=False)]

    async def stubborn_for_long() -> int:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        return 7

    deadline = trio.current_time() + 0.01
    results = await gather_ordered([stubborn_for_long, next_one], limit=1, deadline=deadline)
    assert results == [Done(7), Cut(started=False)]
    assert called == []


async def test_without_isolation_the_first_error_cancels_the_rest_and_is_raised(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    calls = [bench.call(0, 9), bench.call(1, 1, fails=True), bench.call(2, 2, fails=True)]
    with pytest.raises(ValueError, match="1"):
        await gather_ordered(calls, limit=3, isolate=False)
    assert trio.current_time() == pytest.approx(1)
    assert bench.running == 0


async def test_a_cancellation_ends_every_call(autojump_clock: MockClock) -> None:
    bench = Bench()
    with trio.move_on_after(1) as scope:
        await gather_ordered([bench.call(i, 5) for i in range(4)], limit=2)
    assert scope.cancelled_caught
    assert sorted(bench.started) == sorted(bench.ended) == [0, 1]


async def test_an_error_beside_a_cancellation_is_the_result_of_its_call(
    autojump_clock: MockClock,
) -> None:
    async def torn() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("clean-up failed")

    results = await gather_ordered([torn, torn], limit=2, deadline=trio.current_time() + 1)
    assert [type(result) for result in results] == [Failed, Failed]


async def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=">= 1"):
        await gather_ordered([], limit=0)
    assert await gather_ordered(list[Call](), limit=1, deadline=math.inf) == []
