"""TLS by configuration: the certificate and its key are read when the gateway starts.

Invariant: a gateway that is to speak TLS speaks nothing else; it does not start without.
"""

from __future__ import annotations

import ssl

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


def _no_password() -> str:
    raise ValueError("the key has a password")
