"""The administration of rooms on a real host: people, invites, archives, deletion."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.gateway.commands import answer_command
from motet.actors.rooms.opening import RoomEvents
from motet.actors.storage.connection import Connection
from motet.actors.storage.tokens import new_token
from motet.protocols.commands import Command
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from motet.protocols.errors import Forbidden, InputValidation, NotFound, TooMany, UnknownName
from motet.protocols.events import RoomChanged
from motet.protocols.room_acts import (
    AddPerson,
    ArchiveRoom,
    BanPerson,
    LeaveRoom,
    MutePerson,
    RateRoom,
    RemovePerson,
    RenameRoom,
    SetTerms,
    SlowRoom,
    TransferRoom,
)
from motet.protocols.room_people import SlowDown, invite_digest
from motet.protocols.rooms import RoomPlan
from tests.actors.runs.ops import pending
from tests.scripted import Scripted, Step, call, say

ALICE, BOB, CLEO = motet.Principal("alice"), motet.Principal("bob"), motet.Principal("cleo")
DAN, ROOT = motet.Principal("irc:dan"), motet.Principal("root", "admin")
SECRET = "amaryllis"


def agent(name: str, *answers: Step) -> motet.Agent[None, str]:
    return motet.Agent(name, model=Scripted(*answers, name=name))


async def made(host: motet.Host, *people: str) -> str:
    plan = RoomPlan(("ann",), speakers=("mentions",))
    return (await host.rooms.create("den", plan, people=people, principal=ALICE)).name


async def test_people_come_and_go_one_by_one_and_the_room_is_told() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host, "bob")
        opened = await host.open_room(room, principal=ALICE)
        async with opened.subscribe() as events, trio.open_nursery() as nursery:
            for user in ("cleo", "irc:*"):  # at once
                act = AddPerson(room=room, user=user)
                nursery.start_soon(partial(host.rooms.manage, act, principal=ALICE))
            told = [event.text async for event in _first(events, 2)]
        assert sorted(told) == [
            "alice made cleo a member of this room",
            "alice made irc:* a member of this room",
        ]
        info = await host.rooms.get(room, principal=DAN)
        assert (info.people, info.role) == (("bob", "cleo", "irc:*"), "member")
        await host.rooms.manage(RemovePerson(room=room, user="cleo"), principal=ALICE)
        await host.rooms.manage(LeaveRoom(room=room), principal=BOB)
        for gone in (BOB, CLEO):
            with pytest.raises(NotFound, match="no room"):
                await host.rooms.post(room, "hello", principal=gone)
        assert (await host.rooms.people(room, principal=DAN)).role == "member"


async def _first(events: RoomEvents, count: int) -> AsyncIterator[RoomChanged]:
    async for event in events:
        if isinstance(event, RoomChanged):
            yield event
            count -= 1
            if not count:
                return


async def test_a_moderator_mutes_slows_down_and_bans(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path, agents=[agent("ann")]) as host:
        room = await made(host, "bob", "irc:*")
        promote = AddPerson(room=room, user="cleo", role="moderator")
        await host.rooms.manage(promote, principal=ALICE)
        await host.rooms.manage(MutePerson(room=room, user="irc:dan", seconds=60), principal=CLEO)
        with pytest.raises(Forbidden, match="muted"):
            await host.rooms.post(room, "hello", principal=DAN)
        await host.rooms.manage(MutePerson(room=room, user="irc:dan", seconds=0), principal=CLEO)
        await host.rooms.manage(SlowRoom(room=room, seconds=60), principal=CLEO)
        await host.rooms.post(room, "one", key="k", principal=DAN)
        with pytest.raises(SlowDown):
            await host.rooms.post(room, "two", principal=DAN)
        assert (await host.rooms.post(room, "one", key="k", principal=DAN)).duplicate
        await host.rooms.post(room, "one", principal=CLEO)
        await host.rooms.post(room, "two", principal=CLEO)
        await host.rooms.manage(BanPerson(room=room, user="irc:dan"), principal=CLEO)
        with pytest.raises(NotFound):
            await host.rooms.get(room, principal=DAN)
        for act in (RenameRoom(room=room, title="x"), RemovePerson(room=room, user="alice")):
            with pytest.raises(Forbidden):
                await host.rooms.manage(act, principal=CLEO)
    async with motet.open_host(tmp_path, agents=[agent("ann")]) as host:  # it is on disk
        with pytest.raises(NotFound):
            await host.rooms.get(room, principal=DAN)
        rows = {one.user: one for one in (await host.rooms.people(room, principal=CLEO)).people}
        assert (rows["irc:dan"].banned, rows["cleo"].role) == (True, "moderator")
        assert "irc:dan" not in [
            one.user for one in (await host.rooms.people(room, principal=BOB)).people
        ]
        await host.rooms.manage(BanPerson(room=room, user="irc:dan", banned=False))
        with pytest.raises(SlowDown):  # the last message of each is known after a restart
            await host.rooms.post(room, "three", principal=DAN)


async def test_a_room_changes_hands_is_renamed_archived_and_found() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host, "bob")
        await host.rooms.manage(RenameRoom(room=room, title="Garden Club"), principal=ALICE)
        await host.rooms.manage(TransferRoom(room=room, user="bob"), principal=ALICE)
        assert (await host.rooms.get(room, principal=ALICE)).role == "moderator"
        assert (await host.rooms.get(room, principal=BOB)).owner == "bob"
        (found,) = (await host.rooms.page(query="garden", principal=ALICE)).rooms
        assert (found.name, found.terms.title) == (room, "Garden Club")
        assert (await host.rooms.page(query="orchard", principal=ALICE)).rooms == ()
        await host.rooms.manage(ArchiveRoom(room=room), principal=BOB)
        with pytest.raises(Forbidden, match="archived"):
            await host.rooms.post(room, "hello", principal=BOB)
        assert await host.rooms.list(principal=BOB) == ()
        assert len((await host.rooms.page(archived=True, principal=BOB)).rooms) == 1
        await host.rooms.manage(ArchiveRoom(room=room, archived=False), principal=BOB)
        await host.rooms.post(room, "hello", principal=ALICE)


async def test_an_invite_is_stored_as_a_digest_and_lets_in_as_many_as_it_says(
    tmp_path: Path,
) -> None:
    async with motet.open_host(tmp_path, agents=[agent("ann")]) as host:
        room = await made(host)
        new = await host.rooms.invite(room, "reader", uses=1, principal=ALICE)
        info = await host.rooms.join(new.token, principal=BOB)
        assert (info.name, info.role) == (room, "reader")
        await host.rooms.join(new.token, principal=BOB)  # again: it is not used up by that
        with pytest.raises(NotFound, match="used up"):
            await host.rooms.join(new.token, principal=CLEO)
        other = await host.rooms.invite(room, principal=ALICE)
        assert [one.uses for one in await host.rooms.invites(room, principal=ALICE)] == [0, None]
        await host.rooms.revoke_invite(room, other.invite.id, principal=ALICE)
        with pytest.raises(NotFound):
            await host.rooms.join(other.token, principal=CLEO)
        third = await host.rooms.invite(room, principal=ALICE)
        await host.rooms.manage(BanPerson(room=room, user="cleo"), principal=ALICE)
        with pytest.raises(NotFound, match="no such invite"):
            await host.rooms.join(third.token, principal=CLEO)
        with pytest.raises(Forbidden):
            await host.rooms.invite(room, principal=BOB)
    texts = "".join(_rows(tmp_path))
    assert invite_digest(new.token) in texts
    assert not any(one.token in texts for one in (new, other, third))


async def test_the_invites_of_a_moderator_end_when_they_are_removed() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host)
        await host.rooms.manage(AddPerson(room=room, user="bob", role="moderator"), principal=ALICE)
        new = await host.rooms.invite(room, principal=BOB)
        await host.rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)
        with pytest.raises(NotFound):
            await host.rooms.join(new.token, principal=CLEO)


async def test_a_user_has_as_many_rooms_as_the_gateway_says() -> None:
    config = HostConfig(gateway=GatewayConfig(rooms_per_user=2))
    async with motet.open_host(agents=[agent("ann")], config=config) as host:
        for _ in range(2):
            await made(host)
        with pytest.raises(TooMany, match="2 rooms"):
            await made(host)
        await host.rooms.create("more", RoomPlan(("ann",)), principal=ROOT)
        for more in (True, False):  # nor does anybody fill the cap of another, or pass their own
            plan = RoomPlan(("ann",))
            room = (await host.rooms.create("his", plan, people=("alice",), principal=BOB)).name
            act = TransferRoom(room=room, user="alice")
            with pytest.raises(TooMany, match="'alice' has 2 rooms"):
                await host.rooms.manage(act, principal=BOB)
            if more:
                await host.rooms.manage(act, principal=ROOT)


def _asking() -> motet.Agent[None, str]:
    model = Scripted(call(("restart", {"unit": SECRET})), say(f"done {SECRET}"), name="ann")
    ann = motet.Agent("ann", model=model, memory=True)

    @ann.tool(approval=True)
    def restart(unit: str) -> str:
        raise RuntimeError(f"no {unit} here")

    return ann


async def test_the_terms_say_who_answers_approvals_and_owners_see_what_members_do() -> None:
    async with motet.open_host(agents=[_asking()]) as host:
        room = await made(host, "bob")
        await host.rooms.post(room, f"@ann {SECRET}", principal=BOB)
        (asked,) = await pending(host)
        assert asked.people == ("bob",)
        with pytest.raises(NotFound):
            await host.approve(asked.id, "allow-once", principal=BOB)
        await host.rooms.manage(SetTerms(room=room, answers="member"), principal=ALICE)
        assert await host.approvals(room=room, principal=BOB) == (asked,)
        await host.approve(asked.id, "allow-once", principal=BOB)
        await (await host.open_room(room, principal=ALICE)).wait()
        (error,) = await host.errors(room=room, principal=ALICE)
        (run,) = await host.traces(room=room, principal=ALICE)
        assert (await host.error(error.id, principal=ALICE)).id == error.id
        assert (await host.trace(run.run_id, principal=ALICE)).info.run_id == run.run_id
        for ask in (host.errors(room=room, principal=BOB), host.trace(run.run_id, principal=BOB)):
            with pytest.raises(NotFound):
                await ask


def _rows(folder: Path) -> list[str]:
    """Every row of every table of the database, behind the table's name. No host may have it."""
    with closing(Connection(str(folder / "motet.db"))) as base:
        tables = base.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return [
            f"{name} {row!r}" for (name,) in tables for row in base.run(f'SELECT * FROM "{name}"')
        ]


async def test_a_deleted_room_leaves_no_row_of_its_text(tmp_path: Path) -> None:
    """Law: after a deletion, no row of any table has the room's name, or a word that was said or
    done in it.
    """
    async with motet.open_host(tmp_path, agents=[_asking()]) as host:
        room, other = await made(host, "bob"), await made(host)
        await host.rooms.post(other, "this stays", principal=ALICE)
        await host.rooms.invite(room, principal=ALICE)
        await host.rooms.post(room, f"@ann {SECRET}", principal=BOB)
        (asked,) = await pending(host)
        await host.approve(asked.id, "allow-always", principal=ALICE)
        await (await host.open_room(room, principal=ALICE)).wait()
        assert len(await host.errors(room=room, principal=ALICE)) == 1
    tables = {row.partition(" ")[0] for row in _rows(tmp_path) if SECRET in row or room in row}
    assert tables >= {"messages", "room_messages", "events", "runs", "spans", "approvals"}
    async with motet.open_host(tmp_path, agents=[_asking()]) as host:
        opened = await host.open_room(room, principal=ALICE)
        with pytest.raises(Forbidden):
            await host.delete_room(room, principal=BOB)
        async with opened.subscribe():
            await host.delete_room(room, principal=ALICE)
        for ask in (
            host.rooms.get(room, principal=ALICE),
            host.rooms.post(room, "hello", principal=ROOT),
            opened.post("hello", user="alice"),
        ):
            with pytest.raises((NotFound, UnknownName)):
                await ask
        assert (await host.rooms.history(other, principal=ALICE))[0].text == "this stays"
    assert not [row for row in _rows(tmp_path) if SECRET in row or room in row]


async def test_a_room_whose_agent_is_gone_says_so_and_goes_on_with_the_others(
    tmp_path: Path,
) -> None:
    plan = RoomPlan(("ann", "ben"), speakers=("mentions",))
    async with motet.open_host(tmp_path, agents=[agent("ann"), agent("ben")]) as host:
        room = (await host.rooms.create("den", plan, principal=ALICE)).name
    async with motet.open_host(tmp_path, agents=[agent("ann", say("I am here"))]) as host:
        opened = await host.open_room(room, principal=ALICE)
        assert (await host.rooms.get(room, principal=ALICE)).gone == ("ben",)
        await host.rooms.post(room, "@ann @ben hello?", principal=ALICE)
        await opened.wait()
        said = [one.text for one in await host.rooms.history(room, principal=ALICE)]
        assert said == ["@ann @ben hello?", "I am here"]


async def test_an_export_has_all_in_parts() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host, "bob")
        for number in range(5):
            await host.rooms.post(room, f"text {number}", principal=BOB)
        said: list[str] = []
        after: int | None = 0
        while after is not None:
            part = await host.rooms.export(room, after=after, limit=2, principal=ALICE)
            said += [one.text for one in part.messages]
            after = part.next
        assert said == [f"text {number}" for number in range(5)]
        with pytest.raises(Forbidden):
            await host.rooms.export(room, principal=BOB)


async def test_a_rate_bounds_the_messages_of_each_person_in_a_minute(tmp_path: Path) -> None:
    async def refused(host: motet.Host, who: motet.Principal) -> float:
        with pytest.raises(SlowDown, match="2 messages a minute") as caught:
            await host.rooms.post(room, "more", principal=who)
        return caught.value.retry_after

    async with motet.open_host(tmp_path, agents=[agent("ann")]) as host:
        room = await made(host, "bob", "irc:*")
        with pytest.raises(Forbidden):
            await host.rooms.manage(RateRoom(room=room, messages=9), principal=BOB)
        await host.rooms.manage(RateRoom(room=room, messages=2), principal=ALICE)
        for who in (BOB, DAN, ALICE):
            for number in range(2):
                await host.rooms.post(room, f"text {number}", key=f"k{number}", principal=who)
        assert 50 < await refused(host, BOB) <= 60
        await refused(host, DAN)
        await host.rooms.post(room, "as often as I like", principal=ALICE)
        again = await host.rooms.post(room, "text 1", key="k1", principal=BOB)
        assert again.duplicate, "a resend is none"
        await host.rooms.manage(SlowRoom(room=room, seconds=300), principal=ALICE)
        with pytest.raises(SlowDown, match="slow mode"):  # the longer one is told
            await host.rooms.post(room, "more", principal=BOB)
        await host.rooms.manage(SlowRoom(room=room, seconds=0), principal=ALICE)
    async with motet.open_host(tmp_path, agents=[agent("ann")]) as host:
        await refused(host, BOB)
        await host.rooms.manage(RateRoom(room=room, messages=0), principal=ALICE)
        await host.rooms.post(room, "at last", principal=BOB)


async def test_a_room_is_not_given_to_somebody_whose_tokens_only_view() -> None:
    """An owner has to be able to own: nobody could change the room or give it away again."""
    gus = TokenConfig(token=new_token(), user="gus", role="viewer")
    config = HostConfig(gateway=GatewayConfig(tokens=(gus,)))
    async with motet.open_host(config=config, agents=[agent("ann")]) as host:
        await host.new_token("vera", "viewer")
        await host.new_token("tom", "viewer")
        await host.new_token("tom", "operator")
        room = await made(host, "gus", "vera", "tom")
        for user in ("gus", "vera"):
            with pytest.raises(InputValidation, match=f"'{user}' cannot own a room"):
                await host.rooms.manage(TransferRoom(room=room, user=user), principal=ALICE)
        await host.rooms.manage(TransferRoom(room=room, user="tom"), principal=ALICE)
        assert (await host.rooms.people(room, principal=ALICE)).owner == "tom"


async def test_only_a_known_user_is_muted_or_banned_where_users_have_tokens() -> None:
    """A slip of the pen would make a row that mutes nobody."""
    gus = TokenConfig(token=new_token(), user="gus")
    config = HostConfig(gateway=GatewayConfig(tokens=(gus,)))
    async with motet.open_host(config=config, agents=[agent("ann")]) as host:
        await host.new_token("tom", "operator")
        room = await made(host, "bob", "vox:*")
        await host.rooms.post(room, "hello", principal=BOB)
        await host.rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)
        for user in ("bo", "cleo", "gu", "*x"):
            for act in (MutePerson(room=room, user=user), BanPerson(room=room, user=user)):
                with pytest.raises(InputValidation, match=f"called '{re.escape(user)}'"):
                    await host.rooms.manage(act, principal=ALICE)
        known = await host.rooms.people(room, principal=ALICE)
        assert [one.user for one in known.people] == ["vox:*"]
        for user in ("bob", "gus", "tom", "vox:eve", "irc:*"):  # a word of bob's is there
            for act in (BanPerson(room=room, user=user), MutePerson(room=room, user=user)):
                await host.rooms.manage(act, principal=ALICE)
        lift = BanPerson(room=room, user="nobody", banned=False)
        await host.rooms.manage(lift, principal=ALICE)


async def test_messages_are_found_by_their_words_and_only_those_that_one_may_read() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host, "bob")
        await host.rooms.manage(SetTerms(room=room, newcomers="joining"), principal=ALICE)
        for text in ("the Key is 100%_sure", "a key\nof bob's", "nothing", "withdrawn key"):
            await host.rooms.post(room, text, principal=ALICE)
        await host.rooms.delete_message(room, 4, principal=ALICE)
        await host.rooms.manage(AddPerson(room=room, user="cleo"), principal=ALICE)
        await host.rooms.post(room, "keys for all", principal=ALICE)

        async def found(query: str, who: motet.Principal, **page: int) -> list[int]:
            messages = await host.rooms.history(room, query=query, principal=who, **page)
            return [one.seq for one in messages]

        assert await found("KEY", BOB) == [1, 2, 5]
        assert await found("key", BOB, limit=1) == [5]
        assert await found("key", BOB, limit=1, before=5) == [2]
        assert await found("0%_S", BOB) == [1]
        assert await found(" sure  KEY ", BOB) == [1], "all words, in any order"
        assert await found("key", CLEO) == [5]
        with pytest.raises(NotFound, match="no room"):
            await found("key", DAN)
        for who, lines in ((BOB, ["#1", "#2", "#5"]), (CLEO, ["#5"])):
            command = Command("search", "key")
            answer = await answer_command(host, who, "", command, room=room)
            assert [line.split()[0] for line in answer.text.splitlines()] == lines
        answer = await answer_command(host, BOB, "", Command("search", "zebra"), room=room)
        assert answer.text == "No message has 'zebra'."


async def test_a_right_is_refused_by_the_word_that_was_typed() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host, "bob")
        answer = await answer_command(host, BOB, "", Command("title", "x"), room=room)
        assert "'title' is for only its owner" in answer.text
        await host.rooms.post(room, "hello", principal=ALICE)
        await host.rooms.manage(MutePerson(room=room, user="bob", seconds=60), principal=ALICE)
        answer = await answer_command(host, BOB, "", Command("stop", ""), room=room)
        assert "you are muted" in answer.text


async def test_invites_are_listed_taken_and_ended_and_all_is_exported_by_commands() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room = await made(host)

        async def typed(who: motet.Principal, name: str, argument: str = "") -> str:
            command, at = Command(name, argument), room if who == ALICE else ""
            session = "" if at else "s"
            return (await answer_command(host, who, session, command, room=at)).text

        assert await typed(ALICE, "invites") == "There are no invites."
        first, second = [await host.rooms.invite(room, principal=ALICE) for _ in range(2)]
        assert f"{first.invite.id}: member, by alice" in await typed(ALICE, "invites")
        assert (
            await typed(ALICE, "revoke", first.invite.id)
            == f"The invite {first.invite.id} is over."
        )
        with pytest.raises(NotFound, match="no such invite"):
            await typed(BOB, "join", first.token)
        assert await typed(BOB, "join", second.token) == f"You are in the room {room}."
        for number in range(3):
            await host.rooms.post(room, f"{number} {'x' * 50_000}", principal=BOB)
        head, one, more = (await typed(ALICE, "export")).splitlines()
        assert json.loads(head)["owner"] == "alice"
        assert (json.loads(one)["seq"], more) == (1, "More: /export 1")
        (two, more) = (await typed(ALICE, "export", "1")).splitlines()
        assert (json.loads(two)["text"][:2], more) == ("1 ", "More: /export 2")
        (last,) = (await typed(ALICE, "export", "2")).splitlines()
        assert json.loads(last)["seq"] == 3


async def test_a_deletion_ends_the_subscriptions_to_its_threads_too() -> None:
    async with motet.open_host(agents=[agent("ann")]) as host:
        room, told = await made(host), list[tuple[str, str]]()
        await host.rooms.post(room, "hello", principal=ALICE)
        await host.rooms.post(f"{room}/1", "well", principal=ALICE)
        journal = host._parts.journal  # pyright: ignore[reportPrivateUsage]
        for name in (room, f"{room}/1", f"{room}/2", f"{room}0"):
            journal.watch_access(f"room:{name}", partial(_note, told, name))
        await host.delete_room(room, principal=ALICE)
        ended = {name for name, generation in told if generation == "deleted"}
        assert ended == {room, f"{room}/1", f"{room}/2"}


def _note(told: list[tuple[str, str]], name: str, generation: str) -> None:
    told.append((name, generation))
