"""Stored tokens: found until they expire or are revoked, and never at rest themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.actors.storage.tokens import digest
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.sessions import Principal
from tests.actors.runs.ops import parts_of


async def test_a_token_is_shown_once_and_only_its_digest_is_on_disk(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path) as host:
        made = await host.new_token("alice", "viewer", label="laptop")
        (listed,) = await host.tokens()
    assert listed == made.info
    assert (listed.user, listed.role, listed.label, listed.revoked) == (
        "alice",
        "viewer",
        "laptop",
        None,
    )
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert digest(made.token).encode() in stored
    assert made.token.encode() not in stored
    assert made.token.removeprefix("mtt_").encode() not in stored


async def test_a_token_outlives_its_host_and_a_revoked_one_is_not_found(
    tmp_path: Path,
) -> None:
    async with motet.open_host(tmp_path) as host:
        kept = await host.new_token("alice")
        lost = await host.new_token("bob", impersonate=True)
        gone = await host.revoke_token(lost.info.id)
        assert gone.revoked is not None
        assert await host.revoke_token(lost.info.id) == gone
    async with motet.open_host(tmp_path) as host:
        assert len(await host.tokens()) == 2
        book = parts_of(host).stores.tokens  # what a gateway looks in
        assert book.find(digest(kept.token), 0.0) == Principal("alice", "operator")
        assert book.find(digest(lost.token), 0.0) is None
        assert not book.impersonates(digest(lost.token), 0.0)
        assert book.has_tokens()


async def test_a_token_ends_when_it_expires() -> None:
    async with motet.open_host() as host:
        made = await host.new_token("alice", expires=4_000_000_000.0)
        book = parts_of(host).stores.tokens
        assert book.find(digest(made.token), 3_999_999_999.0) == Principal("alice", "operator")
        assert book.find(digest(made.token), 4_000_000_000.0) is None


async def test_watchers_are_called_after_each_change() -> None:
    told: list[int] = []
    async with motet.open_host() as host:
        book = parts_of(host).stores.tokens
        leave = book.watch(lambda: told.append(len(told)))
        made = await host.new_token("alice")
        await host.tokens()
        await host.revoke_token(made.info.id)
        leave()
        await host.new_token("bob")
    assert told == [0, 1]


async def test_an_impossible_token_is_refused() -> None:
    async with motet.open_host() as host:
        with pytest.raises(InputValidation, match="user"):
            await host.new_token(" ")
        with pytest.raises(InputValidation, match="past"):
            await host.new_token("alice", expires=1.0)
        for unknown in ("tok_000000000000", "tok_", "%"):
            with pytest.raises(NotFound):
                await host.revoke_token(unknown)
        assert await host.tokens() == ()
