"""Frames as bytes: a WebSocket library reads them in order, whichever task wrote them."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from motet.actors.gateway.context import Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.gateway.websocket import ReplayingStream
from motet.protocols import gateway as wire
from motet.protocols.events import Warned
from motet.protocols.websocket import text_frame
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import context_of
from tests.actors.gateway.test_tokens import socket_of


def texts_of(data: bytes) -> list[str]:
    """The messages that a client's library reads from a server's bytes."""
    reader = Connection(ConnectionType.CLIENT)
    reader.receive_data(data)
    texts, text = list[str](), ""
    for event in reader.events():
        assert isinstance(event, TextMessage)
        text += event.data
        if event.message_finished:
            texts.append(text)
            text = ""
    assert not text
    return texts


sizes = st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, 70_000])


@given(st.lists(sizes, max_size=4), st.text(max_size=5))
def test_every_frame_is_read_as_it_was_written(lengths: list[int], more: str) -> None:
    """Law: a library reads back all texts, of whatever length, and nothing else."""
    written = [more + "x" * length for length in lengths]
    assert texts_of(b"".join(text_frame(text.encode()) for text in written)) == written


@asynccontextmanager
async def pair(buffer: int) -> AsyncGenerator[tuple[ReplayingStream, trio.SocketStream]]:
    """Both ends of a connection with small kernel buffers."""
    theirs, ours = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    one = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    other = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    async with one, other:
        yield ReplayingStream(one, b""), other


async def test_the_rest_that_the_kernel_did_not_take_is_sent_first() -> None:
    async with pair(4096) as (stream, client):
        first, second = b"a" * 1_000_000, b"b" * 10
        assert stream.send_now(first) == "a part"
        assert stream.send_now(second) == "nothing", "it would overtake"
        got = bytearray()

        async def read() -> None:
            async for chunk in client:
                got.extend(chunk)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(second)
            assert not stream.owed
            await stream.aclose()
        assert bytes(got) == first + second


async def test_nothing_is_written_while_another_task_sends() -> None:
    async with pair(4096) as (stream, _), trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, b"a" * 10_000_000)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.send_now(b"b") == "nothing"
        nursery.cancel_scope.cancel()


async def test_a_closed_socket_takes_nothing() -> None:
    """Its file descriptor may belong to somebody else by now."""
    async with pair(4096) as (stream, _):
        await stream.aclose()
        assert stream.send_now(b"a") == "nothing"


async def test_a_stuck_client_on_a_real_socket_is_cut_off_and_slows_no_other() -> None:
    limits = wire.Limits(send_timeout_ms=300)
    host = FakeHost()
    context = context_of(host, Settings(limits=limits))
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def handle(stream: trio.SocketStream) -> None:
            await serve_stream(context, stream, "here")

        nursery.start_soon(trio.serve_listeners, handle, [listener])
        address = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/ws"
        async with socket_of(address) as stuck, socket_of(address) as lively:
            for client in (stuck, lively):
                await client.result("connect")
                await client.result("chat.send", session="a", text="hi", key="k")
                await client.result("subscribe", stream="session:a")
            seen = 1  # the input
            with trio.fail_after(20):
                # trio-websocket holds one message, and reads no more.
                while not context.counts.total["evicted"]:
                    host.say("a", Warned("s", "x" * 100_000))
                    seen += 1
                    assert (await lively.event()).seq == seen
        assert context.counts.total["evicted"] == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_frame_has_the_shortest_form_of_its_length(size: int) -> None:
    assert len(text_frame(b"x" * size)) == size + (2 if size < 126 else 10)
