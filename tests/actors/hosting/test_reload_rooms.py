"""Rooms of a configuration that changes while they are open."""

from __future__ import annotations

import pytest
import trio

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import new_token
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.room_config import RoomConfig
from motet.protocols.sessions import Principal
from tests.actors.gateway.fakes import connected
from tests.actors.rooms.talk import agent, model_of, turns, until_idle

ALICE, BOB = Principal("alice"), Principal("bob")


def rooms(*members: str, people: tuple[str, ...] = ("alice",), max_turns: int = 8) -> HostConfig:
    dev = RoomConfig(members=members, people=people, max_turns=max_turns, speakers="mentions")
    return HostConfig(rooms={"dev": dev})


async def test_an_open_room_follows_the_new_configuration_from_its_next_round() -> None:
    ann, ben = agent("ann", "@ben go on"), agent("ben", "@ann go on")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(config=rooms("ann"), agents=[ann, ben]) as host:
        room = await host.open_room("dev")
        async with room.subscribe() as events:
            await room.post("@ann begin", user="alice")
            while not model_of(ann).requests:
                await trio.lowlevel.checkpoint()
            await host.reload(rooms("ann", "ben", people=("bob",), max_turns=2))
            assert [one.name for one in await host.rooms.list(principal=BOB)] == ["dev"]
            with pytest.raises(NotFound):
                await host.rooms.post("dev", "still there?", principal=ALICE)
            gate, model_of(ann).gate = model_of(ann).gate, None
            assert gate is not None
            gate.set()
            assert turns(await until_idle(events)) == ["ann"], "the round goes on as it was"
            await host.rooms.post("dev", "@ann again", principal=BOB)
            assert turns(await until_idle(events)) == ["ann", "ben"]


async def test_a_wrong_room_changes_nothing_and_a_removed_one_disappears() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host(config=rooms("ann"), agents=[ann]) as host:
        await host.open_room("dev")
        with pytest.raises(UnknownName, match="did you mean 'ann'"):
            await host.reload(rooms("anne", people=("bob",)))
        called = RoomConfig(members=("ann",), called=("ben",))
        with pytest.raises(ConfigError, match="not a member"):
            await host.reload(HostConfig(rooms={"dev": called}))
        await host.rooms.get("dev", principal=ALICE)
        await host.reload(HostConfig())
        with pytest.raises(NotFound):
            await host.rooms.get("dev", principal=ALICE)


async def test_who_is_removed_from_a_room_that_is_not_at_work_is_told_so() -> None:
    """A subscription that was made meanwhile ends in the step of the reload (G16)."""
    alice = new_token()
    tokens = StaticTokens([token_entry(alice, "alice")])
    async with motet.open_host(config=rooms("ann"), agents=[agent("ann", "yes")]) as host:
        context = Context(host, Settings(tokens=tokens))
        async with connected(context, alice) as client:
            await client.result("subscribe", stream="room:dev")
            await host.reload(rooms("ann", people=("bob",)))
            ended = (await client.until("stream.ended"))[-1]
            assert ended.data == {"reason": "removed"}
