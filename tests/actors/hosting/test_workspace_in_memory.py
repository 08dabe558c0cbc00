"""A host in memory leaves no file where its program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.actors.storage.tokens import new_token
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from tests.actors.runs.ops import parts_of
from tests.scripted import Scripted, call, say

ANN, BOB = motet.Principal("ann"), motet.Principal("bob")
TWO = tuple(TokenConfig(token=new_token(), user=user) for user in ("ann", "bob"))
WRITE = call(("write_file", {"path": "notes.txt", "content": "mine"}))
READ = call(("read_file", {"path": "notes.txt"}))


def writer() -> motet.Agent[None, str]:
    model = Scripted(WRITE, say("done"), READ, say("seen"), READ, say("seen"))
    return motet.Agent("a", model=model, tools=["group:fs"])


@pytest.mark.parametrize("tokens", [(), TWO], ids=["one user", "several users"])
async def test_a_host_in_memory_writes_nothing_into_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[TokenConfig, ...]
) -> None:
    """Its files are there for as long as it is, and gone with it."""
    monkeypatch.chdir(tmp_path)
    config = HostConfig(gateway=GatewayConfig(tokens=tokens))
    agent = writer()
    async with motet.open_host(config=config, agents=[agent]) as host:
        await host.run(agent, "write", session="ann", principal=ANN)
        again = await host.run(agent, "read", session="ann", principal=ANN)
        assert "mine" in again.rows[-2].text
        folder = parts_of(host).workspace
        assert folder.is_dir()
        foreign = await host.run(agent, "read", session="bob", principal=BOB)
        assert ("mine" in foreign.rows[-2].text) == (not tokens)
    assert list(tmp_path.iterdir()) == []
    assert not folder.exists()


async def test_a_workspace_that_is_given_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = writer()
    async with motet.open_host(agents=[agent], workspace=".") as host:
        await host.run(agent, "write")
    assert (tmp_path / "notes.txt").read_text() == "mine"
