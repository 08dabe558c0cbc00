"""Turns that wait for an approval: other messages do not wait, and the answer is not lost."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.rooms.history import RoomHistory
from motet.actors.rooms.member import DetachedTurns
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.events import AnyEvent, CallDropped, RoomIdle, RoomTurn
from motet.protocols.models import ModelRequest
from motet.protocols.recovery import RecoveryConfig
from motet.protocols.room_config import RoomConfig
from motet.protocols.room_turns import Turn
from motet.protocols.rooms import NOBODY, TOO_LATE, RoomMode
from tests.actors.rooms.talk import agent, behind_the_host, said, turns, until_idle, warnings
from tests.actors.rooms.test_recovery import killed
from tests.actors.rooms.victim import payers
from tests.scripted import call, say
from tests.slow_commits import slow_commits

CONFIG = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.0))
PAID = [("alice", "@ann pay"), ("ann", "@ben it is paid"), ("ben", "I am ben")]


async def pending(host: motet.Host) -> str:
    """The approval that a member waits for, when its run is suspended."""
    with trio.fail_after(60):
        while not await host.runs(status="waiting"):
            await trio.sleep(0.002)
    (found,) = await host.approvals(state="pending")
    return found.id


async def held(host: motet.Host, room: OpenRoom) -> str:
    approval = await pending(host)
    with trio.fail_after(60):
        while not (await host.rooms.get(room.name)).speaking or not _waiting(room):
            await trio.sleep(0.002)
    return approval


def _waiting(room: OpenRoom) -> bool:
    return bool(room._live.history.state.waiting)  # pyright: ignore[reportPrivateUsage]


async def stream(host: motet.Host) -> list[AnyEvent]:
    return [one.event for one in await host.events.read("room:r", 0, 500)]


async def test_the_round_goes_on_after_the_approval() -> None:
    async with motet.open_host(config=CONFIG) as host:
        room = await host.open_room(payers())
        async with room.subscribe() as events:
            await room.post("@ann pay", user="alice")
            approval = await held(host, room)
            assert not room.idle
            await host.approve(approval, "allow-once")
            with trio.fail_after(60):
                seen = await until_idle(events)
        assert said(seen) == PAID
        assert turns(seen) == ["ann", "ben"]
        assert {type(one).__name__ for one in seen} >= {"ApprovalRequested", "ApprovalResolved"}
        assert seen[-1] == RoomIdle(NOBODY)


@pytest.mark.parametrize("mode", ["collect", "steer", "followup", "reject"])
async def test_messages_meanwhile_are_answered_and_the_late_answer_opens_no_round(
    mode: RoomMode,
) -> None:
    """Also where a run waits in memory for longer than anybody would: not in a room."""
    config = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=3_600.0))
    async with motet.open_host(config=config) as host:
        room = await host.open_room(payers(mode=mode))
        async with room.subscribe() as events:
            await room.post("@ann pay", user="alice")
            approval = await held(host, room)
            await room.post("@ben and you?", user="alice")
            with trio.fail_after(60):
                seen = await until_idle(events)
            assert said(seen)[1:] == [("alice", "@ben and you?"), ("ben", "I am ben")]
            await host.approve(approval, "allow-once")
            with trio.fail_after(60):
                while _waiting(room):
                    await trio.sleep(0.002)
        await host.events.head("room:r")
        late, dropped = (await stream(host))[-2:]
        assert said([late]) == [("ann", "@ben it is paid")]
        assert dropped == CallDropped("ben", ("ann",), TOO_LATE, 2, 1, first=4, last=4)
        assert room.idle
        assert [one.author for one in await room.history()].count("ann") == 1


@pytest.mark.parametrize("mode", ["collect", "followup"])
async def test_a_call_of_a_member_that_waits_comes_to_its_next_turn(mode: RoomMode) -> None:
    """Others are called meanwhile; the late answer calls them in the round that is going."""
    steps = [call(("pay", {})), say("@ben it is paid"), say("I do")]
    async with motet.open_host(config=CONFIG) as host:
        room = await host.open_room(payers(mode=mode, ann=steps))
        async with room.subscribe() as events:
            await room.post("@ann pay", user="alice")
            approval = await held(host, room)
            await room.post("@ann @ben hurry", user="bob")
            seen: list[AnyEvent] = []
            with trio.fail_after(60):
                async for event in events:
                    seen.append(event)
                    if said([event]) == [("ben", "I am ben")]:
                        break
            assert not room.idle
            await host.approve(approval, "allow-once")
            with trio.fail_after(60):
                seen += await until_idle(events)
        assert turns(seen) == ["ann", "ben", "ann", "ben"]
        assert said(seen)[3:] == [("ann", "@ben it is paid"), ("ann", "I do"), ("ben", "I am ben")]
        given = [one for one in seen if isinstance(one, RoomTurn)]
        assert all({"alice", "bob"} == set(one.asked_by) for one in given[1:])
        assert seen[-1] == RoomIdle(NOBODY)
        assert not warnings(seen)


@pytest.mark.parametrize("how", ["stop", "interrupt"])
async def test_a_stop_ends_a_suspended_turn(how: str) -> None:
    async with motet.open_host(config=CONFIG) as host:
        mode: RoomMode = "interrupt" if how == "interrupt" else "collect"
        room = await host.open_room(payers(mode=mode))
        await room.post("@ann pay", user="alice")
        await held(host, room)
        if how == "stop":
            with trio.fail_after(60):
                report = await host.stop(room="r")
            assert len(report.stopped) == 1
        else:
            await room.post("@ben and you?", user="alice")
        with trio.fail_after(60):
            await room.wait()
            while _waiting(room):
                await trio.sleep(0.002)
        (run,) = [one for one in await host.runs() if one.agent == "ann"]
        (approval,) = await host.approvals()
        assert (run.status, approval.state) == ("cancelled", "withdrawn")


@pytest.mark.parametrize(
    "end", ["closed", "drained", "killed", pytest.param("answered", marks=pytest.mark.slow)]
)
async def test_a_suspended_turn_goes_on_in_the_next_host(tmp_path: Path, end: str) -> None:
    """``answered``: and then killed before anything came of it."""
    if end in ("killed", "answered"):
        killed(tmp_path, "waiting")
    else:
        async with motet.open_host(tmp_path, config=CONFIG) as host:
            room = await host.open_room(payers())
            await room.post("@ann pay", user="alice")
            await held(host, room)
            if end == "drained":
                await host.drain(5)
    if end == "answered":
        behind_the_host(
            tmp_path,
            "UPDATE approvals SET state = 'allowed', decision = 'allow-once', resolved_by = 'x'",
        )
    behind_the_host(tmp_path, "UPDATE rooms SET state = json_set(state, '$.opened', 0)")
    async with motet.open_host(tmp_path, config=CONFIG) as host:
        room = await host.open_room(payers(ann=[say("@ben it is paid")]))
        if end != "answered":
            approval = await pending(host)
            await host.approve(approval, "allow-once")
        with trio.fail_after(60):
            await room.wait()
        events = await stream(host)
    assert said(events) == PAID
    assert turns(events) == ["ann", "ben"]
    assert warnings(events) == []


@pytest.mark.parametrize("old", [False, True])
async def test_an_answer_right_before_the_kill_is_in_the_room(tmp_path: Path, old: bool) -> None:
    """``old``: the host that was killed was one that named no turns, and had their times only."""
    async with motet.open_host(tmp_path) as host:
        room = await host.open_room(payers(ann=[say("@ben it is paid")]))
        await room.post("@ann pay", user="alice")
        await room.wait()
    rewind(tmp_path, messages=1, speaking="ann", turns=1, old=old)
    async with motet.open_host(tmp_path) as host:
        room = await host.open_room(payers(ann=[]))
        with trio.fail_after(60):
            await room.wait()
        assert [(one.author, one.text) for one in await room.history()] == PAID
        assert len([one for one in await host.runs() if one.agent == "ann"]) == 1


def rewind(state: Path, *, messages: int, speaking: str, turns: int, old: bool = False) -> None:
    """The room as a kill has left it in the middle of its round: its runs are as they are."""
    with closing(sqlite3.connect(state / "motet.db")) as db, db:
        ((text,),) = db.execute("SELECT state FROM rooms")
        was = json.loads(text)
        what = "created, json_extract(given, '$.turn')"
        ((given, turn),) = db.execute(f"SELECT {what} FROM runs WHERE agent = ?", (speaking,))
        assert turn
        floor = {**was["floor"], "going": True, "turns": turns, "last": speaking, "reason": ""}
        floor["speaking"] = [{"name": speaking, "depth": 0}]
        named = {"turn": turn, "last": messages} if not old else {"turn": "", "last": 0}
        changed = json.dumps({**was, **named, "floor": floor, "given": given - 0.001})
        db.execute("UPDATE rooms SET state = ?", (changed,))
        db.execute("DELETE FROM room_messages WHERE seq > ?", (messages,))
        db.execute("DELETE FROM runs WHERE agent <> ?", (speaking,))
        last = "SELECT min(seq) FROM events WHERE event = 'room.turn'"
        db.execute(f"DELETE FROM events WHERE stream = 'room:r' AND seq > ({last})")


async def test_the_end_of_a_round_that_a_kill_kept_unpublished_is_published(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path) as host:
        room = await host.open_room(payers(ann=[say("no")]))
        await room.post("@ann pay", user="alice")
        await room.wait()
    behind_the_host(tmp_path, "DELETE FROM events WHERE event = 'room.idle'")
    for _ in range(2):  # and it is told once
        async with motet.open_host(tmp_path) as host:
            room = await host.open_room(payers())
            await room.wait()
            idle = [one for one in await stream(host) if isinstance(one, RoomIdle)]
            assert idle == [RoomIdle(NOBODY)]


async def test_a_host_reopens_rooms_with_suspended_turns(tmp_path: Path) -> None:
    config = motet.HostConfig(rooms={"r": RoomConfig(members=("ben",))})
    agents = [agent("ben", "I am ben")]
    async with motet.open_host(tmp_path, config=config, agents=agents) as host:
        room = await host.open_room("r")
        await room.post("@ben go", user="alice")
        await room.wait()
        before = await stream(host)
    behind_the_host(tmp_path, "DELETE FROM events WHERE event = 'room.idle'")
    async with motet.open_host(tmp_path, config=config, agents=agents) as host:
        with trio.fail_after(60):
            while await stream(host) != before:
                await trio.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("within", [0.0, 60.0])
async def test_the_time_after_which_a_round_is_not_resumed_is_configurable(
    tmp_path: Path, within: float
) -> None:
    killed(tmp_path, "posted")
    config = motet.HostConfig(recovery=RecoveryConfig(resume_within=within))
    async with motet.open_host(tmp_path, config=config) as host:
        room = await host.open_room(payers(ann=[say("no")]))
        with trio.fail_after(60):
            await room.wait()
        assert [one.author for one in await room.history()].count("ann") == (within > 0)


def careful() -> motet.Agent[None, str]:
    """It asks a person before each answer."""

    def step(request: ModelRequest) -> mt.Step:
        rows = request.messages
        answers = [
            n for n, row in enumerate(rows) if isinstance(row, AssistantMessage) and row.text
        ]
        since = rows[answers[-1] :] if answers else rows
        asked = any(isinstance(row, ToolMessage) for row in since)
        return mt.say("I have heard it") if asked else mt.call("delete")

    agent = motet.Agent("dot", model=mt.FunctionModel(step))

    @agent.tool(approval=True)
    async def delete() -> str:
        return "deleted"

    return agent


@pytest.mark.parametrize("seed", range(6))
def test_a_member_reads_a_message_once_whenever_it_meets_a_suspension(seed: int) -> None:
    chance = Random(seed)
    config = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.02))
    with slow_commits() as slow, mt.simulated_host(seed, config=config) as host:
        slow.seconds = lambda: chance.choice((0.0, 0.005, 0.02))
        room = host.room(motet.Room("den", members=[careful()], max_turns=100, mode="steer"))

        async def post(_host: motet.Host, number: int) -> None:
            await room.post(f"words {number}", user="dora")

        async def approve(host: motet.Host) -> None:
            for one in await host.approvals(state="pending"):
                with suppress(motet.MotetError):
                    await host.approve(one.id, "allow-once")

        for number in range(40):
            host.begin(post, number)
            host.advance(chance.choice((0.001, 0.01, 0.03)))
            if chance.random() < 0.5:
                host.begin(approve)
        # A member that could not take its turn is told everything in its next one.
        for more in (range(0), range(40, 41)):
            for number in more:
                host.call(post, number)
            for _ in range(4):
                host.advance(0.5)
                host.call(approve)
        rows = host.call(lambda host: host.history("agent:dot:room:group:den", limit=500))
    read = "\n".join(item.row.text for item in rows if isinstance(item.row, UserMessage))
    assert Counter(re.findall(r"words (\d+)", read)) == {str(number): 1 for number in range(41)}


async def test_untold_messages_are_published_before_a_turn_of_an_earlier_host_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message, published first, would hide that an older one is not."""
    async with motet.open_host(tmp_path, config=CONFIG) as host:
        room = await host.open_room(payers())
        await room.post("@ann pay", user="alice")
        await held(host, room)
    order: list[str] = []
    republish, outcome = RoomHistory.republish, DetachedTurns.outcome

    async def told(self: RoomHistory) -> None:
        await republish(self)
        order.append("told")

    async def ends(self: DetachedTurns, session: str, run_id: str) -> Turn:
        order.append("ends")
        return await outcome(self, session, run_id)

    monkeypatch.setattr(RoomHistory, "republish", told)
    monkeypatch.setattr(DetachedTurns, "outcome", ends)
    async with motet.open_host(tmp_path, config=CONFIG) as host:
        await host.open_room(payers())
        with trio.fail_after(60):
            while "ends" not in order:
                await trio.sleep(0.002)
    assert order[:2] == ["told", "ends"]
