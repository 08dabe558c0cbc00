"""Messages that members are not shown: they are counted, and read by ``room_history``."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.rooms.table import Close
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.errors import NotFound
from motet.protocols.events import ApprovalRequested, ToolResult
from motet.protocols.models import ModelRequest
from tests.actors.rooms.talk import agent, model_of, on_disk
from tests.actors.rooms.test_messages import SECRET
from tests.scripted import Scripted, call, say

SHOWN = re.compile(r"(?m)^\[#(\d+) (?:person|agent) ")
CUT = re.compile(r"(?m)^\[(\d+) earlier messages? (?:is|are) not shown\.\]$")


@pytest.mark.parametrize("seed", range(12))
async def test_each_message_of_others_is_shown_or_counted_once(seed: int) -> None:
    """The law, with messages that are withdrawn and rooms that are read from disk on the way."""
    random, cursor = Random(seed), {"ann": 0, "ben": 0}
    agents = {name: agent(name, random.choice(["a", "PASS"])) for name in cursor}
    limit = random.choice([1, 2, 3, 50])
    mode, speakers = random.choice(["collect", "interrupt"]), motet.mentions()
    room = motet.Room("r", members=agents.values(), speakers=speakers, history=limit, mode=mode)  # type: ignore[arg-type]
    cut = 0
    async with motet.open_host(agents=[*agents.values()]) as host:
        opened = await host.open_room(room)
        for _ in range(8):
            for _ in range(random.choice([0, 1, 5, 12])):
                said = await opened.post("lol", user=random.choice(["ada", "bob"]))
                if random.random() < 0.2:
                    number = random.randint(1, said.seq)
                    await opened.delete(number, user="root", role="admin")
            await opened.wait()
            if random.random() < 0.3:
                await opened._parts.actor.ask(Close("r"))  # pyright: ignore[reportPrivateUsage]
                opened = await host.open_room(room)
            called = random.choice([["ann"], ["ben"], ["ann", "ben"]])
            before = {name: len(model_of(agents[name]).told) for name in called}
            await opened.post(" ".join(f"@{name}" for name in called), user="ada")
            await opened.wait()
            history = await opened.history(limit=200)
            for name in called:
                (told,) = model_of(agents[name]).told[before[name] :]
                shown = [int(number) for number in SHOWN.findall(told)]
                new = [
                    one.seq
                    for one in history
                    if cursor[name] < one.seq <= shown[-1]
                    and not one.deleted
                    and one.author != name
                ]
                counted = sum(map(int, CUT.findall(told)))
                assert shown == new[-len(shown) :]
                assert counted == len(new) - len(shown), (told, new)
                assert len(shown) <= limit
                cursor[name], cut = shown[-1], cut + counted
    assert cut or limit > 3


def reader(name: str, *steps: object) -> motet.Agent[None]:
    model = Scripted(*steps, name=name)  # type: ignore[arg-type]
    return motet.Agent(name, model=model, tools=["group:rooms"])


def results(one: motet.Agent[None]) -> list[str]:
    """What the calls of a reader have given it."""
    assert isinstance(one.model, Scripted)
    return [row.text for row in one.model.requests[-1].messages if isinstance(row, ToolMessage)]


async def test_a_member_reads_what_it_was_not_shown_page_by_page(tmp_path: Path) -> None:
    pages: list[JsonObject] = [
        {"limit": 2},
        {"before": 3, "limit": 50},
        {"before": "#1"},
        {"before": "the first"},
    ]
    ann = reader("ann", *(call(("room_history", page)) for page in pages), say("read"))
    room = motet.Room("r", members=[ann], speakers=motet.mentions(), history=2)
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        for text in ("one", "two", "three", "four"):
            await opened.post(text, user="bob")
        await opened.edit(2, "TWO", user="bob")
        await opened.delete(1, user="bob")
        await opened.post("@ann read it", user="ada")
        await opened.wait()
        assert isinstance(ann.model, Scripted)
        first = ann.model.requests[0].messages[-1].text
        left_out = "[2 earlier messages are not shown.]"
        assert first == f"{left_out}\n[#4 person bob] four\n[#5 person ada] @ann read it"
        last_two, rest, none, wrong = results(ann)
        assert last_two == (
            "[#4 person bob] four\n[#5 person ada] @ann read it\n[Earlier ones: before=4]"
        )
        assert rest == (
            "[#1 withdrawn person bob]\n[#2 edited person bob] TWO\n[There are none before.]"
        )
        assert none == "[There are no messages before that.]"
        assert "'the first' is no number of a message here, such as 12" in wrong
        answer = (await opened.history())[-1]
        assert {who.user for who in answer.asked_by} == {"ada", "bob"}


async def test_a_member_reads_its_own_room_or_thread_and_no_other() -> None:
    ann = reader("ann", call(("room_history", {"before": "1.2"})), say("read"))
    async with motet.open_host() as host:
        other = await host.open_room(motet.Room("other", members=[ann], speakers=motet.mentions()))
        await other.post("not for here", user="bob")
        opened = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await opened.post("a plan", user="bob")
        await opened.post("beside it", user="bob")
        thread = await opened.thread(1)
        await thread.post("in the thread", user="cy")
        await thread.post("@ann read it", user="ada")
        await thread.wait()
    (page,) = results(ann)
    assert page == (
        "[#1 person bob] a plan\n[#1.1 person cy] in the thread\n[There are none before.]"
    )


async def test_nobody_else_reads_a_room_by_the_tool() -> None:
    """Neither a user, nor an agent that works for a member: its words would go unnoticed."""
    read = (call(("room_history", {})), say("oh"))
    helper = reader("helper", *read, *read)
    ann = motet.Agent("ann", model=Scripted(call(("ask", {})), say("I see"), name="ann"))

    @ann.tool
    async def ask(ctx: motet.Context[None]) -> str:
        return (await ctx.run(helper, "read it for me")).text

    async with motet.open_host(agents=[ann, helper]) as host:
        opened = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await opened.post("not for you", user="bob")
        session = opened.live.members.session("ann")
        with pytest.raises(NotFound):
            await host.run(helper, "read", session=session)
        await host.run(helper, "read")
        assert "No group chat is open whose member you are" in results(helper)[0]
        await opened.post("@ann have it read", user="ada")
        await opened.wait()
        assert [one.text for one in await opened.history()][-1] == "I see"
        assert "No group chat is open whose member you are" in results(helper)[0]


async def test_messages_that_wait_for_their_round_are_no_history() -> None:
    gate, reached = trio.Event(), trio.Event()
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> mt.Step:
        requests.append(request)
        steps = [mt.call("wait"), mt.call("room_history"), mt.say("done"), mt.say("later")]
        return steps[len(requests) - 1]

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"), tools=["room_history"])

    @ann.tool
    async def wait() -> str:
        reached.set()
        await gate.wait()
        return "waited"

    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("r", members=[ann], speakers=motet.mentions()))
        await opened.post("@ann go", user="ada")
        await reached.wait()
        await opened.post("@ann and I?", user="bob")
        gate.set()
        await opened.wait()
        first, second = (await opened.history())[2:]
    assert "@ann and I?" not in str(requests[2].messages)
    assert "@ann and I?" in str(requests[3].messages)
    assert [who.user for who in first.asked_by] == ["ada"]
    assert [who.user for who in second.asked_by] == ["bob"]


@pytest.mark.parametrize("when", ["beside another call", "in its turn", "afterwards"])
async def test_a_withdrawn_message_that_was_read_back_leaves_no_text(
    tmp_path: Path, when: str
) -> None:
    gate, reached = trio.Event(), trio.Event()
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> mt.Step:
        requests.append(request)
        read, wait = mt.call("room_history"), mt.call("wait")
        if when == "beside another call":
            return read + wait if len(requests) == 1 else mt.say("done")
        return {1: read, 2: wait}.get(len(requests), mt.say("done"))

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"), tools=["room_history"])

    @ann.tool
    async def wait() -> str:
        reached.set()
        await gate.wait()
        return "waited"

    room = motet.Room("r", members=[ann], speakers=motet.mentions(), history=1)
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post(SECRET, user="bob")
            await opened.post("@ann read it", user="ada")
            async for event in events:
                if isinstance(event, ToolResult) and event.name == "room_history":
                    break
            await reached.wait()
            if when != "afterwards":
                await opened.delete(1, user="bob")
            gate.set()
            await opened.wait()
            if when == "afterwards":
                await opened.delete(1, user="bob")
            await opened.post("@ann again", user="ada")
            await opened.wait()
        assert SECRET not in str(requests[-1].messages)
        if when != "afterwards":
            assert SECRET not in str(requests[-2].messages), "in the same turn, too"
    assert SECRET not in on_disk(tmp_path)


@pytest.mark.parametrize("hold", [0.0, 60.0])
async def test_words_of_others_wait_while_a_call_beside_them_waits_for_a_person(
    hold: float,
) -> None:
    """The run is stored with its people when it asks; a later host must not miss one of them."""
    both = call(("pay", {}), ("room_history", {}))
    ann = reader("ann", both, call(("room_history", {})), say("read"))
    seen: list[tuple[str, ...]] = []

    @ann.tool(approval=True)
    def pay(ctx: motet.Context[None]) -> str:
        seen.append(tuple(who.user for who in ctx.asked_by))
        return "paid"

    room = motet.Room("r", members=[ann], speakers=motet.mentions(), history=1)
    config = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=hold))
    async with motet.open_host(config=config) as host:
        opened = await host.open_room(room)
        await opened.post("what I say", user="bob")
        async with opened.subscribe() as events:
            await opened.post("@ann pay", user="ada")
            asked = ""
            refused = False
            async for event in events:
                if isinstance(event, ApprovalRequested):
                    asked = event.id
                refused |= isinstance(event, ToolResult) and event.name == "room_history"
                if asked and refused:
                    break
        await host.approve(asked, "allow-once")
        with trio.fail_after(20):
            while (await opened.history())[-1].text != "read":
                await trio.lowlevel.checkpoint()
        first, second = (text for text in results(ann) if text != "paid")
        assert "Another call of yours waits for a person" in first
        assert "what I say" in second
        assert {who.user for who in (await opened.history())[-1].asked_by} == {"ada", "bob"}
    assert seen == [("ada",)]
