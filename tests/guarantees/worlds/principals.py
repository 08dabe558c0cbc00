"""A world of two users of one host, one of whom tries everything on what is the other's (G16).

Whatever is one user's has that user's mark in it. The model is the worst one to have: it knows all
ids that any request has shown it, and tries those of others, too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import attrs
import msgspec
import trio

import motet
from motet.actors.gateway.hub import Hub
from motet.actors.gateway.outbox import Outbox
from motet.actors.gateway.streams import Streams
from motet.actors.models.provider import Played
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.gateway import Limits as WireLimits
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import HOST_POLICIES, Law, Search
from tests.guarantees.worlds.hosts import ADMIN, LEFT_OUT, Life, new_place, settled

USERS = ("ann", "bob")
TURNS = 2  # inputs, each to a session of its own; who pries into others' has one
USED = {"memory", "results", "traces"}
HOWS = ("fails", "says a lot")
LIMITS = motet.Limits(tool_errors=None, total_errors=None)
Calls: TypeAlias = tuple[tuple[str, dict[str, str]], ...]
Principal = motet.Principal

ERROR_ID = re.compile(r"err_\d{8}_\d{6}_[0-9a-f]{6}")
RESULT_ID = re.compile(r"res_[0-9a-f]{16}")


def mark(user: str) -> str:
    """What is in every text of a user, and in no other."""
    return f"secret-of-{user}"


def other(user: str) -> str:
    return USERS[1 - USERS.index(user)]


@attrs.define
class Known:
    """The names and ids of one user's things, as they come to be."""

    sessions: list[str] = attrs.field(factory=list[str])
    runs: list[str] = attrs.field(factory=list[str])
    errors: list[str] = attrs.field(factory=list[str])
    results: list[str] = attrs.field(factory=list[str])


Attempt: TypeAlias = Callable[[motet.Host, Principal, Known], Awaitable[object]]


class Town:
    """Both users, all they have, and what they should not have got."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.known = {user: Known() for user in USERS}
        self.pries = sim.random.choice(USERS)

    def sessions_of(self, user: str) -> list[str]:
        """The names of a user's sessions, in the order in which they begin."""
        return [f"{user} {turn}" for turn in range(1 if user == self.pries else TURNS)]

    def shown(self, user: str, what: str, text: str) -> None:
        """``user`` gets to see ``text``."""
        if mark(other(user)) in text:
            self.sim.violated("G16", user, f"{what} shows what is another's")

    def learn(self, user: str, text: str) -> None:
        """The ids in what a model of ``user`` is shown; those of others are known already."""
        theirs = self.known[other(user)]
        for pattern, mine, foreign in (
            (ERROR_ID, self.known[user].errors, theirs.errors),
            (RESULT_ID, self.known[user].results, theirs.results),
        ):
            new = dict.fromkeys(pattern.findall(text))
            mine += [one for one in new if one not in mine and one not in foreign]


class Gossip:
    """A model that works, fails, and looks into everything it has ever heard of."""

    name = "gossip"

    def __init__(self, town: Town) -> None:
        self.town = town

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        await trio.sleep(self.town.sim.random.choice((0, 0, 1)))
        first = next(row for row in request.messages if isinstance(row, UserMessage))
        user = next(user for user in USERS if mark(user) in first.text)
        text = msgspec.json.encode(request).decode()
        self.town.shown(user, "a model request", text)
        self.town.learn(user, text)
        has_worked = any(isinstance(row, AssistantMessage) for row in request.messages)
        calls = () if has_worked else (*self._work(user), *self._look(user))
        yield Played([*self._events(user, calls), UsageReport(Usage(10, 5)), _end(calls)])

    def _work(self, user: str) -> Calls:
        return tuple(("work", {"text": f"{mark(user)} has tea", "how": how}) for how in HOWS)

    def _look(self, user: str) -> Calls:
        foreign, chance = self.town.known[other(user)], self.town.sim.random
        calls: list[tuple[str, dict[str, str]]] = []
        calls += [("get_error_detail", {"error_id": one}) for one in foreign.errors[-1:]]
        calls += [("get_tool_result", {"result_id": one}) for one in foreign.results[-1:]]
        calls += [("memory_search", {"query": "tea"})] if chance.random() < 0.5 else []
        return tuple(calls)

    def _events(self, user: str, calls: Calls) -> list[ModelEvent]:
        events: list[ModelEvent] = [TextPart(f"{mark(user)} likes tea")]
        for index, (name, args) in enumerate(calls):
            events.append(CallStart(index, f"c{index}", name))
            events.append(CallArguments(index, msgspec.json.encode(args).decode()))
        return events


def _end(calls: Calls) -> Finished:
    return Finished("tool_calls" if calls else "stop")


def gossip(town: Town) -> motet.Agent[None, str]:
    agent = motet.Agent("gossip", model=Gossip(town), memory=True, limits=LIMITS)

    @agent.tool(max_output=200)
    async def work(text: str, how: str) -> str:
        await trio.lowlevel.checkpoint()
        if how == "fails":
            raise OSError(f"no milk for {text}")
        return text * (100 if how == "says a lot" else 1)

    return agent


# ---------------------------------------------------------------------- what is tried


async def _submits(host: motet.Host, me: Principal, its: Known) -> object:
    text = f"{mark(me.user)} was here"
    return await host.submit(text, session=its.sessions[-1], agent="gossip", principal=me)


ATTEMPTS: tuple[tuple[str, Attempt], ...] = (
    ("session", lambda host, me, its: host.session(its.sessions[-1], principal=me)),
    ("history", lambda host, me, its: host.history(its.sessions[-1], principal=me)),
    ("find_run", lambda host, me, its: host.find_run(its.runs[-1], principal=me)),
    ("trace", lambda host, me, its: host.trace(its.runs[-1], principal=me)),
    ("error", lambda host, me, its: host.error(its.errors[-1], principal=me)),
    ("stop a run", lambda host, me, its: host.stop(run_id=its.runs[-1], principal=me)),
    ("send", lambda host, me, its: host.send("stop", run_id=its.runs[-1], principal=me)),
    ("submit", _submits),
    ("reset", lambda host, me, its: host.reset(its.sessions[-1], principal=me)),
    ("delete", lambda host, me, its: host.delete(its.sessions[-1], principal=me)),
    ("resend", lambda host, me, its: host.resend(its.runs[-1], principal=me)),
    ("compact", lambda host, me, its: host.compact(its.sessions[-1], principal=me)),
    ("set_queue", lambda host, me, its: host.set_queue(its.sessions[-1], None, principal=me)),
)
"""Each is to be refused as what does not exist is."""

LISTS: tuple[tuple[str, Attempt], ...] = (
    ("sessions", lambda host, me, _: host.sessions(principal=me)),
    ("runs", lambda host, me, its: host.runs(session=its.sessions[-1], principal=me)),
    ("errors", lambda host, me, _: host.errors(principal=me)),
    ("traces", lambda host, me, _: host.traces(principal=me)),
    ("stop all", lambda host, me, its: host.stop(session=its.sessions[-1], principal=me)),
)
"""Each is to show one's own things only, and to touch nothing else."""


async def _pry(town: Town, host: motet.Host, user: str) -> None:
    """Try some of it, as soon as there is something to try it on."""
    chance, its, me = town.sim.random, town.known[other(user)], Principal(user)
    while not its.errors:
        await trio.sleep(0.25)
    for name, attempt in chance.sample(ATTEMPTS, 3):
        try:
            shown = await attempt(host, me, its)
        except motet.NotFound as refusal:
            shown = refusal
        else:
            town.sim.violated("G16", user, f"{name} found what is another's: {shown!r}")
        town.shown(user, name, repr(shown))
    for name, listing in chance.sample(LISTS, 1):
        town.shown(user, name, repr(await listing(host, me, its)))


async def _listen(town: Town, host: motet.Host, user: str, nursery: trio.Nursery) -> None:
    """A client of the gateway that subscribes to the other's sessions, by their names."""
    outbox = Outbox()

    def wake() -> None:
        for entry in outbox.take():
            town.shown(user, "an event", entry.frame())
            if entry.written is not None:
                entry.written()

    streams = Streams(host, Hub(host.events), outbox, wake, WireLimits(), Principal(user))
    nursery.start_soon(streams.run)
    await trio.sleep(town.sim.random.choice((0, 0.5, 1.5)))
    for name in town.sessions_of(other(user)):
        with suppress(motet.NotFound):
            _, start = await streams.subscribe(f"session:{name}", 0)
            start()


# ---------------------------------------------------------------------- the world


async def _live(town: Town, host: motet.Host, user: str) -> None:
    """One's own inputs, with the same keys that everybody uses."""
    mine = town.known[user]
    await trio.sleep(town.sim.random.choice((0, 0, 2, 4)))
    for turn, name in enumerate(town.sessions_of(user)):
        ack = await host.submit(
            f"{mark(user)} wants tea",
            session=name,
            agent="gossip",
            key=f"key {turn}",
            principal=Principal(user),
        )
        if ack.status == "duplicate":
            town.sim.violated("G16", user, "a key of one's own is taken by another")
        mine.sessions.append(name)
        mine.runs.append(ack.run_id)
        await trio.sleep(town.sim.random.choice((0, 1, 3)))


async def principals(sim: Simulation) -> None:
    """Two users at home, and one of them at the other's door."""
    town = Town(sim)
    with new_place(sim, without=LEFT_OUT - USED) as place:
        async with place.life(gossip(town)) as life, trio.open_nursery() as clients:
            async with trio.open_nursery() as nursery:
                for user in USERS:
                    nursery.start_soon(_live, town, life.open_host, user)
                nursery.start_soon(_pry, town, life.open_host, town.pries)
                clients.start_soon(_listen, town, life.open_host, town.pries, clients)
            await settled(life.open_host)
            await _judge(town, life)
            clients.cancel_scope.cancel()


async def _judge(town: Town, life: Life) -> None:
    """What was one's own was answered, whatever others tried on it."""
    host = life.open_host
    status = {run.run_id: run for run in await host.runs(limit=100, principal=ADMIN)}
    for user, known in town.known.items():
        for run_id in known.runs:
            run = status.get(run_id)
            if run is None or (run.status, run.user) != ("completed", user):
                town.sim.violated("G16", user, f"{run_id} has become {run}")
        if known.sessions != town.sessions_of(user):
            town.sim.violated("G16", user, f"of its sessions there are {known.sessions}")


ISOLATION = Law("G16", Search("G16", principals, policies=HOST_POLICIES))
