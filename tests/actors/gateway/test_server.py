"""The gateway as an actor on real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

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


async def until_it_listens_no_more(port: int) -> None:
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return
        await stream.aclose()


async def test_a_request_that_came_before_the_stop_is_answered() -> None:
    """Its client has connected and is known to nobody; a proxy in between would answer 502."""
    async with open_system() as system:
        api = FakeHost().api
        served = await open_gateway(system, api, GatewayConfig(listen="127.0.0.1:0"))
        port = int(served.url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
            await fetch("127.0.0.1", port)  # it was accepted after the other
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.ref.stop)
                await until_it_listens_no_more(port)
                await stream.send_all(b"Connection: close\r\n\r\n")
                assert b"200 OK" in b"".join([chunk async for chunk in stream])


async def test_a_socket_that_listens_already_is_served_and_stays_open() -> None:
    """It belongs to the service manager: what comes between two servers waits in it."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        address, port = opened.getsockname()
        config = GatewayConfig(listen=f"{address}:{port}", sockets=(opened.fileno(),))
        for _ in range(2):
            async with open_system() as system:
                assert (await open_gateway(system, FakeHost().api, config)).url.endswith(str(port))
                assert b"200 OK" in await fetch(address, port)
            waits = await trio.open_tcp_stream(address, port)
            await waits.aclose()


async def test_a_descriptor_that_is_no_socket_is_named_in_the_error() -> None:
    with Path("/dev/null").open() as file:
        config = GatewayConfig(sockets=(file.fileno(),))
        async with open_system() as system:
            with pytest.raises(ConfigError, match=rf"gateway.sockets \[{file.fileno()}\]"):
                await open_gateway(system, FakeHost().api, config)
