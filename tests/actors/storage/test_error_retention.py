"""Stored errors are deleted by age, by size and by what a person asks for; the oldest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.storage.error_store import (
    ErrorRetention,
    PruneErrors,
)
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import DAY
from motet.actors.storage.writer import Database, through
from motet.protocols.error_records import Keep
from motet.protocols.error_rows import BATCH, insert_statement
from motet.protocols.errors import ErrorRecord
from motet.protocols.storage import DatabaseLocked, Row, Transact
from motet.runtime import Actor, ActorRef, handles, open_system

NOW = 1_800_000_000.0


@attrs.define
class Opened:
    database: ActorRef[Transact]
    readers: Readers
    retention: ActorRef[PruneErrors]

    async def add(self, *ages: float, text: str = "boom") -> None:
        """Store errors so many days old."""
        for start in range(0, len(ages), 256):
            errors = [
                ErrorRecord(f"err_{start + n}_{age}", NOW - age * DAY, "s", "t", text, "boom")
                for n, age in enumerate(ages[start : start + 256])
            ]
            await self.database.ask(Transact((insert_statement(errors),)))

    async def ages(self) -> list[float]:
        rows = await self.readers.read("SELECT timestamp FROM agent_errors ORDER BY timestamp")
        return [round((NOW - float(ts or 0)) / DAY, 6) for (ts,) in rows]


@asynccontextmanager
async def opened(keep: Keep) -> AsyncGenerator[Opened]:
    with Location.memory() as location:
        readers = Readers(location)
        async with open_system() as system:
            database = await system.start(lambda: Database(location), name="database")
            retention = await system.start(
                lambda: ErrorRetention(through(database), readers, keep, lambda: NOW),
                name="retention",
            )
            await wait_all_tasks_blocked()  # its first look is over
            yield Opened(database, readers, retention)
        await readers.aclose()


async def test_errors_past_their_days_go() -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(1, 29.9, 30.1, 400)
        assert await it.retention.ask(PruneErrors()) == 2
        assert await it.ages() == [29.9, 1]
        assert await it.retention.ask(PruneErrors()) == 0


async def test_the_oldest_go_until_the_others_fit() -> None:
    async with opened(Keep(megabytes=0.01)) as it:
        await it.add(*range(10), text="x" * 2_900)
        deleted = await it.retention.ask(PruneErrors())
        assert await it.ages() == [2, 1, 0]
        assert deleted == 7


async def test_both_limits_hold_and_an_empty_table_is_no_trouble() -> None:
    async with opened(Keep(days=5, megabytes=0.01)) as it:
        assert await it.retention.ask(PruneErrors()) == 0
        await it.add(0, 6, text="x" * 2_900)
        assert await it.retention.ask(PruneErrors()) == 1
        assert await it.ages() == [0]


async def test_more_than_a_batch_goes_in_several_transactions() -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(*(31 + n / 10_000 for n in range(2 * BATCH + 1)))
        assert await it.retention.ask(PruneErrors()) == 2 * BATCH + 1
        assert await it.ages() == []


async def test_a_host_that_runs_looks_every_hour(autojump_clock: MockClock) -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(31)
        await trio.sleep(3_599)
        assert len(await it.ages()) == 1
        await trio.sleep(2)
        assert await it.ages() == []


class Locked(Actor[Transact]):
    """A database that another program holds, until ``free``."""

    asked = 0

    @handles(Transact)
    async def transact(self, message: Transact) -> tuple[tuple[Row, ...], ...]:
        Locked.asked += 1
        raise DatabaseLocked("another program writes")


async def test_a_look_that_fails_is_said_and_repeated(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Location.memory() as location:
        async with open_system() as system:
            database = await system.start(Locked, name="database")
            await system.start(
                lambda: ErrorRetention(through(database), Readers(location), Keep(days=1)),
                name="retention",
            )
            await trio.sleep(2 * 3_600 + 1)
    assert Locked.asked == 3
    assert [record.message for record in caplog.records] == ["errors_not_pruned"] * 3


def test_nothing_is_kept_shorter_by_default(tmp_path: Path) -> None:
    assert not Keep()
    assert Keep(days=1)
    assert Keep(megabytes=1)
