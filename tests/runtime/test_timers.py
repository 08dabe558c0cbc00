"""Timers: every limit is noticed in time, and answered asks leave no entries."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.runtime.timers import Timer, Timers


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 20), st.booleans()), min_size=1, max_size=40
    )
)
def test_every_timer_fires_at_its_time_unless_it_was_stopped(
    plan: list[tuple[int, int, bool]],
) -> None:
    """Law: the fired timers are those not stopped, each exactly once and exactly at its time."""
    fired: list[float] = []
    expected: list[float] = []

    async def main() -> None:
        timers = Timers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            for pause, seconds, stopped in plan:
                await trio.sleep(pause)
                when = trio.current_time() + seconds
                timer = timers.start(when, lambda: fired.append(trio.current_time()))
                if stopped:
                    timers.stop(timer)
                    timers.stop(timer)
                else:
                    expected.append(when)
            await trio.sleep(100)
            timers.close()

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert fired == sorted(expected)


async def test_stopped_timers_are_removed() -> None:
    timers = Timers()
    held: list[Timer] = []
    for number in range(10_000):
        timer = timers.start(1e6 + number, lambda: None)
        if number % 100:
            timers.stop(timer)
        else:
            held.append(timer)

    assert len(held) == 100
    assert len(timers) < 500
