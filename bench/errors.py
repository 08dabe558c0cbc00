"""The error store: durable inserts per second, a look-up, lists and groups among many rows.

motet is compared with the bare library that blocks its loop: one COMMIT per insert, and the same
queries on one connection; lists are those of :mod:`bench.error_lists`. Both use WAL and
synchronous=FULL on the same disk. A stall is the longest time for which a ready task could not run
while an error of 10 MB was stored: with the store, and with the same work on the loop. Crowds of
failures and the memory of an error of 100 MB are those of :mod:`bench.error_crowd`.

The library, whose every insert waits for the disk, is measured once in each round, for all rows of
stores; and crowds, whose passes hardly differ, in three rounds at most: so all of it takes minutes.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import attrs
import msgspec
import trio

from bench import error_crowd, error_lists
from motet.actors.storage.connection import Connection
from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import DATABASE_FILE, Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import migrate
from motet.actors.storage.writer import Database, Writer
from motet.protocols.error_rows import SELECT_ERROR, error_of
from motet.protocols.errors import ErrorProtocol, GetError, StoreError
from motet.protocols.redaction.redact import redact
from motet.runtime import ActorRef, open_system

__all__ = ["Figure", "Sizes", "measure", "table"]

CPU = "ms of CPU"
CROWDS = 3
"""Rounds of a crowd, at most."""
REQUEST = StoreError("session", "tool", {"message": "x" * 200}, "summary")
INSERT = (
    "INSERT INTO agent_errors (id, timestamp, session_id, tool_name, raw_error, short_summary)"
    " VALUES (?, ?, ?, ?, ?, 'summary')"
)
BIG = "no such file: /tmp/some/place\n" * 340_000


class Figure(msgspec.Struct, frozen=True):
    """One figure. ``ratio`` is motet over its peer; ``goal`` and ``met`` if it has a goal."""

    row: str
    impl: str
    value: float
    unit: str
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None


@attrs.frozen
class Sizes:
    """The size of a measurement: rows of the database, inserts and queries per round, rounds."""

    rows: int = 1_000_000
    stores: int = 10_000
    queries: int = 2_000
    rounds: int = 5


def measure(sizes: Sizes, say: Callable[[str], object]) -> list[Figure]:
    """All figures, on a temporary database that is built once. ``say``: told of each step."""
    one, many, different = _costs(sizes, say)
    figures = [
        *_compared("store, 1 client", one.rates, "stores/s", ">= 2,500", one.rates[0] >= 2_500),
        *_compared(
            "store, 200 clients", many.rates, "stores/s", ">= 15,000", many.rates[0] >= 15e3
        ),
        *_share("CPU of a store, 1 client", one),
        *_share("CPU of a store, 200 clients", many),
        *_share("CPU of a store, all different", different),
    ]
    rounds = min(sizes.rounds, CROWDS)
    say(f"crowds of failures, {rounds} rounds")
    crowd, calls, bare = error_crowd.longest_passes(rounds)
    for row, longest in (("5,000 errors", crowd), ("4,800 calls of tools", calls)):
        pair = longest, bare
        figures += _compared(f"longest pass, {row}", pair, CPU, "<= 50 ms", longest <= 50)
    say("errors of 10 and 100 MB")
    factor = error_crowd.memory_factor()
    met = factor <= 2
    figures.append(Figure("memory of 100 MB", "motet", factor, "bounds", None, "<= 2", met))
    stalls = trio.run(_stall_of_store), trio.run(_stall_of_loop)
    figures += _compared("longest stall, 10 MB", stalls, "ms", "<= 50 ms", stalls[0] <= 50)
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        say(f"a database of {sizes.rows:,} errors")
        error_lists.build(Path(folder), sizes.rows, msgspec.json.encode(REQUEST.raw_error).decode())
        say("look-ups by id, lists, groups")
        got = trio.run(_gets, folder, sizes)
        listed, grouped = trio.run(_lists, folder, sizes)
    among = f"p99 of {sizes.rows:,}"
    figures += _compared(f"get by id, {among}", got, CPU, "<= 0.1 ms", got[0] <= 0.1)
    figures += _compared(f"list, any filters, {among}", listed, CPU, "<= 1 ms", listed[0] <= 1)
    figures += _compared(f"groups, any filters, {among}", grouped, CPU, "<= 1 ms", grouped[0] <= 1)
    return figures


def table(figures: list[Figure]) -> str:
    """The figures as aligned text."""
    lines = [f"{'':40}{'':14}{'value':>12} {'unit':10}{'ratio':>7}  goal"]
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        met = "" if figure.met is None else ("  met" if figure.met else "  MISSED")
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3f}"
        lines.append(
            f"{figure.row:40}{figure.impl:14}{value:>12} {figure.unit:10}{ratio:>7}"
            f"  {figure.goal}{met}"
        )
    return "\n".join(lines)


def _compared(
    row: str, pair: tuple[float, float], unit: str, goal: str = "", met: bool | None = None
) -> list[Figure]:
    motet, peer = pair
    ratio = round(motet / peer, 2)
    return [
        Figure(row, "motet", round(motet, 4), unit, ratio, goal, met),
        Figure(row, "bare library", round(peer, 4), unit),
    ]


def _share(row: str, cost: Share) -> list[Figure]:
    ours, peer = _compared(row, (cost.ours, cost.peer), "us of CPU")
    return [msgspec.structs.replace(ours, ratio=round(cost.ratio, 2)), peer]


class Share(NamedTuple):
    """Stores a second, with and without motet; CPU microseconds of one, and the ratio of these."""

    rates: tuple[float, float]
    ours: float
    peer: float
    ratio: float


def _costs(sizes: Sizes, say: Callable[[str], object]) -> list[Share]:
    """Of stores by one client, by 200, and by 200 of errors that all differ.

    All are measured in each round, after a warm-up round, in turn first. The machine may change
    its speed from round to round, so the ratio of CPU times is the median of those of all rounds;
    beside it stands the least CPU time, to which other programs only add.
    """
    few = sizes.stores // 10  # each of them waits for the disk
    works: list[tuple[Callable[[int], Awaitable[Cost]], int]] = [
        (partial(_store, clients=1), few),
        (partial(_store, clients=200), sizes.stores),
        (partial(_store, clients=200, all_differ=True), sizes.stores),
        (_insert, few),
    ]
    costs: list[list[Cost]] = [[] for _ in works]
    for number in range(sizes.rounds + 1):
        say(f"stores, round {number} of {sizes.rounds}" if number else "stores, to warm up")
        for at in range(len(works))[:: -1 if number % 2 else 1]:
            work, count = works[at]
            seconds, cpu = trio.run(work, count)
            if number:
                costs[at].append(Cost(seconds / count, cpu / count))
    *ours, peers = costs
    return [_shared(one, peers) for one in ours]


def _shared(ours: list[Cost], peers: list[Cost]) -> Share:
    rate, bare = [statistics.median(1 / cost.seconds for cost in costs) for costs in (ours, peers)]
    least, other = [min(cost.cpu for cost in costs) * 1e6 for costs in (ours, peers)]
    ratio = statistics.median(one.cpu / two.cpu for one, two in zip(ours, peers, strict=True))
    return Share((rate, bare), least, other, ratio)


class Cost(NamedTuple):
    """Seconds of time and of CPU time."""

    seconds: float
    cpu: float


@contextmanager
def _watch(costs: list[Cost]) -> Generator[None]:
    began, cpu = time.perf_counter(), time.process_time()
    yield
    costs.append(Cost(time.perf_counter() - began, time.process_time() - cpu))


@asynccontextmanager
async def _open(folder: str) -> AsyncGenerator[ActorRef[ErrorProtocol]]:
    with Location.directory(folder) as location:
        readers, writer = Readers(location), Writer(location)
        async with open_system() as system:
            await system.start(lambda: Database(location, writer), name="database")
            source = location.hex_source()  # as a host does
            make = lambda: ErrorStore(writer.submit, readers, hex_source=source)  # noqa: E731
            yield await system.start(make, name="errors")
        await readers.aclose()


# Storing


async def _store(count: int, clients: int, *, all_differ: bool = False) -> Cost:
    """So many stores. ``all_differ``: no two errors, and no two fingerprints, are equal."""
    costs: list[Cost] = []
    with TemporaryDirectory() as folder:
        async with _open(folder) as store:

            async def client(name: int) -> None:
                request = REQUEST
                for number in range(count // clients):
                    if all_differ:
                        said = f"no {_word(name)} at {_word(number)} for {name}: {'x' * 160}"
                        request = StoreError(f"s{name}", "tool", {"message": said}, said[:80])
                    await store.ask(request)

            with _watch(costs):
                async with trio.open_nursery() as nursery:
                    for name in range(clients):
                        nursery.start_soon(client, name)
    return costs[0]


def _word(number: int) -> str:
    """A word of letters for a number, which fingerprints do not take for one."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


async def _insert(count: int) -> Cost:
    costs: list[Cost] = []
    with TemporaryDirectory() as folder, Location.directory(folder) as location:
        connection = location.connect()
        migrate(connection)
        raw = msgspec.json.encode(redact(REQUEST.raw_error)).decode()
        with _watch(costs):
            for number in range(count):
                connection.run(INSERT, (f"err_{number}", float(number), "session", "tool", raw))
                await trio.lowlevel.checkpoint()
        connection.close()
    return costs[0]


# Stalls


async def _stall_of_store() -> float:
    with TemporaryDirectory() as folder:
        async with _open(folder) as store:
            await store.ask(REQUEST)
            request = StoreError("session", "tool", {"message": BIG}, "summary")
            return await _longest_stall(partial(store.ask, request))


async def _stall_of_loop() -> float:
    async def work() -> None:
        msgspec.json.encode(redact({"message": BIG}))

    return await _longest_stall(work)


async def _longest_stall(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds between two steps of a task that is always ready."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await trio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(0.005)  # it runs
        await work()
        await trio.sleep(0.002)  # the watcher's next turn
        nursery.cancel_scope.cancel()
    return longest * 1000


# Reading


def _id(number: int) -> str:
    return f"err_20231114_221320_{number:06x}"


async def _gets(folder: str, sizes: Sizes) -> tuple[float, float]:
    rng = random.Random(9)
    ids = [_id(rng.randrange(sizes.rows)) for _ in range(sizes.queries)]
    connection = Connection(str(Path(folder, DATABASE_FILE)))
    peer = error_lists.p99(await error_lists.each(lambda made: _get(connection, made), ids))
    connection.close()
    async with _open(folder) as store:
        took = await error_lists.each(lambda made: store.ask(GetError(made)), ids)
        return error_lists.p99(took), peer


async def _lists(folder: str, sizes: Sizes) -> tuple[tuple[float, float], tuple[float, float]]:
    connection = Connection(str(Path(folder, DATABASE_FILE)))
    requests = error_lists.Requests.among(connection, sizes.rows)
    lists = requests.lists(max(2, sizes.queries // 200))
    groups = requests.groups(max(2, sizes.queries // 25))
    bare = error_lists.bare_lists(connection, lists), error_lists.bare_groups(connection, groups)
    bare_list, bare_group = [error_lists.p99(await one) for one in bare]
    connection.close()
    async with _open(folder) as store:
        one = error_lists.p99(await error_lists.lists(store, lists))
        other = error_lists.p99(await error_lists.groups(store, groups))
    return (one, bare_list), (other, bare_group)


async def _get(connection: Connection, made: str) -> object:
    return error_of(connection.run(SELECT_ERROR, (made,))[0])
