"""An HTTP/1.1 client over Trio and h11: one request, one response, one connection.

Redirects are not followed and proxies of the environment are not used: both would connect to an
address that the caller has not checked. Cancellation closes the connection.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec
import trio

from motet.protocols.errors import MotetError
from motet.protocols.version import __version__

MAX_HEADERS = 1 << 16
MAX_ANSWER = 1 << 16
"""Bytes of the answer to a :func:`post` that are kept."""
CHUNK = 1 << 16
PORTS = {"http": 80, "https": 443}
_GZIP = zlib.MAX_WBITS | 16

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connects to a host and a port; a caller that distrusts addresses checks them there."""


class HttpFailed(MotetError):
    """There was no response; the message says why."""


class Response(msgspec.Struct, frozen=True):
    """A response; header names are lower case, repeated ones joined. ``cut``: body incomplete."""

    url: str
    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False

    @property
    def content_type(self) -> str:
        """The media type, lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def phrase(self) -> str:
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


class Body:
    """Collects a body and decompresses it; never holds more than ``limit`` bytes.

    The limit applies to the received bytes, too: a stream that decodes to nothing could be endless.
    When either count exceeds it, ``cut`` is true and the rest is ignored.

    Raises:
        ValueError: an encoding that is neither ``gzip`` nor ``deflate``.
        zlib.error: (by :meth:`add`) data that is not in that encoding.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(encoding)
        self._plain = encoding in ("", "identity")
        self._inflate = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._begin: bytes = b""
        self._whole_members = 0
        self._limit = limit
        self._received = 0
        self._data = bytearray()
        self.cut = False

    def add(self, data: bytes) -> bool:
        """Add received bytes; true when there is no room for more."""
        self._received += len(data)
        if self._plain:
            self._keep(data)
        else:
            self._decompress(data)
        self.cut = self.cut or self._received > self._limit
        return self.cut

    def _decompress(self, data: bytes) -> None:
        if self._inflate is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return
            self._inflate = zlib.decompressobj(_window(data))
        while data and not self.cut:
            room = self._limit - len(self._data) + 1
            try:
                self._keep(self._inflate.decompress(data, room))
            except zlib.error:
                if not self._whole_members:
                    raise
                # Some servers append padding; like browsers, keep the complete members.
                return
            data = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._whole_members += 1
                data = self._inflate.unused_data
                self._inflate = zlib.decompressobj(_GZIP)

    def _keep(self, data: bytes) -> None:
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.cut = len(data) > room

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def _window(begin: bytes) -> int:
    """The format of "deflate": zlib by the standard; some servers leave out its header."""
    is_zlib = begin[0] & 0x0F == 8 and int.from_bytes(begin[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


async def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout: float) -> Response:
    """Send ``body`` and read the answer, within ``timeout`` seconds. Raises ``HttpFailed``."""
    if not is_address(url):
        raise HttpFailed(f"{url!r} is not an http:// or https:// address")
    target = urlsplit(url)
    fixed = {"User-Agent": f"motet/{__version__}", "Content-Length": str(len(body))}
    with trio.move_on_after(timeout):
        return await exchange(
            target, "POST", {**headers, **fixed}, body, read=lambda _: Body("", MAX_ANSWER)
        )
    raise HttpFailed(f"{target.hostname} gave no answer within {timeout:g} s")


def is_address(url: str) -> bool:
    target = urlsplit(url)
    return target.scheme in PORTS and bool(target.hostname)


async def exchange(
    target: SplitResult,
    method: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    read: Callable[[Response], Body | None],
    dial: Dial = trio.open_tcp_stream,
    context: ssl.SSLContext | None = None,
) -> Response:
    """Send one request and read its response. Raises ``HttpFailed``.

    Args:
        read: collects the body of a response with this status and these headers; None: the body is
            not read. It may raise, which ends the exchange.
        context: for TLS; the system's certificates unless given.
    """
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    fixed = {"Host": target.netloc.rpartition("@")[2], "Connection": "close"}
    request = h11.Request(method=method, target=path, headers=[*{**headers, **fixed}.items()])
    try:
        async with _connected(target, dial, context) as stream:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADERS)
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                await stream.send_all(connection.send(event) or b"")
            return await _response(stream, connection, target.geturl(), read)
    except (h11.ProtocolError, zlib.error) as error:
        raise HttpFailed(f"{target.hostname} does not speak proper HTTP: {error}") from error
    except trio.BrokenResourceError as error:
        raise HttpFailed(f"{target.hostname}: {_reason(error.__cause__)}") from error
    except OSError as error:
        raise HttpFailed(f"{target.hostname} cannot be reached: {error}") from error


@asynccontextmanager
async def _connected(
    target: SplitResult, dial: Dial, context: ssl.SSLContext | None
) -> AsyncGenerator[trio.abc.Stream]:
    host = target.hostname or ""
    stream = await dial(host, target.port or PORTS[target.scheme])
    try:
        if target.scheme == "https":
            if context is None:
                context = await trio.to_thread.run_sync(ssl.create_default_context)
            stream = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
        yield stream
    finally:
        # Awaits nothing: the connection is not used again, so TLS needs no closing handshake.
        await trio.aclose_forcefully(stream)


async def _response(
    stream: trio.abc.Stream,
    connection: h11.Connection,
    url: str,
    read: Callable[[Response], Body | None],
) -> Response:
    response: Response | None = None
    body: Body | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(CHUNK)))
        elif isinstance(event, h11.Response):
            response = Response(url, event.status_code, _headers(event))
            body = read(response)
            if body is None:
                return response
        elif isinstance(event, h11.Data):
            assert body is not None
            if body.add(bytes(event.data)):
                break
        elif isinstance(event, h11.EndOfMessage):
            break
    assert response is not None
    assert body is not None
    return msgspec.structs.replace(response, body=body.data, cut=body.cut)


def _headers(event: h11.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _reason(cause: BaseException | None) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or cause}"
    return "it closed the connection"
