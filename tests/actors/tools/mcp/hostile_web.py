"""The misdeeds of ``hostile.py`` over HTTP, with those that only HTTP allows."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import h11
import trio

from tests.actors.tools.mcp import hostile
from tests.actors.tools.mcp.hostile import answers, dense, fine, hello, line, listing
from tests.actors.tools.mcp.web import next_request

HTTP_BAD = {
    *("status_500", "status_400", "redirect", "accepted", "html", "endless", "bomb", "other_id"),
    *("list_body", "no_body", "text_body", "deep_body", "long_event", "bare_end"),
    *("dense_body", "dense_lines"),
    *("garbage", "null_id"),  # an answer on the connection of its request is that request's
}
HTTP_DEAD = {"never", "silent", "stuck", "again", "sleepy", "drip"}
HTTP_ENDS = {"cut", "bare_close", "no_http", "endless_events"}
BOMB = gzip.compress(bytes(20_000_000), 1)
JSON = "content-type: application/json\r\n"
SSE = "content-type: text/event-stream\r\n"
LAST = b"id: 7\r\nretry: %s\r\ndata:\r\n\r\n"


def head(status: int, headers: str = "", body: bytes | None = None) -> bytes:
    size = "" if body is None else f"content-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status} X\r\n{headers}{size}\r\n".encode() + (body or b"")


def events(lines: list[bytes]) -> bytes:
    return b"".join(b"event: message\ndata: " + one + b"\n" for one in lines)


@attrs.define(eq=False)
class Siege:
    """A server at :attr:`url`. ``gets``: requests to listen, or to come back."""

    url: str = ""
    gets: int = 0
    looks: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        wire = h11.Connection(h11.SERVER)
        broken = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)
        with suppress(*broken):
            while (request := await next_request(wire, stream)) is not None:
                await self.answer(stream, request[0].method.decode(), request[1])
                wire = h11.Connection(h11.SERVER)
        with suppress(*broken):
            await stream.aclose()

    async def answer(self, stream: trio.SocketStream, method: str, body: bytes) -> None:
        if method == "GET":
            self.gets += 1
            await stream.send_all(head(200, SSE + "connection: close\r\n") + LAST % b"0")
            raise trio.BrokenResourceError
        message: dict[str, Any] = json.loads(body) if body else {}
        params = message.get("params", {})
        id: Any = message.get("id")
        result: object
        match message.get("method"):
            case "initialize":
                result = hello(params)
            case "tools/list":
                self.looks += 1
                result = listing(["do", "echo", f"t{self.looks}"])
            case "tools/call" if params["name"] == "echo":
                result = fine(id, params["arguments"]["text"])["result"]
            case "tools/call":
                await self.misdeed(stream, params["arguments"]["how"], id)
                return
            case _:
                await stream.send_all(head(202, body=b""))
                return
        answer = line({"jsonrpc": "2.0", "id": id, "result": result})
        await stream.send_all(head(200, JSON + "mcp-session-id: s1\r\n", answer))

    async def misdeed(self, stream: trio.SocketStream, how: str, id: int) -> None:
        good = line(fine(id))
        whole = {
            "status_500": head(500, "", b"oops"),
            "status_400": head(400, JSON, b'{"x":1}'),
            "redirect": head(302, "location: http://127.0.0.1:9/\r\n", b""),
            "accepted": head(202, "", b""),
            "html": head(200, "content-type: text/html\r\n", b"<html>"),
            "bomb": head(200, JSON + "content-encoding: gzip\r\n", BOMB),
            "other_id": head(200, JSON, line(fine(id + 1))),
            "list_body": head(200, JSON, b"[%s]" % good),
            "no_body": head(200, JSON, b""),
            "text_body": head(200, JSON, b"done"),
            "dense_body": head(200, JSON, dense(id)),
            "deep_body": head(200, JSON, b"[" * 100_000),
        }
        if how in whole:
            await stream.send_all(whole[how])
            return
        close = SSE + "connection: close\r\n"
        match how:
            case "silent":
                await left(stream)
            case "stuck":
                await stream.send_all(head(200, JSON + "content-length: 99\r\n"))
                await left(stream)
            case "drip":
                await stream.send_all(head(200, close))
                while True:
                    await stream.send_all(b": still here\n")
                    await trio.sleep(0.01)
            case "endless":
                await stream.send_all(head(200, JSON + "transfer-encoding: chunked\r\n"))
                while True:
                    await stream.send_all(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
            case "long_event":
                await stream.send_all(head(200, close) + b"data: ")
                while True:
                    await stream.send_all(b"x" * 1_000_000)
            case "dense_lines":
                data = b"],\ndata: ".join(dense(id).strip().split(b"], ", 99))
                await stream.send_all(head(200, close) + b"data: " + data + b"\n\n")
            case "endless_events":
                await stream.send_all(head(200, close))
                while True:
                    await stream.send_all(events(answers("flood", id)))
            case "cut":
                await stream.send_all(head(200, JSON + "content-length: 999\r\n") + good)
            case "no_http":
                await stream.send_all(b"\x00\xff" * 99)
            case "again":
                await stream.send_all(head(200, close) + LAST % b"0")
            case "sleepy":
                await stream.send_all(head(200, close) + LAST % b"999999999")
            case "bare_end":
                await stream.send_all(head(200, close))
            case "bare_close":
                pass
            case _:
                lines = answers(how, id)
                if how in ("exit", "close", "half", "babble"):
                    lines = lines[:50]
                await stream.send_all(head(200, close) + events(lines))
                if how in hostile.DEAD:
                    await left(stream)
        raise trio.BrokenResourceError


async def left(stream: trio.SocketStream) -> None:
    """Wait until the client has closed the connection."""
    while await stream.receive_some():
        pass


@asynccontextmanager
async def besieging() -> AsyncGenerator[Siege]:
    siege = Siege()
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(
            partial(trio.serve_tcp, siege.serve, 0, host="127.0.0.1")
        )
        siege.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        yield siege
        nursery.cancel_scope.cancel()
