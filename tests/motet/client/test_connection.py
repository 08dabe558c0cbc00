"""The closing handshake of a client: the gateway is told, and the client waits a second at most."""

from __future__ import annotations

from contextlib import suppress

import trio
import trio.testing
import trio_websocket
from trio.testing import MockClock
from trio_websocket import ConnectionClosed

from motet.client.link import CLOSE_SECONDS, Link, hold, over
from motet.client.machine import Machine
from motet.protocols import gateway as wire
from tests.motet.client.fakes import ADDRESS, client_of, gateway


async def test_a_cancelled_client_closes_with_a_handshake(
    autojump_clock: MockClock,
) -> None:
    closes: list[int | None] = []
    async with trio.open_nursery() as nursery:
        theirs, ours = trio.testing.memory_stream_pair()
        nursery.start_soon(_peer, theirs, closes)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_quiet, scope)
            await _hold(ours)

    assert scope.cancelled_caught
    assert closes == [1000]
    assert trio.current_time() == 0.0


async def test_a_gateway_that_does_not_answer_the_close_is_left_after_a_second(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        theirs, ours = trio.testing.memory_stream_pair()
        nursery.start_soon(_deaf_peer, theirs)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_quiet, scope)
            await _hold(ours)
        nursery.cancel_scope.cancel()

    assert scope.cancelled_caught
    assert trio.current_time() == CLOSE_SECONDS


async def test_leaving_a_client_takes_no_time(autojump_clock: MockClock) -> None:
    async with gateway() as (_, context, servers):
        async with client_of(context, servers) as client:
            await client.status()
        assert trio.current_time() == 0.0
        await trio.testing.wait_all_tasks_blocked()
        assert (len(context.connections), context.counts.open["socket"]) == (0, 0)


async def _hold(stream: trio.abc.Stream) -> None:
    async def dial(nursery: trio.Nursery) -> Link:
        return await over(nursery, stream, ADDRESS)

    async def nothing() -> str:
        await trio.sleep_forever()
        raise AssertionError

    machine = Machine(wire.ClientInfo("test", "0", ()), None)
    await hold(dial, machine, nothing, lambda _: None)


async def _cancel_when_quiet(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def _accepted(
    nursery: trio.Nursery, stream: trio.abc.Stream
) -> trio_websocket.WebSocketConnection:
    request = await trio_websocket.wrap_server_stream(nursery, stream)
    return await request.accept(subprotocol=wire.SUBPROTOCOL)


async def _peer(stream: trio.abc.Stream, closes: list[int | None]) -> None:
    async with trio.open_nursery() as nursery:
        socket = await _accepted(nursery, stream)
        with suppress(ConnectionClosed):
            await socket.get_message()
        closes.append(None if socket.closed is None else socket.closed.code)


async def _deaf_peer(stream: trio.abc.Stream) -> None:
    async with trio.open_nursery() as nursery:
        await _accepted(nursery, stream)
        nursery.cancel_scope.cancel()  # nobody reads it any more
    await trio.sleep_forever()
