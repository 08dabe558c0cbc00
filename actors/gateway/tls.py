"""TLS by configuration: the certificate and its key, which are read anew when they have changed.

Invariant: a gateway that is to speak TLS speaks nothing else; it does not start without, and goes
on with the last good certificate.
"""

from __future__ import annotations

import os
import ssl
from typing import TypeAlias

import trio

from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError

Stamp: TypeAlias = tuple[int, int, int]


class Certificate:
    """A certificate and its key: files that may be replaced while they are in use.

    Attributes:
        context: for connections that begin now; those that are open keep the one they have.

    Made from files that are of no use, and refreshed by such, it raises :class:`ConfigError`.
    Making and refreshing block for some disk access.
    """

    def __init__(self, chain: str, key: str | None) -> None:
        self._chain = chain
        self._key = key or chain
        self._seen = self._stamps()
        self.context = self._read()

    def refresh(self) -> bool:
        """Read the files if they are others now; true: new connections have another certificate.

        Failed, the last good one stays, and the next call tries again.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self.context = self._read()
        self._seen = stamps
        return True

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._chain, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no TLS with gateway.certificate {self._chain!r} and the key in {self._key!r}: "
                f"{error}; both are files in PEM, the key without a password"
            ) from error
        return context

    def _stamps(self) -> tuple[Stamp | None, ...]:
        return _stamp(self._chain), _stamp(self._key)


def tls_of(config: GatewayConfig) -> Certificate | None:
    """What a configuration asks for; None: clear text. Reads files; raises :class:`ConfigError`."""
    if config.certificate is not None:
        return Certificate(config.certificate, config.private_key)
    if config.private_key is not None:
        raise ConfigError("gateway.private_key is given without gateway.certificate")
    return None


def _stamp(file: str) -> Stamp | None:
    """What tells a file from another of its name; None: it cannot be looked at."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class TlsStream(trio.abc.HalfCloseableStream):
    """A client's socket in TLS. The handshake comes with the first bytes, under their deadline.

    A failed handshake raises ``BrokenResourceError`` there, as a socket that breaks does.
    """

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self._socket = stream
        self._tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._tls.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._tls.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """End our half of the connection below: TLS has no half of its own to end."""
        await self._socket.send_eof()

    async def aclose(self) -> None:
        await self._tls.aclose()


def _no_password() -> str:
    raise ValueError("the key has a password")
