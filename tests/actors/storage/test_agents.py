"""Stored agents in a real database: put, found, listed, removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from motet.actors.storage.agents import AgentStore, StoredAgents
from motet.actors.storage.location import Location
from motet.actors.storage.writer import through
from motet.protocols.agents import AgentProfile, AgentRecord, Member, Sharing, Team
from motet.protocols.limits import Limits
from motet.protocols.storage import StorageError
from tests.actors.storage.builders import Opened, open_database

WHOLE = AgentRecord(
    "rex",
    provider="openai",
    model="m",
    instructions="Bark.",
    tools=("group:fs",),
    memory=True,
    iterations=3,
    limits=Limits(turns=4),
    profile=AgentProfile(
        type="predefined",
        workspace="per_user",
        sharing=Sharing(dm=True, users=("ann",)),
        team=Team("red", members=(Member("bo", "digs"),)),
    ),
)


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[tuple[StoredAgents, Opened]]:
    with Location.directory(folder) as location:
        async with open_database(location) as database:
            store = await database.system.start(
                lambda: AgentStore(through(database.ref), database.readers), name="agents"
            )
            yield StoredAgents(store), database


async def test_an_agent_is_found_as_it_was_stored_also_by_the_next_host(tmp_path: Path) -> None:
    async with opened(tmp_path) as (agents, _):
        assert await agents.get("rex") is None
        await agents.put(WHOLE)
        assert await agents.get("rex") == WHOLE
    async with opened(tmp_path) as (agents, _):
        assert await agents.get("rex") == WHOLE


async def test_putting_replaces_and_removing_forgets(tmp_path: Path) -> None:
    async with opened(tmp_path) as (agents, _):
        await agents.put(WHOLE)
        await agents.put(AgentRecord("rex"))
        await agents.put(AgentRecord("bo"))
        assert await agents.records() == (AgentRecord("bo"), AgentRecord("rex"))
        assert await agents.remove("rex")
        assert not await agents.remove("rex")
        assert await agents.records() == (AgentRecord("bo"),)


async def test_a_record_that_cannot_be_read_costs_its_own_agent_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as (agents, database):
        await agents.put(AgentRecord("bo"))
        insert = "INSERT INTO agents VALUES (?, ?, 0, 0)"
        await database.execute(insert, "new", '{"name": "new", "telepathy": true}')
        assert await agents.records() == (AgentRecord("bo"),)
        with pytest.raises(StorageError, match=r"'new' cannot be read: .*telepathy"):
            await agents.get("new")
    assert "store it again, or remove it" in caplog.text
