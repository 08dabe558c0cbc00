"""One HTTP request and its redirects, over Trio and h11.

Invariants:
    - Every address, that of a redirect too, is resolved and checked before it is connected to.
    - A redirect never leads from https to http, and there are at most ``MAX_REDIRECTS``.
    - No more than the limit is kept of a body, and a body of a refused type is not read at all.

Proxies of the environment are not used: a proxy would resolve the name a second time.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import attrs
import h11
import msgspec
import trio

from motet.actors.tools.builtin.addresses import connect, resolve
from motet.actors.tools.builtin.decoding import Body
from motet.actors.tools.builtin.web import Method
from motet.actors.tools.tool import ToolFailure

MAX_REDIRECTS = 5
MAX_HEADERS = 1 << 16
CHUNK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


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


@attrs.define(eq=False)
class HttpClient:
    """Fetches with the given limits.

    Attributes:
        wanted: decides by the headers whether the body is read; it raises to refuse.
        context: the TLS context; the system's certificates unless given.
    """

    max_bytes: int
    allow_private: bool
    wanted: Callable[[Response], None]
    context: ssl.SSLContext | None = None

    async def fetch(self, url: str, method: Method) -> Response:
        """The response at the end of the redirects. Cancellation closes the connection.

        Raises:
            ToolFailure: with the reason; an HTTP error status is a response like any other.
        """
        for _ in range(MAX_REDIRECTS + 1):
            target = parse(url)
            response = await self._request(target, method)
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or location is None:
                return response
            url = redirected(target.geturl(), location)
        raise ToolFailure(f"more than {MAX_REDIRECTS} redirects, the last to {url}", kind="unknown")

    async def _request(self, target: SplitResult, method: Method) -> Response:
        async with self._connection(target) as stream:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADERS)
            try:
                await stream.send_all(connection.send(_head(target, method)) or b"")
                await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
                return await self._response(stream, connection, target.geturl())
            except (h11.ProtocolError, zlib.error) as error:
                message = f"{target.hostname} does not speak proper HTTP: {error}"
                raise ToolFailure(message, kind="unknown") from error
            except trio.BrokenResourceError as error:
                raise _broken(target, error) from error

    @asynccontextmanager
    async def _connection(self, target: SplitResult) -> AsyncGenerator[trio.abc.Stream]:
        host = target.hostname or ""
        port = target.port or _PORTS[target.scheme]
        addresses = await resolve(host, port, allow_private=self.allow_private)
        stream: trio.abc.Stream = await connect(host, port, addresses)
        try:
            if target.scheme == "https":
                if self.context is None:
                    self.context = await trio.to_thread.run_sync(ssl.create_default_context)
                stream = trio.SSLStream(
                    stream, self.context, server_hostname=host, https_compatible=True
                )
            yield stream
        finally:
            # Awaits nothing: the connection is not used again, so that no farewell is due.
            await trio.aclose_forcefully(stream)

    async def _response(
        self, stream: trio.abc.Stream, connection: h11.Connection, url: str
    ) -> Response:
        body: Body | None = None
        response: Response | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(CHUNK)))
            elif isinstance(event, h11.Response):
                response = Response(url, event.status_code, _headers(event))
                if response.status in _REDIRECTS and "location" in response.headers:
                    return response
                self.wanted(response)
                body = self._body(response)
            elif isinstance(event, h11.Data):
                assert body is not None
                if body.add(bytes(event.data)):
                    break
            elif isinstance(event, h11.EndOfMessage):
                break
        assert response is not None
        assert body is not None
        return msgspec.structs.replace(response, body=body.data, cut=body.cut)

    def _body(self, response: Response) -> Body:
        encoding = response.headers.get("content-encoding", "").strip().lower()
        try:
            return Body(encoding, self.max_bytes)
        except ValueError:
            message = f"{response.url} is encoded as {encoding!r}; gzip and deflate are understood"
            raise ToolFailure(message, kind="unknown") from None


def parse(url: str) -> SplitResult:
    """A URL that can be fetched, in the form that goes over the wire.

    Raises:
        ToolFailure: not http or https, no host, a user name in it, or no URL at all.
    """
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
        port = parts.port
    except ValueError as error:
        raise ToolFailure(f"{url!r} is not a valid URL: {error}", kind="validation") from None
    if parts.scheme not in _PORTS or not host or port == 0:
        raise ToolFailure(
            f"{url!r}: only http:// and https:// addresses with a host can be fetched",
            kind="validation",
        )
    if parts.username is not None or parts.password is not None:
        raise ToolFailure("a URL with a user name or password is not fetched", kind="validation")
    netloc = f"[{host}]" if ":" in host else host
    return SplitResult(
        parts.scheme,
        netloc if port in (None, _PORTS[parts.scheme]) else f"{netloc}:{port}",
        _quoted(parts.path) or "/",
        _quoted(parts.query),
        "",
    )


def _quoted(text: str) -> str:
    return quote(text, safe="/%:@!$&'()*+,;=~-._?", errors="replace")


def redirected(url: str, location: str) -> str:
    """Where a redirect leads.

    Raises:
        ToolFailure: from https to http, which would give away what was protected.
    """
    try:
        to = urljoin(url, location)
        scheme = urlsplit(to).scheme
    except ValueError:
        raise ToolFailure(
            f"{url} redirects to {location!r}, no valid URL", kind="unknown"
        ) from None
    if url.startswith("https:") and scheme == "http":
        raise ToolFailure(f"{url} redirects from https to http: {to}; refused", kind="permission")
    return to


def _head(target: SplitResult, method: Method) -> h11.Request:
    path = target.path + (f"?{target.query}" if target.query else "")
    headers = [
        ("Host", target.netloc),
        ("User-Agent", "motet"),
        ("Accept", "text/html, application/json, text/*, */*;q=0.5"),
        ("Accept-Encoding", "gzip, deflate"),
        ("Connection", "close"),
    ]
    return h11.Request(method=method, target=path, headers=headers)


def _headers(event: h11.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _broken(target: SplitResult, error: trio.BrokenResourceError) -> ToolFailure:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted: {cause.verify_message}"
    elif isinstance(cause, ssl.SSLError):
        reason = f"TLS failed: {cause.reason or cause}"
    else:
        reason = "it closed the connection"
    return ToolFailure(f"{target.hostname}: {reason}", kind="unknown")
