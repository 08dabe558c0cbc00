"""Threads of messages: rooms of their own beside the main talk, with the people of their room."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.storage.connection import Connection
from motet.protocols.errors import NotFound
from motet.protocols.events import MessageAdded, RoomReplied
from motet.protocols.room_acts import AddPerson, LeaveRoom
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import agent, model_of, turns, until_idle

ALICE, BOB, EVE = Principal("alice"), Principal("bob"), Principal("eve")
SECRET = "the-password-is-swordfish"


def let_go(one: motet.Agent[None]) -> None:
    gate, model_of(one).gate = model_of(one).gate, None
    assert gate is not None
    gate.set()


async def asked(one: motet.Agent[None], times: int = 1) -> None:
    while len(model_of(one).requests) < times:
        await trio.lowlevel.checkpoint()


async def test_an_agent_that_is_called_in_a_thread_reads_it_and_answers_there() -> None:
    ann, ben = agent("ann", "in the room"), agent("ben", "in the thread")
    model_of(ann).gate = trio.Event()
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions())
    async with motet.open_host() as host:
        main = await host.open_room(room)
        async with main.subscribe() as events:
            await main.post("shall we go?", user="alice")
            await main.post("@ann think about it", user="alice")
            await asked(ann)
            thread = await main.thread(1)
            await thread.post("when?", user="bob")
            await thread.post("@ben when?", user="carol")
            await thread.wait()
            assert not main.idle, "the main talk goes on meanwhile"
            let_go(ann)
            seen = await until_idle(events)
            seen += await until_idle(events)
        assert [one.replies for one in seen if isinstance(one, RoomReplied)] == [1, 2, 3]
        assert turns(seen) == ["ann"]
        assert model_of(ben).told == [
            "[#1 person alice] shall we go?\n[#1.1 person bob] when?\n"
            "[#1.2 person carol] @ben when?"
        ]
        said = [(one.label, one.author, one.text) for one in await thread.history()]
        assert said == [
            ("1", "alice", "shall we go?"),
            ("1.1", "bob", "when?"),
            ("1.2", "carol", "@ben when?"),
            ("1.3", "ben", "in the thread"),
        ]
        assert [(one.text, one.replies) for one in await main.history()] == [
            ("shall we go?", 3),
            ("@ann think about it", 0),
            ("in the room", 0),
        ]
        last = (await thread.history())[-1]
        assert {who.user for who in last.asked_by} == {"alice", "bob", "carol"}
        listed = [one.name for one in await host.rooms.list()]
        assert listed == ["r"]


async def test_there_is_a_thread_of_a_message_only() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host() as host:
        main = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await main.post("hello", user="alice")
        await main.delete(1, user="alice")
        for number in (1, 2):
            with pytest.raises(NotFound, match="no message"):
                await main.thread(number)


async def test_a_stop_of_the_room_ends_the_turns_of_its_threads() -> None:
    ann = agent("ann", "yes")
    model_of(ann).gate = trio.Event()
    async with motet.open_host() as host:
        main = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await main.post("hello", user="alice")
        thread = await main.thread(1)
        await thread.post("@ann go", user="alice")
        await asked(ann)
        await host.stop(room="r")
        assert host.status().running == 0
        assert thread.idle


async def test_what_is_withdrawn_in_the_room_is_withdrawn_in_the_thread(tmp_path: Path) -> None:
    ann = agent("ann", "yes")
    room = motet.Room("r", members=[ann], speakers=motet.mentions())
    async with motet.open_host(tmp_path) as host:
        main = await host.open_room(room)
        await main.post(f"first {SECRET}", user="alice")
        thread = await main.thread(1)
        await thread.post(f"@ann what of {SECRET}?", user="alice")
        await thread.wait()
        with pytest.raises(NotFound, match="in its room"):
            await thread.delete(1, user="alice")
        await main.delete(1, user="alice")
        await thread.delete(2, user="alice")
        await thread.post("@ann again", user="alice")
        await thread.wait()
        assert SECRET not in repr(model_of(ann).requests[-1].messages)
        assert [one.text for one in await thread.history()] == ["", "", "yes", "@ann again", "yes"]
        await host.delete_room("r")
    with closing(Connection(str(tmp_path / "motet.db"))) as connection:
        for table in ("rooms", "room_messages", "sessions", "events"):
            assert connection.run(f"SELECT count(*) FROM {table}") == ((0,),), table
    assert SECRET.encode() not in (tmp_path / "motet.db").read_bytes()


def test_a_thread_goes_on_after_a_kill() -> None:
    model = mt.FunctionModel(lambda _: mt.slow(mt.say("yes"), seconds=1), name="ann")

    async def begin(host: motet.Host) -> str:
        plan = RoomPlan(("ann",), speakers=("mentions",))
        name = (await host.rooms.create("r", plan, principal=ALICE)).name
        await host.rooms.post(name, "hello", principal=ALICE)
        await host.rooms.post(f"{name}/1", "@ann go", key="k", principal=ALICE)
        return f"{name}/1"

    async def look(host: motet.Host, thread: str) -> list[tuple[int, str]]:
        said = [(one.seq, one.text) for one in await host.rooms.history(thread, principal=ALICE)]
        events = [one.event for one in await host.events.read(f"room:{thread}", 0, 100)]
        told = [(one.number, one.text) for one in events if isinstance(one, MessageAdded)]
        assert told == said[1:], "the message it is about was told in the room"
        return said

    with mt.simulated_host(1, agents=[motet.Agent("ann", model=model)]) as host:
        thread = host.call(begin)
        host.advance(0.2)
        host.crash()
        host.advance(10)
        assert host.call(look, thread) == [(1, "hello"), (2, "@ann go"), (3, "yes")]


async def test_a_thread_is_for_the_people_of_its_room() -> None:
    """G16: for everybody else there is none; and it is administered in its room only."""
    ann = agent("ann", "yes")
    async with motet.open_host(agents=[ann]) as host:
        rooms = host.rooms
        name = (await rooms.create("r", RoomPlan(("ann",)), people=("bob",), principal=ALICE)).name
        thread = f"{name}/1"
        await rooms.post(name, "hello", principal=ALICE)
        await rooms.post(thread, "in the thread", principal=BOB)
        assert (await rooms.get(thread, principal=BOB)).name == thread
        for attempt in (
            rooms.get(thread, principal=EVE),
            rooms.history(thread, principal=EVE),
            rooms.post(thread, "hi", principal=EVE),
            rooms.edit_message(thread, 2, "hi", principal=EVE),
            rooms.mark_read(thread, 1, principal=EVE),
            rooms.present(thread, principal=EVE),
            rooms.typing(thread, principal=EVE),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert not rooms.open_to(thread, EVE)
        with pytest.raises(motet.MotetError):
            await rooms.manage(AddPerson(room=thread, user="eve"), principal=ALICE)
        await rooms.delete_message(thread, 2, principal=ALICE)
        await rooms.manage(LeaveRoom(room=name), principal=BOB)
        assert not rooms.open_to(thread, BOB)
        with pytest.raises(NotFound):
            await rooms.history(thread, principal=BOB)
