"""Tokens, roles, origins, and where the gateway may listen."""

from __future__ import annotations

import re

import pytest

from motet.actors.gateway.auth import (
    StaticTokens,
    TokenEntry,
    check_listen,
    may,
    token_entry,
)
from motet.actors.storage.tokens import digest, new_token
from motet.protocols.admission import bearer, host_is_loopback, is_loopback, origin_allowed
from motet.protocols.errors import ConfigError
from motet.protocols.sessions import Principal


def test_a_token_is_random_and_only_its_digest_is_kept() -> None:
    token = new_token()
    assert re.fullmatch(r"mtt_[0-9a-f]{32}", token)
    assert token != new_token()
    assert token not in repr(StaticTokens((token_entry(token, "alice"),)))


def test_a_token_is_found_until_it_expires() -> None:
    store = StaticTokens((TokenEntry(digest("t"), "alice", "viewer", expires=100.0),))
    assert store.find(digest("t"), 99.0) == Principal("alice", "viewer")
    assert store.find(digest("t"), 100.0) is None
    assert store.find(digest("other"), 99.0) is None


@pytest.mark.parametrize("token", ["", "mtt_", "mtt_XYZ", "secret", "mtt_" + "0" * 31])
def test_a_weak_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="alice") as raised:
        token_entry(token, "alice")
    assert token == "" or f"'{token}'" not in str(raised.value)


def test_roles_are_ordered() -> None:
    assert may("admin", "operator")
    assert may("operator", "operator")
    assert not may("viewer", "operator")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_this_machine_may_be_served_without_a_token(host: str) -> None:
    assert is_loopback(host)
    check_listen(host, StaticTokens())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "box.example", "localhost.evil"])
def test_others_are_served_with_a_token_only(host: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        check_listen(host, StaticTokens())
    check_listen(host, StaticTokens((token_entry(new_token(), "a"),)))


def test_a_bearer_header_is_read_in_any_case() -> None:
    assert bearer({"authorization": "bearer  abc "}) == "abc"
    assert bearer({"authorization": "Basic abc"}) is None
    assert bearer({}) is None


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://h:1", True),
        ("https://H:1", True),
        ("http://h", False),
        ("http://h:1.evil", False),
        ("https://a.example/", True),
        ("null", False),
        ("file://h:1", False),
        ("http://[", False),
    ],
)
def test_only_pages_of_this_host_or_named_ones_connect(origin: str | None, allowed: bool) -> None:
    assert origin_allowed(origin, "h:1", ["https://a.example"]) is allowed


def test_a_host_header_that_was_rebound_is_not_this_machine() -> None:
    assert host_is_loopback("127.0.0.1:80")
    assert host_is_loopback("[::1]:80")
    assert not host_is_loopback("evil.example:80")
    assert not host_is_loopback("[::")
