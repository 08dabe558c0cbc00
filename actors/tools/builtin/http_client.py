"""One HTTP request and its redirects, over Trio and h11.

Invariants:
    - Every address, that of a redirect too, is resolved and checked before it is connected to.
    - A redirect never leads from https to http, and there are at most ``MAX_REDIRECTS``.
    - No more than the limit is kept of a body, and a body of a refused type is not read at all.

Proxies of the environment are not used: a proxy would resolve the name a second time.
"""

from __future__ import annotations

import codecs
import os
import re
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import attrs
import h11
import msgspec
import trio

from motet.actors.tools.tool import ToolFailure

# From the bytes of a response to its text, in bounded memory whatever they claim to be.


_GZIP = zlib.MAX_WBITS | 16
_CHARSETS = re.compile(
    r"utf-?(8|16|32)|ascii|latin|iso-?8859|iso2022|cp\d|koi8|gb|hz|big5|euc|shift|mac|tis|johab"
)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Body:
    """Collects a body and undoes its compression; never holds more than ``limit`` bytes.

    What is received counts as well, for a stream that decodes to nothing is endless too. When
    either count is past the limit, ``cut`` is true and the rest is not looked at.

    Raises:
        ValueError: an encoding that is neither ``gzip`` nor ``deflate``.
        zlib.error: (by :meth:`add`) not what the encoding says.
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
        """Take the next bytes as received; true when there is no room for more."""
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
                # Some servers pad; like browsers, leave it at what came whole.
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
    """How to read "deflate": zlib by the standard, and without its header from some servers."""
    is_zlib = begin[0] & 0x0F == 8 and int.from_bytes(begin[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


def decode(data: bytes, charset: str | None) -> str:
    """``data`` as text: a byte order mark decides, then ``charset``, else UTF-8.

    What is invalid is replaced; an unknown name, or a codec that is no character set, is UTF-8.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name, "replace")
    try:
        name = codecs.lookup(charset or "utf-8").name
        return data.decode(name if _CHARSETS.match(name) else "utf-8", "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")


# Which network addresses a model's request may reach, and a connection to those only.
#
# Invariant: the connection is made to an address that was checked, never to a name: a name server
# that answers differently the second time is not asked a second time.


Address: TypeAlias = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_UNSAFE_V6 = (
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("fec0::/10"),
    IPv6Network("::/96"),
    IPv6Network("5f00::/16"),
)
CONNECT_TIMEOUT = 5.0
"""Seconds one address has to accept the connection before the next one is tried."""


def embedded(address: Address) -> Address:
    """The IPv4 address inside of a mapped, NAT64, 6to4 or Teredo address, else the address."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    return address.teredo[1] if address.teredo is not None else address


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, by itself and by what it wraps.

    False for private, loopback, link-local (cloud metadata is there), shared (100.64/10),
    multicast, reserved, documentation and unspecified ones.
    """
    if isinstance(address, IPv6Address):
        if any(address in network for network in _UNSAFE_V6):
            return False
        inner = embedded(address)
        if isinstance(inner, IPv4Address):
            return is_public(inner)
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
    )


async def resolve(host: str, port: int, *, allow_private: bool) -> tuple[Address, ...]:
    """The addresses of ``host``, every one of them checked.

    Raises:
        ToolFailure: unknown, or one of its addresses is not public.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolFailure(f"no address is known for {host!r}", kind="not_found") from error
    # A scope ("%eth0") is only given with link-local addresses, which are refused in any case.
    listed = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    addresses = tuple(dict.fromkeys(listed))
    if not allow_private:
        refused = [str(address) for address in addresses if not is_public(address)]
        if refused:
            raise ToolFailure(
                f"{host!r} is at {', '.join(refused)}, which is not a public address; only the "
                "public internet can be fetched (allow_private in the configuration lifts this)",
                kind="permission",
            )
    return addresses


async def connect(host: str, port: int, addresses: Sequence[Address]) -> trio.SocketStream:
    """A connection to the first of ``addresses`` that takes one.

    Raises:
        ToolFailure: none does.
    """
    reason = "no address"
    for address in addresses:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                await sock.connect((str(address), port))
        except trio.TooSlowError:
            sock.close()
            reason = "no answer"
        except OSError as error:
            sock.close()
            reason = os.strerror(error.errno) if error.errno else str(error)
        except BaseException:
            sock.close()
            raise
        else:
            return trio.SocketStream(sock)
    raise ToolFailure(f"cannot connect to {host}:{port}: {reason}", kind="unknown")


Method: TypeAlias = Literal["GET", "HEAD"]

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
