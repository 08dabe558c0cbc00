"""A full disk or a locked database is a warning to the user, not a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.storage import Statement, StorageError, Transact
from tests.scripted import Scripted, call, say


def agent_that_fails_while(block: Callable[[], object], *then: str) -> motet.Agent[None]:
    script = Scripted(call(("boom", {})), *(say(text) for text in then))
    agent = motet.Agent("a", model=script)

    @agent.tool
    async def boom() -> None:
        block()
        raise RuntimeError("kaboom")

    return agent


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience with a lock is real time: shorten it."""
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.05)


async def test_an_error_is_told_with_an_id_that_is_found_while_the_database_is_locked(
    tmp_path: Path,
) -> None:
    # By the same library as ours: two SQLites in one process do not see each other's locks.
    Location.directory(tmp_path).close()  # makes the database
    other = Connection(str(tmp_path / "motet.db"))
    other.set_busy_timeout(5_000)
    agent = agent_that_fails_while(lambda: other.run("BEGIN IMMEDIATE"), "I see", "next")
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        async with host.stream(agent, "go", session="s") as run:
            seen: list[events.AnyEvent] = []
            async for event in run:
                seen.append(event)
        assert run.result.output == "I see"
        names = [events.event_name(event) for event in seen]
        assert "error_store.failed" not in names
        assert names[-1] == "run.completed"
        (failed,) = run.result.errors
        assert failed.error_id is not None
        assert f"[Error ID: {failed.error_id}]" in failed.text
        assert (await host.error(failed.error_id)).raw_error["message"] == "kaboom"

        with pytest.raises(StorageError):
            await host.submit("not durable, so refused", session="s")

        other.run("ROLLBACK")
        assert (await host.run(agent, "again", session="s")).output == "next"
        rows = [item.row for item in await host.history("s")]
        assert violations(rows) == ()
        assert [row.text for row in rows if row.text in ("go", "again")] == ["go", "again"]
    other.close()


async def test_a_state_inside_the_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(motet.ConfigError, match="choose another workspace or state"):
        async with motet.open_host(tmp_path / "state", workspace=tmp_path):
            raise AssertionError("opened")


async def test_a_full_disk_during_a_run_lets_the_answer_through(tmp_path: Path) -> None:
    agent = motet.Agent("a", model=Scripted(say("x" * 200_000), say("next")))
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        database = host.system.find("/host/database")
        assert database is not None
        async with host.stream(agent, "go", session="s") as run:
            await database.ask(Transact((Statement("PRAGMA max_page_count = 1"),)))
            seen = [event async for event in run]
        assert run.result.status == "completed"
        warned = [event for event in seen if isinstance(event, motet.Warned)]
        assert any("kept in memory" in warning.message for warning in warned)

        await database.ask(Transact((Statement("PRAGMA max_page_count = 100000"),)))
        assert (await host.run(agent, "again", session="s")).output == "next"
        rows = [item.row for item in await host.history("s")]
        assert [len(row.text) for row in rows] == [2, 200_000, 5, 4]
