"""A room at work: people and agents talk, within limits, on a real database."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet import testing as mt
from motet.protocols.chat import UserMessage
from motet.protocols.errors import InputValidation, NotFound, UnknownName
from motet.protocols.events import RoomIdle, RoomTurn, Warned
from motet.protocols.rooms import DEPTH, NOBODY, SILENT, STOPPED, TURNS
from motet.protocols.sessions import LOCAL, KeyConflict, Principal
from tests.actors.rooms.talk import Speaks, agent, model_of, said, until_idle


async def test_a_member_that_is_called_answers_and_calls_the_next() -> None:
    planner = agent("planner", "@coder write it")
    coder = agent("coder", "[coder] written")
    room = motet.Room("dev", members=[planner, coder], speakers=motet.mentions())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@planner split this task", user="alice", key="m-1")
            seen = await until_idle(events)
    assert said(seen) == [
        ("alice", "@planner split this task"),
        ("planner", "@coder write it"),
        ("coder", "written"),
    ]
    turns = [one for one in seen if isinstance(one, RoomTurn)]
    assert turns == [
        RoomTurn("planner", 1, 7, ("alice",)),
        RoomTurn("coder", 2, 6, ("alice",), called_by=("planner",)),
    ]
    assert seen[-1] == RoomIdle(NOBODY)
    (request,) = model_of(coder).requests
    told = request.messages[-1]
    assert isinstance(told, UserMessage)
    assert told.text == (
        "[#1 person alice] @planner split this task\n[#2 agent planner] @coder write it"
    )
    assert "You are coder in the group chat 'dev'" in request.system
    assert "- @planner: is planner" in request.system


async def test_members_who_always_call_each_other_end_within_their_turns() -> None:
    ann, ben = agent("ann", "@ben your turn"), agent("ben", "@ann your turn")
    room = motet.Room("r", members=[ann, ben], max_turns=5, max_depth=99)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for _ in range(2):
            async with opened.subscribe() as events:
                await opened.post("@ann go", user="alice")
                seen = await until_idle(events)
            assert len([one for one in seen if isinstance(one, RoomTurn)]) == 5
            assert seen[-1] == RoomIdle(TURNS)


async def test_the_depth_of_calls_from_agent_to_agent_is_limited() -> None:
    ann, ben = agent("ann", "@ben your turn"), agent("ben", "@ann your turn")
    room = motet.Room("r", members=[ann, ben], max_turns=50, max_depth=3)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann go", user="alice")
            seen = await until_idle(events)
    assert len([one for one in seen if isinstance(one, RoomTurn)]) == 4
    assert seen[-1] == RoomIdle(DEPTH)


async def test_pass_is_not_shown_and_ends_the_round_when_all_pass() -> None:
    members = [agent("ann", "PASS"), agent("ben", "*pass*"), agent("cid", "")]
    room = motet.Room("r", members=members[:2], speakers=motet.round_robin())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("anything?", user="alice")
            seen = await until_idle(events)
    assert said(seen) == [("alice", "anything?")]
    assert seen[-1] == RoomIdle(SILENT)


async def test_a_condition_on_a_word_ends_the_round() -> None:
    count = iter(range(100))
    ann = agent("ann", lambda _: "DONE" if next(count) == 1 else "more")
    ben = agent("ben", "go on")
    until = motet.MaxTurns(40) | motet.TextMention("DONE")
    room = motet.Room(
        "r", members=[ann, ben], speakers=motet.round_robin(), until=until, max_turns=50
    )
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("work until DONE", user="alice")
            seen = await until_idle(events)
    assert [author for author, _ in said(seen)] == ["alice", "ann", "ben", "ann"]
    assert seen[-1] == RoomIdle("'DONE' was said")


async def test_messages_that_come_meanwhile_open_the_next_round_together() -> None:
    ann = agent("ann", lambda told: f"I heard {told.count('[')}")
    model_of(ann).gate = trio.Event()
    room = motet.Room("r", members=[ann], speakers=motet.mentions())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann one", user="alice")
            await wait_all_tasks_blocked()
            await opened.post("@ann two", user="bob")
            await opened.post("and three", user="alice")
            gate, model_of(ann).gate = model_of(ann).gate, None
            assert gate is not None
            gate.set()
            seen = await until_idle(events)
    assert [text for author, text in said(seen) if author == "ann"] == ["I heard 1", "I heard 2"]
    assert [one.turn for one in seen if isinstance(one, RoomTurn)] == [1, 1], "fresh counters"


async def test_a_stop_ends_every_speaker_and_waits_for_people() -> None:
    ann, ben = agent("ann", "never"), agent("ben", "never")
    model_of(ann).gate = model_of(ben).gate = trio.Event()
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions(), concurrency=2)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@all go", user="alice")
            await wait_all_tasks_blocked()
            report = await opened.stop()
            assert len(report.stopped) == 2
            assert report.still_running == []
            seen = await until_idle(events)
        assert seen[-1] == RoomIdle(STOPPED)
        assert opened.idle
        assert host.status().running == 0
        again = await opened.stop()
        assert (again.stopped, again.still_running) == ([], [])
        model_of(ann).gate = None
        async with opened.subscribe() as events:
            await opened.post("@ann again", user="alice")
            assert ("ann", "never") in said(await until_idle(events))


async def test_a_member_that_fails_costs_its_turn_and_not_the_room() -> None:
    def broken(_: str) -> str:
        raise RuntimeError("secret detail")

    ann, ben = agent("ann", broken), agent("ben", "here")
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann @ben hello", user="alice")
            seen = await until_idle(events)
    assert ("ben", "here") in said(seen)
    (warning,) = [one for one in seen if isinstance(one, Warned)]
    assert warning.message == "ann has not answered: failed"


async def test_a_resent_message_is_stored_once() -> None:
    room = motet.Room("r", members=[agent("ann", "yes")], speakers=motet.mentions())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        first = await opened.post("hello", user="alice", key="k")
        again = await opened.post("hello", user="alice", key="k")
        assert (first.seq, first.duplicate) == (1, False)
        assert (again.seq, again.duplicate) == (1, True)
        with pytest.raises(KeyConflict):
            await opened.post("other", user="alice", key="k")
        assert len(await opened.history()) == 1
        assert (await opened.post("hello", user="bob", key="k")).seq == 2, "a key is its user's"
        with pytest.raises(InputValidation):
            await opened.post("  ", user="alice")


async def test_a_room_keeps_its_messages_over_a_restart(tmp_path: Path) -> None:
    ann = agent("ann", "yes")
    room = motet.Room("r", members=[ann], speakers=motet.mentions())
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        await opened.post("@ann are you there?", user="alice")
        await opened.wait()
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        assert [one.text for one in await opened.history()] == ["@ann are you there?", "yes"]
        await opened.post("@ann and now?", user="alice")
        floor = await opened.wait()
    assert floor.round == 2
    told = model_of(ann).requests[-1].messages
    texts = [one.text for one in told if isinstance(one, UserMessage)]
    assert texts == ["[#1 person alice] @ann are you there?", "[#3 person alice] @ann and now?"]


async def test_a_round_cut_off_by_the_host_s_end_keeps_its_used_turns(tmp_path: Path) -> None:
    """Given hosts that end at the first turn that is new to them, the round ends all the same."""
    ann, ben = agent("ann", "@ben you"), agent("ben", "@ann you")
    room = motet.Room("r", members=[ann, ben], max_turns=4, max_depth=99)
    turns, over = 0, False
    while not over:
        async with motet.open_host(tmp_path) as host:
            opened = await host.open_room(room)
            if not turns:
                await opened.post("@ann go", user="alice")
            known, turns = turns, 0
            async with opened.subscribe(after=0) as events:
                async for event in events:
                    turns += isinstance(event, RoomTurn)
                    over = isinstance(event, RoomIdle)
                    if over or turns > known:
                        break
    assert 1 <= turns <= 4


async def test_a_selector_chooses_and_never_loops_on_nonsense() -> None:
    chooser = Speaks(lambda _: "the intern")
    ann, ben = agent("ann", "a"), agent("ben", "b")
    room = motet.Room("r", members=[ann, ben], speakers=motet.selector(chooser), max_turns=3)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("hello", user="alice")
            seen = await until_idle(events)
    assert [one.speaker for one in seen if isinstance(one, RoomTurn)] == ["ann", "ben", "ann"]
    assert seen[-1] == RoomIdle(TURNS)
    assert len(chooser.requests) == 6


async def test_the_room_s_limits_pay_for_a_round() -> None:
    ann, ben = agent("ann", "@ben go on"), agent("ben", "@ann go on")
    room = motet.Room(
        "r", members=[ann, ben], max_depth=99, max_turns=99, limits=motet.Limits(tokens=45)
    )
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann go", user="alice")
            seen = await until_idle(events)
    assert seen[-1] == RoomIdle("tokens")
    assert len([one for one in seen if isinstance(one, RoomTurn)]) <= 4


async def test_a_room_of_another_is_not_found() -> None:
    room = motet.Room("r", members=[agent("ann", "yes")])
    async with motet.open_host() as host:
        await host.open_room(room, principal=Principal("alice"))
        with pytest.raises(NotFound):
            await host.open_room("r", principal=Principal("bob"))
        with pytest.raises(UnknownName):
            await host.open_room("nowhere")


async def test_a_configured_room_opens_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(
        '[agents.ann]\nmodel = "demo"\n[agents.ben]\nmodel = "demo"\n'
        '[rooms.dev]\nmembers = ["ann", "ben"]\nspeakers = "mentions"\nmax_turns = 2\n'
    )
    async with motet.open_host(config=file) as host:
        opened = await host.open_room("dev")
        assert opened.members == ("ann", "ben")
        await opened.post("@ben hello", user="alice")
        await opened.wait()
        assert [one.author for one in await opened.history()] == ["alice", "ben"]


async def test_a_room_is_run_as_an_agent_is() -> None:
    ann, ben = agent("ann", "one"), agent("ben", "two")
    room = motet.Room("r", members=[ann, ben], until=motet.SpokenBy("ben"))
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("go", user="alice", key="k")
        assert [one.text for one in result.messages] == ["one", "two"]
        assert (result.text, result.turns, result.reason) == ("two", 2, "ben has spoken")
        assert result.usage.total_tokens == 30
        await opened.post("@ann again", user="bob")
        await opened.wait()
        again = await opened.run("go", user="alice", key="k")
        assert again.messages[: len(result.messages)] == result.messages
        assert len(model_of(ann).requests) == 2, "a message under a known key opens no round"


async def test_a_program_that_runs_a_room_needs_no_name() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[agent("ann", "one")]))
        assert (await opened.run("go")).text == "one"
        (said, _) = await opened.history()
        assert said.asked_by == (LOCAL,), "as a run of an agent without a principal"


async def test_cancelling_the_run_of_a_room_stops_it() -> None:
    ann = agent("ann", "one")
    model_of(ann).gate = trio.Event()
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[ann]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(opened.run, "go", user="alice"))
            while not model_of(ann).requests:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert host.status().running == 0
        assert (await opened.wait()).reason == "stopped"


async def test_a_round_ends_when_a_tool_is_called() -> None:
    ann = motet.Agent("ann", model=mt.ScriptedModel([mt.call("approve"), mt.say("approved")]))
    ben = agent("ben", "yes")

    @ann.tool
    def approve() -> str:
        return "done"

    room = motet.Room("r", members=[ben, ann], until=motet.ToolCalled("approve", by="ann"))
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("go", user="alice")
        assert (result.turns, result.reason) == (2, "ann has called approve")
        assert result.text == "approved"
