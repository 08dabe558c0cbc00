"""A room is stopped in every state: its speakers end, nobody follows, and it can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.events import AnyEvent, CallDropped, RoomIdle, RoomTurn
from motet.protocols.room_messages import Post
from motet.protocols.rooms import NOBODY, STOPPED, ListRooms, RoomMode, RoomView
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import Speaks, agent, model_of, said, turns, until_idle

Step: TypeAlias = "Literal['post', 'stop', 'hold', 'let go'] | int"
MOST = 5
TEXTS = ("@ben yours", "@ann yours", "@all go", "PASS", "I am done", "@cid and @ann")

steps = st.lists(
    st.sampled_from(["post", "post", "stop", "hold", "let go"]) | st.integers(0, 60), max_size=14
)


@attrs.define
class World:
    """A room whose members say what they are dealt, and wait while they are held."""

    room: OpenRoom
    members: list[motet.Agent[None]]
    nursery: trio.Nursery
    posts: int = 0

    @property
    def requests(self) -> int:
        return sum(len(model_of(one).requests) for one in self.members)

    async def take(self, step: Step) -> None:
        match step:
            case "post":
                self.posts += 1
                await self.nursery.start(self.post, f"@ann @ben number {self.posts}")
            case "stop":
                await self.stop()
            case "hold" | "let go":
                for one in self.members:
                    gate, model_of(one).gate = model_of(one).gate, None
                    if gate is not None:
                        gate.set()
                    if step == "hold":
                        model_of(one).gate = trio.Event()
            case count:
                for _ in range(int(count)):
                    await trio.lowlevel.checkpoint()

    async def post(self, text: str, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await self.room.post(text, user=("alice", "bob")[self.posts % 2])

    async def stop(self) -> None:
        report = await self.room.stop()
        assert report.still_running == []
        with trio.fail_after(60):
            await self.room.wait()  # what was on its way to disk may have woken it once more
        before = self.requests
        await self.take(40)
        assert self.requests == before, "somebody spoke after the stop"


async def talk(given_steps: list[Step], script: list[str], concurrency: int) -> list[AnyEvent]:
    dealt = iter(script * 1000)
    members = [agent(name, lambda _: next(dealt)) for name in ("ann", "ben", "cid")]
    room = motet.Room("r", members=members, max_turns=MOST, max_depth=99, concurrency=concurrency)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with trio.open_nursery() as nursery:
            world = World(opened, members, nursery)
            for step in given_steps:
                await world.take(step)
        await world.stop()
        assert host.status().running == host.status().queued == 0
        floor = await opened.wait()
        assert not floor.going
        await world.take("let go")
        async with opened.subscribe() as events:
            await opened.post("@ann are you there?", user="alice")
            last = await until_idle(events)
        assert turns(last)[0] == "ann", "the room goes on"
        records = await host.events.read("room:r", 0, 10_000)
        return [record.event for record in records]


@settings(max_examples=25, deadline=None)
@given(steps, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6), st.integers(1, 3))
def test_a_room_is_stopped_in_every_state(
    given_steps: list[Step], script: list[str], concurrency: int
) -> None:
    """Law: whatever was going on, after a stop nobody speaks until a person does, and then
    somebody does; a round never has more turns than it may.
    """

    async def main() -> list[AnyEvent]:
        with trio.fail_after(60):
            return await talk(given_steps, script, concurrency)

    last = 0
    for event in trio.run(main):
        if isinstance(event, RoomTurn):
            assert event.turn <= MOST
            assert event.turn in (1, last + 1)
            last = event.turn


async def test_a_policy_that_never_returns_is_stopped_too() -> None:
    asked = trio.Event()

    async def never(_: RoomView) -> str:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError

    async with motet.open_host() as host:
        opened = await host.open_room(
            motet.Room("r", members=[agent("ann", "yes")], speakers=never)
        )
        async with opened.subscribe() as events:
            await opened.post("hello", user="alice")
            await asked.wait()
            await opened.stop()
            seen = await until_idle(events)
        assert seen[-1] == RoomIdle(STOPPED)
        assert opened.idle


async def test_a_selecting_model_is_stopped_and_not_asked_again() -> None:
    chooser = Speaks("ann")
    chooser.gate = trio.Event()
    members = [agent("ann", "yes"), agent("ben", "no")]
    async with motet.open_host() as host:
        opened = await host.open_room(
            motet.Room("r", members=members, speakers=motet.selector(chooser))
        )
        await opened.post("hello", user="alice")
        while not chooser.requests:
            await trio.lowlevel.checkpoint()
        report = await opened.stop()
        assert (len(report.stopped), report.still_running) == (1, [])
        assert len(chooser.requests) == 1
        assert host.status().running == 0
        assert (await opened.wait()).reason == STOPPED


async def test_messages_before_a_stop_open_no_round_after_it() -> None:
    ann = agent("ann", "yes")
    model_of(ann).gate = trio.Event()
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await opened.post("@ann one", user="alice")
        while not model_of(ann).requests:
            await trio.lowlevel.checkpoint()
        await opened.post("@ann two", user="bob")
        await opened.stop()
        model_of(ann).gate = None
        async with opened.subscribe() as events:
            await opened.post("three, for nobody", user="bob")
            seen = await until_idle(events)
        assert turns(seen) == []
        await opened.post("@ann four", user="bob")
        await opened.wait()
        assert "@ann two" in model_of(ann).told[-1], "it is known all the same"


@pytest.mark.parametrize("mode", ["collect", "followup", "steer", "interrupt"])
@pytest.mark.parametrize("going", [True, False])
async def test_a_message_that_a_stop_has_overtaken_ends_no_newer_round(
    mode: RoomMode, going: bool, tmp_path: Path
) -> None:
    """It is known, but opens no round, in the next host neither; its calls are told as dropped."""
    ann, ben = agent("ann", "yes"), agent("ben", "I was called")
    gate = trio.Event()
    model_of(ann).gate = gate if going else None
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions(), mode=mode)
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        await opened.stop()  # nothing was said before it
        await opened.post("@ann after the stop", user="alice", key="a")
        while not model_of(ann).requests:
            await trio.lowlevel.checkpoint()
        if not going:
            await opened.wait()
        actor = host.system.find("/host/rooms/r")
        assert actor is not None
        late = Post(Principal("bob"), "@ben before the stop", "b", clears=0)
        assert (await actor.ask(late)).duplicate is False
        gate.set()
        assert (await opened.wait()).reason == (NOBODY if going else STOPPED)
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        await opened.wait()
        events = [record.event for record in await host.events.read("room:r", 0, 10_000)]
        assert turns(events) == ["ann"]
        (dropped,) = [one for one in events if isinstance(one, CallDropped)]
        assert (dropped.of, dropped.by, dropped.reason) == ("ben", ("bob",), STOPPED)
        assert said(events)[0] == ("alice", "@ann after the stop")
        store = host.system.find("/host/room-store")
        assert store is not None
        assert await store.ask(ListRooms(unfinished=True)) == (), "all of it is told"
        await opened.post("@ann what did bob say?", user="alice")
        await opened.wait()
        assert "@ben before the stop" in model_of(ann).told[-1]
        assert not model_of(ben).requests
