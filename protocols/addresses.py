"""Addresses of the public internet, told from special ones by IANA's registries. Pure.

Invariant: an address that a registry lists is not public, whatever that registry says about
reaching it, and neither is an IPv6 address outside of the global unicast space. Only the forms that
carry an IPv4 address (mapped, NAT64, 6to4, Teredo) are as public as that one.

Sources: IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190, with all entries
up to October 2025); IANA Internet Protocol Version 6 Address Space; IANA IPv4 Multicast Address
Space Registry.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

SPECIAL_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared address space
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link local; metadata of clouds
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # IETF protocol assignments, among them the dummy and NAT64 discovery
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relay anycast, deprecated
        "192.168.0.0/16",  # private use
        "192.175.48.0/24",  # direct delegation AS112 service
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the limited broadcast
    )
)
SPECIAL_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, AMT, ORCHID, drones
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # direct delegation AS112 service
        "3fff::/20",  # documentation
    )
)
"""Those in the global unicast space; all outside of it (loopback, unique local, link local,
discard-only, segment routing, multicast, reserved) are special too."""

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside of a mapped, NAT64, 6to4 or Teredo address; None: it has none."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    return None if address.teredo is None else address.teredo[1]


def is_public(address: Address) -> bool:
    """Whether an address, or the one that it carries, belongs to the public internet."""
    if isinstance(address, IPv6Address):
        inner = carried(address)
        if inner is None:
            return address in GLOBAL_UNICAST and not any(address in one for one in SPECIAL_V6)
        address = inner
    return not any(address in network for network in SPECIAL_V4)
