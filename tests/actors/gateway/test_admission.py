"""Clients of a gateway before they are known: they cost each other nothing, whoever else calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from trio.testing import MockClock

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.gateway.server import open_gateway, serve_stream
from motet.actors.storage.tokens import new_token
from motet.protocols.admission import networks_of
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.gateway import CLOSE_POLICY, Limits
from motet.runtime import open_system
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Headers, connected, context_of, opened

TOKEN = new_token()
TOKENS = StaticTokens((token_entry(TOKEN, "alice"),))
PROXIES = networks_of(["10.0.0.0/8"])


async def test_a_valid_token_passes_whatever_others_behind_its_address_have_sent(
    autojump_clock: MockClock,
) -> None:
    context = context_of(FakeHost(), Settings(tokens=TOKENS))

    async def refusal(token: str | None) -> tuple[str, bool]:
        async with opened(context) as client:
            error = await client.error("connect", auth={"token": token})
            assert await client.close_code() == CLOSE_POLICY
            return error.code, bool(error.retry_after_ms)

    for wrong in (None, new_token()) * 15:
        assert await refusal(wrong) == ("unauthorized", False)
    for wrong in (None, new_token()):
        assert await refusal(wrong) == ("rate_limited", True)
    async with connected(context, TOKEN):
        pass
    await trio.sleep(301)
    assert await refusal(None) == ("unauthorized", False)


async def test_wrong_tokens_count_against_the_client_whom_a_trusted_proxy_names() -> None:
    settings = Settings(tokens=TOKENS, proxies=PROXIES, limits=Limits(connect_failures=2))
    context = context_of(FakeHost(), settings)

    async def refusal(client: str, peer: str = "10.0.0.1") -> str:
        headers: Headers = [(b"X-Forwarded-For", client.encode())]
        async with opened(context, headers=headers, peer=peer) as found:
            return (await found.error("connect")).code

    attacker = "203.0.113.1"
    assert [await refusal(attacker) for _ in range(3)] == [*("unauthorized",) * 2, "rate_limited"]
    assert await refusal(f"198.51.100.2, {attacker}") == "rate_limited"
    assert await refusal("198.51.100.2") == "unauthorized"
    assert await refusal(attacker, peer="203.0.113.9") == "unauthorized"  # it is no proxy


async def test_each_request_on_a_connection_of_a_proxy_has_the_address_of_its_own_client() -> None:
    settings = Settings(tokens=TOKENS, proxies=PROXIES, limits=Limits(connect_failures=1))
    theirs, ours = trio.testing.memory_stream_pair()
    clients = ("203.0.113.1", "203.0.113.1", "198.51.100.2", "198.51.100.2", "203.0.113.9")
    for client in clients:
        wrong = f"Authorization: Bearer {new_token()}\r\nX-Forwarded-For: {client}"
        await ours.send_all(f"GET /metrics HTTP/1.1\r\nHost: a\r\n{wrong}\r\n\r\n".encode())
    await ours.send_eof()
    await serve_stream(context_of(FakeHost(), settings), theirs, "10.0.0.1")
    answers = b"".join([part async for part in ours]).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [401, 429, 401, 429, 401]


async def test_silent_connections_keep_nobody_out_and_cost_no_known_client_its_place() -> None:
    context = context_of(FakeHost(), Settings(tokens=TOKENS))

    async def silent(peer: str) -> trio.abc.Stream:
        theirs, ours = trio.testing.memory_stream_pair()
        nursery.start_soon(serve_stream, context, theirs, peer)
        await trio.testing.wait_all_tasks_blocked()
        return ours

    async with trio.open_nursery() as nursery, connected(context, TOKEN) as first:
        # All are of the same address, as behind one proxy; the newest stay.
        flood = [await silent("127.0.0.1") for _ in range(300)]
        assert len(context.newcomers) == 256
        assert await flood[0].receive_some() == b""
        async with connected(context, TOKEN) as second:
            for client in (first, second):
                await client.result("ping")
        # Somebody else's address loses none, however many come from one.
        quiet = await silent("198.51.100.2")
        flood += [await silent("127.0.0.1") for _ in range(300)]
        with pytest.raises(trio.TooSlowError), trio.fail_after(0):
            await quiet.receive_some()
        assert context.counts.open["socket"] == 257
        nursery.cancel_scope.cancel()


async def test_known_clients_have_a_limit_of_their_own() -> None:
    context = context_of(FakeHost(), Settings(tokens=TOKENS, limits=Limits(connections=1)))
    # One that says nothing takes no place of those who are known.
    async with opened(context), connected(context, TOKEN):
        assert context.is_full()
    async with connected(context, TOKEN):
        pass


@asynccontextmanager
async def served(config: GatewayConfig) -> AsyncGenerator[int]:
    async with open_system() as system:
        yield (await open_gateway(system, FakeHost().api, config)).live.settings.port


@pytest.mark.parametrize("chunk", [1, 1_000])
async def test_behind_the_header_of_a_proxy_comes_the_client(chunk: int) -> None:
    config = GatewayConfig(
        listen="127.0.0.1:0",
        trusted_proxies=("127.0.0.1",),
        proxy_protocol=True,
        tokens=(TokenConfig(user="alice", token=TOKEN),),
    )
    request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with served(config) as port:

        async def answer(data: bytes) -> bytes:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                for at in range(0, len(data), chunk):
                    await stream.send_all(data[at : at + chunk])
                return b"".join([part async for part in stream])

        good = await answer(b"PROXY TCP4 203.0.113.5 127.0.0.1 4 5\r\n" + request)
        assert good.startswith(b"HTTP/1.1 200 ")
        with suppress(trio.BrokenResourceError):  # a reset or an end, as the system has it
            assert await answer(request) == b""


def test_a_proxy_that_is_no_address_is_refused_with_the_form() -> None:
    with pytest.raises(ValueError, match=r"addresses or networks such as 10\.0\.0\.0/8"):
        GatewayConfig(trusted_proxies=("nginx",))
