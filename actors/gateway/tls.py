"""TLS by configuration: the certificate and its key are read when the gateway starts.

Invariant: a gateway that is to speak TLS speaks nothing else; it does not start without.
"""

from __future__ import annotations

import ssl

import trio

from motet.protocols.config import GatewayConfig
from motet.protocols.errors import ConfigError


def tls_of(config: GatewayConfig) -> ssl.SSLContext | None:
    """What a configuration asks for; None: clear text. Reads files; raises :class:`ConfigError`."""
    if config.certificate is None:
        if config.private_key is not None:
            raise ConfigError("gateway.private_key is given without gateway.certificate")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate, config.private_key, password=_no_password)
    except (OSError, ValueError) as error:
        key = config.private_key or config.certificate
        raise ConfigError(
            f"no TLS with gateway.certificate {config.certificate!r} and the key in {key!r}: "
            f"{error}; both are files in PEM, the key without a password"
        ) from error
    return context


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
