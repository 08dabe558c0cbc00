"""A client's life: connect, requests, stops, closing."""

from __future__ import annotations

import trio

from motet.protocols import gateway as wire
from tests.actors.gateway.fakes import FakeHost, connected, context_of, opened


async def test_a_client_connects_and_is_told_who_it_is() -> None:
    context = context_of(FakeHost())
    async with opened(context) as client:
        result = await client.result("connect")
        assert result["protocol"] == 1
        assert result["principal"] == {"user": "local", "role": "admin"}
        assert client.socket.subprotocol == wire.SUBPROTOCOL


async def test_a_conversation_streams(nursery: trio.Nursery) -> None:
    context = context_of(FakeHost(nursery))
    async with connected(context) as client:
        await client.result("subscribe", stream="session:a")
        sent = await client.result("chat.send", session="a", text="hello there", key="k1")
        assert sent["status"] == "accepted"
        events = await client.until("run.completed")
        assert [e.seq for e in events if isinstance(e.seq, int)] == [1, 2, 3, 4, 5, 6]
