"""The streamable HTTP transport of MCP: the SDK's, with the bounds that it lacks.

The SDK reads an answer of any size, comes back as often as a server likes, and waits for ever for
one that does not come. Invariants: no request and no task of the SDK outlives the call that it is
for; an answer has at most the bytes and values of its server's limits, also unpacked; a
notice that a server does not take ends the session.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import attrs
import httpx2
import trio
from mcp.client.streamable_http import streamable_http_client

from motet.actors.tools.mcp import stdio
from motet.actors.tools.mcp.stdio import CALL, Call, End, Flood, unlawful_answer
from motet.protocols.mcp import McpServer, id_of, mended, too_long, too_much

CLOSE_BUDGET = 2.0
"""Seconds to tell a server on the web that the session is over."""
NOTICE_BUDGET = 10.0
"""Seconds in which a server on the web must take a notice; all later messages wait behind it."""
APART = 1.0
"""Seconds between two GETs: servers choose when a client comes back."""

_SESSION = "mcp-session-id"


@asynccontextmanager
async def over_http(server: McpServer, end: End) -> AsyncGenerator[tuple[Any, Any]]:
    """Without time-outs of its own: the calls have theirs, on Trio's clock."""

    async def on_response(response: httpx2.Response) -> None:
        in_session = _SESSION in response.request.headers
        if response.status_code == 404 and in_session:
            end.because("it has forgotten the session")
        elif response.status_code in (401, 403) and not in_session:
            end.because(f"it answered HTTP {response.status_code}: check its headers and token")

    headers = dict(server.headers)
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    assert server.url is not None
    hooks = {"response": [on_response]}
    with trio.CancelScope() as scope:
        async with (
            _Client(end, server, headers=headers, timeout=None, event_hooks=hooks) as client,
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=stdio.LONGEST
            ) as streams,
        ):
            try:
                yield streams
            finally:
                scope.deadline = trio.current_time() + CLOSE_BUDGET


class _Client(httpx2.AsyncClient):
    """Requests that are bounded in size and number, and end with their calls."""

    def __init__(self, end: End, limits: McpServer, **options: Any) -> None:
        super().__init__(**options)
        self._end, self._limits = end, limits
        self._flood = Flood()
        self._next_get = 0.0

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        call = CALL.get(None) or Call()
        id = id_of(request.content) if request.method == "POST" else None
        notice = request.method == "POST" and id is None
        scope = trio.CancelScope(
            deadline=trio.current_time() + NOTICE_BUDGET if notice else math.inf
        )
        with scope if notice else call.waiting(scope):
            if request.method == "GET":
                now = trio.current_time()
                self._next_get = max(now, self._next_get + APART)
                await trio.sleep(self._next_get - now)
            self._flood.left += 1
            answer = await super().send(request, **how)
            headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            if _kind(answer) == "text/event-stream":
                events = _Events(answer, call, self._flood, self._end, self._limits)
                return httpx2.Response(
                    answer.status_code, headers=headers, stream=events, request=request
                )
            body = await _bounded(answer, id, self._limits)
            whole = httpx2.Response(
                answer.status_code, headers=headers, content=body, request=request
            )
            whole.next_request = answer.next_request
            return whole
        if notice:
            # The cancelled call would go on in a server that cannot be told to stop (G1).
            self._end.because("it does not read its input", hopeless=True)
        return httpx2.Response(408, request=request)


_KEPT = ("content-type", "location", _SESSION)


def _kind(answer: httpx2.Response) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _bounded(answer: httpx2.Response, id: int | str | None, limits: McpServer) -> bytes:
    """The body of an answer; an error of the protocol for one that is too much or another's."""
    body, problem = bytearray(), ""
    try:
        async for chunk in answer.aiter_bytes():
            body += chunk
            if too_long(len(body), limits):
                break
        problem = too_much(bytes(body), limits)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_BUDGET):
            await answer.aclose()
    whole = b"" if problem else mended(bytes(body))
    if answer.status_code < 300 and _kind(answer) == "application/json" and not problem:
        other = id_of(whole)
        if other is not None and str(other) != str(id):
            problem = "it is the answer to another request"
    if problem and id is not None:
        return unlawful_answer(id, problem).model_dump_json(by_alias=True).encode()
    return whole


@attrs.define(eq=False)
class _Events(httpx2.AsyncByteStream):
    """The events of an answer, in whole lines, to the end of its call."""

    _answer: httpx2.Response
    _call: Call
    _flood: Flood
    _end: End
    _limits: McpServer
    _chunks: AsyncIterator[bytes] | None = attrs.field(default=None, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)
    _over: bool = attrs.field(default=False, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        if self._chunks is None:
            self._chunks = self._answer.aiter_bytes()
        scope = trio.CancelScope()
        with self._call.waiting(scope):
            await trio.lowlevel.checkpoint()
            chunk = await anext(self._chunks, b"")
            self._over = not chunk
            events = self._rest + chunk
            # Only whole events, which can be weighed: the SDK parses what it has at their ends.
            end = max(events.rfind(b"\n\n"), events.rfind(b"\n\r\n")) + 1 if chunk else len(events)
            events, self._rest = events[:end], events[end:]
            if why := too_much(events, self._limits) or too_long(len(self._rest), self._limits):
                return self._last(why)
            if not self._flood.take(
                self._end, events.count(b"\ndata:") + events.startswith(b"data:")
            ):
                return self._last("it is a flood")
            return _RETRY.sub(rb"\1retry: 1000", mended(events))
        return self._last("its call is over")

    def _last(self, why: str) -> bytes:
        """An event that is an answer, so that the SDK neither waits for one nor comes back."""
        self._over = True
        return b"\n\ndata: %s\n\n" % unlawful_answer(0, why).model_dump_json(by_alias=True).encode()

    async def aclose(self) -> None:
        await self._answer.aclose()


_RETRY = re.compile(rb"(\A|[\r\n])retry:[^\r\n]*")
"""Of an event: the milliseconds until the SDK comes back."""
