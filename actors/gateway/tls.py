"""TLS: the certificate and its key, which are read again when their files have changed.

Invariant: a gateway with TLS configured speaks nothing else: it does not start without a good
certificate, and goes on with the last good one.
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
    """A certificate and its key, in files that may be replaced while they are in use.

    Attributes:
        context: for new connections; open ones keep theirs.

    Making and refreshing raise :class:`ConfigError` for unusable files, and block for the disk.
    """

    def __init__(self, chain: str, key: str | None) -> None:
        self._chain = chain
        self._key = key or chain
        self._seen = self._stamps()
        self.context = self._read()

    def refresh(self) -> bool:
        """Read the files if they have changed; true: new connections have another certificate.

        When it fails the last good one stays, and the next call tries again.
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
    """The configured certificate; None: clear text. Reads files; raises :class:`ConfigError`."""
    if config.certificate is not None:
        return Certificate(config.certificate, config.private_key)
    if config.private_key is not None:
        raise ConfigError("gateway.private_key is given without gateway.certificate")
    return None


def _stamp(file: str) -> Stamp | None:
    """Identity of a file's content: time, size, inode. None: it cannot be read."""
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
        """End our half of the TCP connection: TLS has no half-close."""
        await self._socket.send_eof()

    async def aclose(self) -> None:
        await self._tls.aclose()


def _no_password() -> str:
    raise ValueError("the key has a password")
