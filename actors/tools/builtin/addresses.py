"""Which network addresses a model's request may reach, and a connection to those only.

Invariant: the connection is made to an address that was checked, never to a name: a name server
that answers differently the second time is not asked a second time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

import trio

from motet.actors.tools.tool import ToolFailure

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
