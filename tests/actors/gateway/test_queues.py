"""``chat.send`` while a session is at work, over a real socket: queue modes and statuses."""

from __future__ import annotations

from itertools import count
from typing import cast

import trio
from trio_websocket import open_websocket_url

import motet
from motet.protocols.chat import JsonObject
from tests.actors.gateway.test_stop import ask, connected
from tests.scripted import Scripted, call, say


async def test_a_message_names_its_mode_and_gets_its_status() -> None:
    model = Scripted(call(("hold", {})), *[say("ok")] * 4)
    agent, keys = motet.Agent("a", model=model), count()
    entered, leave = trio.Event(), trio.Event()

    @agent.tool
    async def hold() -> str:
        entered.set()
        await leave.wait()
        return "held"

    async with motet.open_host(agents=[agent]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        address = url.replace("http", "ws") + "/ws"
        async with open_websocket_url(address, subprotocols=["motet.v1"]) as socket:
            await connected(socket)

            async def send(text: str, **more: object) -> JsonObject:
                params = {"session": "s", "text": text, "key": f"k{next(keys)}", **more}
                return await ask(socket, {"method": "chat.send", "params": params})

            async def told(text: str, **more: object) -> tuple[object, object]:
                result = (await send(text, **more))["result"]
                assert isinstance(result, dict)
                told = cast(JsonObject, result)  # decoded JSON
                return told["status"], told.get("position")

            assert await told("one") == ("accepted", 0)
            await entered.wait()
            assert await told("two") == ("steered", 0)
            assert await told("three", mode="followup") == ("queued", 1)
            assert await told("four", mode="collect") == ("collected", 2)
            refused = await send("five", mode="reject")
            assert refused["error"] == {
                "code": "session_busy",
                "message": "session 's' is at work, and its inputs are refused meanwhile: "
                "try again when it has answered, or choose another queue mode",
                "retryable": True,
            }
            assert (await send("five", mode="later"))["ok"] is False
            assert (await told("/queue followup"))[0] == "command"
            assert await told("five") == ("queued", 3)
            leave.set()
            while host.status().running or host.status().queued:
                await trio.sleep(0.01)
        texts = [item.row.text for item in await host.history("s")]
    assert [text for text in texts if text not in ("ok", "held", "")] == [
        "one", "two", "three", "four", "five",
    ]  # fmt: skip
