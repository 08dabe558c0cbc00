"""A client that knows docs/protocol.md only, on asyncio, talks to a real host over a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

import motet
from motet.protocols.config import GatewayConfig, TokenConfig
from tests.scripted import Scripted, call, say

TOKEN = "mtt_" + "0123456789abcdef" * 2
STREAM = "session:alice:1"
Json = dict[str, object]


class Wire:
    """Requests and events as JSON, nothing of motet."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[Json] = []
        self._answers: dict[object, Json] = {}
        self._ids = itertools.count(1)

    async def ask(self, method: str, **params: object) -> Json:
        request_id = str(next(self._ids))
        frame = {"type": "req", "id": request_id, "method": method, "params": params}
        await self.socket.send(json.dumps(frame))
        while request_id not in self._answers:
            await self._receive()
        answer = self._answers.pop(request_id)
        assert answer["ok"] is True, answer
        return fields(answer["result"])

    async def until(self, name: str) -> list[Json]:
        """Take all events up to the first one of this name."""
        while not any(event["event"] == name for event in self.events):
            await self._receive()
        names = [event["event"] for event in self.events]
        end = names.index(name) + 1
        taken, self.events = self.events[:end], self.events[end:]
        return taken

    async def _receive(self) -> None:
        frame: Json = json.loads(await self.socket.recv())
        if frame["type"] == "event":
            self.events.append(frame)
        else:
            self._answers[frame["id"]] = frame


@asynccontextmanager
async def dialled(url: str, **params: object) -> AsyncGenerator[tuple[Wire, Json]]:
    address = url.replace("http", "ws", 1) + "/ws"
    async with connect(address, subprotocols=[Subprotocol("motet.v1")]) as socket:
        assert socket.subprotocol == "motet.v1"
        wire = Wire(socket)
        welcome = await wire.ask("connect", auth={"token": TOKEN}, **params)
        yield wire, welcome


def seqs(events: list[Json]) -> list[object]:
    return [event["seq"] for event in events if "seq" in event]


def texts(events: list[Json], name: str) -> list[str]:
    return [str(fields(event["data"])["text"]) for event in events if event["event"] == name]


def fields(value: object) -> Json:
    return msgspec.convert(value, Json)


async def conversation(url: str) -> None:
    """Everything that the page promises, once."""
    async with dialled(url) as (wire, welcome):
        assert welcome["principal"] == {"user": "alice", "role": "operator"}
        state = await wire.ask("subscribe", stream=STREAM)
        assert state == {"head": 0, "oldest": state["oldest"], "resumed": True}
        sent = await wire.ask("chat.send", session="alice:1", text="what time?", key="k1")
        assert (sent["status"], sent["seq"]) == ("accepted", 1)
        events = await wire.until("run.completed")
        names = [event["event"] for event in events]
        assert names.index("tool.call") < names.index("tool.result") < names.index("run.completed")
        assert seqs(events) == list(range(1, len(seqs(events)) + 1))
        spoken = "".join(
            str(fields(e["data"])["text"]) for e in events if e["event"] == "text.delta"
        )
        whole = [fields(e["data"])["text"] for e in events if e["event"] == "message"]
        assert spoken == whole[-1] == "It is noon."
        last = len(seqs(events))
        again = await wire.ask("chat.send", session="alice:1", text="what time?", key="k1")
        assert (again["status"], again["run_id"]) == ("duplicate", sent["run_id"])

    async with dialled(url) as (first, _), dialled(url) as (second, _):
        hung = await first.ask("chat.send", session="alice:1", text="think", key="k2")
        report = await second.ask("runs.stop", run_id=hung["run_id"], key="stop")
        assert report["stopped"] == [hung["run_id"]]

    async with dialled(url, resume={STREAM: last}) as (wire, welcome):
        assert fields(fields(welcome["streams"])[STREAM])["resumed"] is True
        missed = await wire.until("run.cancelled")
        assert seqs(missed) == list(range(last + 1, last + 1 + len(seqs(missed))))
        assert missed[-1]["run_id"] == hung["run_id"]
        history = await wire.ask("sessions.history", session="alice:1")
        rows = [fields(row["row"]) for row in msgspec.convert(history["rows"], list[Json])]
        assert [row["role"] for row in rows][:4] == ["user", "assistant", "tool", "assistant"]
        answer = await wire.ask("chat.send", session="alice:1", text="/status", key="k3")
        assert answer["status"] == "command"


async def test_a_client_written_from_the_page_holds_a_whole_conversation() -> None:
    @motet.tool
    async def clock() -> str:
        """The time of day."""
        return "12:00"

    model = Scripted(call(("clock", {})), say("It is ", "noon."), None)
    agent = motet.Agent("helper", model=model, tools=[clock])
    config = GatewayConfig(listen="127.0.0.1:0", tokens=(TokenConfig(token=TOKEN, user="alice"),))
    async with motet.open_host(agents=[agent], check_messages=True) as host:
        url = await host.serve(config)
        with trio.fail_after(30):
            await trio.to_thread.run_sync(partial(asyncio.run, conversation(url)))


async def goodbye(url: str, connected: trio.Event, token: trio.lowlevel.TrioToken) -> int:
    """Connect, say so, and wait for the host to close; the close code."""
    async with dialled(url) as (wire, _):
        token.run_sync_soon(connected.set)
        try:
            await wire.until("shutdown")
            await wire.until("nothing more")
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006
        raise AssertionError("the host did not close")


async def test_a_host_that_stops_sends_shutdown_and_closes_with_1001() -> None:
    connected, codes = trio.Event(), list[int]()

    async def listen(url: str) -> None:
        run = partial(asyncio.run, goodbye(url, connected, trio.lowlevel.current_trio_token()))
        codes.append(await trio.to_thread.run_sync(run))

    config = GatewayConfig(listen="127.0.0.1:0", tokens=(TokenConfig(token=TOKEN, user="alice"),))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, motet.open_host() as host:
            nursery.start_soon(listen, await host.serve(config))
            await connected.wait()
    assert codes == [1001]
