"""Rooms: the turns of 200 of them on one core, what an open one takes, long histories, long lists.

All of it is durable: a message is on disk before it is acknowledged, a turn before it begins and
when it has ended. The peers do turns of the same shape, on models of the same kind, and store
nothing. Rates and costs are in processor time, delivery in wall time: it waits for the disk.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import apsw
import trio

import motet
from bench.clock import Watch, resident
from bench.rows import MOTET, RATE, Case, Row
from bench.turns import ANSWER
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal

__all__ = ["ROWS"]

ROOMS = 200
TURNS = 4  # of two members, for one message
MESSAGES = 10_000
TALKERS = 64  # who post at once
LISTED = 20_000
PAGE = 50
ALICE = Principal("alice")


class Talker:
    """A model that answers at once, and notes when it was asked last."""

    name = "fake"

    def __init__(self) -> None:
        self.asked = 0.0

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:  # noqa: ARG002
        self.asked = time.perf_counter()
        yield _answer()


async def _answer() -> AsyncGenerator[ModelEvent]:
    for event in ANSWER:
        await trio.lowlevel.checkpoint()
        yield event


@asynccontextmanager
async def opened(model: Talker, count: int) -> AsyncGenerator[list[OpenRoom]]:
    """So many open rooms of two agents, in a host with a state directory."""
    members = _members(model)
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        async with motet.open_host(folder, agents=members) as host:
            yield [await host.open_room(_room(number, members)) for number in range(count)]


def _members(model: Talker) -> list[motet.Agent[None]]:
    return [motet.Agent(name, model=model) for name in ("ann", "ben")]


def _room(number: int, members: list[motet.Agent[None]]) -> motet.Room:
    policy = motet.round_robin()
    return motet.Room(f"room{number}", members=members, speakers=policy, max_turns=TURNS)


def turns(count: int) -> tuple[float, float]:
    """Turns of 200 rooms at once: per second of processor time, and milliseconds of one."""
    return trio.run(_turns, count)


async def _turns(count: int) -> tuple[float, float]:
    async with opened(Talker(), min(ROOMS, max(1, count // TURNS))) as rooms:
        await _round(rooms)  # warm-up: their sessions are known then
        rounds = max(1, count // (TURNS * len(rooms)))
        watch = Watch()
        for _ in range(rounds):
            await _round(rooms)
        taken, done = watch.seconds(), rounds * TURNS * len(rooms)
        return done / taken, taken / done * 1e3


async def _round(rooms: list[OpenRoom]) -> None:
    async with trio.open_nursery() as nursery:
        for room in rooms:
            nursery.start_soon(_one, room)


async def _one(room: OpenRoom) -> None:
    result = await room.run("hi", user="alice")
    assert result.turns == TURNS


def delivery(count: int) -> tuple[float, float]:
    """Milliseconds from a post until its member's model is asked: the median, and p99."""
    return trio.run(_delivery, count)


async def _delivery(count: int) -> tuple[float, float]:
    model = Talker()
    taken: list[float] = []
    async with opened(model, min(ROOMS, count)) as rooms:
        for number in range(count):
            room = rooms[number % len(rooms)]
            began, model.asked = time.perf_counter(), 0.0
            await room.post("@ann hi", user="alice")
            while not model.asked:
                await trio.sleep(0)
            taken.append((model.asked - began) * 1e3)
            await room.stop()
    return median(taken), quantiles(taken, n=100)[98] if count > 1 else taken[0]


def memory(count: int) -> float:
    """Kilobytes of an open room that has had a round."""
    return trio.run(_memory, count)


async def _memory(count: int) -> float:
    members = _members(Talker())
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        async with motet.open_host(folder, agents=members) as host:
            for number in range(-10, 0):  # what only the first ones cost
                await _one(await host.open_room(_room(number, members)))
            before = resident()
            for number in range(count):
                await _one(await host.open_room(_room(number, members)))
            return (resident() - before) / count / 1e3


def opening(count: int) -> float:
    """Milliseconds of processor time to open a room of ``count`` messages on disk."""
    return trio.run(_opening, count)


async def _opening(count: int) -> float:
    members = [motet.Agent("ann", model=Talker())]
    room = motet.Room("long", members=members, speakers=motet.mentions())
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        async with motet.open_host(folder) as host:
            opened_room = await host.open_room(room)
            for first in range(0, count, TALKERS):
                async with trio.open_nursery() as nursery:
                    for number in range(first, min(first + TALKERS, count)):
                        text, user = f"message {number}", f"user{number % TALKERS}"
                        nursery.start_soon(partial(opened_room.post, text, user=user))
        async with motet.open_host(folder, agents=members) as host:
            watch = Watch()
            opened_room = await host.open_room(room)
            taken = watch.seconds() * 1e3
            assert (await opened_room.history())[-1].seq >= count
            return taken


def _behind(folder: str, statement: str, *values: int) -> list[tuple[object, ...]]:
    """Execute a statement in the database while no host has it; its rows."""
    database = apsw.Connection(f"{folder}/motet.db")
    try:
        return list(database.execute(statement, values))  # pyright: ignore[reportUnknownMemberType]
    finally:
        database.close()


def listing(count: int) -> float:
    """Milliseconds of processor time for one of the pages that list ``count`` rooms of a user."""
    return trio.run(_listing, count)


async def _listing(count: int) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        agents = [motet.Agent("ann", model=Talker())]
        async with motet.open_host(folder, agents=agents) as host:
            await host.rooms.create("first", RoomPlan(("ann",)), principal=ALICE)
        columns = [str(row[1]) for row in _behind(folder, "PRAGMA table_info(rooms)")]
        values = ["'room-' || i" if name == "name" else name for name in columns]
        _behind(
            folder,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            f"INSERT INTO rooms ({', '.join(columns)}) "
            f"SELECT {', '.join(values)} FROM n, (SELECT * FROM rooms LIMIT 1)",
            count - 1,
        )
        async with motet.open_host(folder, agents=agents) as host:
            after: str | None = ""
            pages, listed = 0, 0
            watch = Watch()
            while after is not None:
                page = await host.rooms.page(after=after, limit=PAGE, principal=ALICE)
                after, pages, listed = page.next, pages + 1, listed + len(page.rooms)
            taken = watch.seconds() / pages * 1e3
            assert listed == count, f"{listed} of {count} rooms were listed"
            return taken


AUTOGEN = "bench.peers.autogen_rooms"
FRAMEWORK = "bench.peers.framework_rooms"


def _peers(function: str, count: int, figure: int = 0) -> tuple[Case, ...]:
    return (
        Case("autogen", AUTOGEN, function, count, "autogen_agentchat", figure=figure),
        Case("agent-framework", FRAMEWORK, function, count, "agent_framework", figure=figure),
    )


def _row(
    name: str, unit: str, function: str, count: int, goal: float | None, figure: int = 0
) -> Row:
    own = Case(MOTET, __name__, function, count, figure=figure)
    # Times of delivery go by the load of the machine and its disk: no ratio is kept of them.
    reference = None if function == "delivery" else "autogen"
    cases = (own, *_peers(function, count, figure))
    return Row(name, unit, cases, reference, goal, bounded=True)


ROWS = (
    _row("turns of 200 rooms", RATE, "turns", 1_600, None),
    _row("CPU of a room's turn", "ms", "turns", 1_600, 2.0, 1),
    _row("post to member, median", "ms", "delivery", 400, None),
    _row("post to member, p99", "ms", "delivery", 400, None, 1),
    _row("memory of an open room", "kB", "memory", 300, 30.0),
    Row(
        "open 10,000 messages",
        "ms",
        (
            Case(MOTET, __name__, "opening", MESSAGES),
            Case("autogen", AUTOGEN, "opening", MESSAGES, "autogen_agentchat"),
        ),
        "autogen",
        10.0,
        bounded=True,
    ),
    Row(
        "page of 20,000 rooms",
        "ms",
        (Case(MOTET, __name__, "listing", LISTED),),
        None,
        5.0,
        bounded=True,
        rounds=2,
    ),
)
