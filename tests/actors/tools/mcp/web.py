"""An MCP server over streamable HTTP, in the test's process, that records its requests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import h11
import trio

Reply = tuple[int, dict[str, str], bytes]


@attrs.define(eq=False)
class Web:
    """A server at :attr:`url` with three tools.

    Attributes:
        asked: methods of HTTP and of JSON-RPC, in order.
        headers: of the last request.
        status: what all requests get instead of an answer.
        forgets: it knows no session any more.
        stuck: it never answers the end of a session.
    """

    url: str = ""
    asked: list[str] = attrs.field(factory=list[str])
    headers: dict[str, str] = attrs.field(factory=dict[str, str])
    status: int = 0
    forgets: bool = False
    stuck: bool = False
    tools: list[str] = attrs.field(factory=lambda: ["echo", "slow", "grow"])
    calling: trio.Event = attrs.field(factory=trio.Event)

    async def reply(self, request: h11.Request, body: bytes) -> Reply:
        method = request.method.decode()
        self.headers = {name.decode(): value.decode() for name, value in request.headers}
        if method != "POST":
            self.asked.append(method)
            if method == "DELETE" and self.stuck:
                await trio.sleep_forever()
            return (405 if method == "GET" else 200), {}, b""
        message: dict[str, Any] = json.loads(body)
        self.asked.append(message["method"])
        if self.status:
            return self.status, {}, b""
        if message["method"] == "initialize":
            self.forgets = False
        elif self.forgets:
            return 404, {}, b""
        if "id" not in message:
            return 202, {}, b""
        return await self.answer(message)

    async def answer(self, message: dict[str, Any]) -> Reply:
        params = message.get("params", {})
        result: dict[str, object] = {}
        before: list[dict[str, object]] = []
        match message["method"], params.get("name"):
            case "initialize", _:
                info = {"name": "web", "version": "1"}
                result = {"protocolVersion": params["protocolVersion"], "serverInfo": info}
                result["capabilities"] = {"tools": {"listChanged": True}}
            case "tools/list", _:
                schema = {"type": "object"}
                result["tools"] = [{"name": name, "inputSchema": schema} for name in self.tools]
            case "tools/call", "slow":
                self.calling.set()
                await trio.sleep_forever()
            case _, name:
                if name == "grow":
                    self.tools.append("fresh")
                    before.append({"method": "notifications/tools/list_changed"})
                words = params.get("arguments", {}).get("text", f"this is {name}")
                result["content"] = [{"type": "text", "text": words}]
        return _reply({"id": message["id"], "result": result}, before)


def _reply(answer: dict[str, object], before: list[dict[str, object]]) -> Reply:
    """The answer as JSON, or as a stream if notices precede it."""
    messages = [json.dumps({"jsonrpc": "2.0", **one}) for one in (*before, answer)]
    if not before:
        headers = {"content-type": "application/json", "mcp-session-id": "s1"}
        return 200, headers, messages[0].encode()
    stream = "".join(f"event: message\ndata: {message}\n\n" for message in messages)
    return 200, {"content-type": "text/event-stream"}, stream.encode()


@asynccontextmanager
async def serving() -> AsyncGenerator[Web]:
    """The server for the length of the block."""
    web = Web()
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(
            partial(trio.serve_tcp, partial(_connection, web), 0, host="127.0.0.1")
        )
        web.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        yield web
        nursery.cancel_scope.cancel()


async def _connection(web: Web, stream: trio.SocketStream) -> None:
    wire = h11.Connection(h11.SERVER)
    with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
        while (request := await next_request(wire, stream)) is not None:
            status, headers, body = await web.reply(*request)
            headers["content-length"] = str(len(body))
            events = [h11.Response(status_code=status, headers=list(headers.items()))]
            await stream.send_all(
                b"".join(
                    wire.send(event) or b""
                    for event in (*events, h11.Data(data=body), h11.EndOfMessage())
                )
            )
            wire.start_next_cycle()


async def next_request(
    wire: h11.Connection, stream: trio.SocketStream
) -> tuple[h11.Request, bytes] | None:
    request, body = None, b""
    while True:
        match wire.next_event():
            case h11.NEED_DATA:
                wire.receive_data(await stream.receive_some())
            case h11.Request() as found:
                request = found
            case h11.Data(data=data):
                body += data
            case h11.EndOfMessage():
                assert request is not None
                return request, body
            case _:
                return None
