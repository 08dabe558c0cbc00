"""Runs whose end is not published yet: they are in all lists, and outside of the lists' indexes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from random import Random

import apsw
import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.hosting.wiring import OWNERS
from motet.actors.storage.connection import Connection
from motet.actors.storage.events import SETTLE, append_events, storable
from motet.actors.storage.location import Location
from motet.actors.storage.recovery import RESUMPTIONS, UNFINISHED, run_info, runs_query
from motet.actors.storage.schema import MIGRATIONS, migrate
from motet.actors.storage.session_runs import RunTables
from motet.actors.storage.session_transcripts import SESSION, session_info, sessions_query
from motet.actors.storage.tables import Query
from motet.actors.storage.writer import commit_group
from motet.cli.stored import RUNS_BY_STATUS
from motet.protocols import host_tables
from motet.protocols.approval_tables import LEFT, NONE_RESUMED, SUSPEND_LEFT, SUSPENDED
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.events import EventRecord, RunCompleted
from motet.protocols.models import Usage
from motet.protocols.sessions import (
    AcceptInput,
    EnterRun,
    FinishRun,
    ListRuns,
    ListSessions,
    NewInput,
    RunStatus,
)
from motet.protocols.storage import Rows, StorageError, Transaction
from tests.actors.sessions.store_builders import open_store
from tests.actors.storage.test_room_costs import Shelf

SAID = (UserMessage("hi"), AssistantMessage("ho"))
LIVE = ("queued", "running", "waiting")


@attrs.define
class Listed:
    """What the lists must show of a session or a run."""

    name: str
    owner: str
    session: str
    status: RunStatus = "queued"
    created: float = 0.0
    updated: float = 0.0


class World:
    """A database, and what every list of it must show."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.db = Connection(":memory:")
        migrate(self.db)
        self.runs = RunTables(self.commit, Shelf(self.db), lambda: self.now)
        self.sessions: dict[str, Listed] = {}
        self.stored: dict[str, Listed] = {}
        self.told: list[str] = []

    async def commit(self, statements: Transaction) -> Rows:
        (done,) = commit_group(self.db, [statements], "the test")
        if isinstance(done, StorageError):
            raise done
        return done

    async def step(self) -> None:
        self.now += self.random.choice((0.0, 1.0))
        live = [one for one in self.stored.values() if one.status in LIVE]
        act = self.random.choice((self.accept, self.accept, self.finish, self.enter, self.publish))
        await (act() if live or self.told else self.accept())

    async def accept(self) -> None:
        number, name = len(self.stored), f"s{self.random.randrange(9)}"
        owner = ("ann", "bo", "room:dev")[int(name[1:]) % 3]
        await self.runs.accept(AcceptInput(NewInput(f"r{number}", name, "a", owner, "hi")))
        known = self.sessions.setdefault(name, Listed(name, owner, name, created=self.now))
        known.updated = self.now
        run = Listed(f"r{number}", owner, name, created=self.now)
        self.stored[run.name] = run

    async def finish(self) -> None:
        live = [one for one in self.stored.values() if one.status in LIVE]
        if not live:
            return
        run, event = self.random.choice(live), self.random.random() < 0.8
        told = RunCompleted(Usage()) if event else None
        await self.runs.finish(FinishRun(run.name, "completed", SAID, event=told))
        run.status, self.sessions[run.session].updated = "completed", self.now
        self.told += [run.name] if event else []

    async def enter(self) -> None:
        """An input ends since it has entered another run of its session, which goes on."""
        live = [one for one in self.stored.values() if one.status in LIVE]
        for one, other in pairwise(live):
            if one.session == other.session:
                await self.runs.enter_run(EnterRun(one.name, 0, SAID[:1], (other.name,)))
                other.status = "steered"
                self.told.append(other.name)
                return

    async def publish(self) -> None:
        count = self.random.randrange(1 + len(self.told))
        told, self.told = self.told[:count], self.told[count:]
        records = [
            EventRecord("session:s", RunCompleted(Usage()), self.now, run_id=run) for run in told
        ]
        if records:
            await self.commit(append_events(list(map(storable, records))).statements)

    def check(self) -> None:
        for owner in (None, "ann", "bo", "room:dev"):
            mine = [one for one in self.sessions.values() if owner in (None, one.owner)]
            expected = sorted(((one.updated, one.name) for one in mine), reverse=True)
            pages = [*self.pages(owner, self.random.randrange(1, 5))]
            assert sorted(pages, reverse=True) == expected
            assert [used for used, _ in pages] == [used for used, _ in expected]
            for status in (None, "queued", "completed", "steered"):
                wanted = [
                    one.name
                    for one in reversed(self.stored.values())
                    if owner in (None, one.owner) and status in (None, one.status)
                ]
                limit = self.random.randrange(1, 20)
                found = self.db.run(*runs_query(ListRuns(owner, None, status, limit=limit)))
                assert [run_info(row).run_id for row in found] == wanted[:limit]
        for one in self.sessions.values():
            (row,) = self.db.run(SESSION, (one.name,))
            assert session_info(row).updated == one.updated

    def pages(self, owner: str | None, limit: int) -> Iterator[tuple[float, str]]:
        cursor = None
        while rows := self.db.run(*sessions_query(ListSessions(owner, limit, cursor))):
            found = list(map(session_info, rows))
            yield from ((one.updated, one.session) for one in found)
            cursor = found[-1].updated


@given(st.integers(0, 2**32))
def test_lists_show_the_same_whether_an_end_is_published_or_not(seed: int) -> None:
    """Law: after any inputs, ends and publications, each page of each list is as if every session
    and every run were in one table that is sorted anew each time."""

    async def play() -> None:
        world = World(seed)
        with closing(world.db):
            for _ in range(40):
                await world.step()
            world.check()
            while world.told:
                await world.publish()
            world.check()
            rest = sum(one.status in LIVE for one in world.stored.values())
            assert world.db.run("SELECT count(*) FROM runs WHERE open = 1") == ((rest,),)

    trio.run(play)


def test_an_older_database_keeps_its_runs_and_their_untold_ends() -> None:
    before = MIGRATIONS[: MIGRATIONS.index(host_tables.OPEN_RUNS)]
    with Location.memory() as location, closing(location.connect()) as db:
        migrate(db, before)
        for name, status in (("old", "completed"), ("told", "failed"), ("live", "running")):
            db.run(
                "INSERT INTO sessions (session, agent, owner, created, updated)"
                " VALUES (?, 'a', 'ann', 1, 2)",
                (name,),
            )
            db.run(
                "INSERT INTO runs (run_id, session, agent, user, status, text, created, updated)"
                " VALUES (?1, ?1, 'a', 'ann', ?2, 'hi', 1, 2)",
                (name, status),
            )
        db.run("INSERT INTO steps (run_id, step, body) VALUES ('told', -1, 'its end')")
        db.run("INSERT INTO steps (run_id, step, body) VALUES ('live', 0, 'its row')")
        migrate(db)
        assert db.run("SELECT run_id, open, ending FROM runs") == (
            ("old", None, None),
            ("told", 1, "its end"),
            ("live", 1, None),
        )
        assert db.run("SELECT run_id, step FROM steps") == (("live", 0),)
        found = db.run(*sessions_query(ListSessions("ann")))
        assert {session_info(row).session for row in found} == {"old", "told", "live"}
        assert db.run("PRAGMA foreign_keys") == ((1,),)
        assert db.run("PRAGMA foreign_key_check") == ()
        with pytest.raises(apsw.ConstraintError):
            db.run("DELETE FROM sessions WHERE session = 'old'")


@pytest.mark.parametrize(
    "query",
    [
        sessions_query(ListSessions()),
        sessions_query(ListSessions("ann", cursor=9.0)),
        runs_query(ListRuns("ann")),
        runs_query(ListRuns("ann", status="queued")),
        runs_query(ListRuns(status="failed")),
        runs_query(ListRuns(session="s")),
        *((sql, ()) for sql in (UNFINISHED, RESUMPTIONS, SUSPENDED, SUSPEND_LEFT, LEFT, OWNERS)),
        *((sql, ()) for sql in (NONE_RESUMED, RUNS_BY_STATUS)),
        *((sql, ("r",)) for sql in SETTLE),
    ],
)
def test_no_query_reads_a_whole_table_of_runs_or_sessions(query: Query) -> None:
    with Location.memory() as location, closing(location.connect()) as db:
        migrate(db)
        sql, params = query
        given = params or (None,) * sql.count("?")
        plan = [str(row[-1]) for row in db.run(f"EXPLAIN QUERY PLAN {sql}", given)]
        assert plan
        assert [
            one for one in plan if one.startswith(("SCAN runs", "SCAN sess")) and "USING" not in one
        ] == []


@asynccontextmanager
async def counting(path: Path) -> AsyncGenerator[tuple[RunTables, list[int]]]:
    """A store in a directory, and the pages that each of its commits has written to the log."""
    pages: list[int] = []
    with Location.directory(path) as location, closing(location.connect()) as db:
        migrate(db)

        async def commit(statements: Transaction) -> Rows:
            db.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)
            (done,) = commit_group(db, [statements], "the test")
            assert not isinstance(done, StorageError)
            pages.append(db.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)[0])
            return done

        yield RunTables(commit, Shelf(db), lambda: 1.0), pages


async def test_an_input_and_its_end_write_few_pages(tmp_path: Path) -> None:
    """Lower the bounds when they write fewer: they are a tenth above the counts."""
    async with counting(tmp_path) as (store, pages):
        for number in range(60):
            run = f"run_{number:04}"
            await store.accept(AcceptInput(NewInput(run, f"s{number}", "a", "ann", "hi")))
            end = RunCompleted(Usage())
            await store.finish(FinishRun(run, "completed", SAID, event=end))
    assert sum(pages[0::2]) / 60 <= 5.1
    assert sum(pages[1::2]) / 60 <= 3.45


async def test_a_session_is_listed_before_its_first_end(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            (found,) = await store.ref.ask(ListSessions("alice"))
            assert (found.session, found.updated) == ("s", store.clock.now)
