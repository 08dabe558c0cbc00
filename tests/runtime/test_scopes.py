"""Cancel scopes: a bounded handshake after a cancellation, and the earliest order wins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.messages import StreamRequest
from motet.runtime import Actor, Replies, handles, open_system
from motet.runtime.scopes import cancel_at, shielded_close


class Count(StreamRequest[int, str], frozen=True, tag="scopes.count"):
    to: int


class Meters:
    def count(self, name: str, path: str) -> None: ...
    def record(self, name: str, path: str, value: float) -> None: ...


class Source(Actor[Count]):
    @handles(Count)
    async def count(self, request: Count, replies: Replies[int]) -> str:
        for number in range(request.to):
            await replies.send(number)
        return "all"


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


@pytest.mark.parametrize("observed", [False, True])
async def test_a_stream_that_is_used_before_its_block_says_what_to_write(observed: bool) -> None:
    meter = Meters() if observed else None
    async with open_system(telemetry=meter) as system:
        source = await system.start(Source, name="source")
        kind = await system.registry.kind("sources", lambda _: Source())
        block: Any
        for block in (source.stream(Count(2)), kind.ref("a").stream(Count(2))):
            with pytest.raises(
                TypeError, match=r"use `async with stream\(\.\.\.\) as it:`, and `async f"
            ):
                async for _ in block:
                    pass
            with pytest.raises(TypeError, match=r"is not awaited: use `async with stream\("):
                await block
            with pytest.raises(AttributeError, match=r"has no 'result': use `async with stream\("):
                _ = block.result
            async with block as items:  # it is still good
                assert [item async for item in items] == [0, 1]
                assert items.result == "all"
