"""The methods for operators, on a real host with a real configuration file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import new_token
from motet.protocols.gateway_records import ActorsList
from tests.actors.gateway.fakes import Client, connected

ALICE, ROOT = new_token(), new_token()
TOKENS = StaticTokens((token_entry(ALICE, "alice"), token_entry(ROOT, "root", "admin")))
BEFORE = '[agents.helper]\nmodel = "demo"\n'
AFTER = BEFORE + 'instructions = "Be brief."\n'


@asynccontextmanager
async def talk(file: Path, token: str = ROOT) -> AsyncGenerator[Client]:
    file.write_text(BEFORE)
    async with (
        motet.open_host(config=file, workspace=file.parent) as host,
        connected(Context(host, Settings(tokens=TOKENS)), token) as client,
    ):
        yield client


async def test_a_changed_file_is_reloaded_and_admins_get_an_event(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    async with talk(file) as client:
        await client.result("subscribe", stream="host")
        before = await client.result("config.get")
        file.write_text(AFTER)
        planned = await client.result("config.reload", dry_run=True)
        assert planned["changes"] == [{"key": "agents.helper", "how": "drain"}]
        assert await client.result("config.get") == before
        done = await client.result("config.reload", expect_hash=before["hash"])
        assert done == planned
        assert (await client.result("config.get"))["hash"] == done["hash"]
        refused = await client.error("config.reload", expect_hash=before["hash"])
        assert refused.code == "invalid_params"
        file.write_text(AFTER + "nonsense = 1\n")
        assert "nonsense" in (await client.error("config.reload")).message
        await client.result("ping")
        told = [event.event for event in client.events if event.stream == "host"]
        assert told[0] == "config.changed"


async def test_actors_are_listed_with_parents_first(tmp_path: Path) -> None:
    async with talk(tmp_path / "motet.toml") as client:
        found = await client.result("actors.list")
        paths = [actor.path for actor in msgspec.convert(found, ActorsList).actors]
        assert paths.index("/host/database") < paths.index("/host/models")


async def test_only_admins_may_operate_the_host(tmp_path: Path) -> None:
    async with talk(tmp_path / "motet.toml", ALICE) as client:
        assert (await client.error("subscribe", stream="host")).code == "not_found"
        assert (await client.error("config.reload")).code == "forbidden"
