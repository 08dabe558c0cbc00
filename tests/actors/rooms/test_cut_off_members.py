"""Law: the turn of a member of any kind ends once, however hosts end meanwhile and stops come.

A member is an agent, an agent that has a room answer, a room, a room of a room, or a graph. A host
ends by a kill, by a power cut within a commit, by SIGTERM with and without time for its runs, or
since its block is left. No effect comes twice, nobody says anything twice, an inner room is opened
once and goes on, and after a stop of the outer room nothing moves any more. The turn that ends has
paid for all answers of models inside, also for those of turns that were cut off, each once. What a
reload forbids meanwhile does not happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Literal, TypeAlias

import attrs
import pytest
import trio
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import MotetError
from motet.protocols.events import Warned
from motet.protocols.models import Model, ModelEvent, ModelRequest, UsageReport
from motet.protocols.rooms import TURNS
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted
from tests.actors.rooms.test_below import asks, rooms_of

Kind: TypeAlias = Literal["agent", "run", "room", "rooms", "graph"]
KINDS: tuple[Kind, ...] = ("agent", "run", "room", "rooms", "graph")
GOES_ON = ("room", "rooms", "graph")
"""The kinds whose turn goes on in whatever state it was cut off; others may have had effects."""
LEVELS = {"agent": 0, "run": 1, "room": 1, "rooms": 2, "graph": 1}

End: TypeAlias = Literal["kill", "power", "drain", "wait", "leave"]
ENDS: tuple[End, ...] = ("kill", "power", "drain", "wait", "leave")

CONFIG = motet.HostConfig(
    recovery=motet.RecoveryConfig(resume_within=1e6),
    approvals=motet.ApprovalsConfig(hold=0.5, expires=1e6),
)
DENYING = attrs.evolve(CONFIG, policy=(motet.PolicyRule(tool="ac*", effect="deny"),))


PRICE = 0.25
"""Dollars of an answer of a leaf; all others are free. Sums of it are exact."""


@attrs.frozen
class Priced:
    of: Model

    @property
    def name(self) -> str:
        return self.of.name

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with self.of.request(request) as events:
            yield _priced(events)


async def _priced(events: AsyncIterator[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    async for event in events:
        if isinstance(event, UsageReport):
            event = UsageReport(replace(event.usage, cost=PRICE))
        yield event


@attrs.frozen
class Cut:
    """The end of a host, so many steps of its scheduler, or changes of its disk, after the last."""

    how: End
    after: int


@attrs.frozen
class Plan:
    """``stop``: seconds after the last cut at which the outer room is stopped; None: never.

    ``asks``: a person allows each effect, some time later. ``denies``: seconds after the last cut
    at which a reload forbids all of them; it comes before a stop.
    """

    kind: Kind
    acts: bool
    cuts: tuple[Cut, ...]
    stop: float | None = None
    seed: int = 0
    asks: bool = False
    denies: float | None = None


@attrs.define
class World:
    """One plan, played. ``done``: the effects, in whatever life of the host; ``allowed``: how many
    there were when they were forbidden.
    """

    plan: Plan
    done: list[str] = attrs.field(factory=list[str])
    allowed: int | None = None

    def leaf(self, name: str, *, acts: bool) -> motet.Agent[None]:
        """A member that says its name, after an effect on the outside world if it ``acts``."""

        def answer(request: ModelRequest) -> mt.Step:
            # In another turn it reads that the outcome of its call is unknown.
            if acts and not any(isinstance(row, ToolMessage) for row in request.messages):
                return mt.slow(mt.call("act"), seconds=0.2)
            return mt.slow(mt.say(f"{name} has spoken"), seconds=0.4)

        model = Priced(mt.FunctionModel(answer, name=f"model of {name}"))
        one: motet.Agent[None] = motet.Agent(name, model=model)

        @one.tool(effects="write", approval=self.plan.asks)
        async def act() -> str:
            self.done.append(name)
            await trio.sleep(0.2)
            return "acted"

        return one

    def house(self) -> motet.Room:
        """The outer room with its one member."""
        kind, acts = self.plan.kind, self.plan.acts
        ann, ben = self.leaf("ann", acts=acts), self.leaf("ben", acts=False)
        inner = motet.Room("pair", members=[ann, ben], max_turns=2)
        match kind:
            case "agent":
                team = self.leaf("team", acts=acts)
            case "run":
                team = asks(inner, "team")
            case "graph":
                flow = motet.Graph("pair")
                flow.edge(ann, ben)
                flow.start(ann)
                team = motet.room_agent(flow.room(max_turns=2), name="team")
            case "rooms":
                middle = motet.Room("middle", members=[motet.room_agent(inner)], max_turns=3)
                team = motet.room_agent(middle, name="team")
            case _:
                team = motet.room_agent(inner, name="team")
        return motet.Room("house", members=[team], max_turns=4)  # a cut may cost one

    def post(self, host: mt.SimulatedHost) -> None:
        host.post(self.house(), "go", user="alice", key="k")

    def cut(self, host: mt.SimulatedHost, cut: Cut) -> None:
        """End the host, if the talk is not over before, and open the next one."""
        if cut.how == "power":
            with suppress(MotetError, MotetRuntimeError), mt.power_cut(host, 1 + cut.after // 20):
                self.talk(host)
            return
        host.loop.at(host.loop.scheduler.steps + cut.after, _strike)
        try:
            self.talk(host)
        except Interrupted:
            _ends(host, cut.how)
        finally:
            host.loop.at(1 << 60, _nothing)

    def talk(self, host: mt.SimulatedHost) -> None:
        self.post(host)
        self.passes(host, 4)

    def passes(self, host: mt.SimulatedHost, seconds: int) -> None:
        for _ in range(seconds):
            host.advance(1)
            if self.plan.asks:
                host.call(_allow)

    def play(self) -> list[str]:
        """How the world breaks the law."""
        with mt.simulated_host(self.plan.seed, config=CONFIG) as host:
            for cut in self.plan.cuts:
                self.cut(host, cut)
            self.post(host)  # again, if it was not acknowledged
            stopped, before = self.plan.stop is not None, None
            if self.plan.denies is not None:
                host.advance(self.plan.denies)
                host.call(lambda one: one.reload(DENYING))
                self.allowed = len(self.done)
            if self.plan.stop is not None:
                host.advance(self.plan.stop)
                host.stop(room="house")
                before = host.call(rooms_of), tuple(self.done), host.call(_runs)
            self.passes(host, 20)
            host.settle()
            found = [f"not over: {one}" for one in host.call(_runs) if "running" in one]
            if before not in (None, (host.call(rooms_of), tuple(self.done), host.call(_runs))):
                found.append(f"after the stop: {before} became {host.call(rooms_of)}")
            if self.allowed is not None and len(self.done) > self.allowed:
                found.append(f"effects after they were forbidden: {self.done[self.allowed :]}")
            return found + self.broken(host, stopped=stopped)

    def broken(self, host: mt.SimulatedHost, *, stopped: bool) -> list[str]:
        rooms, kind = host.call(rooms_of), self.plan.kind
        found = [f"{one} acted {n} times" for one, n in Counter(self.done).items() if n > 1]
        for name, said in rooms.items():
            twice = [one for one, times in Counter(said).items() if times > 1]
            found += [f"{name}: said twice: {one}" for one in twice]
        if len(rooms) > 1 + LEVELS[kind]:
            found.append(f"an inner room was opened twice: {sorted(rooms)}")
        answers = [text for who, text in rooms["house"] if who == "team"]
        lost = host.call(_lost)
        if not host.room(self.house()).waits:
            found.append("the outer round is not over")
        spent, paid = host.call(_costs)
        if answers and kind != "agent" and spent != paid:
            found.append(f"the answers inside cost {spent}, and the turn has paid {paid}")
        if len(answers) + len(lost) > 1:
            found.append(f"the call ended so: {answers}, {lost}")
        goes_on = kind in GOES_ON or (kind == "agent" and not self.plan.acts)
        # Each cut may cost a turn of the inner room, which has two: two cuts may cost both.
        heard = ("has spoken", TURNS) if len(self.plan.cuts) > 1 else ("has spoken",)
        if goes_on and not stopped and not any(one in text for text in answers for one in heard):
            found.append(f"the turn did not go on: {answers}, {lost}")
        return found


def _strike() -> None:
    raise Interrupted


def _nothing() -> None:
    """No cut."""


def _ends(host: mt.SimulatedHost, how: End) -> None:
    match how:
        case "drain":
            host.restart(0.0)
        case "wait":
            host.restart(0.3)
        case "leave":
            host.restart(drains=False)
        case _:
            host.crash()


async def _allow(host: Host) -> None:
    for one in await host.approvals(state="pending"):
        await host.approve(one.id, "allow-once")


async def _runs(host: Host) -> list[str]:
    return [f"{run.agent} {run.status}" for run in await host.runs()]


async def _costs(host: Host) -> tuple[float, float]:
    """What the answers of all leaves have cost, and what the last turn of the outer room has."""
    runs = await host.runs()
    spent = sum(run.usage.cost or 0.0 for run in runs if run.agent in ("ann", "ben"))
    paid = [run.usage.cost or 0.0 for run in runs if run.agent == "team"]
    return spent, paid[0] if paid else 0.0


async def _lost(host: Host) -> list[str]:
    """The notices that the outer room has got in place of an answer of its member."""
    journal = host._parts.journal  # pyright: ignore[reportPrivateUsage]
    records = await journal.read("room:house", 0, 500)
    told = [one.event.message for one in records if isinstance(one.event, Warned)]
    return [text for text in told if text.startswith("team ")]


def drawn(seed: str) -> Plan:
    draw = Random(seed)
    cuts = [Cut(draw.choice(ENDS), draw.randint(1, 700)) for _ in range(draw.randint(1, 3))]
    stop = draw.choice([None, None, 0.0, 0.1, 0.5, 1.5])
    kind, acts = draw.choice(KINDS), draw.random() < 0.5
    schedule, asks = draw.randint(0, 3), acts and draw.random() < 0.5
    denies = draw.choice([None, 0.0, 0.1, 0.4, 1.2]) if acts else None
    return Plan(kind, acts, tuple(cuts), stop, schedule, asks, denies)


@pytest.mark.parametrize("seed", range(6))
def test_a_turn_that_is_cut_off_ends_once(seed: int) -> None:
    assert World(drawn(str(seed))).play() == []


def test_a_host_that_ends_while_it_tells_of_a_lost_turn_has_the_next_one_tell_it_no_more() -> None:
    cuts = Cut("leave", 214), Cut("leave", 6)
    assert World(Plan("run", True, cuts, stop=1.5, seed=2, denies=0.4)).play() == []


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_a_turn_that_is_cut_off_ends_once_in_many_worlds(part: int) -> None:
    for seed in range(250):
        plan = drawn(f"{part}/{seed}")
        assert World(plan).play() == [], plan


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_under_way_goes_on_after_each_end_of_a_host(kind: Kind, how: End) -> None:
    after = 420 if how != "power" else 600
    assert World(Plan(kind, False, (Cut(how, after),))).play() == []
