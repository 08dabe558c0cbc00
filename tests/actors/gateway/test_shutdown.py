"""Clients hear that their host begins to shut down."""

from __future__ import annotations

import trio

from motet.actors.gateway.context import Context
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of


async def test_clients_are_told_at_once_and_stay_connected() -> None:
    host = FakeHost()
    context: Context = context_of(host)
    async with connected(context) as client, trio.open_nursery() as nursery:
        nursery.start_soon(context.announce_shutdown)
        host.shuts_down.set()
        assert (await client.event()).event == "shutdown"
        assert (await client.ask("ping")).ok
