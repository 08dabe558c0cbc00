"""The client at a real gateway: what callers see of lost connections, refusals and restarts."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.storage.tokens import new_token
from motet.client import connect
from motet.client.client import Change, Client, Offline, Online, ReconnectDelay
from motet.client.link import Address
from motet.client.requests import (
    ClientClosed,
    ConnectionLost,
    RequestFailed,
    TurnedAway,
    Unreachable,
)
from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError
from motet.protocols.events import MessageAdded, RunCompleted
from motet.protocols.gateway import CommandAnswer, Limits, Sent
from motet.protocols.gateway_rooms import Posted
from motet.testing import ScriptedModel, call, say
from tests.actors.gateway.test_monitoring import certificate
from tests.motet.client.fakes import Fault, client_of, gateway
from tests.raised import RAISERS, State, caught, state_of

CUT = Fault("cut_sending", 2)


@pytest.mark.slow
async def test_an_error_of_megabytes_comes_whole_and_ends_no_connection() -> None:
    model = ScriptedModel([call("burst"), say("it failed")])
    agent = motet.Agent("helper", model=model)
    message = "\n".join(f"no route to worker {n}, called Ärger" for n in range(330_000))

    @agent.tool
    def burst() -> str:
        raise OSError(message)

    async with motet.open_host(agents=[agent]) as host:
        result = await host.run(agent, "go", session="s")
        (error_id,) = [one.error_id for one in result.errors]
        assert error_id is not None
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        lost: list[Change] = []
        async with connect(url, on_change=lost.append) as client:
            found = await client.error(error_id)
            assert found.raw_error == (await host.error(error_id)).raw_error
            assert len(str(found.raw_error["message"])) > 11_000_000
            assert (await client.status()).agents == 1
            with pytest.raises(RequestFailed):
                await client.error("err_20240101_000000_ffffff")
        assert not [one for one in lost if isinstance(one, Offline)]


async def test_a_client_talks_to_a_host_over_a_real_socket() -> None:
    agent = motet.Agent("helper", model=ScriptedModel([say("hello"), say("again")]))
    async with motet.open_host(agents=[agent]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        async with connect(url) as client, client.stream("session:s", 0) as events:
            sent = await client.send("s", "hi", key="k")
            twice = await client.send("s", "hi", key="k")
            said = ""
            async for record in events:
                match record.event:
                    case MessageAdded(role="assistant", text=text):
                        said = text
                    case RunCompleted():
                        break
                    case _:
                        pass
            helped = await client.send("s", "/help")

            assert isinstance(sent, Sent)
            assert isinstance(twice, Sent)
            assert (sent.status, twice.status, twice.run_id) == (
                "accepted",
                "duplicate",
                sent.run_id,
            )
            assert said == "hello"
            assert isinstance(helped, CommandAnswer)
            assert [agent.name for agent in await client.agents()] == ["helper"]
            assert [run.run_id for run in await client.runs(session="s")] == [sent.run_id]
            assert len((await client.history("s")).rows) == 2
            assert [one.session for one in (await client.sessions()).sessions] == ["s"]
            assert (await client.status()).running == 0
            assert (await client.stop(session="s")).stopped == []
            assert await client.approvals() == ()
            with pytest.raises(RequestFailed) as refused:
                await client.call("nonsense")
            assert refused.value.code == "unknown_method"


async def test_a_room_is_written_to_and_read_like_a_session() -> None:
    agent = motet.Agent("ann", model=ScriptedModel([say("here I am")]))
    async with motet.open_host(agents=[agent]) as host:
        await host.open_room(motet.Room("dev", members=[agent]))
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        async with connect(url) as client, client.stream("room:dev", 0) as events:
            posted = await client.post("dev", "@ann?", key="k")
            again = await client.post("dev", "@ann?", key="k")
            async for record in events:
                if isinstance(record.event, motet.RoomIdle):
                    break
            stopped = await client.post("dev", "/stop")

            assert isinstance(posted, Posted)
            assert isinstance(again, Posted)
            assert (posted.status, again.status, again.seq) == ("accepted", "duplicate", posted.seq)
            assert isinstance(stopped, CommandAnswer)
            assert [room.name for room in await client.rooms()] == ["dev"]
            page = await client.room_history("dev", limit=1)
            assert (page.before, page.messages[0].author) == (2, "ann")


async def test_a_room_is_made_and_changed() -> None:
    async with motet.open_host(agents=[motet.Agent("ann")]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        async with connect(url) as client:
            plan = motet.RoomPlan(("ann",), until="DONE", limits=motet.Limits(usd=0.5))
            made = await client.create_room("plans", plan, people=("bob",))
            assert (made.plan, made.people) == (plan, ("bob",))
            change = motet.RoomChange(until=None, mode="steer", people=())
            changed = await client.change_room(made.name, change)
            assert changed.plan == change.of(plan)
            assert (changed.plan.until if changed.plan else "", changed.people) == (None, ())


async def test_over_tls_the_certificate_has_to_be_a_trusted_one(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    config = GatewayConfig(listen="127.0.0.1:0", certificate=str(chain), private_key=str(key))
    async with motet.open_host() as host:
        url = await host.serve(config)
        trusted = ssl.create_default_context(cafile=str(chain))
        async with connect(url, tls=trusted) as client:
            assert (await client.status()).running == 0
        with pytest.raises(Unreachable, match="no TLS with"):
            async with connect(url):
                raise AssertionError("it was trusted")


async def test_a_call_waits_for_the_next_connection(autojump_clock: MockClock) -> None:
    changes: list[Change] = []
    async with gateway() as (host, context, servers):
        faults = [CUT, Fault("unreachable"), Fault("unreachable"), None]
        async with client_of(context, servers, faults, on_change=changes.append) as client:
            sent = await client.send("a", "hi", agent="echo")

    assert isinstance(sent, Sent)
    assert (sent.status, host.submitted) == ("duplicate", ["hi"])
    offline = [change for change in changes if isinstance(change, Offline)]
    assert [one.reason for one in offline] == ["cut", "cut off", "cut off"]
    assert all(one.retry_in is not None for one in offline)
    assert len(changes) == 5


async def test_a_request_that_is_not_repeatable_raises_connection_lost(
    autojump_clock: MockClock,
) -> None:
    async with gateway() as (_, context, servers), client_of(context, servers, [CUT]) as client:
        with pytest.raises(ConnectionLost, match=r"before sessions\.reset was answered"):
            await client.call("sessions.reset", session="a")
        assert await client.call("ping")


async def test_a_cancelled_call_and_a_cancelled_read_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with gateway() as (host, context, servers), client_of(context, servers) as client:
        host.submit_gate = trio.Event()
        with trio.move_on_after(1) as scope:
            await client.send("a", "hi", agent="echo")
        assert scope.cancelled_caught
        async with client.stream("session:a", 0) as events:
            with trio.move_on_after(1):
                await anext(events)
            host.submit_gate.set()
            assert (await anext(events)).seq == 1
        async with client.stream("session:a", events.last) as later:
            assert (await anext(later)).seq == 2


async def test_a_revoked_token_ends_the_client_and_says_so(autojump_clock: MockClock) -> None:
    token = new_token()
    entry = token_entry(token, "alice", "operator")
    settings = Settings(tokens=StaticTokens([entry]))
    changes: list[Change] = []
    async with gateway(settings) as (_, context, servers):
        opened = partial(client_of, context, servers, token=token, on_change=changes.append)
        async with opened() as client, client.stream("session:a") as events:
            context.settings = Settings(
                tokens=StaticTokens([token_entry(new_token(), "b", "viewer")])
            )
            with pytest.raises(TurnedAway) as away:
                await anext(events)
            with pytest.raises(TurnedAway):
                await client.call("ping")
    assert away.value.code == 4003
    assert isinstance(changes[0], Online)
    assert changes[-1] == Offline("token revoked", None)


async def test_the_first_connection_has_to_succeed(autojump_clock: MockClock) -> None:
    tokens = StaticTokens([token_entry(new_token(), "alice", "operator")])
    async with gateway(Settings(tokens=tokens)) as (_, context, servers):
        with pytest.raises(TurnedAway, match="token"):
            async with client_of(context, servers, token=new_token()):
                raise AssertionError("it was let in")
        with pytest.raises(Unreachable, match="cut off"):
            async with client_of(context, servers, [Fault("unreachable")]):
                raise AssertionError("it was let in")


async def test_an_http_error_before_the_handshake_is_reported() -> None:
    async with gateway(Settings(limits=Limits(connections=0))) as (_, context, servers):
        with pytest.raises(Unreachable, match=r"Too many connections\. \(503\)") as full:
            async with client_of(context, servers):
                raise AssertionError("it was let in")
    assert full.value.retry_after == 5
    async with motet.open_host() as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        with pytest.raises(TurnedAway) as away:
            async with connect(url + "/elsewhere"):
                raise AssertionError("it was let in")
    assert away.value.code == 404


async def test_an_error_of_the_block_passes_unchanged_and_the_client_is_closed(
    autojump_clock: MockClock,
) -> None:
    kept: list[Client] = []

    async def fail(client: Client) -> None:
        kept.append(client)
        raise ZeroDivisionError

    async with gateway() as (_, context, servers):
        with pytest.raises(ZeroDivisionError):
            async with client_of(context, servers) as client:
                await fail(client)
        with pytest.raises(ClientClosed):
            await kept[0].call("ping")
        await trio.sleep(2)
        assert context.counts.open["websocket"] == 0


async def test_a_client_leaves_a_silent_host(autojump_clock: MockClock) -> None:
    changes: list[Change] = []
    async with (
        gateway() as (_, context, servers),
        client_of(context, servers, on_change=changes.append),
    ):
        context.connections.clear()  # its tick reaches nobody now
        await trio.sleep(60)
    online, offline, again = changes
    assert isinstance(online, Online)
    assert isinstance(again, Online)
    assert isinstance(offline, Offline)
    assert offline.reason == "the host is silent"


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("ws://localhost:7878", "localhost:7878", "/ws"),
        ("http://[::1]:7878/", "[::1]:7878", "/ws"),
        ("wss://motet.example", "motet.example:443", "/ws"),
        ("ws://a.example/behind/a/proxy", "a.example:80", "/behind/a/proxy"),
    ],
)
def test_an_address_is_read_from_the_usual_urls(url: str, authority: str, path: str) -> None:
    address = Address.of(url)
    assert (address.authority, address.path, address.tls) == (authority, path, url[:3] == "wss")


@pytest.mark.parametrize("url", ["", "localhost:7878", "ws://", "ws://a:b", "ws://a/?token=mtt_1"])
def test_a_malformed_address_raises_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError):
        Address.of(url)


def test_the_wait_doubles_with_full_jitter_and_begins_again_after_half_a_minute_of_health() -> None:
    delay = ReconnectDelay(lambda: 1.0)
    assert [delay.next(0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert delay.next(29) == 30
    assert delay.next(30) == 0.5
    assert ReconnectDelay(lambda: 0.0).next(0) == 0


@pytest.mark.parametrize("raiser", RAISERS, ids=lambda raiser: raiser.__name__)
async def test_an_error_leaves_the_blocks_of_host_and_client_as_it_was_raised(
    raiser: Callable[[], None],
) -> None:
    """Law: it is the same object, with the same context, cause and parts, whatever its kind."""
    before: list[State] = []

    async def blocks() -> None:
        async with motet.open_host() as host:
            url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
            async with connect(url) as client, client.stream("session:s"):
                with caught(before):
                    raiser()

    with pytest.raises(BaseException) as error:  # noqa: PT011 (of any kind)
        await blocks()
    assert before == [state_of(error.value)]
