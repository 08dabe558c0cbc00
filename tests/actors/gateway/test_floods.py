"""Floods of frames: they cost their sender time, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.storage.tokens import new_token
from motet.protocols.config import GatewayConfig
from motet.protocols.gateway import Limits
from motet.protocols.websocket import FrameHeaders
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of
from tests.actors.gateway.test_http import upgrade
from tests.actors.gateway.test_websocket_errors import CONNECT, PING, TEXT, frame

ALICE, MALLORY = new_token(), new_token()
TOKENS = StaticTokens((token_entry(ALICE, "alice"), token_entry(MALLORY, "mallory")))
LIMITS = Limits(frames_per_sec=100, bytes_per_sec=10_000)
CONTINUED = 0


def a_context() -> Context:
    return context_of(FakeHost(), Settings(tokens=TOKENS, limits=LIMITS))


@asynccontextmanager
async def raw(
    context: Context, first: bytes, peer: str = "203.0.113.1"
) -> AsyncGenerator[trio.abc.HalfCloseableStream]:
    """A client whose handshake is over, and who has sent ``first``."""
    theirs, ours = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, context, theirs, peer)
        await ours.send_all(upgrade())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await ours.receive_some()
        assert head.startswith(b"HTTP/1.1 101")
        await ours.send_all(first)
        yield ours
        nursery.cancel_scope.cancel()


def connect(token: str) -> bytes:
    auth = f'"params":{{"auth":{{"token":"{token}"}},'.encode()
    return frame(TEXT, CONNECT.replace(b'"params":{', auth))


async def until_pong(stream: trio.abc.ReceiveStream, payload: bytes) -> float:
    """Read up to the pong with this payload; the time that it took."""
    began, seen = trio.current_time(), b""
    while b"\x8a" + bytes([len(payload)]) + payload not in seen:
        chunk = await stream.receive_some()
        assert chunk, f"the connection has ended: {seen!r}"
        seen = seen[-256:] + chunk
    return trio.current_time() - began


FLOODS = {
    "pings": [frame(PING, b"p")] * 1_200,
    "fragments": [
        frame(TEXT, b"x", fin=False),
        *[frame(CONTINUED, b"x", fin=False)] * 1_200,
        frame(CONTINUED, b"x"),
    ],
    "bytes": [frame(PING, b"x" * 100)] * 1_200,
}


@pytest.mark.parametrize("kind", list(FLOODS))
async def test_a_flood_waits_for_its_budget_and_others_do_not(
    autojump_clock: MockClock, kind: str
) -> None:
    """Frames and bytes count, of all connections of the user together."""
    context = a_context()
    flood = b"".join([*FLOODS[kind], frame(PING, b"the end")])
    expected = {"bytes": (1_200 * 106 / 10_000) - 2}.get(kind, 10.0)
    async with raw(context, connect(MALLORY)) as first, connected(context, ALICE) as alice:
        await first.send_all(flood)
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                for _ in range(20):
                    with trio.fail_after(0.05):
                        await alice.result("ping")
                    await trio.sleep(0.4)

            nursery.start_soon(others)
            took = await until_pong(first, b"the end")
        assert expected - 0.5 < took < expected + 1.5
        async with raw(context, connect(MALLORY)) as second:
            await second.send_all(frame(PING, b"another") * 200)
            await second.send_all(frame(PING, b"the last"))
            assert await until_pong(second, b"the last") > 1.0, "a new connection is no new budget"
        await trio.sleep(60)
        with trio.fail_after(0.05):
            await first.send_all(frame(PING, b"later"))
            await until_pong(first, b"later")


async def test_a_client_that_is_not_known_has_a_small_budget_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """Others behind its address connect at once."""
    context = a_context()
    async with raw(context, b"") as flood:
        began = trio.current_time()
        await flood.send_all(frame(PING, b"p") * 80 + frame(PING, b"the end"))
        async with raw(context, connect(ALICE) + frame(PING, b"known")) as alice:
            assert await until_pong(alice, b"known") < 0.05
        await until_pong(flood, b"the end")
        assert trio.current_time() - began > 2.5


async def test_a_read_with_thousands_of_frames_lets_others_run_in_between() -> None:
    context = context_of(FakeHost(), Settings(tokens=TOKENS, limits=Limits(frames_per_sec=10**6)))
    async with raw(context, connect(MALLORY)) as mallory:
        passes = 0

        async def count() -> None:
            nonlocal passes
            while True:
                passes += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await mallory.send_all(frame(PING, b"p") * 3_000 + frame(PING, b"the end"))
            await until_pong(mallory, b"the end")
            nursery.cancel_scope.cancel()
        assert passes >= 3_000 // 64


@given(
    sizes=st.lists(st.integers(0, 200), max_size=40),
    cuts=st.lists(st.integers(0, 300)),
    most=st.integers(1, 5),
)
def test_what_is_held_back_comes_later_whatever_the_parts(
    sizes: list[int], cuts: list[int], most: int
) -> None:
    """Law: all bytes go on, in order; no step begins more than ``most`` frames."""
    every = b"".join(frame(TEXT, b"x" * size) for size in sizes)
    headers, rest, given_on = FrameHeaders(1_000), every, b""
    for cut in [*cuts, len(every)]:
        part, rest = rest[:cut], rest[cut:]
        while part:
            begun = headers.frames
            taken = headers.take(part, most)
            assert taken > 0
            assert headers.frames - begun <= most
            given_on, part = given_on + part[:taken], part[taken:]
    assert given_on == every
    assert headers.frames == len(sizes)


def test_budgets_are_those_of_the_configuration() -> None:
    limits = Settings.of(GatewayConfig(frames_per_second=7, bytes_per_second=8)).limits
    assert (limits.frames_per_sec, limits.bytes_per_sec) == (7, 8)
