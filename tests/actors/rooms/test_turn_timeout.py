"""Turns that take too long: of a hung model, tool or selector; and who has the floor meanwhile."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.rooms.member import STILL
from motet.protocols.chat import UserMessage
from motet.protocols.command_texts import room_text
from motet.protocols.events import AnyEvent, RoomIdle, Warned
from motet.protocols.host_rooms import Speaking
from motet.protocols.models import ModelRequest
from motet.protocols.room_turns import TOO_LONG
from motet.protocols.rooms import NOBODY, SILENT, TURN_TIMEOUT, RoomChange, RoomMode, RoomPlan
from motet.runtime.outside import wall_time
from motet.testing import FunctionModel, ScriptedModel, Step, call, say
from tests.actors.rooms.talk import Speaks, agent, model_of, said, turns, until_idle, warnings


def hung(name: str) -> motet.Agent[None]:
    one = agent(name, "never")
    model_of(one).gate = trio.Event()
    return one


async def talk(room: motet.Room, text: str, **config: object) -> list[AnyEvent]:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post(text, user="alice")
            return await until_idle(events)


async def test_a_hung_model_loses_the_floor_and_the_round_goes_on(
    autojump_clock: MockClock,
) -> None:
    room = motet.Room(
        "r",
        members=[hung("ann"), agent("ben", "hello")],
        speakers=motet.mentions(),
        turn_timeout=30,
    )
    began = trio.current_time()
    seen = await talk(room, "@ann @ben report")
    assert trio.current_time() - began == pytest.approx(30, abs=0.5)
    assert turns(seen) == ["ann", "ben"]
    assert ("ben", "hello") in said(seen)
    assert warnings(seen)[0] == f"ann has not answered: {TOO_LONG}"
    del autojump_clock


async def test_a_hung_turn_ends_by_default_and_the_wall_time_of_the_round_ends_all(
    autojump_clock: MockClock,
) -> None:
    room = motet.Room("r", members=[hung("ann")], speakers=motet.mentions())
    began = trio.current_time()
    seen = await talk(room, "@ann report")
    assert trio.current_time() - began == pytest.approx(TURN_TIMEOUT, abs=0.5)
    assert seen[-1] == RoomIdle(SILENT)
    members = [hung("ann"), agent("ben", "hello")]
    bounded = motet.Room("b", members=members, limits=motet.Limits(wall=20), turn_timeout=50)
    began = trio.current_time()
    seen = await talk(bounded, "@ann @ben report")
    assert trio.current_time() - began == pytest.approx(20, abs=0.5)
    assert turns(seen) == ["ann"]
    assert seen[-1] == RoomIdle("wall")
    del autojump_clock


async def test_a_hung_tool_ends_with_its_turn(autojump_clock: MockClock) -> None:
    ended: list[float] = []

    @motet.tool(effects="read")
    async def hang() -> str:
        """Hang."""
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())
        raise AssertionError

    model = ScriptedModel([call("hang"), say("never")], name="ann")
    ann = motet.Agent("ann", model=model, tools=[hang])
    room = motet.Room("r", members=[ann, agent("ben", "hello")], turn_timeout=30)
    seen = await talk(room, "@ann @ben report")
    assert len(ended) == 1
    assert ("ben", "hello") in said(seen)
    assert f"ann has not answered: {TOO_LONG}" in warnings(seen)
    del autojump_clock


async def test_a_hung_selector_lets_the_members_take_turns_and_a_hung_function_ends_the_round(
    autojump_clock: MockClock,
) -> None:
    chooser = Speaks("ann", "chooser")
    chooser.gate = trio.Event()
    members = [agent("ann", "hello"), agent("ben", "PASS")]
    room = motet.Room(
        "r", members=members, speakers=motet.selector(chooser), turn_timeout=30, max_turns=1
    )
    began = trio.current_time()
    seen = await talk(room, "report")
    assert trio.current_time() - began < 30
    assert ("ann", "hello") in said(seen)

    async def never(_: motet.RoomView) -> str:
        await trio.sleep_forever()
        raise AssertionError

    seen = await talk(motet.Room("f", members=members, speakers=never, turn_timeout=30), "report")
    assert "nobody was chosen within 30 s" in warnings(seen)
    assert seen[-1] == RoomIdle(NOBODY)
    del autojump_clock


async def test_the_time_in_which_a_turn_waits_for_a_person_does_not_count(
    autojump_clock: MockClock,
) -> None:
    @motet.tool(effects="write", approval=True)
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    model = ScriptedModel([call("deploy"), say("done")], name="ann")
    ann = motet.Agent("ann", model=model, tools=[deploy])
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), turn_timeout=30)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann deploy", user="alice")
            await trio.sleep(25)
            (waits,) = await host.approvals(state="pending")
            (floor,) = (await host.rooms.get("r")).floor
            assert (floor.name, floor.waits_for) == ("ann", "approval")
            await trio.sleep(1000)
            await host.approve(waits.id, "allow-once")
            seen = await until_idle(events)
    assert ("ann", "done") in said(seen)
    assert not [one for one in seen if isinstance(one, Warned)]
    del autojump_clock


async def test_a_room_says_who_has_the_floor_since_when_and_what_it_waits_for(
    autojump_clock: MockClock,
) -> None:
    begun = trio.Event()

    @motet.tool(effects="read")
    async def look() -> str:
        """Look."""
        begun.set()
        await trio.sleep_forever()
        raise AssertionError

    model = ScriptedModel([call("look")], name="ann")
    ann = motet.Agent("ann", model=model, tools=[look])
    room = motet.Room("r", members=[ann, hung("ben")], concurrency=2)
    before = wall_time()
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        assert (await host.rooms.get("r")).floor == ()
        await opened.post("@all report", user="alice")
        await begun.wait()
        info = await host.rooms.get("r")
        since = info.floor[0].since
        assert before <= since <= wall_time()
        assert info.floor == (Speaking("ann", since, "tool look"), Speaking("ben", since, "model"))
        assert room_text(info, since + 7).splitlines()[1:3] == [
            "ann has the floor, for 7 s so far: it waits for the tool look.",
            "ben has the floor, for 7 s so far: it waits for the model.",
        ]
        await opened.stop()
        assert (await host.rooms.get("r")).floor == ()
    del autojump_clock


def test_the_timeout_is_a_setting_of_every_definition() -> None:
    plan = RoomPlan(("ann",))
    assert plan.turn_timeout == TURN_TIMEOUT
    assert RoomChange(turn_timeout=5).of(plan).turn_timeout == 5
    with pytest.raises(ValueError, match="turn_timeout"):
        motet.Room("r", members=["ann"], turn_timeout=0)


async def test_a_thread_that_never_returns_loses_the_floor_and_is_shown(
    autojump_clock: MockClock,
) -> None:
    gate = threading.Event()

    def grind() -> str:
        """Grind."""
        gate.wait(60)
        return "done"

    model = ScriptedModel([call("grind"), say("late"), say("again")], name="ann")
    ann = motet.Agent("ann", model=model, tools=[grind])
    ben = agent("ben", "hello")
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions(), turn_timeout=30)
    try:
        async with motet.open_host() as host:
            opened = await host.open_room(room)
            async with opened.subscribe() as events:
                await opened.post("@ann @ben report", user="alice")
                seen = await until_idle(events)
                assert turns(seen) == ["ann", "ben"]
                assert ("ben", "hello") in said(seen)
                (warned,) = warnings(seen)
                assert warned.startswith(f"ann has not answered: {TOO_LONG}, and does not end")
                info = await host.rooms.get("r")
                assert (info.idle, info.stuck) == (True, ("ann: tool 'grind'",))
                assert "Given up, since it does not return: ann" in room_text(info, wall_time())
                # A call of it says so, and the others go on; a stop names the thread.
                await opened.post("@ann @ben again", user="alice")
                seen = await until_idle(events)
                assert warnings(seen)[0] == f"ann has not answered: {STILL}"
                report = await opened.stop(0.1)
                assert len(report.still_running) == len(report.held_by) == 1
                assert "grind" in report.held_by[0]
                gate.set()
                while (await host.rooms.get("r")).stuck:
                    await trio.lowlevel.checkpoint()
                while host.status().running:
                    await trio.lowlevel.checkpoint()
                await opened.post("@ann and now?", user="alice")
                seen = await until_idle(events)
                assert [author for author, _ in said(seen)] == ["alice", "ann"]
            history = [one.text for one in await opened.history()]
            assert "late" not in history or history.index("late") > 4
    finally:
        gate.set()
    del autojump_clock


@pytest.mark.parametrize("mode", ["collect", "interrupt"])
async def test_a_stop_and_an_interrupt_do_not_wait_for_a_thread_for_ever(
    mode: RoomMode, autojump_clock: MockClock
) -> None:
    gate, began = threading.Event(), threading.Event()

    def grind() -> str:
        """Grind."""
        began.set()
        gate.wait(60)
        return "done"

    model = ScriptedModel([call("grind"), say("late")], name="ann")
    ann, ben = motet.Agent("ann", model=model, tools=[grind]), agent("ben", "hello")
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions(), mode=mode)
    try:
        async with motet.open_host() as host:
            opened = await host.open_room(room)
            await opened.post("@ann report", user="alice")
            await trio.to_thread.run_sync(began.wait)
            if mode == "collect":
                await opened.stop(0.1)
            await opened.post("@ben hello", user="alice")
            while not any(one.author == "ben" for one in await opened.history()):
                await trio.sleep(1)  # on the virtual clock
            gate.set()
    finally:
        gate.set()
    del autojump_clock


@pytest.mark.parametrize("where", ["tool", "model"])
async def test_a_task_behind_a_shield_does_not_hold_the_floor(
    where: str, autojump_clock: MockClock
) -> None:
    """As long as a thread would: nothing can end it from outside either."""

    async def hang() -> str:
        """Hang."""
        with trio.CancelScope(shield=True):
            await trio.sleep(3600)
        return "done"

    async def think(request: ModelRequest) -> Step:
        if where == "model" and isinstance(request.messages[-1], UserMessage):
            await hang()
        return say("late") if where == "model" else call("hang")

    ann = motet.Agent("ann", model=FunctionModel(think, name="slow"), tools=[hang])
    members = [ann, agent("ben", "hello")]
    room = motet.Room("r", members=members, speakers=motet.mentions(), turn_timeout=30)
    began = trio.current_time()
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann @ben report", user="alice")
            assert ("ben", "hello") in said(await until_idle(events))
        assert trio.current_time() - began < 60
        what = {"tool": "tool 'hang'", "model": "model 'slow'"}[where]
        assert (await host.rooms.get("r")).stuck == (f"ann: {what}",)
    del autojump_clock
