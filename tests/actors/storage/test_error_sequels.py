"""Errors that wait for the store while their session is deleted, or their tool succeeds.

A crash is a copy of the state directory while its host runs: the files are what a killed process
leaves, since SQLite and the spill file are written through the page cache.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.storage.location import DATABASE_FILE, Location
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.protocols.error_records import Origin
from motet.protocols.errors import ErrorRecord, NotFound
from motet.protocols.sessions import DeleteSession
from motet.protocols.storage import DiskFull
from motet.runtime.spill import SpillFile
from tests import forks
from tests.scripted import Scripted, call, say

AGENT = motet.Agent("helper", model="demo")


@attrs.define
class Disk:
    """Takes no errors while it is full."""

    is_full: bool = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return simulated(monkeypatch)


def simulated(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The database takes runs and deletions, and errors only while the disk has room."""
    made, store = Disk(), SqliteErrors.store

    async def store_or_fail(self: SqliteErrors, records: Sequence[ErrorRecord]) -> Collection[str]:
        if made.is_full:
            raise DiskFull("no room for errors")
        return await store(self, records)

    monkeypatch.setattr(SqliteErrors, "store", store_or_fail)
    monkeypatch.setattr("motet.runtime.spool.PATIENCE", 0.01)
    monkeypatch.setattr("motet.runtime.spool.RETRY", 0.01)
    monkeypatch.setattr("motet.runtime.spool.RETRY_MOST", 0.02)
    monkeypatch.setattr("motet.actors.storage.error_store.RETRY", 0.01)
    return made


def channel_of(host: motet.Host) -> ErrorChannel:
    return host._parts.services.errors  # pyright: ignore[reportPrivateUsage]


async def report(host: motet.Host, session: str, text: str, run_id: str = "") -> str:
    told = await channel_of(host).report(Origin(session, "t", run_id), text)
    assert told.error_id is not None
    return told.error_id


async def delete_without_the_rest(host: motet.Host, session: str) -> None:
    """The transaction of a deletion, as if the process died right behind it."""
    store = host.system.find("/host/sessions")
    assert store is not None
    await store.ask(DeleteSession(session))


def crashed(state: Path, copies: Path) -> Path:
    """A state directory as a killed host leaves it."""
    target = copies / f"copy{len([*copies.iterdir()])}"
    shutil.copytree(state, target)
    return target


async def is_found(host: motet.Host, error_id: str) -> bool:
    try:
        await host.error(error_id)
    except NotFound:
        return False
    return True


async def all_stored(host: motet.Host, state: Path) -> None:
    with trio.fail_after(30):
        while (state / SPILL_FILE).exists() or rows(state, "error_sequels"):
            await trio.sleep(0.01)


def rows(state: Path, table: str) -> list[str]:
    with closing(Connection(str(state / DATABASE_FILE))) as database:
        return [str(row) for row in database.run(f"SELECT * FROM {table}")]


def places(state: Path, text: str) -> list[str]:
    """The tables and files that have the text."""
    found = [t for t in ("agent_errors", "error_records") if any(text in r for r in rows(state, t))]
    spill = state / SPILL_FILE
    return [
        *found,
        *([SPILL_FILE] if spill.exists() and text.encode() in spill.read_bytes() else []),
    ]


OPS = st.sampled_from(
    ["report", "report of a run", "run", "full", "room", "delete", "crash", "die"]
)


@given(st.lists(st.tuples(OPS, st.sampled_from("ab")), min_size=3, max_size=14))
@settings(max_examples=12, deadline=None)
def test_a_deleted_session_stays_deleted_and_every_other_id_is_found(
    ops: list[tuple[str, str]],
) -> None:
    """Law: over any order of reports, full disks, deletions and kills, what a deleted session has
    reported is on no disk and in no list, and every other id that was shown is found.

    ``die``: the process is killed right behind the transaction of a deletion.
    """
    with pytest.MonkeyPatch.context() as monkeypatch, TemporaryDirectory() as folder:
        trio.run(_story, simulated(monkeypatch), Path(folder), ops)


async def _story(disk: Disk, copies: Path, ops: list[tuple[str, str]]) -> None:
    state = copies / "state"
    shown: dict[str, dict[str, str]] = {"a": {}, "b": {}}
    gone: dict[str, str] = {}
    waiting = [*enumerate(ops), (0, ("room", "")), (0, ("end", ""))]
    while waiting:
        async with motet.open_host(state, agents=[AGENT]) as host:
            while waiting:
                number, (op, session) = waiting.pop(0)
                match op:
                    case "run":
                        await host.run(AGENT, "hi", session=session)
                    case "report" | "report of a run":
                        runs = await host.runs(session=session) if op != "report" else ()
                        text = f"oleander{number}x"
                        error_id = await report(host, session, text, runs[0].run_id if runs else "")
                        shown[session][error_id] = text
                    case "full" | "room":
                        disk.is_full = op == "full"
                    case "delete" | "die":
                        if all(one.session != session for one in await host.sessions()):
                            continue
                        gone |= shown[session]
                        shown[session] = {}
                        if op == "delete":
                            await host.delete(session)
                            assert [p for text in gone.values() for p in places(state, text)] == []
                        else:
                            await delete_without_the_rest(host, session)
                            waiting.insert(0, (0, ("crash", "")))
                    case "crash":
                        state = crashed(state, copies)
                        break
                    case _:
                        await all_stored(host, state)
                        await check(host, state, shown, gone)


async def check(
    host: motet.Host, state: Path, shown: dict[str, dict[str, str]], gone: dict[str, str]
) -> None:
    expected = {error_id for one in shown.values() for error_id in one}
    for error_id in expected:
        assert await is_found(host, error_id)
    for error_id, text in gone.items():
        assert not await is_found(host, error_id)
        assert places(state, text) == []
    listed = {error.id for error in await host.errors()}
    assert not listed - expected
    assert not expected - listed


async def test_errors_that_cannot_be_overwritten_are_as_soon_as_they_can(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite = SpillFile[ErrorRecord].overwrite
    failures = iter([True] * 5)

    def fails_first(self: SpillFile[ErrorRecord], doomed: Callable[[ErrorRecord], bool]) -> object:
        if next(failures, False):
            raise OSError("input/output error")
        return overwrite(self, doomed)

    monkeypatch.setattr(SpillFile, "overwrite", fails_first)
    async with motet.open_host(tmp_path, agents=[AGENT]) as host:
        await host.run(AGENT, "hi", session="a")
        disk.is_full = True
        await report(host, "a", "oleander")
        await report(host, "b", "kept, so that the file stays")
        await host.delete("a")
        with trio.fail_after(30):
            while places(tmp_path, "oleander") or rows(tmp_path, "error_sequels"):
                await trio.sleep(0.01)


def fails_then_works() -> motet.Agent[None]:
    steps = [call(("fetch", {"n": n})) for n in range(2)]
    agent = motet.Agent("fetcher", model=Scripted(*steps, say("done")), tools=[])
    answers = iter((False, True))

    @agent.tool
    def fetch(n: int) -> str:
        if not next(answers):
            raise OSError("no route to host")
        return "fetched"

    return agent


async def test_a_success_is_kept_while_its_error_is_in_the_spill_file_only(
    tmp_path: Path, disk: Disk
) -> None:
    """A kill between the end of the run and the store of the error changes nothing."""
    state, agent = tmp_path / "state", fails_then_works()
    async with motet.open_host(state, agents=[agent]) as host:
        disk.is_full = True
        await host.run(agent, "go", session="s")
        later = await report(host, "s", "after that run")
        assert rows(state, "agent_errors") == []
        copy = crashed(state, tmp_path)
    disk.is_full = False
    async with motet.open_host(copy, agents=[agent]) as host:
        await all_stored(host, copy)
        (open_one,) = await host.errors(resolved=False)
        (resolved,) = await host.errors(resolved=True)
    assert open_one.id == later
    assert resolved.tool_name == "fetch"
    assert resolved.resolved is not None


async def test_errors_of_sub_agents_go_with_the_session_that_called_them(
    tmp_path: Path, disk: Disk
) -> None:
    state = tmp_path / "state"
    inner = fails_then_works()
    outer_model = Scripted(call(("fetcher", {"task": "go"})), say("done"), name="outer")
    outer = motet.Agent("outer", model=outer_model, tools=[inner.as_tool()])
    async with motet.open_host(state, agents=[outer]) as host:
        disk.is_full = True
        await host.run(outer, "go", session="s")
        assert places(state, "no route to host") == [SPILL_FILE]
        await host.delete("s")
        assert places(state, "no route to host") == []
        assert rows(state, "error_sequels") == []


async def test_an_id_that_was_shown_is_never_given_to_another_error(tmp_path: Path) -> None:
    """Law: of the processes that use a directory one after the other, in one second, no two make
    the same id; each has 65,536."""
    made: set[str] = set()
    for _ in range(40):
        with Location.directory(tmp_path) as location:
            source = location.hex_source()
        ids = {source(3) for _ in range(1_000)}
        assert len(ids) == 1_000
        assert all(len(one) == 6 for one in ids)
        assert not ids & made
        made |= ids
    with Location.directory(tmp_path) as location:
        whole = location.hex_source()
    assert len({whole(3) for _ in range(65_536)}) == 65_536


async def test_an_error_whose_id_another_host_has_used_is_found_under_it(
    tmp_path: Path, disk: Disk
) -> None:
    """Two hosts with directories of their own may share a store: there ids can clash."""
    async with motet.open_host(tmp_path / "state", agents=[AGENT]) as host:
        disk.is_full = True
        shown = await report(host, "s", "the one that was shown")
        with closing(Connection(str(tmp_path / "state" / DATABASE_FILE))) as database:
            database.run(
                "INSERT INTO agent_errors (id, timestamp, session_id, tool_name, raw_error,"
                " short_summary) VALUES (?, 7.0, 'other', 't', '{}', 'of another')",
                (shown,),
            )
        disk.is_full = False
        other = await report(host, "s", "another")
        with trio.fail_after(30):
            while len(await host.errors()) < 2:
                await trio.sleep(0.01)
        assert (await host.error(shown)).short_summary == "the one that was shown"
        assert await is_found(host, other)
    async with motet.open_host(tmp_path / "state", agents=[AGENT]) as host:
        assert (await host.error(shown)).short_summary == "the one that was shown"


VICTIM = """
import os, random, sys, apsw, trio, motet
from motet.protocols.error_records import Origin
from motet.actors.models.demo import DemoModel
from motet.actors.storage import location
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.protocols.storage import DiskFull, StorageError
from motet.runtime import spool
location.BUSY_TIMEOUT = 0.05
spool.PATIENCE = spool.RETRY = 0.01
spool.RETRY_MOST = 0.02
rng, full = random.Random(int(sys.argv[2])), False
store = SqliteErrors.store

async def store_or_fail(self, records):
    if full:
        raise DiskFull("no room")
    return await store(self, records)

SqliteErrors.store = store_or_fail

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

async def main():
    global full
    agent = motet.Agent("helper", model=DemoModel(pace=0))
    async with motet.open_host(sys.argv[1], agents=[agent]) as host:
        channel = host._parts.services.errors

        async def report(session, number):
            text = f"oleander{sys.argv[2]}x{number}x"
            told = await channel.report(Origin(session, "t"), text)
            if told.error_id:
                say("shown", session, told.error_id, text)

        number = 0
        while True:
            session = f"s{rng.randrange(10**6)}"
            await host.run(agent, "hi", session=session)
            full = rng.random() < 0.7
            async with trio.open_nursery() as nursery:
                for _ in range(rng.randrange(1, 6)):
                    number += 1
                    nursery.start_soon(report, session, number)
            full = rng.random() < 0.5
            if rng.random() < 0.6:
                say("deleting", session)
                await host.delete(session)
                say("deleted", session)

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.sweep) for n in range(2, 20))]
)
async def test_kills_while_sessions_are_deleted_bring_nothing_back(
    tmp_path: Path, disk: Disk, seed: int
) -> None:
    """Law: as above, over kill -9 at any moment, also in the middle of a deletion."""
    rng = random.Random(seed)
    lines: list[list[str]] = []
    for n in range(2):
        with forks.started("-c", VICTIM, str(tmp_path), f"{seed}{n}") as victim:
            assert victim.stdout is not None
            for _ in range(rng.randrange(8, 60)):
                lines.append(victim.stdout.readline().decode().split())
            victim.send_signal(signal.SIGKILL)
            rest = victim.stdout.read().decode()
        lines += [line.split() for line in rest.splitlines(keepends=True) if line[-1] == "\n"]
    begun = {words[1] for words in lines if words[0] == "deleting"}
    deleted = {words[1] for words in lines if words[0] == "deleted"}
    async with motet.open_host(tmp_path, agents=[AGENT]) as host:
        await all_stored(host, tmp_path)
        alive = {one.session for one in await host.sessions(limit=1_000)}
        assert not alive & deleted
        for words in lines:
            if words[0] == "shown":
                _, session, error_id, text = words
                assert session in alive or session in begun
                assert await is_found(host, error_id) == (session in alive)
                assert bool(places(tmp_path, text)) == (session in alive)
