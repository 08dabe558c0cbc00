"""Turns of members: the tool that gives the floor, and a message that takes it."""

from __future__ import annotations

import pytest
import trio

import motet
from motet.protocols.errors import ConfigError
from motet.protocols.events import RoomIdle, RoomTurn
from motet.protocols.rooms import NOBODY, STOPPED
from tests.actors.rooms.talk import agent, model_of, said, turns, until_idle, warnings
from tests.scripted import Scripted, call, say


def giver(name: str, *steps: object) -> motet.Agent[None]:
    return motet.Agent(name, model=Scripted(*steps, name=name), tools=["give_floor"])  # type: ignore[arg-type]


async def test_a_speaker_keeps_the_floor_until_it_gives_it_away() -> None:
    ann = giver("ann", say("hello"), call(("give_floor", {"to": "ben"})), say("ben knows"))
    ben = giver("ben", say("I know"), say("still I"))
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[ann, ben], speakers=motet.handoff()))
        spoke: list[list[str]] = []
        for text in ("one", "two", "three"):
            async with opened.subscribe() as events:
                await opened.post(text, user="alice")
                seen = await until_idle(events)
            assert seen[-1] == RoomIdle(NOBODY)
            spoke.append(turns(seen))
    assert spoke == [["ann"], ["ann", "ben"], ["ben"]]


async def test_a_floor_given_to_an_unknown_name_stays() -> None:
    ann = giver("ann", call(("give_floor", {"to": "the intern"})), say("go on"), say("again"))
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[ann], speakers=motet.handoff()))
        async with opened.subscribe() as events:
            await opened.post("one", user="alice")
            seen = await until_idle(events)
        assert warnings(seen) == ["ann has given the floor to 'the intern', who is not here"]
        await opened.post("two", user="alice")
        await opened.wait()
        assert [one.text for one in await opened.history()] == ["one", "go on", "two", "again"]


async def test_the_floor_tool_does_nothing_outside_of_rooms() -> None:
    ann = giver("ann", call(("give_floor", {"to": "ben"})), say("then not"))
    async with motet.open_host() as host:
        result = await host.run(ann, "hello")
    assert "This is not a group chat" in str(result.rows)


async def test_a_message_interrupts_the_speaker_in_mode_interrupt() -> None:
    ann = agent("ann", "never mind")
    model_of(ann).gate = trio.Event()
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), mode="interrupt")
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann count to a million", user="alice")
            while not model_of(ann).requests:
                await trio.lowlevel.checkpoint()
            model_of(ann).gate = None
            await opened.post("@ann no, wait", user="alice")
            first, second = await until_idle(events), await until_idle(events)
    assert first[-1] == RoomIdle(STOPPED)
    given = [one for one in second if isinstance(one, RoomTurn)]
    assert given == [RoomTurn("ann", 1, 7, ("alice",))]
    assert said(first + second) == [
        ("alice", "@ann count to a million"),
        ("alice", "@ann no, wait"),
        ("ann", "never mind"),
    ]


def test_an_unknown_mode_and_a_room_without_members_are_refused() -> None:
    with pytest.raises(ValueError, match="collect"):
        motet.Room("r", members=[agent("ann", "a")], mode="nod")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        motet.Room("r", members=[])
