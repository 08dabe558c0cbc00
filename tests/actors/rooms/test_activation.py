"""The messages of people that cost a model call: by default, and by the setting ``activation``."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet.actors.gateway.commands import answer_command
from motet.protocols.commands import Command
from motet.protocols.events import CallDropped, RoomIdle
from motet.protocols.rooms import OFF, SILENT, Activation, RoomPlan
from motet.protocols.sessions import LOCAL, Principal
from tests.actors.rooms.talk import Script, agent, model_of, turns, until_idle

NAMES = [f"a{number}" for number in range(5)]
ALICE, BOB = Principal("alice"), Principal("bob")


def noon(told: str) -> str:
    """The answer of a member that has nothing to add to what another one has said."""
    return "PASS" if " agent " in told.splitlines()[-1] else "it is noon"


def five(script: Script = noon) -> list[motet.Agent[None]]:
    return [agent(name, script) for name in NAMES]


def requests(agents: list[motet.Agent[None]]) -> list[int]:
    """How often each member's model was called."""
    return [len(model_of(one).requests) for one in agents]


async def costs(room: motet.OpenRoom, agents: list[motet.Agent[None]], user: str, text: str) -> int:
    """The model calls for one message."""
    before = sum(requests(agents))
    async with room.subscribe() as events:
        await room.post(text, user=user)
        await until_idle(events)
    return sum(requests(agents)) - before


async def test_two_people_talk_for_nothing_and_a_mention_costs_one_call() -> None:
    agents = five()
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("r", members=agents, people=("alice", "bob")))
        assert await costs(room, agents, "alice", "hello, lunch?") == 0
        assert await costs(room, agents, "bob", "yes, at noon") == 0
        assert await costs(room, agents, "alice", "@a0 what time is it?") == 1
        assert await costs(room, agents, "bob", "thanks") == 0
        assert await costs(room, agents, "bob", "@all bye") == 5
    assert requests(agents) == [2, 1, 1, 1, 1]


async def test_a_reply_costs_one_call_among_several_people() -> None:
    agents = five()
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("r", members=agents, people=("*",)))
        await costs(room, agents, "alice", "@a3 what time is it?")
        async with room.subscribe() as events:
            await room.post("and in Rome?", user="bob", reply_to=2)
            assert turns(await until_idle(events)) == ["a3"]


async def test_a_person_alone_is_answered_and_a_mention_costs_one_call() -> None:
    agents = five()
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("r", members=agents))
        assert await costs(room, agents, "alice", "hello") == 5, "each is asked: four pass"
        assert await costs(room, agents, "alice", "@a3 what time is it?") == 1
        assert requests(agents) == [1, 1, 1, 2, 1]
        # Somebody else has spoken: from now on the agents have to be called.
        assert await costs(room, agents, "bob", "hello, lunch?") == 0
        assert await costs(room, agents, "alice", "yes") == 0
        assert await costs(room, agents, "bob", "@a3 and now?") == 1


async def test_a_called_member_that_passes_is_followed_by_nobody() -> None:
    agents = five(lambda _: "PASS")
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("r", members=agents))
        async with room.subscribe() as events:
            await room.post("@a0 who knows?", user="alice")
            assert turns(await until_idle(events)) == ["a0"]
            await room.post("nobody?", user="alice")
            seen = await until_idle(events)
        assert sorted(turns(seen)) == NAMES
        assert seen[-1] == RoomIdle(SILENT)


async def test_an_owner_who_has_invited_nobody_is_alone_and_an_invitation_counts_at_once() -> None:
    agents = five()
    async with motet.open_host(agents=agents) as host:
        info = await host.rooms.create("r", RoomPlan(tuple(NAMES)), principal=ALICE)
        room = await host.open_room(info.name, principal=ALICE)
        assert await costs(room, agents, "alice", "hello") == 5
        await host.rooms.change(info.name, motet.RoomChange(people=("bob",)), principal=ALICE)
        assert await costs(room, agents, "alice", "hello, lunch?") == 0


@pytest.mark.parametrize(
    ("activation", "plain", "mention"), [("always", 5, 1), ("mention", 0, 1), ("off", 0, 0)]
)
@pytest.mark.parametrize("people", [("alice",), ("alice", "bob")])
async def test_each_activation_costs_what_it_says(
    activation: Activation, plain: int, mention: int, people: tuple[str, ...], tmp_path: Path
) -> None:
    agents = five()
    plan = RoomPlan(tuple(NAMES))
    async with motet.open_host(tmp_path, agents=agents) as host:
        name = (await host.rooms.create("r", plan, people=people)).name
        change = motet.RoomChange(activation=activation)
        changed = await host.rooms.change(name, change)
        assert changed.activation == activation
        room = await host.open_room(name)
        assert await costs(room, agents, "alice", "hello, lunch?") == plain
        assert await costs(room, agents, "alice", "@a0 what time is it?") == mention
    async with motet.open_host(tmp_path, agents=agents) as host:
        room = await host.open_room(name)
        assert (await host.rooms.get(name)).activation == activation
        assert await costs(room, agents, "alice", "hello, lunch?") == plain


async def test_a_call_of_agents_that_are_off_is_dropped_and_says_so() -> None:
    agents = five()
    async with motet.open_host() as host:
        room = await host.open_room(motet.Room("r", members=agents, activation="off"))
        async with room.subscribe() as events:
            await room.post("@a0 @a1 hello", user="alice")
            seen = await until_idle(events)
    dropped = [one for one in seen if isinstance(one, CallDropped)]
    assert [(one.of, one.by, one.reason) for one in dropped] == [
        ("a0", ("alice",), OFF),
        ("a1", ("alice",), OFF),
    ]
    assert seen[-1] == RoomIdle(OFF)
    assert requests(agents) == [0] * 5


async def test_a_policy_that_was_chosen_decides_whoever_is_in_the_room() -> None:
    agents = five(lambda _: "go on")
    everybody = motet.Room("r", members=agents, speakers=motet.round_robin(), people=("*",))
    async with motet.open_host() as host:
        room = await host.open_room(everybody)
        assert await costs(room, agents, "alice", "discuss") == everybody.max_turns
    gated = motet.Room("r", members=agents, speakers=motet.round_robin(), activation="mention")
    async with motet.open_host() as host:
        room = await host.open_room(gated)
        assert await costs(room, agents, "alice", "discuss") == 0
        assert await costs(room, agents, "alice", "@a4 discuss") == 1


async def test_the_command_shows_and_sets_it_for_the_owner_only() -> None:
    agents = five()
    async with motet.open_host(agents=agents) as host:
        name = (await host.rooms.create("r", RoomPlan(tuple(NAMES)), people=("bob",))).name

        async def types(argument: str, who: Principal = LOCAL, room: str = name) -> str:
            command = Command("activation", argument)
            return (await answer_command(host, who, "s", command, room=room)).text

        assert "as the room's speakers say" in await types("")
        assert await types("Always") == "The agents answer every message (always)."
        assert (await host.rooms.get(name)).activation == "always"
        assert "every message" in await types("", BOB)
        assert "only its owner" in await types("off", BOB)
        assert "'loud' is no activation: always, mention, off, default" in await types("loud")
        assert (await host.rooms.get(name)).activation == "always"
        assert "as the room's speakers say" in await types("default")
        assert (await host.rooms.get(name)).activation is None
        assert "is about a room" in await types("off", room="")


async def test_a_change_while_agents_speak_holds_from_the_next_round_on() -> None:
    agents = [agent("a0", "@a1 go on"), agent("a1", "done")]
    model_of(agents[0]).gate = gate = trio.Event()
    async with motet.open_host(agents=agents) as host:
        name = (await host.rooms.create("r", RoomPlan(("a0", "a1")))).name
        room = await host.open_room(name)
        async with room.subscribe() as events:
            await room.post("@a0 begin", user="alice")
            await wait_all_tasks_blocked()
            changed = await host.rooms.change(name, motet.RoomChange(activation="off"))
            assert (changed.activation, changed.plan and changed.plan.activation) == (None, "off")
            gate.set()
            assert turns(await until_idle(events)) == ["a0", "a1"]
            await room.post("@a0 again", user="alice")
            assert (await until_idle(events))[-1] == RoomIdle(OFF)
