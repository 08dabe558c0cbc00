"""HTTP on the gateway's port: request heads in, small answers out, and the files of the web page.

h11 does the grammar. Invariants: a head takes at most 64 KiB and 5 s; an answer has its length or
is chunked, so that a connection is kept alive unless the request's body was not read. The web page
loads nothing from elsewhere and runs no script but its own (its policy tells the browser so); a
token is never in a URL that this server sees.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import h11
import trio

from motet.actors.gateway.method import Refusal
from motet.protocols.admission import host_of
from motet.protocols.gateway import SUBPROTOCOL

HEAD_BYTES: Final = 65_536
HEAD_SECONDS: Final = 5.0
BODY_SECONDS: Final = 30.0
WEBSOCKET_PATHS: Final = frozenset({"/", "/ws"})
_LINGER_BYTES: Final = 4 * 1_048_576
_LINGER_SECONDS: Final = 1.0
_TEXT: Final = "text/plain; charset=utf-8"
_COMMON_HEADERS: Final = (
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)


@attrs.frozen
class Head:
    """One request head. ``early``: the client has sent more before it was answered."""

    method: str
    path: str
    version: str
    headers: dict[str, str]
    has_body: bool
    early: bool

    def wants_websocket(self) -> bool:
        return "websocket" in self.tokens("upgrade") and "upgrade" in self.tokens("connection")

    def offers_subprotocol(self) -> bool:
        return SUBPROTOCOL in self.tokens("sec-websocket-protocol")

    def tokens(self, name: str) -> list[str]:
        """A comma-separated header in lower case."""
        return [item.strip().lower() for item in self.headers.get(name, "").split(",")]


@attrs.frozen
class Response:
    status: int
    body: str = ""
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """The bytes are no HTTP request; ``response`` says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = plain(status, message)


def plain(status: int, message: str, *headers: tuple[str, str]) -> Response:
    return Response(status, message + "\n", headers=headers)


def refused(refusal: Refusal) -> Response:
    """The answer to a wrong token, and to one from an address that has sent too many of them."""
    if refusal.retry_after is None:
        return plain(401, str(refusal), ("www-authenticate", "Bearer"))
    seconds = str(max(1, round(refusal.retry_after)))
    return plain(429, str(refusal), ("retry-after", seconds))


def page(head: Head, pages: Mapping[str, Callable[[], Response]]) -> Response:
    """The answer to a request that is no upgrade; ``pages``: by their paths."""
    if head.path not in WEBSOCKET_PATHS | pages.keys():
        shown = ", ".join(path for path in pages if "." not in path and path != "/")
        return plain(404, f"Not found. There are /, /ws, /v1/..., {shown}.")
    if head.method not in ("GET", "HEAD"):
        return plain(405, "Only GET and HEAD.", ("allow", "GET, HEAD"))
    if head.path in pages:
        return pages[head.path]()
    return plain(426, "Connect with WebSocket.", ("upgrade", "websocket"))


def upgrade_fault(head: Head) -> Response | None:
    """The refusal of a WebSocket handshake; None: it is right."""
    if head.path not in WEBSOCKET_PATHS:
        return plain(404, "Not found. WebSocket is at /ws.")
    if head.method != "GET":
        return plain(405, "A WebSocket handshake is a GET.", ("allow", "GET"))
    if head.version != "1.1" or head.has_body or head.early:
        return plain(400, "A WebSocket handshake is HTTP/1.1 alone, with nothing after it.")
    if head.headers.get("sec-websocket-version") != "13":
        return plain(426, "WebSocket version 13 is wanted.", ("sec-websocket-version", "13"))
    if not _is_nonce(head.headers.get("sec-websocket-key", "")):
        return plain(400, "Sec-WebSocket-Key is not 16 bytes in base64.")
    offered = head.headers.get("sec-websocket-protocol")
    if offered is not None and not head.offers_subprotocol():
        return plain(400, f"The sub-protocol here is {SUBPROTOCOL}, not {offered[:80]}.")
    return None


def handshake_of(head: Head) -> bytes:
    """A checked handshake in plain form, for the WebSocket library to accept.

    The library gets nothing else, so that it cannot fail on a header that was not checked here.
    """
    lines = [
        "GET /ws HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {head.headers['sec-websocket-key']}",
    ]
    if head.offers_subprotocol():
        lines.append(f"Sec-WebSocket-Protocol: {SUBPROTOCOL}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _is_nonce(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _refuse_unsure_framing(version: str, headers: Mapping[str, str]) -> None:
    """Raise :class:`BadRequest` where two readers could see two requests (RFC 9112 section 6.3).

    A proxy in front of this server may have seen another end of the body, and so another next
    request: it is answered, and the connection ends.
    """
    if version.partition(".")[0] != "1":
        raise BadRequest(505, f"HTTP/1.1 is spoken here, not HTTP/{version}.")
    if "transfer-encoding" in headers and "content-length" in headers:
        raise BadRequest(400, "Content-Length and Transfer-Encoding exclude each other.")
    if "transfer-encoding" in headers and version == "1.0":
        raise BadRequest(400, "HTTP/1.0 has no Transfer-Encoding.")


class HttpConnection:
    """One TCP stream as a sequence of requests."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._begun = False
        self._head_only = False
        self._after_head: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED] = h11.NEED_DATA

    async def next_head(self) -> Head | None:
        """The next request, or None when no more come. Raises :class:`BadRequest`."""
        with trio.move_on_after(HEAD_SECONDS):
            try:
                return await self._read_head()
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
                raise BadRequest(status, f"Not a request that can be read: {error}.") from None
        if self._begun:
            raise BadRequest(408, "The request did not come in time.")
        return None

    async def _read_head(self) -> Head | None:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Request):
                return self._head(event)
            if event is not h11.NEED_DATA:
                return None
            received = bytes(await self._stream.receive_some(HEAD_BYTES))
            # Some clients send an empty line after a body (RFC 9112 section 2.2).
            data = received if self._begun else received.lstrip(b"\r\n")
            if data or not received:
                self._begun = self._begun or bool(data)
                self._h11.receive_data(data)

    def _head(self, request: h11.Request) -> Head:
        method = request.method.decode("ascii")
        self._head_only = method == "HEAD"
        headers: dict[str, str] = {}
        for name, value in request.headers:
            key, text = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        try:
            target = urlsplit(request.target.decode("ascii"))
            if target.scheme and target.netloc:
                headers["host"] = target.netloc  # it counts instead (RFC 9112 section 3.2.2)
            if host_of(headers.get("host", "")) is None:
                raise ValueError
        except ValueError:
            raise BadRequest(400, "Not a target or host that can be read.") from None
        _refuse_unsure_framing(version := request.http_version.decode("ascii"), headers)
        self._after_head = self._h11.next_event()
        ended = isinstance(self._after_head, h11.EndOfMessage)
        early = bool(self._h11.trailing_data[0])
        return Head(method, target.path, version, headers, has_body=not ended, early=early)

    async def read_body(self, limit: int) -> bytes:
        """The body of the request whose head came last. Raises :class:`BadRequest`."""
        with trio.move_on_after(BODY_SECONDS):
            try:
                return await self._read_body(limit)
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
                raise BadRequest(status, f"Not a body that can be read: {error}.") from None
        raise BadRequest(408, "The body did not come in time.")

    async def _read_body(self, limit: int) -> bytes:
        if self._h11.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._stream.send_all(self._h11.send(go_on) or b"")
        body = bytearray()
        event = self._after_head
        while not isinstance(event, h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > limit:
                    raise BadRequest(413, f"The body is above {limit} bytes.")
            elif event is h11.NEED_DATA:
                self._h11.receive_data(bytes(await self._stream.receive_some(HEAD_BYTES)))
            else:
                raise BadRequest(400, "The body ends before its end.")
            event = self._h11.next_event()
        return bytes(body)

    async def gone(self) -> None:
        """Return when the client has ended its side. Requests that it sends early are kept."""
        try:
            while len(self._h11.trailing_data[0]) < HEAD_BYTES:
                data = await self._stream.receive_some(HEAD_BYTES)
                self._h11.receive_data(bytes(data))
                if not data:
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        await trio.sleep_forever()  # it has sent too much to read on: a write will fail

    async def begin(self, content_type: str, *headers: tuple[str, str]) -> None:
        """Begin an answer whose length is not known; :meth:`send` and :meth:`finish` follow."""
        sent = [("content-type", content_type), *_COMMON_HEADERS, *headers]
        await self.send(h11.Response(status_code=200, headers=sent, reason="OK"))

    async def send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        """Raises ``trio.BrokenResourceError`` when the client is gone. It may wait long."""
        await self._stream.send_all(self._h11.send(event) or b"")

    async def finish(self) -> bool:
        """End an answer that was begun; true when another request may follow."""
        await self.send(h11.EndOfMessage())
        return self._start_next()

    async def respond(self, response: Response) -> bool:
        """Send an answer; true when another request may follow."""
        body = response.body.encode()
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(body))),
            *(one for one in _COMMON_HEADERS if one[0] not in dict(response.headers)),
            *response.headers,
        ]
        open_ended = self._h11.their_state in (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        if open_ended and ("connection", "close") not in response.headers:
            headers.append(("connection", "close"))
        reason = HTTPStatus(response.status).phrase
        event = h11.Response(status_code=response.status, headers=headers, reason=reason)
        data = self._h11.send(event) or b""
        if body and not self._head_only:
            data += self._h11.send(h11.Data(data=body)) or b""
        data += self._h11.send(h11.EndOfMessage()) or b""
        with trio.fail_after(HEAD_SECONDS):
            await self._stream.send_all(data)
        return self._start_next()

    async def refuse(self, response: Response) -> None:
        """Answer bytes that are no request; nothing follows."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self.respond(
                attrs.evolve(response, headers=(*response.headers, ("connection", "close")))
            )

    def _start_next(self) -> bool:
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._head_only = False
        self._begun = bool(self._h11.trailing_data[0])
        self._h11.start_next_cycle()
        return True


async def linger(stream: trio.abc.HalfCloseableStream) -> None:
    """End our half and read the rest, so that a reset does not discard the answer just sent."""
    with trio.move_on_after(_LINGER_SECONDS):
        try:
            await stream.send_eof()
            rest = _LINGER_BYTES
            while rest > 0:
                data = await stream.receive_some(HEAD_BYTES)
                if not data:
                    return
                rest -= len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            return


# -- the web page: files of the folder ``web`` ---------------------------------------------------

_FOLDER: Final = Path(__file__).parent / "web"
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_FILES: Final = {
    "/": "index.html",
    "/app.js": "app.js",
    "/elements.js": "elements.js",
    "/lists.js": "lists.js",
    "/markdown.js": "markdown.js",
    "/proto.js": "proto.js",
    "/rooms.js": "rooms.js",
    "/state.js": "state.js",
    "/style.css": "style.css",
}


def web_page() -> Mapping[str, Callable[[], Response]]:
    """The pages by their paths."""
    return {path: partial(_file, name) for path, name in _FILES.items()}


@cache
def _file(name: str) -> Response:
    file = _FOLDER / name
    policy = (("content-security-policy", _POLICY),)
    return Response(200, file.read_text("utf-8"), _TYPES[file.suffix], policy)
