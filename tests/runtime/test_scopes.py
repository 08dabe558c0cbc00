"""Cancel scopes: a bounded handshake after a cancellation, and the earliest order wins."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from motet.runtime.scopes import cancel_at, shielded_close


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_a_handshake_finishes_after_a_cancellation(autojump_clock: MockClock) -> None:
    said: list[str] = []
    with trio.move_on_after(1) as outer:
        async with shielded_close() as scope:
            with scope:
                await trio.sleep_forever()
            said.append("goodbye")
            with trio.move_on_after(5):
                await trio.sleep(2)
                said.append("its answer")
        said.append("never")
    assert said == ["goodbye", "its answer"]
    assert outer.cancelled_caught
    assert trio.current_time() == 3


async def test_without_a_cancellation_nothing_is_cancelled(autojump_clock: MockClock) -> None:
    async with shielded_close() as scope:
        with scope:
            await trio.sleep(1)
    assert not scope.cancelled_caught


async def test_the_earliest_order_to_cancel_counts(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        cancel_at(scope, 2)
        cancel_at(scope, 3)
        cancel_at(scope, math.inf)
        await trio.sleep_forever()
    assert trio.current_time() == 2


async def test_an_order_for_the_past_cancels_in_this_step() -> None:
    with trio.CancelScope() as scope:
        cancel_at(scope, -math.inf)
        assert scope.cancel_called
