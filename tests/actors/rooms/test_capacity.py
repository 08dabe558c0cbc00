"""Rooms that share a model: floods, quiet rooms, and the time that each of them waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.protocols.config import ModelsConfig
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart, Usage, UsageReport
from motet.protocols.rooms import RoomPlan
from tests.actors.rooms.talk import until_idle


class Slow:
    """A model that takes a second for each answer. ``open``: requests at it, by member."""

    name = "slow"

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.most = self.open = 0

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(1)
            room = request.system.partition("group chat '")[2].partition("'")[0]
            self.answered[room] = self.answered.get(room, 0) + 1
            yield _parts()
        finally:
            self.open -= 1


async def _parts() -> AsyncIterator[ModelEvent]:
    for part in (TextPart("on"), UsageReport(Usage(10, 5)), Finished("stop")):
        await trio.lowlevel.checkpoint()
        yield part


def places(number: int) -> motet.HostConfig:
    return motet.HostConfig(models=ModelsConfig(concurrency=number))


async def test_a_hundred_rooms_of_five_turns_end_within_eight_seconds(
    autojump_clock: MockClock,
) -> None:
    model = Slow()
    members = [motet.Agent(name, model=model) for name in ("ann", "ben")]
    async with motet.open_host(agents=members, config=places(100)) as host:
        rooms = [
            await host.open_room(
                motet.Room(
                    f"r{n}", members=members, speakers=motet.round_robin(), until=motet.MaxTurns(5)
                )
            )
            for n in range(100)
        ]
        began = trio.current_time()
        for room in rooms:
            await room.post("go", user="alice")
        for room in rooms:
            await room.wait()
        took = trio.current_time() - began
    assert model.answered == {f"r{n}": 5 for n in range(100)}
    assert model.most == 88, "an eighth is left to other users than alice"
    assert took <= 8, took
    del autojump_clock


class Stalls:
    """A model that never answers mallory, and anybody else at once."""

    name = "stalls"

    def __init__(self) -> None:
        self.open = 0

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.open += 1
        try:
            if "mallory" in str(request.messages):
                await trio.sleep_forever()
            yield _parts()
        finally:
            self.open -= 1


@pytest.mark.parametrize("where", ["sessions", "rooms"])
async def test_streams_of_one_user_that_stall_do_not_delay_those_of_another(
    autojump_clock: MockClock, where: str
) -> None:
    """Mallory, who came alone, has forty; alice has her answer within a second."""
    model = Stalls()
    ann = motet.Agent("ann", model=model)
    mallory, alice = motet.Principal("mallory"), motet.Principal("alice")
    async with motet.open_host(agents=[ann], config=places(16)) as host:

        async def says(who: motet.Principal, number: int) -> str:
            text = f"@ann this is {who.user}"
            if where == "sessions":
                session = f"{who.user}:{number}"
                return (await host.run(ann, text, session=session, principal=who)).output
            made = await host.rooms.create(f"r{number}", RoomPlan(("ann",)), principal=who)
            room = await host.open_room(made.name, principal=who)
            return (await room.run(text, user=who.user)).text

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(says, mallory, number)
            await trio.sleep(120)
            assert model.open == 14
            with trio.fail_after(1):
                assert await says(alice, 0) == "on"
            nursery.cancel_scope.cancel()
    del autojump_clock


async def test_a_quiet_room_beside_three_floods_is_answered_as_if_it_were_alone(
    autojump_clock: MockClock,
) -> None:
    model = Slow()
    crowd = [motet.Agent(f"a{n}", model=model) for n in range(10)]
    ann = motet.Agent("ann", model=model)
    async with motet.open_host(agents=[*crowd, ann], config=places(16)) as host:
        floods = [
            await host.open_room(
                motet.Room(
                    f"flood{n}",
                    members=crowd,
                    speakers=_everybody,
                    concurrency=10,
                    max_turns=10_000,
                    limits=motet.Limits(wall=60),
                )
            )
            for n in range(3)
        ]
        quiet = await host.open_room(motet.Room("quiet", members=[ann]))
        for room in floods:
            await room.post("go", user="mallory")
        await trio.sleep(5.5)
        async with quiet.subscribe() as events:
            began = trio.current_time()
            for _ in range(5):
                await quiet.post("@ann and now?", user="alice")
                await until_idle(events)
            took = trio.current_time() - began
        for room in floods:
            await room.stop()
    assert took <= 1.5 * 5, took
    shares = [model.answered[f"flood{n}"] for n in range(3)]
    assert sum(shares) ** 2 / (3 * sum(one * one for one in shares)) >= 0.95, shares
    del autojump_clock


def _everybody(view: motet.RoomView) -> list[str]:
    return [member.name for member in view.members]


@pytest.mark.sweep
async def test_two_hundred_rooms_share_fifty_places_whatever_each_asks_for(
    autojump_clock: MockClock,
) -> None:
    """Rooms of one to four speakers at once, which all ask without end: Jain's index of their
    answers is at least 0.95."""
    model = Slow()
    crowd = [motet.Agent(f"a{n}", model=model) for n in range(4)]
    async with motet.open_host(agents=crowd, config=places(50)) as host:
        rooms = [
            await host.open_room(
                motet.Room(
                    f"r{n}",
                    members=crowd,
                    speakers=_everybody,
                    concurrency=1 + n % 4,
                    max_turns=10_000,
                    limits=motet.Limits(wall=300),
                )
            )
            for n in range(200)
        ]
        for number, room in enumerate(rooms):
            await room.post("go", user=f"user{number}")
        await trio.sleep(40)
        shares = [model.answered.get(f"r{n}", 0) for n in range(200)]
        for room in rooms:
            await room.stop()
    assert sum(shares) ** 2 / (200 * sum(one * one for one in shares)) >= 0.95, shares
    del autojump_clock
