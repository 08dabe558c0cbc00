"""Addresses of the public internet, and those of IANA's registries, which are none."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.addresses import is_public

CLOSED_V4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "192.0.0.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.175.48.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
CLOSED_V6 = [
    IPv6Network(text)
    for text in (
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001:1::/32",
        "2001:2::/48",
        "2001:3::/32",
        "2001:4:112::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:30::/28",
        "2620:4f:8000::/48",
        "3fff::/20",
        "4000::/3",
        "5f00::/16",
        "2001:db8::/32",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
]

closed_v4 = st.sampled_from(CLOSED_V4).flatmap(lambda n: st.ip_addresses(network=str(n)))
closed_v6 = st.sampled_from(CLOSED_V6).flatmap(lambda n: st.ip_addresses(network=str(n)))
any_v4 = st.ip_addresses(v=4)


def wrapped(address: int) -> list[IPv6Address]:
    """All IPv6 forms of an IPv4 address: mapped, NAT64, 6to4, Teredo."""
    return [
        IPv6Address((0xFFFF << 32) | address),
        IPv6Address((0x64FF9B << 96) | address),
        IPv6Address((0x2002 << 112) | (address << 80)),
        IPv6Address((0x20010000 << 96) | (address ^ 0xFFFFFFFF)),
    ]


@given(closed_v4 | closed_v6)
def test_no_address_of_a_private_network_is_public(address: IPv4Address | IPv6Address) -> None:
    """Law: every address of a network in IANA's registries of special ones is refused."""
    assert not is_public(address)


@given(closed_v4)
def test_a_private_address_stays_private_inside_an_ipv6_form(address: IPv4Address) -> None:
    """Law: an IPv6 form of a closed IPv4 address is closed."""
    assert not any(is_public(form) for form in wrapped(int(address)))


@given(any_v4)
def test_a_mapped_address_is_as_public_as_its_ipv4_address(address: IPv4Address) -> None:
    """Law: mapping and NAT64 change nothing."""
    mapped, nat64, *_ = wrapped(int(address))
    assert is_public(mapped) == is_public(nat64) == is_public(address)


@pytest.mark.parametrize("text", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111"])
def test_an_address_of_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200"])
def test_cloud_metadata_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))
