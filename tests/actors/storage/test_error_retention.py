"""Stored errors are deleted by age, by size and by what a person asks for; the oldest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from motet.actors.hosting.retention import FIRST, INTERVAL, Prune, Retention
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import DAY
from motet.actors.storage.writer import Database, Writer, through
from motet.protocols.config import HostConfig
from motet.protocols.error_records import Keep
from motet.protocols.error_rows import BATCH, insert_statement
from motet.protocols.errors import ErrorRecord
from motet.protocols.retention import Hands, Limits
from motet.protocols.storage import Commit, DatabaseLocked, Row, Statement, Transact
from motet.runtime import ActorRef, open_system

NOW = 1_800_000_000.0


@attrs.define
class Opened:
    database: ActorRef[Transact]
    readers: Readers
    retention: ActorRef[Prune]

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


def hands(readers: Readers, commit: Commit) -> Hands:
    async def read(one: Statement) -> tuple[Row, ...]:
        return await readers.read(one.sql, one.params)

    async def stays(_name: str, _since: float) -> bool:
        return False

    return Hands(read, commit, stays, stays)


def limits(errors: Keep) -> Limits:
    return attrs.evolve(Limits.of(HostConfig()), errors=errors)


@asynccontextmanager
async def opened(keep: Keep) -> AsyncGenerator[Opened]:
    with Location.memory() as location:
        readers = Readers(location)
        async with open_system() as system:
            database = await system.start(lambda: Database(location), name="database")
            await database.ask(Transact((Statement("UPDATE upkeep SET aged = ?", (NOW,)),)))
            retention = await system.start(
                lambda: Retention(hands(readers, through(database)), limits(keep), lambda: NOW),
                name="retention",
            )
            yield Opened(database, readers, retention)
        await readers.aclose()


async def test_errors_past_their_days_go() -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(1, 29.9, 30.1, 400)
        assert await it.retention.ask(Prune()) == 2
        assert await it.ages() == [29.9, 1]
        assert await it.retention.ask(Prune()) == 0


async def test_the_oldest_go_until_the_others_fit() -> None:
    async with opened(Keep(megabytes=0.01)) as it:
        await it.add(*range(10), text="x" * 2_900)
        deleted = await it.retention.ask(Prune())
        assert await it.ages() == [2, 1, 0]
        assert deleted == 7


async def test_both_limits_hold_and_an_empty_table_is_no_trouble() -> None:
    async with opened(Keep(days=5, megabytes=0.01)) as it:
        assert await it.retention.ask(Prune()) == 0
        await it.add(0, 6, text="x" * 2_900)
        assert await it.retention.ask(Prune()) == 1
        assert await it.ages() == [0]


async def test_more_than_a_batch_goes_in_several_transactions() -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(*(31 + n / 10_000 for n in range(2 * BATCH + 1)))
        assert await it.retention.ask(Prune()) == 2 * BATCH + 1
        assert await it.ages() == []


async def test_a_host_that_runs_looks_every_hour(autojump_clock: MockClock) -> None:
    async with opened(Keep(days=30)) as it:
        await it.add(31)
        await trio.sleep(FIRST - 1)
        assert len(await it.ages()) == 1
        await trio.sleep(2)
        assert await it.ages() == []
        await it.add(32)
        await trio.sleep(INTERVAL - 10)
        assert len(await it.ages()) == 1
        await trio.sleep(20)
        assert await it.ages() == []


async def test_a_look_that_fails_is_said_and_repeated(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def locked(_one: Statement) -> tuple[Row, ...]:
        raise DatabaseLocked("another program writes")

    with Location.memory() as location:
        given = attrs.evolve(hands(Readers(location), Writer(location).submit), read=locked)
        async with open_system() as system:
            await system.start(lambda: Retention(given, limits(Keep(days=1))), name="retention")
            await trio.sleep(FIRST + 2 * INTERVAL + 1)
    assert [record.message for record in caplog.records] == ["not_pruned"] * 3
