"""A world of publishers and members that are slow, crash, join, leave and end."""

from __future__ import annotations

from functools import partial

import trio

from motet.protocols.messages import Message
from motet.runtime import (
    Actor,
    ActorRef,
    Group,
    MailboxSpec,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.testing import Simulation
from tests.guarantees.law import ANY, Search

RULES = Supervision(intensity=1_000, period=0.1, jitter=0)


class Price(Message, frozen=True, tag="groups.price"):
    publisher: int
    number: int
    crashes: bool = False


class Reader(Actor[Price]):
    mailbox = MailboxSpec(capacity=2)

    def __init__(self, sim: Simulation, seen: list[Price]) -> None:
        self.sim = sim
        self.seen = seen

    @handles(Price)
    async def price(self, message: Price) -> None:
        self.seen.append(message)
        await trio.sleep(self.sim.random.choice((0, 0, 2)))
        if message.crashes:
            raise RuntimeError("a bad price")


class _Member:
    """One reader, and what was published while it was in the group."""

    def __init__(self, sim: Simulation, group: Group[Price], name: str) -> None:
        self.sim = sim
        self.group = group
        self.name = name
        self.seen: list[Price] = []
        self.due: list[Price] = []
        self.ref: ActorRef[Price] | None = None

    async def live(self) -> None:
        random = self.sim.random
        assert self.ref is not None
        for _ in range(4):
            match random.randrange(4):
                case 0:
                    self.group.leave(self.ref)
                case 1 if random.random() < 0.4:
                    report = await self.ref.stop(grace=random.choice((0, None)))
                    if report.complete and self.ref in self.group:
                        self.sim.violated("group", self.ref.path, "it has ended, and is a member")
                case _:
                    self.group.join(self.ref)
            await trio.sleep(random.choice((0, 0.4, 1)))


def _publish(sim: Simulation, group: Group[Price], members: list[_Member], price: Price) -> None:
    inside = [one for one in members if one.ref is not None and one.ref in group]
    before, step = group.missed, sim.step
    told = group.publish(price)
    alive = [one for one in inside if one.ref is not None and one.ref.is_alive]
    if sim.step != step or told + group.missed - before != len(alive):
        sim.violated("group", group.name, f"of {len(alive)} members {told} were told")
    for one in inside:
        one.due.append(price)


async def groups(sim: Simulation) -> None:
    """Play, and judge each member by what was published while it was one."""
    group = Group[Price]("prices")
    members = [_Member(sim, group, f"reader-{place}") for place in range(3)]
    async with open_system(supervision=RULES) as system:
        sim.watch(system)
        for one in members:
            one.ref = await system.start(partial(Reader, sim, one.seen), name=one.name)

        async def publish(publisher: int) -> None:
            for number in range(6):
                price = Price(publisher, number, crashes=sim.random.random() < 0.1)
                _publish(sim, group, members, price)
                await trio.sleep(sim.random.choice((0, 0, 1)))

        async with trio.open_nursery() as nursery:
            for one in members:
                nursery.start_soon(one.live)
            for publisher in range(2):
                nursery.start_soon(publish, publisher)
        await trio.sleep(100)  # longer than all mail takes
        for one in members:
            assert one.ref is not None
            letters = [x for x in system.dead_letters if x.path == one.ref.path]
            full = [x.message for x in letters if "full" in x.reason]
            lost = [x.message for x in letters]
            if len(full) > group.missed:
                sim.violated("group", one.name, "a dead letter was not counted")
            # Each is seen or lost; a bad one is both. In the order of publishing.
            if [x for x in one.due if x in one.seen] != one.seen:
                sim.violated("group", one.name, f"due were {one.due}, seen {one.seen}")
            missing = [x for x in one.due if x not in one.seen and x not in lost]
            if missing and one.ref.is_alive:
                sim.violated("group", one.name, f"never came: {missing}")


SEARCH = Search(ANY, groups)
