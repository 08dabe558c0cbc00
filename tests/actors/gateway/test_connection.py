"""A client's life: connect, requests, stops, limits, close codes."""

from __future__ import annotations

import contextlib
import logging

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_websocket import ConnectionClosed

from motet.actors.gateway.auth import StaticTokens, TokenEntry, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import digest, new_token
from motet.protocols import gateway as wire
from motet.protocols.approvals import ApprovalInfo, Grant
from motet.protocols.chat import AssistantMessage, JsonObject, UserMessage
from motet.protocols.escalations import EscalationInfo
from motet.protocols.events import Warned
from motet.protocols.sessions import HistoryRow, QueueFull
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Client, connected, context_of, opened

ALICE, BOB, VERA = new_token(), new_token(), new_token()
TOKENS = StaticTokens(
    (
        token_entry(ALICE, "alice"),
        token_entry(BOB, "bob"),
        token_entry(VERA, "alice", "viewer"),
    )
)


def guarded(host: FakeHost, limits: wire.Limits | None = None) -> Context:
    return context_of(host, Settings(tokens=TOKENS, limits=limits or wire.Limits()))


async def test_a_client_connects_and_gets_its_principal() -> None:
    async with opened(context_of(FakeHost())) as client:
        result = await client.result("connect")
        assert result["protocol"] == 1
        assert result["principal"] == {"user": "local", "role": "admin"}
        assert client.socket.subprotocol == wire.SUBPROTOCOL


async def test_a_conversation_streams(nursery: trio.Nursery) -> None:
    async with connected(context_of(FakeHost(nursery))) as client:
        await client.result("subscribe", stream="session:a")
        sent = await client.result("chat.send", session="a", text="hello there", key="k1")
        assert sent["status"] == "accepted"
        events = await client.until("run.completed")
        assert [e.seq for e in events if isinstance(e.seq, int)] == [1, 2, 3, 4, 5, 6]
        deltas = [e.data["text"] for e in events if e.event == "text.delta"]
        assert "".join(map(str, deltas)) == "hello there "


# -- who may connect ---------------------------------------------------------------------------


async def test_a_token_gives_its_user_and_the_methods_of_its_role() -> None:
    async with opened(guarded(FakeHost())) as client:
        result = await client.result("connect", auth={"token": VERA})
        assert result["principal"] == {"user": "alice", "role": "viewer"}
        assert "chat.send" not in str(result["methods"])


@pytest.mark.parametrize(
    "token", [None, new_token(), "rubbish", ""], ids=["none", "another", "rubbish", "empty"]
)
async def test_a_wrong_token_is_refused_and_the_socket_closed(token: str | None) -> None:
    async with opened(guarded(FakeHost())) as client:
        error = await client.error("connect", auth={"token": token})
        assert error.code == "unauthorized"
        assert await client.close_code() == wire.CLOSE_POLICY


async def test_a_token_in_the_header_is_as_good_as_one_in_the_frame() -> None:
    header = [(b"authorization", b"Bearer " + BOB.encode())]
    async with opened(guarded(FakeHost()), headers=header) as client:
        result = await client.result("connect")
        assert result["principal"] == {"user": "bob", "role": "operator"}


async def test_a_viewer_may_read_and_not_send() -> None:
    async with connected(guarded(FakeHost()), VERA) as client:
        error = await client.error("chat.send", session="a", text="hi", key="k")
        assert (error.code, error.retryable) == ("forbidden", False)
        assert (await client.error("runs.stop", all=True)).code == "forbidden"
        await client.result("sessions.list")


async def test_a_token_that_expires_closes_its_connections(autojump_clock: MockClock) -> None:
    now = 0.0
    store = StaticTokens((TokenEntry(digest(ALICE), "alice", expires=10.0),))
    context = Context(FakeHost().api, Settings(tokens=store), now=lambda: now)
    async with connected(context, ALICE) as client:
        now = 11.0
        context.tick()
        assert await client.close_code() == wire.CLOSE_REVOKED


async def test_the_first_frame_must_be_connect() -> None:
    async with opened(context_of(FakeHost())) as client:
        assert (await client.error("status")).code == "connect_first"
        assert await client.close_code() == wire.CLOSE_POLICY


async def test_no_connect_in_five_seconds_closes(autojump_clock: MockClock) -> None:
    async with opened(context_of(FakeHost())) as client:
        assert await client.close_code() == wire.CLOSE_CONNECT_TIMEOUT
        assert trio.current_time() < 6


async def test_an_unknown_protocol_version_closes() -> None:
    async with opened(context_of(FakeHost())) as client:
        error = await client.error("connect", protocol={"min": 2, "max": 3})
        assert error.code == "protocol_version"
        assert await client.close_code() == wire.CLOSE_PROTOCOL


async def test_a_closed_connection_frees_a_place_under_the_limit_of_its_user() -> None:
    context = context_of(FakeHost(), Settings(limits=wire.Limits(connections_per_user=1)))
    async with connected(context), opened(context) as second:
        error = await second.error("connect")
        assert (error.code, error.retryable) == ("limit_reached", True)
        assert await second.close_code() == wire.CLOSE_OVERLOADED
    await wait_all_tasks_blocked()
    async with connected(context):
        assert len(context.connections) == 1


# -- frames that are wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "request_id", "message"),
    [
        ("", "", "JSON"),
        ("[]", "", "object"),
        ('{"type":"event"}', "", "event"),
        ('{"type":"req","id":"7","method":5}', "7", "str"),
        ('{"type":"req","method":"ping"}', "", "id"),
        ('{"type":"req","id":"7","method":"ping","params":{"a":' + "[" * 50_000, "", "deeply"),
    ],
)
async def test_a_bad_frame_is_answered_with_its_fault(
    text: str, request_id: str, message: str
) -> None:
    async with connected(context_of(FakeHost())) as client:
        await client.socket.send_message(text)
        answer = await client.answer(request_id)
        assert isinstance(answer.error, wire.ErrorBody)
        assert answer.error.code == "bad_frame"
        assert message in answer.error.message
        await client.result("ping")


async def test_wrong_parameters_are_named() -> None:
    async with connected(context_of(FakeHost())) as client:
        error = await client.error("chat.send", session="a", text="hi")
        assert (error.code, error.message) == (
            "invalid_params",
            "Object missing required field `key`",
        )
        assert "$.limit" in (await client.error("runs.list", limit=1000)).message
        for method, params in (
            ("runs.stop", {"all": True}),
            ("rooms.post", {"room": "a", "text": "hi"}),
            ("chat.inject", {"session": "a", "text": "hi"}),
            ("approvals.resolve", {"id": "apr_1", "decision": "deny"}),
        ):
            assert "`key`" in (await client.error(method, **params)).message, method
        assert (
            "exactly one"
            in (await client.error("runs.stop", all=True, run_id="r", key="k")).message
        )
        assert (await client.error("connect")).code == "invalid_params"


async def test_an_unknown_method_names_the_nearest() -> None:
    async with connected(context_of(FakeHost())) as client:
        error = await client.error("chat.sent", later_field=1)
        assert error.code == "unknown_method"
        assert "did you mean chat.send?" in error.message


async def test_a_binary_frame_is_refused() -> None:
    async with connected(context_of(FakeHost())) as client:
        await client.socket.send_message(b"\x00")
        assert await client.close_code() == wire.CLOSE_UNSUPPORTED


@pytest.mark.parametrize("text", ["x" * 1_048_577, "é" * 524_289])
async def test_a_frame_above_a_mebibyte_closes_that_connection_only(text: str) -> None:
    context = context_of(FakeHost())
    async with connected(context) as other, connected(context) as client:
        await client.socket.send_message(text)
        assert await client.close_code() == wire.CLOSE_TOO_LARGE
        await other.result("ping")


async def test_a_first_frame_above_64_kibibytes_closes() -> None:
    async with opened(context_of(FakeHost())) as client:
        await client.post("connect", filler="x" * 65_536)
        assert await client.close_code() == wire.CLOSE_TOO_LARGE


async def test_a_client_that_sends_only_bad_frames_is_closed() -> None:
    async with connected(context_of(FakeHost())) as client, trio.open_nursery() as nursery:
        nursery.start_soon(rubbish, client)
        assert await client.close_code() == wire.CLOSE_RATE
        nursery.cancel_scope.cancel()


async def rubbish(client: Client) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.socket.send_message("rubbish")


# -- requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [QueueFull("100 wait"), RuntimeError("/secret/path")])
async def test_errors_become_codes_and_unexpected_ones_show_no_detail(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    host.answers["submit"] = fault
    async with connected(context_of(host)) as client:
        with caplog.at_level(logging.ERROR):
            error = await client.error("chat.send", session="a", text="hi", key="k")
        if isinstance(fault, QueueFull):
            assert (error.code, error.retryable) == ("queue_full", True)
        else:
            assert error.code == "internal"
            assert "secret" not in error.message
            assert str(error.error_id) in caplog.text
            assert "/secret/path" in caplog.text


async def test_keys_agents_and_sessions_have_their_own_errors() -> None:
    async with connected(context_of(FakeHost())) as client:
        await client.result("chat.send", session="a", text="hi", key="k")
        again = await client.result("chat.send", session="a", text="hi", key="k")
        assert again["status"] == "duplicate"
        other = await client.error("chat.send", session="a", text="ho", key="k")
        assert other.code == "key_conflict"
        agent = await client.error("chat.send", session="a", text="hi", key="l", agent="ecko")
        assert agent.code == "unknown_agent"
        assert "echo" in agent.message
        assert (await client.error("sessions.history", session="nowhere")).code == "not_found"


async def test_messages_are_limited_and_stops_are_not(autojump_clock: MockClock) -> None:
    async with connected(context_of(FakeHost())) as client:
        for index in range(10):
            await client.result("chat.send", session="a", text="hi", key=f"k{index}")
        error = await client.error("chat.send", session="a", text="hi", key="k10")
        assert error.code == "rate_limited"
        assert isinstance(error.retry_after_ms, int)
        stopped = await client.result("chat.send", session="a", text="stop", key="k11")
        assert stopped["status"] == "command"
        await trio.sleep(error.retry_after_ms / 1000)
        await client.result("chat.send", session="a", text="hi", key="k10")


async def test_a_stop_gets_through_when_every_other_request_is_stuck() -> None:
    host = FakeHost()
    async with connected(context_of(host)) as client:
        host.submit_gate = trio.Event()
        for index in range(40):
            await client.post("chat.send", session=f"s{index}", text="hi", key=f"k{index}")
        await wait_all_tasks_blocked()
        await client.result("runs.stop", all=True, key="all")
        answer = await client.result("chat.send", session="s1", text="/stop", key="stop")
        assert answer["status"] == "command"
        assert host.asked_for("stop")[0].arguments["everything"] is True


async def test_a_second_connection_stops_what_the_first_one_started(
    nursery: trio.Nursery,
) -> None:
    context = context_of(FakeHost(nursery))
    async with connected(context) as first, connected(context) as second:
        await first.result("subscribe", stream="session:a")
        sent = await first.result("chat.send", session="a", text="hang", key="k")
        report = await second.result("runs.stop", run_id=sent["run_id"], key="k")
        assert report["stopped"] == [sent["run_id"]]
        assert (await first.until("run.cancelled"))[-1].run_id == sent["run_id"]


async def test_messages_sent_at_once_arrive_in_order() -> None:
    host = FakeHost()
    async with connected(context_of(host)) as client:
        for index in range(8):
            await client.post("chat.send", session="a", text=str(index), key=f"k{index}")
        await client.answer("9")
        assert host.submitted == [str(index) for index in range(8)]


async def test_commands_are_answered_without_a_run(nursery: trio.Nursery) -> None:
    host = FakeHost(nursery)
    async with connected(context_of(host)) as client:

        async def say(text: str) -> str:
            answer = await client.result("chat.send", session="a", text=text, key=text)
            return str(answer["text"])

        assert await say("/stop") == "Nothing was running."
        assert await say("/status") == "Nothing was said here yet."
        assert "/help: " in await say("/help")
        assert "/status?" in await say("/statsu")
        assert host.submitted == []
        sent = await client.result("chat.send", session="a", text="//etc is what?", key="k")
        assert (sent["status"], host.submitted) == ("accepted", ["/etc is what?"])
        await client.result("chat.send", session="a", text="hang", key="h")
        assert "running" in await say("/status ")
        assert "1 stopped" in await say("/stopall")
        assert await say("/new ") == "The model starts from an empty history; the transcript stays."
        assert [call.arguments["session"] for call in host.asked_for("reset")] == ["a"]


async def test_history_comes_in_pages(nursery: trio.Nursery) -> None:
    async with connected(context_of(FakeHost(nursery))) as client:
        await client.result("subscribe", stream="session:a")
        for index in range(3):
            await client.result("chat.send", session="a", text=f"t{index}", key=f"k{index}")
            await client.until("run.completed")
        page = await client.result("sessions.history", session="a", limit=4)
        assert page["before"] == 3
        older = await client.result("sessions.history", session="a", limit=4, before=3)
        assert older["before"] is None
        assert (await client.result("sessions.list", limit=1))["cursor"] is not None
        assert (await client.result("agents.list"))["agents"] is not None
        assert (await client.result("status"))["instance"] == "boot_1"
        runs = await client.result("runs.list", session="a", status="completed")
        assert "t2" in str(runs["runs"])


async def test_a_silent_answer_is_in_no_history(nursery: trio.Nursery) -> None:
    host = FakeHost(nursery)
    async with connected(context_of(host)) as client:
        await client.result("subscribe", stream="session:a")
        await client.result("chat.send", session="a", text="just so you know", key="k")
        await client.until("run.completed")
        silent = AssistantMessage("NO_REPLY", note="silent")
        host.rows["a"].append(HistoryRow(3, "r", 1.0, silent))
        hint = UserMessage("SEVERITY IS MISSING", note="hint")
        host.rows["a"].append(HistoryRow(4, "r", 1.0, hint))
        page = await client.result("sessions.history", session="a")
    assert "just so you know" in str(page["rows"])
    assert "NO_REPLY" not in str(page["rows"])
    assert "SEVERITY" not in str(page["rows"])


async def test_an_escalation_is_listed_and_answered_once() -> None:
    host = FakeHost()
    mine = EscalationInfo("esc_1", "a", "run_1", "echo", "local", "t", "Too many errors", 1.0)
    host.escalated = {"esc_1": mine, "esc_2": msgspec.structs.replace(mine, user="bob")}
    async with connected(context_of(host)) as client:
        listed = await client.result("escalations.list", state="open")
        assert [one["id"] for one in msgspec.convert(listed["escalations"], list[JsonObject])] == [
            "esc_1"
        ]
        answered = await client.result(
            "escalations.resolve", escalation="esc_1", decision="advice", note="ask Bob"
        )
        assert (answered["state"], answered["resolved_by"]) == ("resolved", "local")
        again = await client.error("escalations.resolve", escalation="esc_1", decision="retry")
        assert (again.code, again.retryable) == ("already_answered", False)
        foreign = await client.error("escalations.resolve", escalation="esc_2", decision="retry")
        assert foreign.code == "not_found"
        wrong = await client.error("escalations.resolve", escalation="esc_1", decision="perhaps")
        assert "$.decision" in wrong.message


async def test_an_approval_is_listed_and_answered_once() -> None:
    host = FakeHost()
    mine = ApprovalInfo(
        "apr_1", "a", "run_1", "c1", "echo", "local", "t", {}, "0", "needs it", ("tool",), 1.0, 2.0
    )
    host.asked = {"apr_1": mine, "apr_2": msgspec.structs.replace(mine, user="bob")}
    host.granted = [Grant("grant_1", "echo", "t", "local", "tool", "local", 1.0, "apr_0")]
    async with connected(context_of(host)) as client:
        listed = await client.result("approvals.list", state="pending")
        assert [one["id"] for one in msgspec.convert(listed["approvals"], list[JsonObject])] == [
            "apr_1"
        ]
        answered = await client.result(
            "approvals.resolve", id="apr_1", decision="allow-once", key="k-1"
        )
        assert (answered["state"], answered["resolved_by"]) == ("allowed", "local")
        resent = {"id": "apr_1", "decision": "allow-once", "key": "k-1"}
        again = await client.result("approvals.resolve", **resent)
        assert (again, answered["status"]) == ({**answered, "status": "duplicate"}, "done")
        other = await client.error("approvals.resolve", **{**resent, "decision": "deny"})
        assert other.code == "key_conflict"
        late = await client.error("approvals.resolve", id="apr_1", decision="deny", key="k-2")
        assert (late.code, late.retryable) == ("already_answered", False)
        foreign = await client.error("approvals.resolve", id="apr_2", decision="deny", key="k-3")
        assert foreign.code == "not_found"
        wrong = await client.error("approvals.resolve", id="apr_1", decision="yes", key="k-4")
        assert "$.decision" in wrong.message
        assert "grant_1" in str(await client.result("approvals.grants"))
        assert await client.result("approvals.revoke", grant="grant_1") == {"grant": "grant_1"}
        assert (await client.error("approvals.revoke", grant="grant_1")).code == "not_found"


# -- slow, silent, stopping --------------------------------------------------------------------


async def test_a_client_that_answers_no_ping_is_cut_off() -> None:
    context = context_of(FakeHost())
    async with connected(context) as client:
        await wait_all_tasks_blocked()
        context.tick()
        tick = await client.event()
        assert (tick.event, tick.stream) == ("tick", "system")
        await wait_all_tasks_blocked()
        context.tick()
        context.tick()
        await wait_all_tasks_blocked()
        assert (context.counts.total["evicted"], len(context.connections)) == (1, 0)


async def test_a_tick_has_the_heads_of_the_streams() -> None:
    host = FakeHost()
    context = context_of(host)
    async with connected(context) as client:
        await client.result("chat.send", session="a", text="hi", key="k")
        await client.result("subscribe", stream="session:a")
        await client.result("subscribe", stream="session:unborn")
        host.say("a", Warned("s", "m"))
        await wait_all_tasks_blocked()
        context.tick()
        events = await client.until("tick")
        assert events[-1].data == {"heads": {"session:a": 2}}
        await client.result("ping")  # or the gateway's own ping would meet a closing client


async def test_a_fault_in_a_connection_closes_it_with_1011(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = FakeHost()
    host.answers["status"] = RuntimeError("deep trouble")
    context = context_of(host)
    async with opened(context) as client:
        await client.post("connect")
        assert await client.close_code() == wire.CLOSE_INTERNAL
    assert context.counts.total["failed"] == 1
    assert "deep trouble" in caplog.text


async def test_clients_are_told_at_once_and_stay_connected() -> None:
    host = FakeHost()
    context = context_of(host)
    async with connected(context) as client, trio.open_nursery() as nursery:
        nursery.start_soon(context.announce_shutdown)
        host.shuts_down.set()
        assert (await client.event()).event == "shutdown"
        assert (await client.ask("ping")).ok
