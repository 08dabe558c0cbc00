"""Admission of clients to a gateway before they are known: addresses, origins and places.

Invariants: a newcomer always finds a place, and nobody who is known loses theirs; where places are
short, the address with the most newcomers gives up its oldest one; only a trusted proxy is believed
about the address of another client.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import attrs

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST: Final = re.compile(
    r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2}){0,255})"
    r"(?::(?P<port>[0-9]{0,5}))?"
)
_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V1: Final = b"PROXY "
_V1_MOST: Final = 107
_ADDRESSES: Final = {0x1: (ipaddress.IPv4Address, 4), 0x2: (ipaddress.IPv6Address, 16)}


# -- headers -----------------------------------------------------------------------------------


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of an ``Authorization: Bearer`` header, or None when there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def is_loopback(host: str) -> bool:
    """Whether a host name or address, with or without brackets, is certainly this machine."""
    name = host.removeprefix("[").removesuffix("]")
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(host_header: str) -> str | None:
    """The name or address in a ``Host`` header, an IPv6 address in brackets; empty as it may be.

    None: it is none, for example with a user, a path or a space, which other parsers read
    otherwise. Sources: RFC 9110 section 7.2, RFC 3986 section 3.2.2.
    """
    found = _HOST.fullmatch(host_header)
    if found is None or int(found["port"] or 0) > 65_535:
        return None
    name = found["name"]
    if name.startswith("["):
        try:
            ipaddress.IPv6Address(name[1:-1])
        except ValueError:
            return None
    return name


def host_is_loopback(host_header: str) -> bool:
    """Whether a ``Host`` header names this machine.

    Without tokens this is what stops DNS rebinding, where a foreign name resolves to 127.0.0.1.
    """
    name = host_of(host_header)
    return name is not None and is_loopback(name)


def origin_allowed(origin: str | None, host_header: str, allowed: Iterable[str]) -> bool:
    """Whether a page of this origin may connect. Only browsers send one."""
    if origin is None:
        return True
    wanted = origin.lower().rstrip("/")
    if any(wanted == item.lower().rstrip("/") for item in allowed):
        return True
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host_header.lower()


# -- addresses ---------------------------------------------------------------------------------


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks such as ``10.0.0.0/8``. Raises ``ValueError`` for anything else."""
    return tuple(ipaddress.ip_network(text.strip()) for text in texts)


def is_in(address: str, networks: Iterable[Network]) -> bool:
    """Whether one of the networks holds this address; false for a text that is no address."""
    found = _address(address)
    return found is not None and any(found in network for network in networks)


def client_address(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> str:
    """The address of a client whose bytes come from ``peer``.

    ``forwarded``: its ``X-Forwarded-For``, at whose end each proxy adds its own client. The last
    address that is no trusted proxy is the client's; all before it is the client's own word.
    """
    found = peer
    for text in reversed(forwarded.split(",")):
        if not is_in(found, trusted) or (before := _address(text)) is None:
            break
        found = str(before)
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, with or without port and brackets; IPv4 for one that is mapped into IPv6."""
    name = text.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def counted_as(address: str) -> str:
    """The name under which an address is counted: one subscriber of IPv6 has all of a /64."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address if found is None else str(found)


async def read_proxy_header(receive: Callable[[int], Awaitable[bytes]]) -> str | None:
    """The client's address in a header of the PROXY protocol, version 1 or 2.

    ``receive`` takes a number of bytes and returns at most as many: nothing behind the header is
    read. None: the proxy speaks for itself. Raises ``ValueError`` for anything else. Source: the
    specification of HAProxy, "The PROXY protocol", sections 2.1 and 2.2.
    """
    start = await _exactly(receive, len(_V2))
    if start == _V2:
        version, family, high, low = await _exactly(receive, 4)
        body = await _exactly(receive, high << 8 | low)
        if version not in (0x20, 0x21):
            raise ValueError("no command of the PROXY protocol, version 2")
        kind = _ADDRESSES.get(family >> 4)
        if version == 0x20 or kind is None:
            return None
        if len(body) < 2 * kind[1] + 4:
            raise ValueError("a header of the PROXY protocol that is too short")
        return str(kind[0](body[: kind[1]]))
    if not start.startswith(_V1):
        raise ValueError("no header of the PROXY protocol")
    line = bytearray(start)
    # One byte at a time: what follows belongs to TLS or HTTP.
    while not line.endswith(b"\r\n"):
        if len(line) >= _V1_MOST:
            raise ValueError("a header of the PROXY protocol that is too long")
        line += await _exactly(receive, 1)
    words = line.decode("ascii", "replace").split()
    if words[1:2] == ["UNKNOWN"]:
        return None
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ValueError("no line of the PROXY protocol, version 1")
    return str(ipaddress.ip_address(words[2]))


async def _exactly(receive: Callable[[int], Awaitable[bytes]], count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = await receive(count - len(got))
        if not more:
            raise ValueError("the connection ended in the header of the PROXY protocol")
        got += more
    return got


# -- places ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Place:
    """The place of one connection.

    Attributes:
        address: of its client, as far as it is known.
    """

    address: str
    _newcomers: Newcomers
    _evict: Callable[[], None]

    def move(self, address: str) -> None:
        """The client has another address than its bytes come from."""
        is_new = self._newcomers.holds(self)
        self._newcomers.leave(self)
        self.address = address
        if is_new:
            self._newcomers.admit(self)

    def known(self) -> None:
        """The client has shown who it is: it counts as a newcomer no more."""
        self._newcomers.leave(self)

    leave = known

    def evict(self) -> None:
        """Send the client away, for a newcomer of another address, or a newer one of its own."""
        self._evict()


@attrs.define(eq=False)
class Newcomers:
    """The connections whose clients are not known yet, ``most`` of them at once.

    Without shares, one address could hold all places with connections that say nothing. Without
    the rule that the oldest goes, it could keep out everybody else behind its own address.
    """

    most: int
    _places: dict[str, OrderedDict[Place, None]] = attrs.field(
        init=False, factory=dict[str, "OrderedDict[Place, None]"]
    )
    _counts: Counter[str] = attrs.field(init=False, factory=Counter[str])

    def __len__(self) -> int:
        return self._counts.total()

    def enter(self, address: str, evict: Callable[[], None]) -> Place:
        """A place for a newcomer. ``evict`` is called, once, when it has to go for another one."""
        place = Place(address, self, evict)
        self.admit(place)
        return place

    def holds(self, place: Place) -> bool:
        return place in self._places.get(counted_as(place.address), ())

    def admit(self, place: Place) -> None:
        name = counted_as(place.address)
        self._places.setdefault(name, OrderedDict())[place] = None
        self._counts[name] += 1
        if len(self) > self.most:
            # Among addresses with equally many, the first in the table: it came before.
            oldest = next(iter(self._places[max(self._places, key=self._counts.__getitem__)]))
            self.leave(oldest)
            oldest.evict()

    def clear(self) -> None:
        """Send all newcomers away."""
        for place in [one for held in self._places.values() for one in held]:
            self.leave(place)
            place.evict()

    def leave(self, place: Place) -> None:
        """Free a place; a place that is free already stays so."""
        name = counted_as(place.address)
        held = self._places.get(name)
        if held is None or place not in held:
            return
        del held[place]
        self._counts[name] -= 1
        if not held:
            del self._places[name], self._counts[name]
