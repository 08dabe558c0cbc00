"""``runs.stop`` and ``/stop`` over a real socket while a real shell command runs (G2)."""

from __future__ import annotations

import json
from pathlib import Path
from secrets import randbelow

import msgspec
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import JsonObject
from tests.processes import alive, need_sandbox, wait_alive
from tests.scripted import Scripted, call, say


async def ask(socket: WebSocketConnection, request: JsonObject) -> JsonObject:
    """Send a request; its answer. Events on the way are put aside."""
    await socket.send_message(json.dumps({"type": "req", "id": "x", **request}))
    while True:
        frame: JsonObject = json.loads(await socket.get_message())
        if frame["type"] == "res" and frame["id"] == "x":
            return frame


async def connected(socket: WebSocketConnection) -> WebSocketConnection:
    params = {"protocol": {"min": 1, "max": 1}, "client": {"name": "test", "version": "0"}}
    assert (await ask(socket, {"method": "connect", "params": params}))["ok"]
    return socket


STOPS: dict[str, JsonObject] = {
    "method": {"method": "runs.stop", "params": {"session": "s", "key": "k2"}},
    "slash": {"method": "chat.send", "params": {"session": "s", "text": "/stop", "key": "k2"}},
    "word": {"method": "chat.send", "params": {"session": "s", "text": "stop", "key": "k2"}},
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
async def test_a_second_connection_stops_the_run_of_the_first(
    tmp_path: Path, stop: JsonObject
) -> None:
    need_sandbox()
    mark = f"1000.{randbelow(10**9):09}"
    model = Scripted(call(("shell", {"command": f"sleep {mark} & sleep {mark}"})), say("back"))
    agent = motet.Agent("a", model=model, tools=["shell"])
    params = {"session": "s", "text": "go", "key": "k1"}
    send: JsonObject = {"method": "chat.send", "params": params}
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        address = url.replace("http", "ws") + "/ws"
        async with (
            open_websocket_url(address, subprotocols=["motet.v1"]) as first,
            open_websocket_url(address, subprotocols=["motet.v1"]) as second,
        ):
            assert (await ask(await connected(first), send))["ok"]
            await wait_alive(mark, 2)

            assert (await ask(await connected(second), stop))["ok"]

            assert alive(mark) == []
            (run,) = await host.runs()
            assert run.status == "cancelled"
            assert violations([item.row for item in await host.history("s")]) == ()
            assert (await host.run(agent, "again", session="s")).output == "back"


async def sent(socket: WebSocketConnection, *texts: str) -> dict[str, JsonObject]:
    """Send these, one right after the other; the answers by text."""
    for text in texts:
        params = {"session": "s", "text": text, "key": f"key of {text}"}
        request = {"type": "req", "id": text, "method": "chat.send", "params": params}
        await socket.send_message(json.dumps(request))
    answers: dict[str, JsonObject] = {}
    while len(answers) < len(texts):
        frame: JsonObject = json.loads(await socket.get_message())
        answers[str(frame["id"])] = frame
    return answers


async def test_a_stop_covers_what_was_sent_before_it_also_what_is_not_registered_yet() -> None:
    """Law: of inputs that were sent before a stop on the same connection none goes on after it."""
    agent = motet.Agent("a", model=Scripted(*[None] * 9))
    async with motet.open_host(agents=[agent]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        address = url.replace("http", "ws") + "/ws"
        for number in range(3):
            async with open_websocket_url(address, subprotocols=["motet.v1"]) as socket:
                await connected(socket)
                texts = [f"{number} {word}" for word in ("one", "two", "three")]
                answers = await sent(socket, *texts, f" /stopall {number}")
            assert all(answer["ok"] for answer in answers.values()), answers
            with trio.fail_after(60):
                while host.status().running or host.status().queued:
                    await trio.sleep(0.01)
        assert {run.status for run in await host.runs()} <= {"dropped", "cancelled", "steered"}
        assert len(await host.runs()) == 9


async def test_a_stop_that_is_sent_again_ends_nothing_that_has_begun_since() -> None:
    agent = motet.Agent("a", model=Scripted(None, None, None))
    async with motet.open_host(agents=[agent]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        address = url.replace("http", "ws") + "/ws"
        async with open_websocket_url(address, subprotocols=["motet.v1"]) as socket:
            await connected(socket)
            run_ids: list[object] = []
            for name, stop in STOPS.items():
                params = {"session": "s", "text": f"go {name}", "key": name}
                first = await ask(socket, {"method": "chat.send", "params": params})
                run_ids.append(msgspec.convert(first["result"], JsonObject)["run_id"])
                answer = await ask(socket, stop)
                assert "duplicate" not in json.dumps(answer) or name == "word"
            params = {"session": "s", "text": "go on", "key": "last"}
            assert (await ask(socket, {"method": "chat.send", "params": params}))["ok"]

            again = [await ask(socket, stop) for stop in STOPS.values()]

        assert host.status().running == 1
    assert all("duplicate" in json.dumps(answer) for answer in again)
