"""The methods about records, of a real host, over a connection."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

import motet
from motet.actors.errors.log import LogTail
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.location import DATABASE_FILE
from motet.actors.storage.tokens import new_token
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import UserMessage
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from motet.protocols.gateway import Sent
from motet.protocols.sessions import HistoryRow
from tests.actors.gateway.fakes import Client, connected
from tests.actors.runs.ops import parts_of
from tests.scripted import Scripted, call, say

ALICE, ROOT = new_token(), new_token()
TOKENS = StaticTokens((token_entry(ALICE, "alice"), token_entry(ROOT, "root", "admin")))
CONFIG = HostConfig(gateway=GatewayConfig(tokens=(TokenConfig(token=ALICE, user="alice"),)))


@asynccontextmanager
async def talk(
    *agents: motet.Agent[None, str], token: str = ALICE
) -> AsyncGenerator[tuple[motet.Host, Client]]:
    """A host with these agents, and a client of it."""
    async with motet.open_host(config=CONFIG, agents=agents) as host:
        context = Context(host, Settings(tokens=TOKENS))
        async with connected(context, token) as client:
            yield host, client


async def said(client: Client, text: str = "hi", *, key: str = "k1") -> str:
    """Send a text; the id of the run that answers it, which has ended."""
    sent = await client.result("chat.send", session="s", text=text, key=key)
    waited = await client.result("runs.wait", run_id=sent["run_id"])
    assert waited["ended"] is True
    return str(sent["run_id"])


async def test_a_resend_is_a_duplicate_also_when_the_rate_of_messages_is_spent() -> None:
    """Law: the key comes first; only what is new is refused, and another body is told."""
    agent = motet.Agent("a", model=Scripted(*map(say, "abcdefgh")))
    async with talk(agent) as (_, client):
        first = {"session": "s", "text": "hi", "key": "k1"}
        row = {"session": "s", "text": "by the way", "key": "k2"}
        run_id = await said(client)
        added = await client.result("chat.inject", **row)
        for number in range(3, 11):
            await said(client, key=f"k{number}")
        new = {**first, "key": "k11"}
        assert (await client.error("chat.send", **new)).code == "rate_limited"
        for _ in range(3):
            again = await client.result("chat.send", **first)
            assert (again["status"], again["run_id"]) == ("duplicate", run_id)
        again = await client.result("chat.inject", **row)
        assert (again["status"], again["row_id"]) == ("duplicate", added["row_id"])
        assert (await client.error("chat.send", **{**first, "text": "ho"})).code == "key_conflict"
        assert (await client.error("chat.inject", **{**row, "key": "k1"})).code == "rate_limited"
        assert (await client.error("chat.send", **new)).code == "rate_limited"


async def test_a_resent_message_of_a_room_is_a_duplicate_also_when_the_rate_is_spent() -> None:
    agent = motet.Agent("a", model=Scripted(*[say("pass")] * 20))
    async with talk(agent) as (_, client):
        made = await client.result("rooms.create", name="den", members=["a"])
        first = {"room": made["name"], "text": "hello", "key": "k1"}
        posted = await client.result("rooms.post", **first)
        for number in range(2, 10):
            await client.result("rooms.post", **{**first, "key": f"k{number}"})
        assert (await client.error("rooms.post", **{**first, "key": "k11"})).code == "rate_limited"
        again = await client.result("rooms.post", **first)
        assert again == {**posted, "status": "duplicate"}


async def test_a_run_can_be_awaited_and_read() -> None:
    agent = motet.Agent("a", model=Scripted(say("one")))
    async with talk(agent) as (_, client):
        run_id = await said(client)
        run = await client.result("runs.get", run_id=run_id)
        assert (run["status"], run["text"]) == ("completed", "hi")
        assert (await client.error("runs.get", run_id="run_x")).code == "not_found"


async def test_waiting_times_out_and_does_not_stop_the_run() -> None:
    agent = motet.Agent("a", model=Scripted(None))
    async with talk(agent) as (_, client):
        sent = await client.result("chat.send", session="s", text="hi", key="k")
        waited = await client.result("runs.wait", run_id=sent["run_id"], timeout_ms=20)
        assert waited["ended"] is False
        waiting = await client.post("runs.wait", run_id=sent["run_id"])
        stopped = await client.result("runs.stop", run_id=sent["run_id"], key="k2")
        assert stopped["stopped"] == [sent["run_id"]]
        assert (await client.answer(waiting)).ok


async def test_a_row_is_injected_once_and_in_the_next_model_request() -> None:
    model = Scripted(say("one"), say("two"))
    async with talk(motet.Agent("a", model=model)) as (host, client):
        await said(client)
        await client.result("subscribe", stream="session:s")
        row = {"session": "s", "text": "the build is green", "key": "k9"}
        first = await client.result("chat.inject", **row)
        assert first["status"] == "accepted"
        again = await client.result("chat.inject", **row)
        assert again == {"row_id": first["row_id"], "status": "duplicate"}
        other = await client.error("chat.inject", **{**row, "text": "red"})
        assert other.code == "key_conflict"
        told = await client.event()
        assert (told.event, told.run_id) == ("message", first["row_id"])
        await client.result("chat.inject", session="s", text="I know", role="assistant", key="k10")
        await said(client, "and?", key="k2")
        rows = [item.row for item in await host.history("s")]
        shown = await client.result("sessions.history", session="s")
    assert violations(rows) == ()
    texts = ["hi", "one", "the build is green", "I know", "and?", "two"]
    assert [one for one in (row.text for row in rows) if one in texts] == texts
    assert len(rows) == len(texts) + 2
    listed = msgspec.convert(shown["rows"], list[HistoryRow])
    assert [item.row.text for item in listed] == texts
    assert "the build is green" in str(model.requests[-1].messages)


async def test_a_row_injected_during_a_run_stands_before_it() -> None:
    """Rows of a run are stored together: nothing comes between them (G7)."""
    gate = trio.Event()
    model = Scripted(call(("wait", {})), say("done"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    async def wait() -> str:
        await gate.wait()
        return "waited"

    async with talk(agent) as (host, client):
        sent = await client.result("chat.send", session="s", text="go", key="k")
        await model.asked.wait()
        await client.result("chat.inject", session="s", text="meanwhile", key="k2")
        gate.set()
        await client.result("runs.wait", run_id=sent["run_id"])
        rows = [item.row for item in await host.history("s")]
    assert violations(rows) == ()
    assert rows[0] == UserMessage("meanwhile", note="injected")
    assert rows[2] == UserMessage("go")


async def test_errors_and_traces_are_listed_and_shown_whole() -> None:
    agent = motet.Agent("a", model=Scripted(call(("fail", {})), say("it failed")))

    @agent.tool
    def fail() -> None:
        raise RuntimeError("no route")

    async with talk(agent) as (_, client):
        run_id = await said(client)
        listed = msgspec.convert(
            (await client.result("errors.list", tool="fail"))["errors"], list[dict[str, object]]
        )
        assert [(one["tool"], one["session"]) for one in listed] == [("fail", "s")]
        whole = await client.result("errors.get", id=listed[0]["id"])
        assert "no route" in str(whole["raw_error"])
        for wrong in ("", "err_1", "run_9b1d2c3e4f5a", f"{listed[0]['id']} "):
            for offset in (None, 0):
                error = await client.error("errors.get", id=wrong, offset=offset)
                assert error.code == "invalid_params", wrong
        assert (
            await client.error("errors.get", id="err_20240229_120000_00abff")
        ).code == "not_found"
        traces = msgspec.convert(
            (await client.result("traces.list", session="s"))["traces"], list[dict[str, object]]
        )
        assert [trace["run_id"] for trace in traces] == [run_id]
        trace = await client.result("traces.get", run_id=run_id)
        assert '"fail"' in msgspec.json.encode(trace["spans"]).decode()


async def test_clients_are_told_when_files_of_the_host_went_and_when_they_are_back(
    tmp_path: Path,
) -> None:
    """Law: who is connected hears of it with the write that was refused, and of the return."""
    agent = motet.Agent("a", model=Scripted(say("one"), say("two")))
    async with motet.open_host(tmp_path, config=CONFIG, agents=[agent]) as host:
        context = Context(host, Settings(tokens=TOKENS))
        async with connected(context, ALICE) as client, trio.open_nursery() as nursery:
            nursery.start_soon(context.announce_storage)
            await said(client)
            (tmp_path / DATABASE_FILE).rename(tmp_path / "aside")
            refused = await client.error("chat.send", session="s", text="hi", key="k2")
            assert refused.code == "storage_unavailable"
            told = (await client.until("storage"))[-1]
            assert "deleted or replaced" in str(told.data["reason"])
            (tmp_path / "aside").rename(tmp_path / DATABASE_FILE)
            await said(client, key="k2")
            told = (await client.until("storage"))[-1]
            assert told.data["reason"] == ""
            nursery.cancel_scope.cancel()


async def test_a_session_is_reset_compacted_and_deleted() -> None:
    async with talk(motet.Agent("a", model=Scripted(say("one")))) as (host, client):
        await said(client)
        assert await client.result("sessions.reset", session="s") == {"session": "s"}
        compacted = await client.result("sessions.compact", session="s")
        assert compacted == {"session": "s", "start": None, "end": None}
        assert await client.result("sessions.delete", session="s") == {"session": "s", "rows": 2}
        assert await host.sessions() == ()


async def test_an_admin_sees_the_configuration_without_its_secrets() -> None:
    async with talk(token=ROOT) as (_, client):
        first = await client.result("config.get")
        text = msgspec.json.encode(first).decode()
        assert ALICE not in text
        assert '"token":"[hidden]"' in text
        assert '"user":"alice"' in text
        assert await client.result("config.get") == first


async def test_an_admin_reads_the_end_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with talk(token=ROOT) as (host, client):
        tail = parts_of(host).gateway.log_tail
        tail.attach()
        host.log.info("first", detail=ALICE)
        host.log.warning("second", number=7)
        lines = msgspec.convert(
            (await client.result("logs.tail"))["lines"], list[dict[str, object]]
        )
        assert [(line["level"], line["message"]) for line in lines[-2:]] == [
            ("info", "first"),
            ("warning", "second"),
        ]
        assert lines[-1]["fields"] == {"number": 7}
        assert ALICE not in str(lines)
        rest = await client.result("logs.tail", after=lines[-2]["number"])
        assert msgspec.convert(rest["lines"], list[dict[str, object]]) == lines[-1:]


def test_the_log_tail_is_bounded_and_never_fails() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no text")

    tail = LogTail(room=3)
    for number in range(5):
        tail.handle(logging.makeLogRecord({"msg": "n %d", "args": (number,), "name": "motet"}))
    assert [line.message for line in tail.lines(10)] == ["n 2", "n 3", "n 4"]
    assert [line.number for line in tail.lines(2)] == [4, 5]
    assert tail.lines(0) == ()
    logging.raiseExceptions, before = False, logging.raiseExceptions
    try:
        tail.handle(logging.makeLogRecord({"msg": "odd", "thing": Odd()}))
    finally:
        logging.raiseExceptions = before
    assert len(tail.lines(10)) == 3


async def test_the_same_key_from_two_connections_at_once_is_one_run() -> None:
    agent = motet.Agent("a", model=Scripted(say("one"), say("two")))
    async with motet.open_host(agents=[agent]) as host:
        context = Context(host, Settings(tokens=TOKENS))
        async with connected(context, ALICE) as first, connected(context, ALICE) as second:
            same = {"session": "s", "text": "hi", "key": "k"}
            posted = [
                (client, await client.post("chat.send", **same)) for client in (first, second)
            ]
            sent = [msgspec.convert((await c.answer(i)).result, Sent) for c, i in posted]
            assert len({one.run_id for one in sent}) == 1
            assert sorted(one.status for one in sent) == ["accepted", "duplicate"]
            await first.result("runs.wait", run_id=sent[0].run_id)
        assert len(await host.runs()) == 1


async def test_closing_a_socket_ends_no_run() -> None:
    gate = trio.Event()
    agent = motet.Agent("a", model=Scripted(call(("wait", {})), say("done")))

    @agent.tool
    async def wait() -> str:
        await gate.wait()
        return "waited"

    async with motet.open_host(agents=[agent]) as host:
        context = Context(host, Settings(tokens=TOKENS))
        async with connected(context, ALICE) as client:
            sent = await client.result("chat.send", session="s", text="hi", key="k")
        assert (await host.find_run(str(sent["run_id"]))).status in ("queued", "running")
        gate.set()
        assert (await host.wait_run(str(sent["run_id"]), timeout=10)).status == "completed"
