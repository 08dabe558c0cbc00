"""Admission of clients that are not known yet: addresses, headers of proxies, and places."""

from __future__ import annotations

import ipaddress
import struct
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.admission import (
    Newcomers,
    Place,
    client_address,
    counted_as,
    host_is_loopback,
    host_of,
    networks_of,
    read_proxy_header,
)

HOSTS = [
    ("localhost", "localhost"),
    ("LOCALHOST:80", "LOCALHOST"),
    ("127.0.0.1:", "127.0.0.1"),
    ("[::1]:8080", "[::1]"),
    ("my_box.example", "my_box.example"),
    ("", ""),
    *(
        (text, None)
        for text in (
            *("u@localhost", "evil.example@localhost", "localhost@evil.example", "u:p@[::1]"),
            *("localhost/evil", "localhost?evil", "localhost#evil", "localhost\\evil"),
            *("local\thost", "local\nhost", " localhost", "localhost ", "localhost, evil"),
            *("localhost:99999", "localhost:8o", "localhost:-1", "localhost:80:80", "::1"),
            *("[::1", "::1]", "[::1]evil", "[evil]", "[::1]]", "[1.2.3.4]", "[fe80::1%25lo]"),
            *("localhost%", "löcalhost", "localhost\x00", "a" * 256, "localhost:\u0663"),
        )
    ),
]


@pytest.mark.parametrize(("header", "name"), HOSTS)
def test_a_host_header_is_a_name_or_an_address_with_a_port_and_nothing_else(
    header: str, name: str | None
) -> None:
    assert host_of(header) == name
    if name is None:
        assert not host_is_loopback(header)


PROXIES = networks_of(["10.0.0.0/8", "::1", "192.0.2.7"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),  # it is no proxy of ours
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # the client's own word
        ("10.0.0.1", "198.51.100.1, 192.0.2.7, 10.9.9.9", "198.51.100.1"),
        ("10.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1, ?, 10.0.0.2", "10.0.0.2"),
        ("::1", "[2001:db8::5]:443", "2001:db8::5"),
        ("::1", "198.51.100.1:9", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("gone", "198.51.100.1", "gone"),
    ],
)
def test_only_a_trusted_proxy_is_believed(peer: str, forwarded: str, address: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == address


@given(st.lists(st.ip_addresses(v=4).map(str), max_size=4), st.text("0123456789.:, ", max_size=20))
def test_a_client_cannot_choose_its_address(others: list[str], claimed: str) -> None:
    """Law: whatever a client says itself, its address is the one that the first proxy has seen."""
    true = "203.0.113.9"
    forwarded = ", ".join([claimed, *others, true, "10.1.1.1"])
    assert client_address("10.0.0.1", forwarded, PROXIES) == true


def test_an_address_of_ipv6_counts_as_its_network() -> None:
    assert counted_as("2001:db8::1") == counted_as("2001:db8::ffff") == "2001:db8::/64"
    assert counted_as("2001:db8:0:1::1") != counted_as("2001:db8::1")
    assert counted_as("::ffff:192.0.2.1") == counted_as("192.0.2.1") == "192.0.2.1"
    assert counted_as("gone") == "gone"


def header_in(data: bytes, chunk: int = 1_000) -> tuple[str | None, bytes]:
    """What a header says, and what is left behind it."""
    rest = bytearray(data)

    async def receive(most: int) -> bytes:
        taken = bytes(rest[: min(most, chunk)])
        del rest[: len(taken)]
        return taken

    return trio.run(read_proxy_header, receive), bytes(rest)


def v2(command: int, family: int, body: bytes) -> bytes:
    return b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!BBH", 0x20 | command, family, len(body)) + body


@given(st.ip_addresses(), st.binary(max_size=20), st.integers(1, 40), st.booleans())
def test_a_header_of_a_proxy_names_the_client_and_takes_no_byte_more(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, rest: bytes, chunk: int, binary: bool
) -> None:
    version, packed = address.version, address.packed
    if binary:
        more = b"\x04\0\1x"  # a TLV
        data = v2(1, 0x11 if version == 4 else 0x21, 2 * packed + b"\0\1\0\2" + more)
    else:
        data = f"PROXY TCP{version} {address} {address} 1 65535\r\n".encode()
    assert header_in(data + rest, chunk) == (str(address), rest)


@pytest.mark.parametrize(
    "data", [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN a b c d\r\n", v2(0, 0, b""), v2(1, 0x31, b"x")]
)
def test_a_proxy_may_speak_for_itself(data: bytes) -> None:
    assert header_in(data + b"GET /") == (None, b"GET /")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 1.2.3.4",
        b"PROXY TCP4 1.2.3.4 1.2.3.4\r\n",
        b"PROXY TCP4 one two 3 4\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 5 6\r\n",
        b"PROXY TCP4 " + b"1" * 200,
        v2(2, 0x11, bytes(12)),
        v2(1, 0x11, bytes(11)),
        v2(1, 0x21, bytes(12)),
        v2(1, 0x11, bytes(12))[:-1],
    ],
)
def test_any_other_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        header_in(data)


@given(st.lists(st.tuples(st.sampled_from("aaaaabc"), st.sampled_from(["enter", "leave"]))))
def test_a_newcomer_finds_a_place_at_the_cost_of_who_holds_most(
    steps: list[tuple[str, str]],
) -> None:
    """Law: nobody is evicted whose address has fewer than its share, and no newcomer at once."""
    newcomers, inside = Newcomers(3), dict[Place, str]()
    evicted = list[Place]()
    for address, step in steps:
        mine = [place for place, one in inside.items() if one == address]
        if step == "enter":
            before = list(inside.values())
            held: list[Place] = []
            place = newcomers.enter(address, partial(evicted.extend, held))
            held.append(place)
            inside[place] = address
            if len(before) == 3:
                (gone,) = evicted
                assert gone is not place
                counts, victim = [*before, address], inside[gone]
                assert counts.count(victim) == max(map(counts.count, counts))
                assert gone is next(one for one, at in inside.items() if at == victim)
                del inside[gone]
            else:
                assert evicted == []
            evicted.clear()
        elif mine:
            mine[0].leave()
            mine[0].leave()
            del inside[mine[0]]
        assert len(newcomers) == len(inside) <= 3


def test_a_known_client_is_never_evicted_and_one_that_moves_counts_at_its_address() -> None:
    newcomers, gone = Newcomers(2), list[str]()
    known = newcomers.enter("a", lambda: gone.append("known"))
    known.known()
    for name in ("first", "second"):
        newcomers.enter("proxy", partial(gone.append, name))
    moved = newcomers.enter("proxy", lambda: gone.append("moved"))
    assert gone == ["first"]
    moved.move("b")
    newcomers.enter("proxy", lambda: gone.append("third"))
    assert gone == ["first", "second"]
    known.move("c")
    assert (known.address, len(newcomers)) == ("c", 2)
