"""The gateway as an actor on real sockets."""

from __future__ import annotations

import socket

import pytest
import trio

from motet.actors.gateway.context import LiveSettings, Settings
from motet.actors.gateway.server import Gateway, open_gateway
from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError
from motet.protocols.gateway import GetGatewayState
from motet.runtime import open_system
from tests.actors.gateway.fake_host import FakeHost


async def fetch(host: str, port: int) -> bytes:
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return b"".join([chunk async for chunk in stream])


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_it_listens_on_the_configured_address_and_reports_it(host: str) -> None:
    async with open_system(check_messages=True) as system:
        live = LiveSettings(Settings(host=host, port=0))
        gateway = await system.start(lambda: Gateway(FakeHost().api, live), name="gateway")
        state = await gateway.ask(GetGatewayState())
        for address, port in state.addresses:
            assert b"200 OK" in await fetch(address, port)
        assert state.url.startswith("http://[::1]:" if host == "[::1]" else "http://")


async def test_it_never_listens_for_others_without_a_token() -> None:
    async with open_system() as system:
        with pytest.raises(ConfigError, match="without a token"):
            await open_gateway(system, FakeHost().api, GatewayConfig(listen="0.0.0.0:0"))


async def test_a_port_in_use_is_named_in_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with open_system() as system:
            with pytest.raises(ConfigError, match=f"port {port}: the port is in use"):
                await open_gateway(
                    system, FakeHost().api, GatewayConfig(listen=f"127.0.0.1:{port}")
                )


async def test_a_connection_that_fails_disturbs_neither_others_nor_the_listener() -> None:
    async with open_system() as system:
        config = GatewayConfig(listen="127.0.0.1:0")
        url = (await open_gateway(system, FakeHost().api, config)).url
        port = int(url.rpartition(":")[2])
        for rubbish in (b"\x00" * 100, b"GET", b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n"):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(rubbish)
        assert b"200 OK" in await fetch("127.0.0.1", port)


async def test_all_sockets_are_closed_when_it_stops() -> None:
    async with open_system() as system:
        config = GatewayConfig(listen="127.0.0.1:0")
        url = (await open_gateway(system, FakeHost().api, config)).url
        port = int(url.rpartition(":")[2])
        idle = await trio.open_tcp_stream("127.0.0.1", port)
    with trio.fail_after(60):
        async with idle:
            assert await idle.receive_some(1) == b""
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", port)
