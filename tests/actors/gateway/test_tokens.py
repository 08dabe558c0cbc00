"""Stored tokens at the gateway: a revoked one ends its connections, a bridge's speaks for many."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
import trio
from trio.testing import MockClock
from trio_websocket import wrap_client_stream

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.storage.tokens import TokenBook, digest, new_token
from motet.cli.stored import writing_together
from motet.protocols import gateway as wire
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from motet.protocols.errors import ConfigError
from motet.protocols.sessions import Role
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Client, connected, context_of, opened
from tests.actors.runs.ops import parts_of

BRIDGE, PLAIN, ROOT = new_token(), new_token(), new_token()
BRIDGES = StaticTokens(
    (
        token_entry(BRIDGE, "irc", impersonate=True),
        token_entry(PLAIN, "alice"),
        token_entry(ROOT, "root", "admin", impersonate=True),
    )
)


@asynccontextmanager
async def served(state: Path | None = None) -> AsyncGenerator[tuple[motet.Host, str]]:
    """A real host behind a real socket; the second is the address of its WebSocket."""
    agent = motet.Agent("a", model="demo")
    async with motet.open_host(state, agents=[agent]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        yield host, url.replace("http", "ws") + "/ws"


@asynccontextmanager
async def client_of(address: str, token: str) -> AsyncGenerator[Client]:
    async with socket_of(address) as client:
        await client.result("connect", auth={"token": token})
        yield client


@asynccontextmanager
async def socket_of(address: str) -> AsyncGenerator[Client]:
    """Before the first frame. It closes its own stream, which trio-websocket leaves to others."""
    parts = urlsplit(address)
    stream = await trio.open_tcp_stream(str(parts.hostname), int(parts.port or 0))
    async with stream, trio.open_nursery() as nursery:
        socket = await wrap_client_stream(
            nursery, stream, parts.netloc, parts.path, subprotocols=[wire.SUBPROTOCOL]
        )
        yield Client(socket)
        nursery.cancel_scope.cancel()


async def test_a_revoked_token_ends_its_live_connections_at_once_and_no_others() -> None:
    async with served() as (host, address):
        alice, bob = await host.new_token("alice"), await host.new_token("bob")
        async with client_of(address, alice.token) as lost, client_of(address, bob.token) as kept:
            await host.revoke_token(alice.info.id)
            with trio.fail_after(5):
                assert await lost.close_code() == wire.CLOSE_REVOKED
            await kept.result("ping")
        async with socket_of(address) as client:
            error = await client.error("connect", auth={"token": alice.token})
            assert error.code == "unauthorized"


async def test_an_admin_makes_lists_and_revokes_tokens() -> None:
    async with served() as (host, address):
        root = await host.new_token("root", "admin")
        async with client_of(address, root.token) as admin:
            made = await admin.result("tokens.new", user="carol", role="viewer", label="hall")
            carol = str(made["token"])
            async with client_of(address, carol) as client:
                assert (await client.error("tokens.list")).code == "forbidden"
                listed = await admin.ask("tokens.list")
                assert carol not in wire.encode(listed)
                assert digest(carol) not in wire.encode(listed)
                (_, info) = await host.tokens()
                await admin.result("tokens.revoke", id=info.id)
                with trio.fail_after(5):
                    assert await client.close_code() == wire.CLOSE_REVOKED


async def test_a_token_that_another_program_revoked_ends_at_the_next_tick(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As the command line does, which writes beside the host."""
    async with motet.open_host(tmp_path) as host:
        made = await host.new_token("alice")
        parts = parts_of(host)
        context = context_of(FakeHost(), Settings(tokens=parts.stores.tokens))
        parts.stores.tokens.watch(context.recheck)
        async with writing_together(tmp_path) as transact, connected(context, made.token) as client:
            await TokenBook(transact, parts.readers).revoke(made.info.id)
            await parts.stores.tokens.refresh()
            assert await client.close_code() == wire.CLOSE_REVOKED


async def test_a_gateway_whose_last_token_was_revoked_accepts_no_client() -> None:
    async with served() as (host, address):
        await host.revoke_token((await host.new_token("alice")).info.id)
        async with socket_of(address) as client:
            assert (await client.error("connect")).code == "unauthorized"


async def test_a_stored_token_is_enough_to_serve_others(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path, agents=[motet.Agent("a", model="demo")]) as host:
        config = motet.GatewayConfig(listen="0.0.0.0:0")
        with pytest.raises(ConfigError, match="without a token"):
            await host.serve(config)
        await host.new_token("alice")
        assert await host.serve(config)


async def test_a_bridge_acts_as_its_users_and_each_sees_their_own() -> None:
    host = FakeHost()
    async with connected(context_of(host, Settings(tokens=BRIDGES)), BRIDGE) as client:
        for user in ("ann", "ben"):
            await acting(client, user, "chat.send", session=f"irc:{user}", text="hi", key=user)
        assert {run.info.user for run in host.run_infos.values()} == {"ann", "ben"}
        listed = await acting(client, "ann", "sessions.list")
        assert '"irc:ann"' in wire.encode(listed)
        assert '"irc:ben"' not in wire.encode(listed)
        foreign = await acting(client, "ann", "sessions.history", session="irc:ben")
        assert isinstance(foreign.error, wire.ErrorBody)
        assert foreign.error.code == "not_found"
        own = await client.result("sessions.list")
        assert own["sessions"] == []


async def test_a_bridge_reads_the_streams_of_its_users() -> None:
    host = FakeHost()
    async with connected(context_of(host, Settings(tokens=BRIDGES)), BRIDGE) as client:
        stream = "session:irc:ann"
        assert (await acting(client, "ann", "subscribe", stream=stream)).ok
        assert (await acting(client, "ann", "chat.send", session="irc:ann", text="hi", key="k")).ok
        assert [(await client.event()).event] == ["input.accepted"]
        refused = await acting(client, "ben", "subscribe", stream=stream)
        assert isinstance(refused.error, wire.ErrorBody)


async def test_messages_of_a_bridge_are_counted_for_each_user() -> None:
    limits = wire.Limits(message_burst=1)
    context = context_of(FakeHost(), Settings(tokens=BRIDGES, limits=limits))
    async with connected(context, BRIDGE) as client:
        assert (await acting(client, "ann", "chat.send", session="a", text="1", key="1")).ok
        assert not (await acting(client, "ann", "chat.send", session="a", text="2", key="2")).ok
        assert (await acting(client, "ben", "chat.send", session="b", text="1", key="3")).ok


@pytest.mark.parametrize("token", [PLAIN, None], ids=["plain", "none"])
async def test_only_the_token_of_a_bridge_may_act_as_others(token: str | None) -> None:
    settings = Settings() if token is None else Settings(tokens=BRIDGES)
    async with connected(context_of(FakeHost(), settings), token) as client:
        refused = await acting(client, "ben", "ping")
        assert isinstance(refused.error, wire.ErrorBody)
        assert refused.error.code == "forbidden"
    async with opened(context_of(FakeHost(), settings)) as client:
        error = await client.error("connect", auth={"token": token, "as_user": "ben"})
        assert error.code == "forbidden"
        assert await client.close_code() == wire.CLOSE_POLICY


@pytest.mark.parametrize(
    ("token", "role"), [(BRIDGE, "operator"), (ROOT, "operator")], ids=["bridge", "root"]
)
async def test_a_whole_connection_can_be_for_one_user_and_never_as_an_admin(
    token: str, role: Role
) -> None:
    async with opened(context_of(FakeHost(), Settings(tokens=BRIDGES))) as client:
        welcome = await client.result("connect", auth={"token": token, "as_user": "ann"})
        assert welcome["principal"] == {"user": "ann", "role": role}
        assert (await client.error("tokens.list")).code == "forbidden"


@pytest.mark.parametrize("user", ["room:club-1a2b3c4d", "room:", "host", "local"])
async def test_nobody_acts_as_a_user_of_the_hosts_own(user: str) -> None:
    """Such a one would have the rights of a room's agents: their sessions and approvals."""
    context = context_of(FakeHost(), Settings(tokens=BRIDGES))
    for token in (BRIDGE, ROOT):
        async with opened(context) as client:
            error = await client.error("connect", auth={"token": token, "as_user": user})
            assert error.code == "forbidden"
    async with connected(context, BRIDGE) as client:
        refused = await acting(client, user, "ping")
        assert isinstance(refused.error, wire.ErrorBody)
        assert refused.error.code == "forbidden"


@pytest.mark.parametrize("user", ["room:club-1a2b3c4d", "host"])
async def test_no_token_stands_for_a_user_of_the_hosts_own(user: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a person"):
        TokenConfig(token=new_token(), user=user)
    with pytest.raises(ConfigError, match="a person"):
        token_entry(new_token(), user)
    async with motet.open_host(tmp_path) as host:
        with pytest.raises(motet.MotetError, match="a person"):
            await host.new_token(user)


async def test_a_token_of_an_earlier_version_for_such_a_user_is_refused() -> None:
    class Older(StaticTokens):
        def find(self, token_digest: str, now: float) -> motet.Principal | None:
            return motet.Principal("room:club")

    async with opened(context_of(FakeHost(), Settings(tokens=Older(BRIDGES.entries)))) as client:
        error = await client.error("connect", auth={"token": BRIDGE})
        assert error.code == "unauthorized"


# -- a change of the tokens by a reload (G16) ---------------------------------------------------


@pytest.mark.parametrize("for_ann", [True, False], ids=["connection", "subscription"])
async def test_a_bridge_that_may_not_act_for_others_any_more_is_closed(for_ann: bool) -> None:
    """Whether it was another user's from its first frame on, or has subscribed for one."""
    host = FakeHost()
    context = context_of(host, Settings(tokens=BRIDGES))
    async with opened(context) as client:
        auth = {"token": BRIDGE, "as_user": "ann"} if for_ann else {"token": BRIDGE}
        await client.result("connect", auth=auth)
        if not for_ann:
            assert (await acting(client, "ann", "subscribe", stream="session:irc:ann")).ok
        context.reconfigure(Settings(tokens=StaticTokens([token_entry(BRIDGE, "irc")])))
        assert await client.close_code() == wire.CLOSE_REVOKED


async def test_nothing_is_done_for_a_client_whose_token_was_revoked_while_it_takes_nothing() -> (
    None
):
    """It is told once it reads again; a request that it sends meanwhile is not carried out."""
    theirs, ours = trio.testing.lockstep_stream_pair()
    host = FakeHost()
    context = context_of(host, Settings(tokens=BRIDGES))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, context, theirs, "stuck")
        async with trio.open_nursery() as reading:
            socket = await wrap_client_stream(
                reading, cast("trio.SocketStream", ours), "localhost", "/ws"
            )
            await Client(socket).result("connect", auth={"token": PLAIN})
            reading.cancel_scope.cancel()
        await ours.send_all(frame_of("ping"))  # its answer is not taken
        await trio.testing.wait_all_tasks_blocked()
        context.reconfigure(Settings(tokens=StaticTokens([token_entry(PLAIN, "bob")])))
        await ours.send_all(frame_of("chat.send", session="a", text="hi", key="k"))
        await trio.testing.wait_all_tasks_blocked()
        assert host.submitted == []
        nursery.cancel_scope.cancel()


def frame_of(method: str, **params: object) -> bytes:
    """The bytes of a client's frame, masked with zeros."""
    text = wire.encode(wire.RequestFrame(method, method, dict(params))).encode()
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


async def test_clients_without_a_token_are_closed_when_the_configuration_wants_one() -> None:
    context = context_of(FakeHost())
    async with connected(context) as client:
        context.reconfigure(Settings(tokens=BRIDGES))
        assert await client.close_code() == wire.CLOSE_REVOKED


async def test_a_reload_that_gives_a_token_to_another_user_ends_its_connections() -> None:
    def config(user: str) -> HostConfig:
        tokens = (TokenConfig(token=PLAIN, user=user),)
        return HostConfig(gateway=GatewayConfig(listen="127.0.0.1:0", tokens=tokens))

    async with motet.open_host(config=config("ann"), agents=[motet.Agent("a", model="demo")]) as it:
        address = (await it.serve()).replace("http", "ws") + "/ws"
        async with client_of(address, PLAIN) as client:
            await it.reload(config("bob"))
            with trio.fail_after(5):
                assert await client.close_code() == wire.CLOSE_REVOKED
        async with client_of(address, PLAIN) as client:
            await client.result("chat.send", session="s", text="hi", key="k")
            assert (await it.session("s", principal=motet.Principal("bob"))).owner == "bob"


async def acting(client: Client, user: str, method: str, **params: object) -> wire.ResponseFrame:
    """A request of a bridge for one of its users."""
    frame = wire.RequestFrame(f"{user}-{method}", method, dict(params), as_user=user)
    await client.socket.send_message(wire.encode(frame))
    with trio.fail_after(5):
        return await client.answer(frame.id)
