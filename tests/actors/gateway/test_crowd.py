"""Many clients at once: one that is stuck and one that sends bad frames disturb no other."""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import trio
import trio.testing
from trio.testing import MockClock
from trio_websocket import wrap_client_stream

from motet.actors.gateway.connection import Connection
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.outbox import Outbox
from motet.actors.gateway.server import serve_listeners
from motet.protocols import gateway as wire
from motet.protocols.events import Warned
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Client

CLIENTS, EVENTS = 8, 30
LIMITS = wire.Limits(
    connections=200, connections_per_user=200, message_burst=200, send_timeout_ms=500
)


@asynccontextmanager
async def gateway() -> AsyncGenerator[tuple[FakeHost, Context, str]]:
    """A gateway on a real port."""
    host = FakeHost()
    context = Context(host.api, Settings(limits=LIMITS))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_listeners, context, listeners)
        yield host, context, f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws"
        nursery.cancel_scope.cancel()


async def joined(client: Client) -> None:
    await client.result("connect")
    await client.result("chat.send", session="a", text="hi", key="k")
    await client.result("subscribe", stream="session:a")


async def rubbish(address: str, seed: int) -> None:
    """Connect rightly, then send bytes of all kinds, again and again."""
    chance = random.Random(seed)
    port = int(address.rpartition(":")[2].partition("/")[0])
    key = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
    head = (
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\n{key}\r\n\r\n"
    )
    while True:
        with suppress(trio.BrokenResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(head.encode())
                await stream.receive_some()
                for _ in range(chance.randint(1, 5)):
                    await stream.send_all(chance.randbytes(chance.randint(1, 200)))
                    await trio.lowlevel.checkpoint()


def leftovers() -> int:
    gc.collect()
    return sum(isinstance(one, Connection | Outbox) for one in gc.get_objects())


@asynccontextmanager
async def crowd(address: str, size: int) -> AsyncGenerator[list[Client]]:
    """So many clients that have joined; in the end they just go."""
    parts = urlsplit(address)
    streams: list[trio.SocketStream] = []
    clients: list[Client] = []
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            stream = await trio.open_tcp_stream(str(parts.hostname), int(parts.port or 0))
            streams.append(stream)
            socket = await wrap_client_stream(nursery, stream, parts.netloc, parts.path)
            clients.append(Client(socket))
            await joined(clients[-1])
        yield clients
        nursery.cancel_scope.cancel()
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def test_a_stuck_client_and_one_that_sends_bad_frames_disturb_no_other() -> None:
    before = leftovers()
    async with gateway() as (host, context, address):
        async with crowd(address, CLIENTS + 1) as (_stuck, *clients), trio.open_nursery() as talk:
            talk.start_soon(rubbish, address, 1)
            with trio.fail_after(30):
                seq = 1
                while not context.counts.total["evicted"] or seq < EVENTS:
                    host.say("a", Warned("s", "x" * 200_000))
                    seq += 1
                    assert [(await client.event()).seq for client in clients] == [seq] * CLIENTS
            assert (len(context.connections), context.counts.total["evicted"]) == (CLIENTS, 1)
            talk.cancel_scope.cancel()
        with trio.fail_after(10):
            while context.counts.open["socket"]:
                await trio.sleep(0.01)
        assert (len(context.connections), len(context.hub)) == (0, 0)
        assert (context.counts.open["websocket"], context.counts.total["failed"]) == (0, 0)
    assert leftovers() == before


class Steps(trio.abc.Instrument):
    """Counts how often any task ran."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_idle_connections_have_one_timer_for_all(mock_clock: MockClock) -> None:
    """Between two ticks nothing runs, however many are connected."""
    async with gateway() as (_, context, address), crowd(address, CLIENTS):
        assert len(context.connections) == CLIENTS
        await trio.testing.wait_all_tasks_blocked(0.05)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        mock_clock.jump(LIMITS.ping_ms / 1000 - 1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count <= 5, "this test's own"
