"""Law: event-sourced actors beside a host keep what they have acknowledged, on a disk that is full.

A program has a host and a journal on one small disk. Clients store events, the host is reloaded and
answers, identities are passivated and replayed, the disk is really full for a while, the program is
killed. ``mount`` makes the disk, for root; for others no file may grow beyond a limit.
"""

from __future__ import annotations

import logging
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.domain_events import JournalError, StoredEvent
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead, Kind, Supervision, open_system
from motet.sqlite_journal import SqliteJournal, open_journal
from tests.crash.storage import small_disk
from tests.forks import started
from tests.motet.test_sqlite_journal import Note, Noted, Notes, Texts

KEYS: Final = "abc"
RULES: Final = Supervision(intensity=10_000, period=0.1, jitter=0)
ATTEMPTS: Final = 50
"""To store an event once the disk has room again; each waits for the actor that is restarted."""

# ---------------------------------------------------------------- the program that is killed


@contextmanager
def full_disk(folder: Path, *, mounted: bool) -> Generator[None]:
    if mounted:
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        yield
        ballast.unlink()
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(one.stat().st_size for one in folder.rglob("*") if one.is_file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Program:
    """What is killed. It tells each event that was acknowledged, and what breaks the law."""

    def __init__(self, folder: Path, turn: str, mounted: bool, seed: str) -> None:
        self.folder, self.turn, self.mounted = folder, turn, mounted
        self.random = Random(seed)
        self.told: dict[str, list[str]] = defaultdict(list)

    async def run(self) -> None:
        agent = motet.Agent("ann", model=mt.FunctionModel(lambda _: mt.say("yes")))
        async with (
            open_journal(self.folder / "notes.db") as journal,
            motet.open_host(self.folder / "state", agents=[agent]) as host,
        ):
            self.notes: Kind[Note | Texts] = await host.system.registry.kind(
                "notes", lambda key: Notes(journal, key), idle_after=0.02, supervision=RULES
            )
            async with trio.open_nursery() as nursery:
                for name in range(2 * len(KEYS)):
                    nursery.start_soon(self.client, KEYS[name % len(KEYS)], name)
                nursery.start_soon(self.reload, host)
                nursery.start_soon(self.fill, host, agent)

    async def client(self, key: str, name: int) -> None:
        for number in range(1_000_000):
            if await self.store(key, f"{self.turn}.{name}.{number}") and number % 10 == 9:
                before = {*self.told[key]}
                if not before <= {*await self.texts(key)}:
                    tell(f"wrong {key} has not what it has acknowledged")
            if number % 20 == 19:
                await trio.sleep(self.random.random() * 0.05)  # so that it is passivated

    async def store(self, key: str, text: str) -> bool:
        try:
            await self.notes.ref(key).ask(Note(text))
        except (StorageError, JournalError, ActorDead):
            await trio.sleep(0.001)
            return False
        self.told[key].append(text)
        tell(f"{key} {text}")
        return True

    async def texts(self, key: str) -> list[str]:
        while True:
            with suppress(StorageError, ActorDead):
                return await self.notes.ref(key).ask(Texts())
            await trio.sleep(0.001)

    async def reload(self, host: motet.Host) -> None:
        for number in range(1_000_000):
            await trio.sleep(self.random.random() * 0.05)
            await host.reload(motet.HostConfig(limits=motet.Limits(turns=5 + number % 5)))

    async def fill(self, host: motet.Host, agent: motet.Agent[None]) -> None:
        for number in range(1_000_000):
            await trio.sleep(self.random.random() * 0.1)
            with full_disk(self.folder, mounted=self.mounted):
                await trio.sleep(self.random.random() * 0.1)
            for key in KEYS:
                if not await self.goes_on(key, f"{self.turn}.{key}.{number}"):
                    tell(f"wrong {key} stores nothing more, though the disk has room")
                    break
            if (await host.run(agent, "go", session="s", check=False)).status != "completed":
                tell("wrong the host answers no more, though the disk has room")
            tell("mended")

    async def goes_on(self, key: str, text: str) -> bool:
        for attempt in range(ATTEMPTS):
            if await self.store(key, f"{text}.{attempt}"):
                return True
        return False


# Planted defects, in the program


def acknowledges_what_is_not_stored() -> None:
    append = SqliteJournal.append

    async def careless(
        journal: SqliteJournal, stream: str, after: int, events: Sequence[StoredEvent], /
    ) -> None:
        with suppress(StorageError):
            await append(journal, stream, after, events)

    setattr(SqliteJournal, "append", careless)  # noqa: B010


def stays_broken_after_a_full_disk() -> None:
    append, failed = SqliteJournal.append, list[StorageError]()

    async def final(
        journal: SqliteJournal, stream: str, after: int, events: Sequence[StoredEvent], /
    ) -> None:
        if failed:
            raise failed[0]
        try:
            await append(journal, stream, after, events)
        except StorageError as error:
            failed.append(error)
            raise

    setattr(SqliteJournal, "append", final)  # noqa: B010


def numbers_snapshots_too_high() -> None:
    keep = SqliteJournal.keep

    async def ahead(
        journal: SqliteJournal, stream: str, snapshot: StoredEvent, forget: int, /
    ) -> None:
        await keep(journal, stream, replace(snapshot, number=snapshot.number + 1), forget)

    setattr(SqliteJournal, "keep", ahead)  # noqa: B010


def ends_other_actors_at_a_reload() -> None:
    reload = Host.reload

    async def total(host: Host, *given: Any, **how: Any) -> Any:
        reloaded = await reload(host, *given, **how)
        parent = host.system.find("/host/notes")
        assert parent is not None
        await parent.stop()
        return reloaded

    setattr(Host, "reload", total)  # noqa: B010


DEFECTS: Final[dict[str, Callable[[], None]]] = {
    one.__name__: one
    for one in (
        acknowledges_what_is_not_stored,
        stays_broken_after_a_full_disk,
        numbers_snapshots_too_high,
        ends_other_actors_at_a_reload,
    )
}


def tell(line: str) -> None:
    print(line, flush=True)


def main(folder: str, turn: str, mounted: str, seed: str, defect: str) -> None:
    logging.disable()  # the errors of a full disk, thousands of them
    if defect:
        DEFECTS[defect]()
    trio.run(Program(Path(folder), turn, mounted == "True", seed).run)


VICTIM: Final = (
    "import sys; from tests.guarantees.test_g15_domain_events import main; main(*sys.argv[1:])"
)

# ---------------------------------------------------------------- the judge


async def stored(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """For each key what an actor has, from its newest snapshot on, and all stored events."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    async with open_journal(folder / "notes.db") as journal, open_system() as system:
        notes = await system.registry.kind("notes", lambda key: Notes(journal, key))
        for key in KEYS:
            events = await journal.read(f"notes/{key}", 0, 1_000_000)
            types = Notes.__motet_events__
            whole = [types.event(key, one) for one in events]
            texts = [one.text for one in whole if isinstance(one, Noted)]
            found[key] = (await notes.ref(key).ask(Texts()), texts)
    return found


def problems(folder: Path, kills: int, seed: int, defect: str = "") -> list[str]:
    random, told = Random(seed), defaultdict[str, list[str]](list)
    found: list[str] = []
    with small_disk(folder) as mounted:
        for turn in range(kills):
            words = [f"{folder / 'state'}", f"{turn}", f"{mounted}", f"{seed}/{turn}", defect]
            with started("-c", VICTIM, *words) as victim:
                assert victim.stdout is not None
                lines = [victim.stdout.readline()]  # it is at work
                for _ in range(random.choice((0, 1, 3))):
                    while lines[-1] and lines[-1] != b"mended\n":
                        lines.append(victim.stdout.readline())
                time.sleep(random.random() * 0.2)
                victim.kill()
                lines += victim.stdout.readlines()
            if victim.returncode != -signal.SIGKILL:
                found.append(f"life {turn} has ended by itself")
            (folder / "state" / "ballast").unlink(missing_ok=True)
            for line in (one.decode() for one in lines if one.endswith(b"\n")):
                what, _, text = line.removesuffix("\n").partition(" ")
                if what == "wrong":
                    found.append(f"life {turn}: {text}")
                elif text:
                    told[what].append(text)
            for key, (state, events) in trio.run(stored, folder / "state").items():
                where = f"life {turn}, {key}"
                if state != events:
                    found.append(f"{where}: the state is not made of the stored events")
                if len({*events}) < len(events):
                    found.append(f"{where}: doubled")
                if lost := {*told[key]} - {*events}:
                    found.append(f"{where}: lost {sorted(lost)[:3]}")
                for start in {text.rpartition(".")[0] for text in events}:
                    mine = [text for text in events if text.startswith(f"{start}.")]
                    if mine != sorted(mine, key=lambda text: int(text.rpartition(".")[2])):
                        found.append(f"{where}: {start} out of order")
    if not told:
        found.append("nothing was acknowledged")
    return found


@pytest.mark.slow
def test_acknowledged_events_outlive_full_disks_reloads_and_kills(tmp_path: Path) -> None:
    assert not problems(tmp_path, kills=2, seed=1)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_acknowledged_events_outlive_400_full_disks_and_kills(tmp_path: Path, part: int) -> None:
    assert not problems(tmp_path, kills=20, seed=100 + part)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_law_finds_a_program_that(tmp_path: Path, defect: str) -> None:
    assert any(
        problems(tmp_path / f"{seed}", kills=2, seed=seed, defect=defect) for seed in range(5)
    )
