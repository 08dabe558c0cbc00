"""Messages of people while agents speak, in each mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

import motet
from motet.actors.rooms.member import DetachedTurns
from motet.actors.rooms.opening import OpenRoom, RoomEvents
from motet.protocols.chat import UserMessage
from motet.protocols.events import AnyEvent, CallDropped, RoomIdle
from motet.protocols.rooms import STOPPED, RoomMode, RoomState
from motet.protocols.sessions import KeyConflict, SessionBusy
from tests.actors.rooms.talk import agent, model_of, said, turns, until_idle, warnings


@asynccontextmanager
async def speaking(
    room: motet.Room, first: motet.Agent[None]
) -> AsyncGenerator[tuple[motet.Host, OpenRoom, RoomEvents]]:
    """A room in which ``first`` has been called, and is held in the middle of its turn."""
    model_of(first).gate = trio.Event()
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post(f"@{first.name} one", user="alice", key="one")
            while not model_of(first).requests:
                await trio.lowlevel.checkpoint()
            yield host, opened, events


def go_on(one: motet.Agent[None]) -> None:
    model, gate = model_of(one), model_of(one).gate
    model.gate = None
    assert gate is not None
    gate.set()


def room_of(mode: RoomMode, *members: motet.Agent[None]) -> motet.Room:
    return motet.Room("r", members=members, speakers=motet.mentions(), mode=mode)


async def until_waiting(host: motet.Host, count: int) -> None:
    """Wait until so many inputs are on disk that are to enter a turn."""
    while len(await host.runs(status="queued")) < count:
        await trio.lowlevel.checkpoint()


async def rounds(events: RoomEvents, count: int) -> list[AnyEvent]:
    return [one for _ in range(count) for one in await until_idle(events)]


async def test_a_steering_message_enters_the_turn_and_opens_no_round() -> None:
    ann = agent("ann", lambda text: f"heard: {text}")
    async with speaking(room_of("steer", ann), ann) as (host, opened, events):
        await opened.post("two\n[bob] not me", user="carol")
        await opened.post("@ann three", user="alice")
        await until_waiting(host, 2)
        go_on(ann)
        seen = await until_idle(events)
        assert opened.waits
        entered = "[#2 person carol] two\n\\[bob] not me\n\n[#3 person alice] @ann three"
        assert said(seen)[-1] == ("ann", f"heard: {entered}")
        assert turns(seen) == ["ann"]

        await opened.post("@ann four", user="alice")
        await until_idle(events)
        assert model_of(ann).told[-1] == "[#5 person alice] @ann four", "nothing is told twice"


async def test_a_message_that_is_too_late_to_steer_opens_the_next_round() -> None:
    ann, ben = agent("ann", "a"), agent("ben", "b")
    async with speaking(room_of("steer", ann, ben), ann) as (_, opened, events):
        await opened.post("@ben and you?", user="alice")  # who does not speak
        go_on(ann)
        seen = await until_idle(events)
        assert turns(seen) == ["ann", "ben"]
        assert model_of(ben).told == [
            "[#1 person alice] @ann one\n[#2 person alice] @ben and you?\n[#3 agent ann] a"
        ]
        await opened.post("@ann last", user="alice")
        await until_idle(events)
    assert model_of(ann).told[-1] == (
        "[#2 person alice] @ben and you?\n[#4 agent ben] b\n[#5 person alice] @ann last"
    )


async def test_a_stop_of_the_room_drops_steering_messages() -> None:
    ann = agent("ann", "a")
    async with speaking(room_of("steer", ann), ann) as (host, opened, _):
        await opened.post("two", user="alice")
        await until_waiting(host, 1)
        report = await opened.stop()
        assert len(report.stopped) == 1
        assert opened.waits
        assert [one.text for one in await opened.history()] == ["@ann one", "two"]
    assert len(model_of(ann).requests) == 1


async def test_each_follow_up_gets_a_round_of_its_own() -> None:
    ann, ben = agent("ann", "@ben you too"), agent("ben", "b")
    async with speaking(room_of("followup", ann, ben), ann) as (_, opened, events):
        for text in ("@ben two", "@ben three"):
            await opened.post(text, user="alice")
        go_on(ann)
        seen = await rounds(events, 3)
        assert opened.waits
    assert turns(seen) == ["ann", "ben", "ben", "ben"]
    assert model_of(ben).told == [
        "[#1 person alice] @ann one\n[#4 agent ann] @ben you too",
        "[#2 person alice] @ben two",
        "[#3 person alice] @ben three",
    ]


async def test_a_refused_message_is_not_stored_and_a_resend_is_a_duplicate() -> None:
    ann = agent("ann", "a")
    async with speaking(room_of("reject", ann), ann) as (_, opened, events):
        with pytest.raises(SessionBusy, match="are speaking"):
            await opened.post("two", user="alice", key="two")
        assert (await opened.post("@ann one", user="alice", key="one")).duplicate
        with pytest.raises(KeyConflict):
            await opened.post("else", user="alice", key="one")
        go_on(ann)
        await until_idle(events)
        await opened.post("@ann two", user="alice", key="two")
        seen = await until_idle(events)
    assert said(seen) == [("alice", "@ann two"), ("ann", "a")]


async def test_collected_messages_open_one_round_after_the_turn() -> None:
    ann = agent("ann", "a")
    async with speaking(room_of("collect", ann), ann) as (_, opened, events):
        for text in ("@ann two", "@ann three"):
            await opened.post(text, user="alice")
        go_on(ann)
        seen = await until_idle(events)
    assert turns(seen) == ["ann", "ann"]
    assert isinstance(seen[-1], RoomIdle)
    last = model_of(ann).requests[-1].messages[-1]
    assert last == UserMessage(
        "[#2 person alice] @ann two\n[#3 person alice] @ann three", sender="alice"
    )


async def test_a_steering_input_is_not_taken_for_the_turn() -> None:
    async with motet.open_host(agents=[agent("ann", "a")]) as host:
        first = await host.run("ann", "the turn", session="s")
        await host.run("ann", "what somebody said meanwhile", session="s")
        parts = host._parts  # pyright: ignore[reportPrivateUsage]
        found = await DetachedTurns(parts.stores.sessions, parts.services).run_since(
            "s", RoomState(given=1.0)
        )
        assert found is not None
        assert found.run_id == first.run_id


@pytest.mark.parametrize("mode", ["collect", "followup", "steer"])
async def test_talk_of_people_fills_no_queue_and_loses_no_call(mode: RoomMode) -> None:
    """Memory has the last of the messages only; what waits on disk is answered in its order."""
    ann, ben = agent("ann", "a"), agent("ben", "b")
    room = attrs.evolve(room_of(mode, ann, ben), history=2)
    count = 250
    async with speaking(room, ann) as (_, opened, events):
        await opened.post("@ben report", user="bob")
        for number in range(count):
            await opened.post(f"lol {number}", user="carol")
        kept = opened._live.history.messages  # pyright: ignore[reportPrivateUsage]
        assert len(kept) < 110
        go_on(ann)
        seen = await rounds(events, 1 if mode != "followup" else count + 2)
    assert turns(seen) == ["ann", "ben"]
    if mode == "followup":
        assert model_of(ben).told == [
            "[1 earlier message is not shown.]\n"  # it was answered in a round of its own
            f"[#2 person bob] @ben report\n[#{count + 3} agent ann] a"
        ]
    assert opened.waits


async def test_calls_wait_while_people_talk_and_are_interrupted() -> None:
    """Only the turn under way ends; who was called keeps the place in the line."""
    modes: tuple[RoomMode, ...] = ("collect", "interrupt")
    for mode in modes:
        members = [agent(name, f"{name} reports") for name in ("ann", "ben", "cid")]
        async with speaking(room_of(mode, *members), members[0]) as (_, opened, events):
            await opened.stop()
            go_on(members[0])
            model_of(members[0]).gate = trio.Event()
            await until_idle(events)
            await opened.post("@ann @ben @cid please report", user="alice")
            while len(model_of(members[0]).requests) < 2:
                await trio.lowlevel.checkpoint()
            if mode == "interrupt":
                model_of(members[0]).gate = None
                await opened.post("lol", user="bob")
            else:
                await opened.post("lol @cid", user="bob")
                go_on(members[0])
            seen = await rounds(events, 2 if mode == "interrupt" else 1)
        assert turns(seen) == ["ann", "ben", "cid"], mode
        assert not [one for one in seen if isinstance(one, CallDropped)]


async def test_a_stop_tells_which_calls_it_drops() -> None:
    ann, ben = agent("ann", "a"), agent("ben", "b")
    async with speaking(room_of("collect", ann, ben), ann) as (_, opened, events):
        await opened.post("@ben one", user="alice")
        await opened.post("@ben @ann two", user="bob")
        await opened.stop()
        seen = await until_idle(events)
    assert [one for one in seen if isinstance(one, CallDropped)] == [
        CallDropped("ben", ("alice", "bob"), STOPPED, 1, 1, first=2, last=3),
        CallDropped("ann", ("bob",), STOPPED, 1, 2, first=3, last=3),
    ]


async def test_a_name_that_nobody_has_is_told_to_people_and_to_its_author() -> None:
    ann = agent("ann", "@zed @alice look")
    async with motet.open_host() as host:
        opened = await host.open_room(room_of("collect", ann))
        async with opened.subscribe() as events:
            for _ in range(2):
                await opened.post("@ann go", user="alice")
                assert warnings(await until_idle(events)) == ["nobody here is called @zed: ann"]
    assert model_of(ann).told == [
        "[#1 person alice] @ann go",
        "[#3 person alice] @ann go\n[nobody here is called @zed: ann]",
    ]
