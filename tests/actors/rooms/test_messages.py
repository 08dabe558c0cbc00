"""Messages of a room that are changed after they were said: on disk, in requests, in events."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.protocols.errors import NotFound
from motet.protocols.events import (
    AnyEvent,
    CallDropped,
    MessageAdded,
    MessageDeleted,
    MessageEdited,
    MessageReaction,
)
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import RateRoom, SlowRoom
from motet.protocols.room_messages import EDITED
from motet.protocols.room_people import SlowDown
from motet.protocols.rooms import Reaction, RoomPlan
from tests.actors.rooms.talk import agent, model_of, on_disk, said, turns, until_idle

SECRET = "the-password-is-swordfish"


def room_of(*members: motet.Agent[None], **more: object) -> motet.Room:
    return motet.Room("r", members=members, speakers=motet.mentions(), **more)  # type: ignore[arg-type]


def go_on(one: motet.Agent[None]) -> None:
    gate, model_of(one).gate = model_of(one).gate, None
    assert gate is not None
    gate.set()


async def asked(one: motet.Agent[None], times: int = 1) -> None:
    while len(model_of(one).requests) < times:
        await trio.lowlevel.checkpoint()


async def test_an_edit_is_read_by_members_who_have_read_the_old_text(tmp_path: Path) -> None:
    ann = agent("ann", "yes")
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room_of(ann))
        async with opened.subscribe() as events:
            await opened.post(f"@ann {SECRET}", user="alice", key="one")
            await until_idle(events)
            edited = await opened.edit(1, "@ann it is a secret", user="alice")
            assert (edited.text, edited.edited > 0) == ("@ann it is a secret", True)
            assert await opened.edit(1, "@ann it is a secret", user="alice") == edited
            await opened.post("@ann and now?", user="bob")
            seen = await until_idle(events)
        assert [one for one in seen if isinstance(one, MessageEdited)] == [
            MessageEdited(1, "@ann it is a secret", "alice", 1)
        ]
        told = [row.text for row in model_of(ann).requests[-1].messages]
        assert told == [
            "[#1 edited person alice] @ann it is a secret",
            "yes",
            "[#1 edited person alice] @ann it is a secret\n[#3 person bob] @ann and now?",
        ]
        assert (await opened.history())[0].text == "@ann it is a secret"
        replayed = [one.event for one in await host.events.read("room:r", 0, 100)]
        assert replayed[0] == MessageAdded("user", "alice", "@ann it is a secret", number=1)
    assert SECRET not in on_disk(tmp_path)


async def test_a_withdrawn_message_leaves_no_text_and_is_told_once(tmp_path: Path) -> None:
    ann, ben = agent("ann", f"noted: {SECRET} of ann"), agent("ben", "fine")
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room_of(ann, ben))
        async with opened.subscribe() as events:
            await opened.post("@ann @ben look", user="alice")
            await until_idle(events)
            gone = await opened.delete(2, user="root", role="admin")
            assert (gone.text, gone.deleted) == ("", True)
            for _ in range(2):
                await opened.post("@ben @ann go on", user="alice")
                await until_idle(events)
        (first, second) = model_of(ben).told[1:]
        assert first.startswith("[#2 withdrawn agent ann]\n[#4 person alice] @ben @ann go on")
        assert "withdrawn" not in second, "it is told once"
        assert SECRET not in repr(model_of(ben).requests[1].messages)
        assert SECRET not in repr(model_of(ann).requests[1].messages), "its own answer, too"
        for number in (5, 6, 8, 9):
            await opened.delete(number, user="root", role="admin")
    assert SECRET not in on_disk(tmp_path)


async def test_a_turn_under_way_reads_the_change_in_its_next_request(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []
    reached, gate = trio.Event(), trio.Event()

    def answer(request: ModelRequest) -> mt.Step:
        requests.append(request)
        return mt.call("look") if len(requests) == 1 else mt.say("done")

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"))

    @ann.tool(effects="write")
    async def look() -> str:
        reached.set()
        await gate.wait()
        return "seen"

    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room_of(ann))
        async with opened.subscribe() as events:
            await opened.post(f"@ann {SECRET}", user="alice")
            await reached.wait()
            await opened.delete(1, user="alice")
            assert SECRET in repr(requests[0].messages)
            gate.set()
            await until_idle(events)
        assert requests[1].messages[0].text == "[#1 withdrawn person alice]"
        assert SECRET not in repr(requests[1].messages)
    assert SECRET not in on_disk(tmp_path)


async def test_a_call_that_quotes_what_was_changed_since_its_request_quotes_the_new_text(
    tmp_path: Path,
) -> None:
    """Also on disk while it runs, so that the next host of a killed one begins nothing with it."""
    asked, gate, reached, noted = (trio.Event() for _ in range(4))
    given: list[str] = []

    async def answer(request: ModelRequest) -> mt.Step:
        if given:
            return mt.say("done")
        quoted = request.messages[-1].text
        asked.set()
        await gate.wait()
        return mt.call("note", text=quoted)

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"))

    @ann.tool(effects="write")
    async def note(text: str) -> str:
        given.append(text)
        reached.set()
        await noted.wait()
        return "noted"

    async with motet.open_host(tmp_path / "state", agents=[ann]) as host:
        opened = await host.open_room(room_of(ann))
        async with opened.subscribe() as events:
            await opened.post(f"@ann {SECRET}", user="alice")
            await asked.wait()
            await opened.delete(1, user="alice")
            gate.set()
            await reached.wait()
            assert await host.events.read("session:agent:ann:room:group:r", 0)  # all are on disk
            shutil.copytree(tmp_path / "state", tmp_path / "killed")
            noted.set()
            await until_idle(events)
    assert given == ["[#1 withdrawn person alice]"]
    for state in ("killed", "state"):
        assert SECRET not in on_disk(tmp_path / state)


async def test_a_call_that_is_edited_away_before_its_turn_is_dropped() -> None:
    ann, ben, cid = (agent(name, "yes") for name in ("ann", "ben", "cid"))
    model_of(ann).gate = trio.Event()
    async with motet.open_host() as host:
        opened = await host.open_room(room_of(ann, ben, cid))
        async with opened.subscribe() as events:
            await opened.post("@ann @ben one", user="alice")
            await asked(ann)
            await opened.post("@ben two", user="bob")
            await opened.edit(1, "@ann @cid one", user="alice")
            await opened.delete(2, user="bob")
            go_on(ann)
            seen = await until_idle(events)
            assert turns(seen) == ["ann", "cid"]
            assert [one for one in seen if isinstance(one, CallDropped)] == [
                CallDropped("ben", ("alice",), EDITED, 1, 1, 1, 1),
                CallDropped("ben", ("bob",), EDITED, 1, 2, 2, 2),
            ]
            assert opened.waits, "nothing is left to be answered"
            await opened.edit(1, "@ann @cid @ben one", user="alice")
            assert turns(await until_idle(events)) == ["ben"], "a new call opens a round"
    assert model_of(ben).told == [
        "[#1 edited person alice] @ann @cid @ben one\n[#3 agent ann] yes\n[#4 agent cid] yes"
    ]


async def test_a_withdrawn_message_is_read_by_nobody_who_has_not_read_it() -> None:
    ann, ben = agent("ann", "yes"), agent("ben", "yes")
    async with motet.open_host() as host:
        opened = await host.open_room(room_of(ann, ben))
        async with opened.subscribe() as events:
            await opened.post(f"@ann {SECRET}", user="alice")
            await until_idle(events)
            await opened.delete(1, user="alice")
            await opened.post("@ben what was that?", user="bob")
            await until_idle(events)
    assert model_of(ben).told == ["[#2 agent ann] yes\n[#3 person bob] @ben what was that?"]


async def test_reactions_are_events_and_agents_are_told_if_the_room_says_so() -> None:
    for shown in (False, True):
        ann = agent("ann", "yes")
        async with motet.open_host() as host:
            opened = await host.open_room(room_of(ann, reactions=shown))
            async with opened.subscribe() as events:
                await opened.post("@ann look", user="alice")
                await until_idle(events)
                await opened.react(2, "+1", user="bob")
                found = await opened.react(2, "+1", user="carol")
                assert found.reactions == (Reaction("+1", ("bob", "carol")),)
                await opened.react(2, "+1", user="bob", on=False)
                await opened.post("@ann again", user="alice")
                seen = await until_idle(events)
            told: list[AnyEvent] = [one for one in seen if isinstance(one, MessageReaction)]
            assert told == [
                MessageReaction(2, "+1", "bob", True, 1),
                MessageReaction(2, "+1", "carol", True, 2),
                MessageReaction(2, "+1", "bob", False, 3),
            ]
            assert (await opened.history())[1].reactions == (Reaction("+1", ("carol",)),)
        lines = [
            "[person carol reacts to #2] +1",
            "[person bob takes back from #2] +1",
            "[#3 person alice] @ann again",
        ]
        assert model_of(ann).told[-1] == "\n".join(lines if shown else lines[2:])


async def test_only_those_who_may_change_a_message_do() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host() as host:
        opened = await host.open_room(room_of(ann))
        await opened.post("@ann look", user="alice")
        await opened.wait()
        for number in (1, 2):
            with pytest.raises(NotFound, match="not yours"):
                await opened.edit(number, "x", user="bob")
            with pytest.raises(NotFound, match="not yours"):
                await opened.delete(number, user="ann")
        with pytest.raises(NotFound, match="no message 9"):
            await opened.delete(9, user="alice")
        await opened.delete(1, user="alice")
        with pytest.raises(NotFound, match="was withdrawn"):
            await opened.edit(1, "x", user="alice")


async def test_words_of_who_has_edited_count_as_those_of_who_is_answered() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host() as host:
        opened = await host.open_room(room_of(ann))
        await opened.post("@ann look", user="alice")
        await opened.wait()
        await opened.edit(1, "@ann delete all", user="alice")
        await opened.post("@ann go on", user="bob")
        await opened.wait()
        last = (await opened.history())[-1]
    assert {who.user for who in last.asked_by} == {"alice", "bob"}


async def test_a_change_is_told_once_over_a_restart(tmp_path: Path) -> None:
    ann = agent("ann", "yes")
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room_of(ann))
        await opened.post("hello", user="alice")
        await opened.wait()
        await opened.delete(1, user="alice")
    for _ in range(2):
        async with motet.open_host(tmp_path) as host:
            opened = await host.open_room(room_of(ann))
            await opened.wait()
            found = [one.event for one in await host.events.read("room:r", 0, 100)]
            assert [one for one in found if isinstance(one, MessageDeleted)] == [
                MessageDeleted(1, "alice", 1)
            ]
            assert said(found) == [("alice", "")]
            assert opened.waits


@pytest.mark.parametrize("term", [SlowRoom(room="", seconds=600), RateRoom(room="", messages=1)])
async def test_an_edit_that_calls_somebody_anew_counts_as_a_message(
    term: SlowRoom | RateRoom, tmp_path: Path
) -> None:
    owner, bob = motet.Principal("own"), motet.Principal("bob")
    async with motet.open_host(tmp_path, agents=[agent("ann", "yes")]) as host:
        rooms, plan = host.rooms, RoomPlan(("ann",), activation="mention")
        room = (await rooms.create("den", plan, people=("bob",), principal=owner)).name
        await rooms.manage(replace(term, room=room), principal=owner)
        await rooms.post(room, "hello", principal=bob)
        with pytest.raises(SlowDown):
            await rooms.edit_message(room, 1, "@ann hello", principal=bob)
        await rooms.edit_message(room, 1, "hello, you", principal=bob)  # that calls nobody
    async with motet.open_host(tmp_path, agents=[agent("ann", "yes")]) as host:
        with pytest.raises(SlowDown):
            await host.rooms.edit_message(room, 1, "@ann hello", principal=bob)
        none = replace(term, **{"messages" if isinstance(term, RateRoom) else "seconds": 0})
        await host.rooms.manage(replace(none, room=room), principal=owner)
        await host.rooms.edit_message(room, 1, "@ann hello", principal=bob)
        await host.rooms.manage(replace(term, room=room), principal=owner)
        await host.rooms.edit_message(room, 1, "@ann hello, I said", principal=bob)  # nobody new
        with pytest.raises(SlowDown):  # the edit counts for what is said next
            await host.rooms.post(room, "well?", principal=bob)


async def test_an_edit_that_calls_is_refused_where_messages_are_while_agents_speak() -> None:
    ann = agent("ann", "yes")
    async with motet.open_host() as host:
        opened = await host.open_room(room_of(ann, agent("ben", "no"), mode="reject"))
        await opened.post("hello", user="bob")
        await opened.wait()
        model_of(ann).gate = trio.Event()
        await opened.post("@ann go", user="alice")
        await asked(ann)
        with pytest.raises(motet.SessionBusy):
            await opened.edit(1, "@ben hello", user="bob")
        await opened.edit(1, "hello, you", user="bob")
        go_on(ann)
        await opened.wait()
        await opened.edit(1, "@ben hello", user="bob")
        await opened.wait()
        assert [one.author for one in await opened.history()][-1] == "ben"
