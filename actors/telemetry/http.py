"""One HTTP POST over Trio and h11, for reporting to a server of the operator's choice.

Redirects are not followed and proxies of the environment are not used. Cancellation closes the
connection.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, urlsplit

import attrs
import h11
import trio

from motet.protocols.errors import MotetError
from motet.protocols.version import __version__

ANSWER_LIMIT = 65_536
"""Bytes of an answer that are kept."""
_PORTS = {"http": 80, "https": 443}


class PostFailed(MotetError):
    """There was no answer; the message says why."""


@attrs.frozen
class Answer:
    """Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def is_address(url: str) -> bool:
    target = urlsplit(url)
    return target.scheme in _PORTS and bool(target.hostname)


async def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout: float) -> Answer:
    """Send ``body`` and take the answer, within ``timeout`` seconds. Raises ``PostFailed``."""
    if not is_address(url):
        raise PostFailed(f"{url!r} is no http:// or https:// address")
    target = urlsplit(url)
    try:
        with trio.fail_after(timeout):
            async with _connected(target) as stream:
                return await _exchange(stream, _request(target, body, headers), body)
    except trio.TooSlowError:
        raise PostFailed(f"{target.hostname} gave no answer within {timeout:g} s") from None
    except h11.ProtocolError as error:
        raise PostFailed(f"{target.hostname} does not speak proper HTTP: {error}") from error
    except trio.BrokenResourceError as error:
        raise PostFailed(f"{target.hostname}: {error.__cause__ or 'connection lost'}") from error
    except OSError as error:
        raise PostFailed(f"{target.hostname} cannot be reached: {error}") from error


@asynccontextmanager
async def _connected(target: SplitResult) -> AsyncGenerator[trio.abc.Stream]:
    host, port = target.hostname or "", target.port or _PORTS[target.scheme]
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    try:
        if target.scheme == "https":
            context = await trio.to_thread.run_sync(ssl.create_default_context)
            stream = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
        yield stream
    finally:
        # Awaits nothing: the connection is not used again, so that no farewell is due.
        await trio.aclose_forcefully(stream)


def _request(target: SplitResult, body: bytes, headers: Mapping[str, str]) -> h11.Request:
    netloc = target.netloc.rpartition("@")[2]
    fixed = {
        "Host": netloc,
        "User-Agent": f"motet/{__version__}",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    return h11.Request(method="POST", target=path, headers=[*{**headers, **fixed}.items()])


async def _exchange(stream: trio.abc.Stream, request: h11.Request, body: bytes) -> Answer:
    connection = h11.Connection(h11.CLIENT)
    await stream.send_all(connection.send(request) or b"")
    await stream.send_all(connection.send(h11.Data(data=body)) or b"")
    await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
    status, found, received = 0, dict[str, str](), bytearray()
    while len(received) < ANSWER_LIMIT:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(ANSWER_LIMIT)))
        elif isinstance(event, h11.Response):
            status = event.status_code
            found = {name.decode("latin-1"): text.decode("latin-1") for name, text in event.headers}
        elif isinstance(event, h11.Data):
            received += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
    return Answer(status, found, bytes(received[:ANSWER_LIMIT]))
