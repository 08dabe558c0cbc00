"""People, agents and rooms that go: what ends with them, and what goes on."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.opening import RoomEvents
from motet.protocols.config import AgentConfig, HostConfig
from motet.protocols.errors import Forbidden, NotFound
from motet.protocols.events import CallDropped, RoomChanged
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import (
    AddPerson,
    BanPerson,
    LeaveRoom,
    MutePerson,
    RemovePerson,
    SlowRoom,
)
from motet.protocols.room_messages import GONE
from motet.protocols.room_people import SlowDown
from motet.protocols.rooms import RoomChange, RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import agent, model_of

ALICE, BOB, DAN, EVE = (Principal(name) for name in ("alice", "bob", "irc:dan", "irc:eve"))


async def made(host: motet.Host, *people: str, members: tuple[str, ...] = ("ann", "ben")) -> str:
    plan = RoomPlan(members, speakers=("mentions",))
    return (await host.rooms.create("den", plan, people=people, principal=ALICE)).name


async def asked(one: motet.Agent[None], times: int = 1) -> None:
    while len(model_of(one).requests) < times:
        await trio.lowlevel.checkpoint()


async def test_a_user_of_a_pattern_leaves_alone_and_comes_back_when_somebody_says_so() -> None:
    async with motet.open_host(agents=[agent("ann", "yes"), agent("ben", "yes")]) as host:
        rooms, room = host.rooms, await made(host, "irc:*")
        await rooms.manage(LeaveRoom(room=room), principal=DAN)
        for ask in (rooms.get(room, principal=DAN), rooms.post(room, "hi", principal=DAN)):
            with pytest.raises(NotFound):
                await ask
        assert await rooms.list(principal=DAN) == ()
        assert [one.name for one in await rooms.list(principal=EVE)] == [room], "the pattern stays"
        assert (await rooms.get(room, principal=EVE)).people == ("irc:*",)
        # A ban that is lifted, and a list of people with the pattern in it, do not bring them back.
        for banned in (True, False):
            act = BanPerson(room=room, user="irc:dan", banned=banned)
            await rooms.manage(act, principal=ALICE)
        await rooms.change(room, RoomChange(people=("irc:*", "bob")), principal=ALICE)
        with pytest.raises(NotFound):
            await rooms.get(room, principal=DAN)
        await rooms.manage(AddPerson(room=room, user="irc:dan", role="reader"), principal=ALICE)
        assert (await rooms.get(room, principal=DAN)).role == "reader"
        await rooms.manage(LeaveRoom(room=room), principal=DAN)
        made_by = await rooms.invite(room, principal=ALICE)
        assert (await rooms.join(made_by.token, principal=DAN)).role == "member"
        await rooms.manage(LeaveRoom(room=room), principal=DAN)
        await rooms.change(room, RoomChange(people=("irc:dan",)), principal=ALICE)
        assert (await rooms.get(room, principal=DAN)).role == "member"
        with pytest.raises(NotFound):
            await rooms.get(room, principal=EVE)


async def test_a_mute_is_no_way_around_by_an_invite() -> None:
    async with motet.open_host(agents=[agent("ann", "yes"), agent("ben", "yes")]) as host:
        rooms, room = host.rooms, await made(host)
        await rooms.manage(MutePerson(room=room, user="bob", seconds=600), principal=ALICE)
        made_by = await rooms.invite(room, principal=ALICE)
        await rooms.join(made_by.token, principal=BOB)
        with pytest.raises(Forbidden, match="muted"):
            await rooms.post(room, "hello", principal=BOB)


@pytest.mark.parametrize(
    ("how", "back"),
    [("leave", "invite"), ("leave", "set"), ("remove", "add"), ("ban", "invite"), ("set", "set")],
)
async def test_a_mute_and_slow_mode_last_when_somebody_goes_and_comes_back(
    how: str, back: str
) -> None:
    async with motet.open_host(agents=[agent("ann", "yes"), agent("ben", "yes")]) as host:
        rooms, room = host.rooms, await made(host, "bob", "irc:*")
        token = (await rooms.invite(room, principal=ALICE)).token
        for who in (BOB, DAN):
            await rooms.manage(SlowRoom(room=room, seconds=60), principal=ALICE)
            await rooms.post(room, "1", principal=who)
            mute = MutePerson(room=room, user=who.user, seconds=600)
            await rooms.manage(mute, principal=ALICE)
        await goes(host, room, how)
        for who in (BOB, DAN):
            if how == "leave" or who is BOB:
                with pytest.raises(NotFound):
                    await rooms.get(room, principal=who)
                if back == "invite":
                    await rooms.join(token, principal=who)
                elif back == "add":
                    await rooms.manage(AddPerson(room=room, user=who.user), principal=ALICE)
                else:
                    people = tuple({"bob", "irc:*", who.user})
                    await rooms.change(room, RoomChange(people=people), principal=ALICE)
            with pytest.raises(Forbidden, match="muted"):
                await rooms.post(room, "2", principal=who)
            await rooms.manage(MutePerson(room=room, user=who.user, seconds=0), principal=ALICE)
            with pytest.raises(SlowDown):
                await rooms.post(room, "3", principal=who)


async def goes(host: motet.Host, room: str, how: str) -> None:
    """Both leave, or bob is sent away, who has a row of his own."""
    match how:
        case "leave":
            for who in (BOB, DAN):
                await host.rooms.manage(LeaveRoom(room=room), principal=who)
        case "remove":
            await host.rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)
        case "ban":
            for banned in (True, False):
                act = BanPerson(room=room, user="bob", banned=banned)
                await host.rooms.manage(act, principal=ALICE)
        case _:
            people = RoomChange(people=("irc:*",))
            await host.rooms.change(room, people, principal=ALICE)


async def test_who_is_muted_may_not_stop_those_who_speak() -> None:
    ann = agent("ann", "yes")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(agents=[ann, agent("ben", "yes")]) as host:
        room = await made(host, "bob")
        await host.rooms.post(room, "@ann go", principal=ALICE)
        mute = MutePerson(room=room, user="bob", seconds=60)
        await host.rooms.manage(mute, principal=ALICE)
        with pytest.raises(Forbidden, match="muted"):
            await host.stop(room=room, principal=BOB)
        await host.rooms.manage(replace(mute, seconds=0), principal=ALICE)
        assert (await host.stop(room=room, principal=BOB)).stopped


@pytest.mark.parametrize("how", ["remove", "ban", "leave", "set"])
async def test_what_waits_of_somebody_who_goes_ends_with_them(how: str, tmp_path: Path) -> None:
    ann, ben, state = agent("ann", "yes"), agent("ben", "yes"), tmp_path / "state"
    model_of(ann).gate = trio.Event()
    async with motet.open_host(state, agents=[ann, ben]) as host:
        rooms, room = host.rooms, await made(host, "bob", "cleo")
        opened = await host.open_room(room, principal=ALICE)
        await rooms.post(room, "@ann go on", principal=ALICE)
        await asked(ann)
        await rooms.post(room, "@ben wipe it all", principal=BOB)
        match how:
            case "remove":
                await rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)
            case "ban":
                await rooms.manage(BanPerson(room=room, user="bob"), principal=ALICE)
            case "leave":
                await rooms.manage(LeaveRoom(room=room), principal=BOB)
            case _:
                await rooms.change(room, RoomChange(people=("cleo",)), principal=ALICE)
        shutil.copytree(state, tmp_path / "killed")  # as a kill leaves it
        gate = model_of(ann).gate
        assert gate is not None
        async with opened.subscribe(0) as events:
            gate.set()
            await opened.wait()
            dropped = [e async for e in _until_dropped(events)]
        assert [(one.of, one.by, one.reason) for one in dropped] == [("ben", ("bob",), GONE)]
        assert (opened.waits, model_of(ben).told) == (True, [])
    again = agent("ben", "yes")
    async with motet.open_host(tmp_path / "killed", agents=[agent("ann", "yes"), again]) as host:
        opened = await host.open_room(room, principal=ALICE)
        await opened.wait()
        assert model_of(again).told == []


HOW = ("remove", "ban", "leave", "set", "thread")


def removed(fault: mt.HostFault, how: str, every: int) -> mt.SweepReport:
    """Kill the host at each so many-th step of a removal, while a message of the one who goes
    waits behind a turn under way.
    """
    done: list[bool] = []

    def story(host: mt.SimulatedHost) -> None:
        done.clear()

        async def begin(one: Host) -> str:
            room = await made(one, "bob", "cleo")
            await one.rooms.post(room, "@ann go on", principal=ALICE)
            where = f"{room}/1" if how == "thread" else room
            await one.rooms.post(where, "@ann first", principal=ALICE)
            await one.rooms.post(where, "@ben wipe it all", principal=BOB)
            await one.rooms.post(where, "@ann and more", principal=ALICE)
            return room

        room = host.call(begin)

        async def go(one: Host) -> None:
            match how:
                case "ban":
                    await one.rooms.manage(BanPerson(room=room, user="bob"), principal=ALICE)
                case "leave":
                    await one.rooms.manage(LeaveRoom(room=room), principal=BOB)
                case "set":
                    await one.rooms.change(room, RoomChange(people=("cleo",)), principal=ALICE)
                case _:
                    await one.rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)

        host.call(go)
        done.append(True)
        host.advance(30)

    def check(host: mt.SimulatedHost) -> None:
        host.advance(60)
        host.settle()

        async def look(one: Host) -> tuple[bool, bool, list[str]]:
            rooms = await one.rooms.list()
            here = bool(rooms) and "bob" in rooms[0].people
            heard = [run.text for run in await one.runs(limit=50) if run.agent == "ben"]
            waits = any(not room.idle for room in rooms)
            return here, waits, heard

        here, waits, heard = host.call(look)
        assert not waits
        if done:
            assert not here, "an acknowledged removal is undone"
        if not here:
            assert not heard, "a message of somebody who is gone was answered"

    agents = [slow("ann", 5), slow("ben", 0.1)]
    return mt.sweep(story, fault, every=every, check=check, agents=agents)


def slow(name: str, seconds: float) -> motet.Agent[None, str]:
    def answer(_: ModelRequest) -> mt.Step:
        return mt.slow(mt.say("yes"), seconds=seconds)

    return motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))


@pytest.mark.parametrize(("fault", "how"), [("power", "remove"), ("crash", "thread")])
def test_a_kill_at_some_moment_of_a_removal_lets_nothing_of_theirs_be_answered(
    fault: mt.HostFault, how: str
) -> None:
    """Law: whenever the host dies, either somebody is here still, or what they have said and
    nobody had answered ends with them."""
    removed(fault, how, 37).check()


@pytest.mark.sweep
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fault", ["power", "crash"])
def test_a_kill_at_any_moment_of_a_removal_lets_nothing_of_theirs_be_answered(
    fault: mt.HostFault, how: str
) -> None:
    removed(fault, how, 1).check()


async def _until_dropped(events: RoomEvents) -> AsyncIterator[CallDropped]:
    async for event in events:
        if isinstance(event, CallDropped):
            yield event
            return


async def test_the_flood_of_somebody_who_is_banned_hides_no_message_of_others() -> None:
    ann, ben = agent("ann", "yes"), agent("ben", "yes")
    model_of(ann).gate = gate = trio.Event()
    async with motet.open_host(agents=[ann, ben]) as host:
        rooms, room = host.rooms, await made(host, "bob")
        opened = await host.open_room(room, principal=ALICE)
        await rooms.post(room, "@ann go on", principal=ALICE)
        await asked(ann)
        await rooms.post(room, "@ben and you?", principal=ALICE)
        for number in range(150):
            await rooms.post(room, f"spam {number} @ben", principal=BOB)
        await rooms.manage(BanPerson(room=room, user="bob"), principal=ALICE)
        gate.set()
        await opened.wait()
        assert opened.waits
        assert len(model_of(ben).told) == 1
        assert "earlier messages are not shown" in model_of(ben).told[0], "they were said"


@pytest.mark.parametrize("workspace", ["per_user", "shared"])
async def test_the_files_of_a_room_go_with_it(workspace: str, tmp_path: Path) -> None:
    config = HostConfig(
        agents={"ann": AgentConfig(model="demo", tools=("group:fs",), workspace=workspace)}  # type: ignore[arg-type]
    )
    folder = tmp_path / "work"
    async with motet.open_host(tmp_path / "state", config=config, workspace=folder) as host:
        rooms = [await made(host, members=("ann",)) for _ in range(2)]
        for room in rooms:
            await host.rooms.post(room, "@ann hello", principal=ALICE)
            await (await host.open_room(room, principal=ALICE)).wait()
        own = sorted(one for one in folder.rglob("*") if one.is_dir() and "group" in one.name)
        assert len(own) == (2 if workspace == "per_user" else 0)
        for one in own:
            (one / "notes.txt").write_text("mine")
        (folder / "all.txt").write_text("of all")
        await host.delete_room(rooms[0], principal=ALICE)
        left = [one for one in own if one.exists()]
        assert [rooms[1] in one.name for one in left] == [True] * (len(own) // 2)
        assert (folder / "all.txt").exists()


async def test_an_agent_that_a_reload_takes_is_announced_and_the_others_go_on() -> None:
    both = HostConfig(agents={name: AgentConfig(model="demo") for name in ("ann", "ben")})
    one = HostConfig(agents={"ann": AgentConfig(model="demo")})
    async with motet.open_host(config=both) as host:
        rooms, room = host.rooms, await made(host)
        opened = await host.open_room(room, principal=ALICE)
        async with opened.subscribe() as events:
            await host.reload(one)
            async for event in events:
                if isinstance(event, RoomChanged):
                    assert (event.user, event.text) == ("ben", "ben is gone: the others go on")
                    break
        info = await rooms.get(room, principal=ALICE)
        assert (info.gone, [each.name for each in info.members]) == (("ben",), ["ann"])
        await rooms.post(room, "@ann @ben hello", principal=ALICE)
        await opened.wait()
        said = await rooms.history(room, principal=ALICE)
        assert [each.author for each in said] == ["alice", "ann"]
        await host.reload(both)
        assert (await rooms.get(room, principal=ALICE)).gone == ()
        await rooms.post(room, "@ben hello", principal=ALICE)
        await opened.wait()
        assert (await rooms.history(room, principal=ALICE))[-1].author == "ben"


async def test_a_stop_of_a_room_ends_the_turn_of_a_member_that_it_has_no_more() -> None:
    """It waits for a person outside of any task, and nobody answers for the member any more."""
    ops = motet.Agent("ann", model=mt.ScriptedModel([mt.call("ask"), mt.say("done")], name="ann"))

    @ops.tool(approval=True)
    def ask() -> str:
        return "asked"

    config = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0))
    async with motet.open_host(agents=[ops, agent("ben", "yes")], config=config) as host:
        room = await made(host)
        await host.rooms.post(room, "@ann hi", principal=ALICE)
        with trio.fail_after(60):
            while not await host.runs(status="waiting"):
                await trio.sleep(0.002)
        await host.rooms.change(room, RoomChange(members=("ben",)), principal=ALICE)
        await host.rooms.post(room, "@ben hi", principal=ALICE)
        await (await host.rooms.open(room, ALICE)).wait()
        await host.stop(room=room)
        assert await host.runs(status="waiting") == ()
        assert await host.approvals(state="pending") == ()
