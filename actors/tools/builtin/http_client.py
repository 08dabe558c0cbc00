"""Fetching a page of the public internet for a model: a GET or HEAD and its redirects.

Invariants:
    - Every address, that of a redirect too, is resolved and checked before it is connected to. The
      connection is made to the checked address and never to a name: a name server that would
      answer differently the second time is not asked a second time.
    - A redirect never leads from https to http, and there are at most ``MAX_REDIRECTS``.
    - No more than the limit is kept of a body, and a body of a refused type is not read at all.
"""

from __future__ import annotations

import codecs
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import attrs
import trio

from motet.actors.telemetry.http import PORTS, Body, HttpFailed, Response, exchange
from motet.protocols.addresses import Address, is_public
from motet.protocols.tools import ToolFailure, ToolNegative

Method: TypeAlias = Literal["GET", "HEAD"]

MAX_REDIRECTS = 5

CONNECT_TIMEOUT = 5.0
"""Seconds one address has to accept the connection before the next one is tried."""


async def resolve(host: str, port: int, *, allow_private: bool) -> tuple[Address, ...]:
    """The addresses of ``host``, each of them checked.

    Raises:
        ToolFailure: unknown, or one of its addresses is not public.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        unknown = f"no address is known for {host!r}"
        if getattr(error, "errno", None) == socket.EAI_NONAME or isinstance(error, UnicodeError):
            raise ToolNegative(unknown, kind="not_found") from error
        raise ToolFailure(unknown, kind="not_found", failure="fault") from error
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
                failure="refusal",
            )
    return addresses


async def connect(host: str, port: int, addresses: Sequence[Address]) -> trio.SocketStream:
    """A connection to the first of ``addresses`` that accepts one.

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


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "User-Agent": "motet",
    "Accept": "text/html, application/json, text/*, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


@attrs.define(eq=False)
class WebClient:
    """Fetches within limits.

    Attributes:
        wanted: raises to refuse a body, by its headers.
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
            if target.scheme == "https" and self.context is None:
                self.context = await trio.to_thread.run_sync(ssl.create_default_context)
            try:
                response = await exchange(
                    target, method, _HEADERS, read=self._body, dial=self._dial, context=self.context
                )
            except HttpFailed as error:
                raise ToolFailure(str(error), kind="unknown") from error
            if not _is_redirect(response):
                return response
            url = redirected(target.geturl(), response.headers["location"])
        raise ToolFailure(f"more than {MAX_REDIRECTS} redirects, the last to {url}", kind="unknown")

    async def _dial(self, host: str, port: int) -> trio.abc.Stream:
        addresses = await resolve(host, port, allow_private=self.allow_private)
        return await connect(host, port, addresses)

    def _body(self, response: Response) -> Body | None:
        if _is_redirect(response):
            return None
        self.wanted(response)
        encoding = response.headers.get("content-encoding", "").strip().lower()
        try:
            return Body(encoding, self.max_bytes)
        except ValueError:
            message = f"{response.url} is encoded as {encoding!r}; gzip and deflate are understood"
            raise ToolFailure(message, kind="unknown") from None


def _is_redirect(response: Response) -> bool:
    return response.status in _REDIRECTS and "location" in response.headers


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
    if parts.scheme not in PORTS or not host or port == 0:
        raise ToolFailure(
            f"{url!r}: only http:// and https:// addresses with a host can be fetched",
            kind="validation",
        )
    if parts.username is not None or parts.password is not None:
        raise ToolFailure("a URL with a user name or password is not fetched", kind="validation")
    netloc = f"[{host}]" if ":" in host else host
    return SplitResult(
        parts.scheme,
        netloc if port in (None, PORTS[parts.scheme]) else f"{netloc}:{port}",
        _quoted(parts.path) or "/",
        _quoted(parts.query),
        "",
    )


def _quoted(text: str) -> str:
    return quote(text, safe="/%:@!$&'()*+,;=~-._?", errors="replace")


def redirected(url: str, location: str) -> str:
    """Where a redirect leads.

    Raises:
        ToolFailure: from https to http, which would send a protected address in clear text.
    """
    try:
        to = urljoin(url, location)
        scheme = urlsplit(to).scheme
    except ValueError:
        raise ToolFailure(
            f"{url} redirects to {location!r}, no valid URL", kind="unknown"
        ) from None
    if url.startswith("https:") and scheme == "http":
        message = f"{url} redirects from https to http: {to}; refused"
        raise ToolFailure(message, kind="permission", failure="refusal")
    return to


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


def decode(data: bytes, charset: str | None) -> str:
    """``data`` as text: a byte order mark decides, then ``charset``, else UTF-8.

    Invalid bytes are replaced; an unknown name, or a codec that is no character set, is UTF-8.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name, "replace")
    try:
        name = codecs.lookup(charset or "utf-8").name
        return data.decode(name if _CHARSETS.match(name) else "utf-8", "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")
