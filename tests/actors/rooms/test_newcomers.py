"""Newcomers of a room: members that are added later, summaries, counts and restarts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.gateway.commands import answer_command
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.chat import ToolMessage
from motet.protocols.commands import Command
from motet.protocols.config import HostConfig
from motet.protocols.events import RoomIdle
from motet.protocols.room_acts import AddPerson, BanPerson, MutePerson, SetTerms
from motet.protocols.room_config import RoomConfig
from motet.protocols.room_newcomers import INSTRUCTIONS, Newcomers
from motet.protocols.rooms import NOBODY, RoomChange, RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import agent, model_of, until_idle, warnings
from tests.scripted import Scripted, call, say

ALICE, BOB, CLEO, DAN = (Principal(name) for name in ("alice", "bob", "cleo", "irc:dan"))


async def made(host: motet.Host, newcomers: Newcomers | None = None, *members: str) -> str:
    plan = RoomPlan(members or ("ann",), speakers=("mentions",))
    room = (await host.rooms.create("den", plan, principal=ALICE)).name
    if newcomers:
        await host.rooms.manage(SetTerms(room=room, newcomers=newcomers), principal=ALICE)
    return room


async def say_and_wait(host: motet.Host, room: str, text: str, who: Principal = ALICE) -> OpenRoom:
    opened = await host.open_room(room, principal=ALICE)
    await host.rooms.post(room, text, principal=who)
    await opened.wait()
    return opened


async def texts(host: motet.Host, room: str, who: Principal) -> list[str]:
    return [one.text for one in await host.rooms.history(room, principal=who)]


@pytest.mark.parametrize(
    ("newcomers", "told"),
    [
        ("all", "one two three @ben"),
        ("joining", "three @ben"),
        ("none", "@ben"),
        ("summary", "three @ben"),
    ],
)
async def test_a_member_that_is_added_later_is_told_what_newcomers_read(
    newcomers: Newcomers, told: str
) -> None:
    ann, ben = agent("ann", "a summary of [#1 person eve]"), agent("ben", "yes")
    async with motet.open_host(agents=[ann, ben]) as host:
        room = await made(host, newcomers)
        for text in ("one", "two"):
            await say_and_wait(host, room, text)
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        await say_and_wait(host, room, "three")
        await say_and_wait(host, room, "@ben")
        lines = model_of(ben).told[0].split("\n")
        assert " ".join(line.partition("] ")[2] for line in lines if "alice" in line) == told
        begins = "[A summary of what was said before you were added] a summary of [#1"
        assert lines[0].startswith(begins) == (newcomers == "summary")
        assert len([line for line in lines if "not shown" in line]) == 0
        await say_and_wait(host, room, "@ben again")
        assert model_of(ben).told[1] == "[#6 person alice] @ben again"


@pytest.mark.parametrize("edited", [True, False])
async def test_a_call_that_is_withdrawn_while_its_member_gets_a_summary_begins_no_turn(
    edited: bool,
) -> None:
    """The round ends, as one in which nobody was called; the room goes on."""
    ann, ben = agent("ann", "a summary"), agent("ben", "yes")
    async with motet.open_host(agents=[ann, ben]) as host:
        room = await made(host, "summary")
        await say_and_wait(host, room, "one")
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        opened = await host.open_room(room, principal=ALICE)
        model_of(ann).gate = gate = trio.Event()
        async with opened.subscribe() as events:
            said = await host.rooms.post(room, "@ben hello", principal=ALICE)
            with trio.fail_after(5):
                while not model_of(ann).requests:
                    await trio.lowlevel.checkpoint()
            if edited:
                await host.rooms.edit_message(room, said.seq, "hello", principal=ALICE)
            else:
                await host.rooms.delete_message(room, said.seq, principal=ALICE)
            gate.set()
            seen = await until_idle(events)
        assert warnings(seen) == []
        assert seen[-1] == RoomIdle(NOBODY)
        assert not model_of(ben).requests
        await say_and_wait(host, room, "@ben and now?")
        assert len(model_of(ben).requests) == 1


async def test_a_member_that_was_removed_and_comes_back_is_a_newcomer() -> None:
    ann, ben = agent("ann", "yes"), agent("ben", "yes")
    async with motet.open_host(agents=[ann, ben]) as host:
        room = await made(host, "joining", "ann", "ben")
        await say_and_wait(host, room, "@ben first")
        await host.rooms.change(room, RoomChange(members=("ann",)), principal=ALICE)
        await say_and_wait(host, room, "secret")
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        await say_and_wait(host, room, "@ben and now?")
        assert model_of(ben).told == [
            "[#1 person alice] @ben first",
            "[#4 person alice] @ben and now?",
        ]


async def test_an_agent_reads_back_what_all_whom_it_answers_may_read() -> None:
    read = call(("room_history", {"limit": 50}))
    model = Scripted(read, say("done"), read, say("done"), name="ann")
    ann = motet.Agent("ann", model=model, tools=["room_history"])
    async with motet.open_host(agents=[ann]) as host:
        room = await made(host, "joining")
        await say_and_wait(host, room, "secret")
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        for who in (ALICE, BOB):
            await say_and_wait(host, room, "@ann read", who)
        results = [
            row.text
            for request in (model.requests[1], model.requests[3])
            for row in request.messages[-1:]
            if isinstance(row, ToolMessage)
        ]
        assert ["secret" in text for text in results] == [True, False]
        assert results[1].endswith("[Earlier ones are not shown here.]")


async def test_a_late_member_reads_nothing_back_from_before_it_was_added() -> None:
    model = Scripted(call(("room_history", {})), say("done"), name="ben")
    ben = motet.Agent("ben", model=model, tools=["room_history"])
    async with motet.open_host(agents=[agent("ann", "yes"), ben]) as host:
        room = await made(host, "joining")
        await say_and_wait(host, room, "secret")
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        await say_and_wait(host, room, "@ben read")
        assert "secret" not in str(model.requests)


async def test_a_summary_is_made_once_and_again_when_a_message_is_changed() -> None:
    ann = agent("ann", "we spoke of roses")
    async with motet.open_host(agents=[ann]) as host:
        room = await made(host, "summary")
        for text in ("roses", "tulips"):
            await say_and_wait(host, room, text)
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        asked = model_of(ann).requests
        for _ in range(2):
            found = await host.rooms.summary(room, principal=BOB)
            assert (found.upto, found.text) == (2, "we spoke of roses")
        assert len(asked) == 1
        assert INSTRUCTIONS in str(asked[0].system)
        assert "[#1 person alice] roses\n[#2 person alice] tulips" in model_of(ann).told[0]
        await host.rooms.delete_message(room, 1, principal=ALICE)
        await host.rooms.summary(room, principal=BOB)
        assert "roses" not in model_of(ann).told[1]
        assert "tulips" in model_of(ann).told[1]
        assert (await host.rooms.summary(room, principal=ALICE)).upto == 0, (
            "who was there reads all"
        )
        # One who comes later reads that of before, and what was said since, in one.
        await say_and_wait(host, room, "lilies")
        await host.rooms.manage(AddPerson(room=room, user="cleo"), principal=ALICE)
        assert (await host.rooms.summary(room, principal=CLEO)).upto == 3
        assert "we spoke of roses" in model_of(ann).told[2]
        assert "lilies" in model_of(ann).told[2]
        assert "tulips" not in model_of(ann).told[2]


async def test_a_summary_that_cannot_be_made_hides_nothing_else() -> None:
    def fail(_: str) -> str:
        raise ValueError("the provider is away")

    ann, ben = agent("ann", fail), agent("ben", "yes")
    async with motet.open_host(agents=[ann, ben]) as host:
        room = await made(host, "summary")
        await say_and_wait(host, room, "secret")
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        assert (await host.rooms.summary(room, principal=BOB)).text == ""
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        await say_and_wait(host, room, "@ben hello", BOB)
        assert model_of(ben).told == ["[#2 person bob] @ben hello"]
        assert await texts(host, room, BOB) == ["@ben hello", "yes"]


async def test_unread_messages_are_those_that_a_newcomer_may_read() -> None:
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        room = await made(host, "joining")
        for number in range(3):
            await host.rooms.post(room, str(number), principal=ALICE)
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        await host.rooms.manage(AddPerson(room=room, user="irc:*"), principal=ALICE)
        await host.rooms.post(room, "new", principal=ALICE)
        assert [one.unread for one in await host.rooms.list(principal=BOB)] == [1]
        assert [one.unread for one in await host.rooms.list(principal=DAN)] == [0]
        await host.rooms.get(room, principal=DAN)
        await host.rooms.post(room, "newer", principal=ALICE)
        assert [one.unread for one in await host.rooms.list(principal=DAN)] == [1]
        assert await texts(host, room, DAN) == ["newer"]


async def test_a_kill_between_joining_and_the_first_read_shows_nothing_more(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path / "state", agents=[agent("ann", "yes")]) as host:
        room = await made(host, "joining")
        await host.rooms.post(room, "secret", principal=ALICE)
        made_by = await host.rooms.invite(room, principal=ALICE)
        await host.rooms.join(made_by.token, principal=CLEO)
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        shutil.copytree(tmp_path / "state", tmp_path / "killed")  # as a kill leaves it
    async with motet.open_host(tmp_path / "killed", agents=[agent("ann", "yes")]) as host:
        await host.rooms.post(room, "new", principal=ALICE)
        for who in (BOB, CLEO):
            assert await texts(host, room, who) == ["new"]


async def test_a_mute_or_a_ban_of_a_stranger_is_no_visit() -> None:
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        room = await made(host, "joining")
        await host.rooms.manage(MutePerson(room=room, user="bob"), principal=ALICE)
        await host.rooms.manage(BanPerson(room=room, user="cleo"), principal=ALICE)
        await host.rooms.post(room, "secret", principal=ALICE)
        await host.rooms.manage(BanPerson(room=room, user="cleo", banned=False), principal=ALICE)
        for user in ("bob", "cleo"):
            await host.rooms.manage(AddPerson(room=room, user=user), principal=ALICE)
        assert [await texts(host, room, who) for who in (BOB, CLEO)] == [[], []]


async def test_a_configuration_says_it_and_the_terms_of_the_room_say_otherwise(
    tmp_path: Path,
) -> None:
    settings = RoomConfig(members=("ann",), people=("alice", "irc:*"), newcomers="joining")
    config = HostConfig(rooms={"club": settings})
    async with motet.open_host(tmp_path, config=config, agents=[agent("ann", "yes")]) as host:
        await host.rooms.post("club", "secret", principal=ALICE)
        assert (await host.rooms.get("club", principal=DAN)).newcomers == "joining"
        assert await texts(host, "club", DAN) == []
        assert await texts(host, "club", ALICE) == ["secret"], "she is named, and no newcomer"
        root = Principal("root", "admin")
        for argument, read in (("all", ["secret"]), ("default", [])):
            command = Command("newcomers", argument)
            answer = await answer_command(host, root, "", command, room="club")
            assert answer.text.startswith("root set what newcomers read")
            assert await texts(host, "club", DAN) == read


async def test_who_is_there_when_the_setting_changes_has_come() -> None:
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        room = await made(host)
        await host.rooms.post(room, "first", principal=ALICE)
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
        await host.rooms.post(room, "second", principal=ALICE)
        assert await texts(host, room, BOB) == ["first", "second"]
        await host.rooms.manage(SetTerms(room=room, newcomers="none"), principal=ALICE)
        assert await texts(host, room, BOB) == ["second"]


async def test_a_late_member_is_not_told_of_changes_to_what_was_said_before() -> None:
    """But for an edit that calls it: that one it answers."""
    ann, ben = agent("ann", "yes"), agent("ben", "yes")
    async with motet.open_host(agents=[ann, ben]) as host:
        room = await made(host, "joining")
        await say_and_wait(host, room, "secret")
        await host.rooms.change(room, RoomChange(members=("ann", "ben")), principal=ALICE)
        await say_and_wait(host, room, "@ben hi")
        await host.rooms.edit_message(room, 1, "new secret", principal=ALICE)
        await say_and_wait(host, room, "@ben and now?")
        opened = await host.open_room(room, principal=ALICE)
        await host.rooms.edit_message(room, 1, "@ben look", principal=ALICE)
        await opened.wait()
    assert "secret" not in "".join(model_of(ben).told)
    assert model_of(ben).told[-1] == "[#1 edited person alice] @ben look"


@pytest.mark.parametrize("order", ["terms", "restart, terms", "terms, restart"])
async def test_a_member_that_was_added_is_a_newcomer_in_the_next_host_as_well(
    order: str, tmp_path: Path
) -> None:
    """Nothing is said between its coming and the end of the host."""
    ann, ben = agent("ann", "yes"), agent("ben", "yes")
    room = ""
    for step in (*order.split(", "), "add"):
        async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
            if not room:
                room = await made(host)
                await say_and_wait(host, room, "@ann secret")
            if step == "terms":
                terms = SetTerms(room=room, newcomers="joining")
                await host.rooms.manage(terms, principal=ALICE)
            if step == "add" or (step == "terms" and order == "terms"):
                change = RoomChange(members=("ann", "ben"))
                await host.rooms.change(room, change, principal=ALICE)
    async with motet.open_host(tmp_path, agents=[ann, ben]) as host:
        await say_and_wait(host, room, "@ben and now?")
    (told,) = model_of(ben).told
    assert "secret" not in told, told
    assert told.endswith("[#3 person alice] @ben and now?")
