"""The deletion of a user: its refusals, and the rooms of programs that nobody has open."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.events import MessageDeleted
from motet.protocols.models import ModelRequest
from motet.protocols.room_copies import GONE
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal

ANN, BOB = Principal("ann"), Principal("bob")
PLAN = RoomPlan(("ops",), activation="off")


def ops() -> motet.Agent[None, str]:
    return motet.Agent("ops", model=mt.ScriptedModel([mt.say("yes")] * 9))


async def owners(host: Host) -> dict[str, str]:
    return {one.name: one.owner for one in await host.rooms.list()}


async def test_a_deletion_that_cannot_be_is_refused_before_anything_is_changed() -> None:
    named = TokenConfig(token="mtt_" + "0" * 32, user="eve")
    config = HostConfig(gateway=GatewayConfig(tokens=(named,)))
    async with motet.open_host(config=config, agents=[ops()]) as host:
        room = (await host.rooms.create("den", PLAN, principal=ANN)).name
        await host.new_token("ann")
        for user, rooms, why in (
            ("ann", None, "owns 1 rooms"),
            ("ann", "give", "transfer:OTHER"),
            ("ann", "transfer:ann", "transfer:OTHER"),
            ("ann", "transfer:bub", "nobody here is called 'bub'"),
            ("eve", "delete", "named in the configuration"),
            ("irc:*", "delete", "no name of a user"),
            ("room:den", "delete", "no name of a user"),
            (" ", "delete", "no name of a user"),
        ):
            with pytest.raises(InputValidation, match=why):
                await host.delete_user(user, rooms=rooms)
        with pytest.raises(NotFound, match="'carl'"):
            await host.delete_user("carl", rooms="delete")
        assert await owners(host) == {room: "ann"}
        assert len(await host.tokens()) == 1
        done = await host.delete_user("ann", rooms="transfer:eve")
        assert (done.tokens, done.rooms) == (1, (room,))
        assert await owners(host) == {room: "eve"}


async def test_those_who_are_there_are_told_and_a_similar_name_stays() -> None:
    async with motet.open_host(agents=[ops()]) as host:
        rooms = host.rooms
        room = (await rooms.create("den", PLAN, people=("ann", "anna"), principal=BOB)).name
        for text, who in (("mine", ANN), ("@ann and @anna, an ann", BOB)):
            await rooms.post(room, text, principal=who)
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await host.delete_user("ann")
            told = await anext(events)
            while not isinstance(told, MessageDeleted):
                told = await anext(events)
            assert told.number == 1
        said = await rooms.history(room, principal=BOB)
        texts = [(one.author, one.text) for one in said]
        assert texts == [(GONE, ""), ("bob", f"@{GONE} and @anna, an ann")]
        assert (await rooms.get(room, principal=BOB)).people == ("anna",)
        with pytest.raises(NotFound):
            await rooms.get(room, principal=ANN)
        await rooms.post(room, "it goes on", principal=BOB)


async def test_rooms_of_a_program_that_has_not_opened_them_forget_a_user(tmp_path: Path) -> None:
    state, agents = tmp_path / "state", [ops()]
    async with motet.open_host(state, agents=agents) as host:
        for name, owner in (("own", ANN), ("shared", BOB)):
            room = motet.Room(name, members=["ops"], people=["ann", "bob"])
            opened = await host.open_room(room, principal=owner)
            await opened.run("@ops what does an oleander need?", user="ann")
    async with motet.open_host(state, agents=agents) as host:
        done = await host.delete_user("ann", rooms="delete")
        assert done.rooms == ("own",)
        read = host._parts.readers.read  # pyright: ignore[reportPrivateUsage]
        tables = await read("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables:
            rows = await read(f'SELECT * FROM "{table}"')
            assert not [row for row in rows if "oleander" in repr(row) or '"ann"' in repr(row)]
        assert await read("SELECT author FROM room_messages WHERE seq = 1") == ((GONE,),)


@pytest.mark.parametrize("user", ["user", "text", "event", "tool", "person", "work"])
async def test_a_user_may_be_called_as_a_word_of_what_is_stored(
    user: str, autojump_clock: MockClock
) -> None:
    """A room of others goes on after their deletion, with the calls of its agents."""
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(repr(request.messages))
        return mt.call("work") if request.messages[-1].text.endswith("go") else mt.say("done")

    ann = motet.Agent("ann", model=mt.FunctionModel(answers, name="ann"))

    @ann.tool
    async def work() -> str:
        return "worked"

    bob = motet.Principal("bob")
    async with motet.open_host(agents=[ann]) as host:
        plan = RoomPlan(("ann",), activation="mention")
        room = (await host.rooms.create("den", plan, people=(user,), principal=bob)).name
        for who in (bob, motet.Principal(user)):
            await host.rooms.post(room, "@ann go", principal=who)
            await trio.sleep(1)
        await host.delete_user(user)
        await host.rooms.post(room, "@ann go", principal=bob)
        await trio.sleep(1)
        assert sent[-1].count("name='work'") == 6, "calls and results of three turns"
        authors = [one.author for one in await host.rooms.history(room, principal=bob)]
        assert authors == ["bob", "ann", "(deleted)", "ann", "bob", "ann"]
