"""A room that its owner changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.rooms import Floor, RoomChange, RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import agent, model_of, turns, until_idle

ALICE = Principal("alice")


async def test_a_change_counts_from_the_next_round_and_after_a_restart(tmp_path: Path) -> None:
    ann, ben = agent("ann", "@ben go on"), agent("ben", "@ann go on")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
        plan = RoomPlan(("ann",), speakers=("mentions",))
        name = (await host.rooms.create("plans", plan, principal=ALICE)).name
        room = await host.open_room(name, principal=ALICE)
        async with room.subscribe() as events:
            await room.post("@ann begin", user="alice")
            while not model_of(ann).requests:
                await trio.lowlevel.checkpoint()
            change = RoomChange(members=("ann", "ben"), max_turns=3, mode="reject")
            told = await host.rooms.change(name, change, principal=ALICE)
            assert told.plan == RoomPlan(
                ("ann", "ben"), speakers=("mentions",), max_turns=3, mode="reject"
            )
            assert [one.name for one in told.members] == ["ann"], "the round goes on as it was"
            gate, model_of(ann).gate = model_of(ann).gate, None
            assert gate is not None
            gate.set()
            assert turns(await until_idle(events)) == ["ann"]
            await room.post("@ann again", user="alice")
            assert turns(await until_idle(events)) == ["ann", "ben", "ann"]
        assert (await host.rooms.get(name, principal=ALICE)).mode == "reject"
    async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
        assert (await host.rooms.get(name, principal=ALICE)).plan == told.plan
        await host.rooms.change(name, RoomChange(members=("ben",)), principal=ALICE)
        room = await host.open_room(name, principal=ALICE)
        async with room.subscribe() as events:
            await room.post("@ann @ben who is left?", user="alice")
            assert turns(await until_idle(events)) == ["ben"]


async def test_a_change_that_cannot_be_is_refused_and_changes_nothing() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host(agents=[ann]) as host:
        plan = RoomPlan(("ann",))
        name = (await host.rooms.create("plans", plan, principal=ALICE)).name
        with pytest.raises(UnknownName, match="did you mean"):
            await host.rooms.change(name, RoomChange(members=("anne",)), principal=ALICE)
        with pytest.raises(ConfigError, match="no member"):
            await host.rooms.change(name, RoomChange(called=("ben",)), principal=ALICE)
        assert (await host.rooms.get(name, principal=ALICE)).plan == plan
        await host.open_room(motet.Room("ours", members=[ann]), principal=ALICE)
        with pytest.raises(ConfigError, match="program"):
            await host.rooms.change("ours", RoomChange(max_turns=1), principal=ALICE)


async def test_who_was_to_speak_and_is_no_member_any_more_does_not(tmp_path: Path) -> None:
    ann, ben = agent("ann", "@ben go on"), agent("ben", "b")
    model_of(ben).gate = trio.Event()
    async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
        plan = RoomPlan(("ann", "ben"), speakers=("mentions",))
        name = (await host.rooms.create("plans", plan, principal=ALICE)).name
        await host.rooms.post(name, "@ann begin", principal=ALICE)
        while not model_of(ben).requests:
            await trio.lowlevel.checkpoint()
        await host.rooms.change(name, RoomChange(members=("ann",)), principal=ALICE)
    async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
        room = await host.open_room(name, principal=ALICE)
        floor: Floor = await room.wait()
        assert (floor.due, floor.speaking, floor.going) == ((), (), False)
        assert len(model_of(ben).requests) == 1
