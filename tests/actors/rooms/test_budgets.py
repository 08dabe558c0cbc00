"""Budgets of rooms by hour and day: what counts, what is refused, and what survives a host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

import motet
from motet.protocols.chat import ToolMessage
from motet.protocols.events import CallDropped, RoomIdle
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.room_limits import ROOM, Allowance, Budgets, Costs, FindCosts, Spent
from motet.protocols.rooms import NOBODY, RoomChange, RoomPlan
from motet.runtime.outside import wall_time
from motet.testing import FunctionModel, ScriptedModel, call, say
from tests.actors.rooms.talk import Speaks, agent, model_of, said, until_idle


async def costs(host: motet.Host, room: str = "r") -> Costs:
    return await host.rooms.parts.store.ask(  # pyright: ignore
        FindCosts(room, wall_time())
    )


async def test_each_person_pays_for_the_turns_that_answer_them_and_the_sum_is_the_rooms() -> None:
    ann = agent("ann", "hello")
    room = motet.Room("r", members=[ann], speakers=motet.mentions())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for user in ("alice", "bob", "alice"):
            await opened.post("@ann hi", user=user)
            await opened.wait()
        found = await costs(host)
        assert (
            found.day
            == found.hour
            == {
                ROOM: Spent(3, 45),
                "alice": Spent(2, 30),
                "bob": Spent(1, 15),
            }
        )
        gate = model_of(ann).gate = trio.Event()
        async with opened.subscribe() as events:
            await opened.post("@ann wait", user="alice")
            await opened.post("@ann one", user="bob")
            await opened.post("@ann two", user="carol")
            gate.set()
            await until_idle(events)
            if not opened.idle:
                await opened.wait()
        found = await costs(host)
        people = {user: one for user, one in found.day.items() if user != ROOM}
        assert sum(one.tokens for one in people.values()) == found.day[ROOM].tokens == 75


async def test_a_day_that_is_used_up_ends_with_a_notice_and_talk_goes_on() -> None:
    ann = agent("ann", "hello")
    budgets = Budgets(day=Allowance(turns=2))
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), budgets=budgets)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            for _ in range(2):
                await opened.post("@ann hi", user="alice")
                await until_idle(events)
            await opened.post("@ann and now?", user="alice")
            seen = await until_idle(events)
            (dropped,) = [one for one in seen if isinstance(one, CallDropped)]
            assert dropped.of == "ann"
            assert dropped.reason.startswith("the room has used the 2 turns of today: agents")
            assert dropped.reason.endswith(" 00:00 UTC")
            await opened.post("then we talk", user="bob")
            seen = await until_idle(events)
            assert said(seen) == [("bob", "then we talk")]
        assert len(model_of(ann).requests) == 2
        found = await costs(host)
        assert found.day[ROOM].tokens == 30


@pytest.mark.parametrize("whose", ["day", "person_day"])
async def test_a_text_whose_calls_nobody_can_pay_for_comes_back_with_the_budget_as_the_reason(
    whose: str,
) -> None:
    """Here the calls are all that the policy goes by, so that it would choose nobody else."""
    budgets = Budgets(**{whose: Allowance(turns=1)})
    room = motet.Room(
        "r", members=[agent("ann", "hello")], speakers=motet.mentions(), budgets=budgets
    )
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        await opened.run("@ann hi", user="alice")
        found = await opened.run("@ann and now?", user="alice")
        assert (found.turns, found.messages) == (0, ())
        assert "has used the 1 turns of today: agents answer again from" in found.reason
        if whose == "person_day":
            assert (await opened.run("nothing", user="alice")).reason == NOBODY
            assert (await opened.run("@ann hi", user="bob")).turns == 1


async def test_one_person_who_has_used_their_budget_does_not_stop_the_others() -> None:
    ann = agent("ann", "hello")
    budgets = Budgets(person_hour=Allowance(turns=1))
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), budgets=budgets)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann hi", user="mallory")
            await until_idle(events)
            await opened.post("@ann again", user="mallory")
            seen = await until_idle(events)
            (dropped,) = [one for one in seen if isinstance(one, CallDropped)]
            assert dropped.reason.startswith("mallory has used the 1 turns of this hour")
            assert seen[-1] == RoomIdle(dropped.reason)
            await opened.post("@ann hi", user="alice")
            assert ("ann", "hello") in said(await until_idle(events))
        found = await costs(host)
        assert {user: one.turns for user, one in found.hour.items()} == {
            ROOM: 2,
            "mallory": 1,
            "alice": 1,
        }


async def test_a_turn_cannot_use_more_than_is_left() -> None:
    """The limits of its run are lowered, so that it ends in the middle of its work."""

    @motet.tool(effects="read")
    async def look() -> str:
        """Look."""
        return "nothing"

    model = ScriptedModel([call("look")] * 50, name="ann")
    ann = motet.Agent("ann", model=model, tools=[look])
    budgets = Budgets(person_day=Allowance(tokens=2000))
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), budgets=budgets)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@ann look", user="alice")
            seen = await until_idle(events)
        last = seen[-1]
        assert isinstance(last, RoomIdle)
        assert last.reason.startswith("alice has nearly used the 2,000 tokens of today: agents")
        found = await costs(host)
        assert 0 < found.day["alice"].tokens <= 2000


async def test_selectors_and_sub_agents_count_and_a_used_up_room_asks_no_selector() -> None:
    chooser = Speaks("ann", "chooser")
    helper = agent("helper", "done")
    ann = motet.Agent(
        "ann",
        model=ScriptedModel([call("ask_helper", task="x"), say("ok")], name="ann"),
        tools=[helper.as_tool(name="ask_helper")],
    )
    ben = agent("ben", "hello")
    budgets = Budgets(day=Allowance(turns=1))
    room = motet.Room(
        "r", members=[ann, ben], speakers=motet.selector(chooser), max_turns=1, budgets=budgets
    )
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("go", user="alice")
            seen = await until_idle(events)
            assert ("ann", "ok") in said(seen)
            runs = await host.runs(limit=50)
            top = sum(one.usage.total_tokens for one in runs if "subagent:run_" not in one.session)
            await opened.post("more", user="alice")
            seen = await until_idle(events)
        assert len(chooser.requests) == 1
        last = seen[-1]
        assert isinstance(last, RoomIdle)
        assert "the 1 turns of today" in last.reason
        found = await costs(host)
        assert found.day[ROOM] == found.day["alice"] == Spent(1, top)
        assert len(model_of(helper).requests) == 1


async def test_the_sums_are_there_in_the_next_host_and_go_with_the_room(tmp_path: Path) -> None:
    ann, name = agent("ann", "hello"), ""
    for turns in (1, 2):
        async with motet.open_host(tmp_path, agents=[ann]) as host:
            if turns == 1:
                made = await host.rooms.create("r", RoomPlan(("ann",)))
                name = made.name
            opened = await host.open_room(name)
            await opened.post("@ann hi", user="alice")
            await opened.wait()
            assert (await costs(host, name)).day["alice"].turns >= turns
    async with motet.open_host(tmp_path, agents=[ann]) as host:
        budgets = Budgets(person_day=Allowance(turns=2))
        info = await host.rooms.change(name, RoomChange(budgets=budgets))
        assert info.plan is not None
        assert info.plan.budgets == budgets
        opened = await host.open_room(name)
        async with opened.subscribe() as events:
            await opened.post("@ann hi", user="alice")
            seen = await until_idle(events)
        assert [one for one in seen if isinstance(one, CallDropped)], "used up by the hosts before"
        await host.delete_room(name)
        assert (await costs(host, name)) == Costs()


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Budgets(day=Allowance(tokens=0))


@pytest.mark.parametrize(
    ("budgets", "turns", "tokens"),
    [
        (Budgets(day=Allowance(turns=1)), 1, 10_000),
        (Budgets(person_hour=Allowance(turns=2)), 2, 20_000),
        # Of each turn, one request more may be under way than is paid for.
        (Budgets(hour=Allowance(tokens=40_000)), 8, 48_000),
    ],
)
async def test_threads_that_are_called_at_once_exceed_no_budget_together(
    budgets: Budgets, turns: int, tokens: int
) -> None:
    """Each plans by itself: what the others take has to be known before it is on disk."""
    owner, usage = motet.Principal("owner"), UsageReport(Usage(900, 100))

    async def answer(request: ModelRequest) -> Iterator[ModelEvent]:
        await trio.sleep(0.005)
        done = sum(isinstance(row, ToolMessage) for row in request.messages)
        if done == 9:
            return iter([TextPart("done"), usage, Finished("stop")])
        arguments = CallArguments(0, f'{{"at": {done}}}')
        return iter([CallStart(0, f"c{done}", "look"), arguments, usage, Finished("tool_calls")])

    ops = motet.Agent("ops", model=FunctionModel(answer))

    @ops.tool
    def look(at: int) -> str:
        return f"nothing at {at}"

    async with motet.open_host(agents=[ops]) as host:
        plan = RoomPlan(("ops",), activation="mention", budgets=budgets)
        name = (await host.rooms.create("club", plan, principal=owner)).name
        post = partial(host.rooms.post, principal=owner)
        threads = [f"{name}/{(await post(name, 'hello')).seq}" for _ in range(8)]
        async with trio.open_nursery() as nursery:
            for thread in threads:
                nursery.start_soon(post, thread, "@ops report")
        for thread in threads:
            await (await host.rooms.open(thread, owner)).wait()
        spent = (await costs(host, name)).day[ROOM]
    assert 1 <= spent.turns <= turns
    assert 10_000 <= spent.tokens <= tokens
