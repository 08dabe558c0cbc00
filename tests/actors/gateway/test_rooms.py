"""People in one room over one gateway, each with a connection of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.location import DATABASE_FILE
from motet.actors.storage.tokens import new_token
from motet.protocols import gateway as wire
from motet.protocols.gateway_rooms import RoomsList
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.gateway.fakes import Client, connected
from tests.scripted import Scripted, call, say

ALICE, BOB, EVE = new_token(), new_token(), new_token()
TOKENS = StaticTokens(
    token_entry(token, user, "operator")
    for token, user in ((ALICE, "alice"), (BOB, "bob"), (EVE, "eve"))
)


@attrs.define
class People:
    """``room``: Alice's, with Bob in it."""

    host: motet.Host
    context: Context
    alice: Client
    bob: Client
    room: str
    script: Scripted

    @property
    def stream(self) -> str:
        return f"room:{self.room}"

    async def post(self, who: Client, text: str, key: str) -> dict[str, object]:
        return await who.result("rooms.post", room=self.room, text=text, key=key)


@asynccontextmanager
async def people(model: Scripted, state: Path | None = None) -> AsyncGenerator[People]:
    ann = motet.Agent("ann", model=model)

    @ann.tool(approval=True)
    def pay() -> str:
        return "paid"

    @ann.tool
    def fail() -> str:
        raise OSError("no route to host")

    @ann.tool
    def look(where: str = "") -> str:
        return "found"

    async with motet.open_host(state, agents=[ann]) as host:
        context = Context(host, Settings(tokens=TOKENS))
        async with connected(context, ALICE) as alice, connected(context, BOB) as bob:
            made = await alice.result(
                "rooms.create", name="dev", members=["ann"], people=["bob"], speakers=["mentions"]
            )
            here = People(host, context, alice, bob, str(made["name"]), model)
            for client in (alice, bob):
                await client.result("subscribe", stream=here.stream)
            yield here


def names(events: list[wire.EventFrame]) -> list[str]:
    return [event.event for event in events if event.event != "activity"]


async def test_both_people_see_all_events_of_the_room() -> None:
    async with people(Scripted(call(("look", {})), say("I ", "see"))) as here:
        assert (await here.post(here.bob, "@ann look", "k"))["status"] == "accepted"
        for client in (here.alice, here.bob):
            events = await client.until("room.idle")
            texts = [one.data["text"] for one in events if one.event == "message"]
            assert texts == ["@ann look", "I see"]
            assert {"room.turn", "tool.call", "tool.result", "text.delta"} <= set(names(events))
            assert {one.data["author"] for one in events if one.event == "message"} == {
                "bob",
                "ann",
            }
        assert await here.post(here.bob, "@ann look", "k") == {"seq": 1, "status": "duplicate"}
        history = await here.alice.result("rooms.history", room=here.room, limit=1)
        assert history["before"] == 2
        listed = msgspec.convert(await here.bob.result("rooms.list"), RoomsList)
        assert [(info.name, info.idle) for info in listed.rooms] == [(here.room, True)]


async def test_anyone_in_a_room_can_stop_it() -> None:
    async with people(Scripted(None)) as here:
        await here.post(here.alice, "@ann for ever", "k1")
        await here.bob.until("room.turn")
        answer = await here.post(here.bob, "/stop", "k2")
        assert answer["status"] == "command"
        assert here.host.status().running == 0
        assert (await here.alice.until("room.idle"))[-1].data == {"reason": "stopped"}


async def test_a_removed_user_gets_no_more_events() -> None:
    async with people(Scripted(say("a"), say("b"))) as here:
        await here.post(here.alice, "@ann one", "k1")
        await here.bob.until("room.idle")
        await here.alice.result("rooms.set", room=here.room, people=[])
        await here.post(here.alice, "@ann two", "k2")
        events = await here.alice.until("room.idle")
        events += await here.alice.until("room.idle")
        assert "b" in str(events)
        assert (await here.bob.error("rooms.history", room=here.room)).code == "not_found"
        await here.bob.result("ping")
        await trio.testing.wait_all_tasks_blocked()
        assert [(one.event, one.data) for one in here.bob.events] == [
            ("stream.ended", {"reason": "removed"})
        ]
        error = await here.bob.error("subscribe", stream=here.stream, after=0)
        assert error.code == "not_found"


@pytest.mark.parametrize("how", ["remove", "ban", "set"])
async def test_a_removed_client_is_told_why_within_100_ms_and_what_it_has_queued_ends_with_it(
    how: str, autojump_clock: MockClock
) -> None:
    """By a clock that jumps: nothing on the way waits. No member is given what was queued."""
    async with people(Scripted(None)) as here:
        await here.post(here.alice, "@ann for ever", "k1")
        await here.bob.until("room.turn")
        await here.post(here.bob, "@ann wipe it all", "k2")
        await here.alice.until("message")
        here.bob.events.clear()
        began = trio.current_time()
        match how:
            case "remove":
                await here.alice.result("rooms.remove", room=here.room, user="bob")
            case "ban":
                await here.alice.result("rooms.ban", room=here.room, user="bob")
            case _:
                await here.alice.result("rooms.set", room=here.room, people=[])
        ended = (await here.bob.until("stream.ended"))[-1]
        assert ended.data == {"reason": "removed"}
        dropped = (await here.alice.until("call.dropped"))[-1]
        assert trio.current_time() - began <= 0.1
        assert (dropped.data["of"], dropped.data["by"]) == ("ann", ["bob"])
        await here.alice.result("runs.stop", room=here.room, key="k3")
        await trio.testing.wait_all_tasks_blocked()
        assert not here.bob.events
        assert len(here.script.requests) == 1
    del autojump_clock


async def test_a_client_that_reconnects_gets_the_missed_events() -> None:
    async with people(Scripted(say("a"))) as here:
        await here.post(here.alice, "@ann one", "k1")
        await here.alice.until("room.idle")
        async with connected(here.context, BOB, resume={here.stream: 0}) as again:
            events = await again.until("room.idle")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert names(events)[0] == "message"


async def test_messages_of_one_connection_keep_their_order() -> None:
    async with people(Scripted()) as here:
        params = [{"room": here.room, "text": str(n), "key": f"k{n}"} for n in range(8)]
        ids = [await here.bob.post("rooms.post", **one) for one in params]
        answers = [await here.bob.answer(one) for one in ids]
        assert [answer.result for answer in answers] == [
            {"seq": n, "status": "accepted"} for n in range(1, 9)
        ]


async def test_deltas_are_those_of_the_message_that_ends_them() -> None:
    script = Scripted(
        call(("look", {}), text="Let me look."), say("I ", "see"), say("PA", "SS"), say("no")
    )
    async with people(script) as here:
        await here.post(here.bob, "@ann look", "k")
        events = await here.alice.until("room.idle")
        spoken: dict[object, str] = {}
        for one in events:
            if one.event == "text.delta":
                place, at = (one.run_id, one.data["i"]), one.data["at"]
                assert isinstance(at, int)
                spoken[place] = spoken.get(place, "")[:at] + str(one.data["text"])
        whole = {
            (one.run_id, one.data["i"]): one.data["text"]
            for one in events
            if one.event == "message" and one.data["role"] == "assistant"
        }
        assert spoken == whole != {}
        await here.post(here.bob, "@ann and now?", "k2")
        assert "text.delta" not in names(await here.alice.until("room.idle"))


async def test_only_the_owner_changes_a_room() -> None:
    async with people(Scripted(say("one"), say("two"))) as here:
        told = await here.alice.result("rooms.set", room=here.room, max_turns=1, until="two")
        plan = msgspec.convert(told["plan"], RoomPlan)
        assert (plan.members, plan.max_turns, plan.until) == (("ann",), 1, "two")
        assert told["people"] == ["bob"], "what is not named stays"
        told = await here.alice.result("rooms.set", room=here.room, until=None, people=[])
        assert (msgspec.convert(told["plan"], RoomPlan).until, told["people"]) == (None, [])
        assert (await here.bob.error("rooms.set", room=here.room, max_turns=2)).code == "not_found"
        refused: tuple[dict[str, object], ...] = (
            {"members": []},
            {"limits": {"usd": -1}},
            {"mode": "nod"},
            {"called": ["x"]},
        )
        for wrong in refused:
            error = await here.alice.error("rooms.set", room=here.room, **wrong)
            assert error.code == "invalid_params", wrong
        assert (
            await here.alice.error("rooms.set", room=here.room, members=["an"])
        ).code == "unknown_agent"


async def test_a_room_that_refuses_says_that_it_is_busy() -> None:
    async with people(Scripted(None)) as here:
        await here.alice.result("rooms.set", room=here.room, mode="reject")
        await here.post(here.bob, "@ann look", "k")
        await here.alice.until("room.turn")
        error = await here.alice.error("rooms.post", room=here.room, text="hi", key="k")
        assert (error.code, error.retryable) == ("session_busy", True)


async def test_commands_in_a_room_are_about_the_room() -> None:
    async with people(Scripted(None)) as here:
        assert "It waits for a person." in str(await here.post(here.bob, "/status", "k1"))
        told = await here.post(here.alice, "/queue steer", "k2")
        assert told["text"] == "While agents speak: steer, a message enters the turns that go on."
        refused = await here.post(here.bob, "/queue reject", "k3")
        assert "Nothing was changed" in str(refused["text"])
        await here.post(here.alice, "@ann look", "k4")
        await here.bob.until("room.turn")
        status = str(await here.post(here.bob, "/status", "k5"))
        assert "ann has the floor, for" in status
        assert "it waits for the model" in status
        assert "7 turns are left" in status
        told = await here.post(here.alice, "/queue collect", "k6")
        assert str(told["text"]).startswith("From the next round on, while agents speak: collect")
        assert "this is a room" in str(await here.post(here.bob, "/new", "k7"))


async def test_the_owner_is_told_the_errors_and_the_usage_of_the_room_and_no_member() -> None:
    async with people(Scripted(call(("fail", {})), say("no"))) as here:
        await here.post(here.bob, "@ann try it", "k1")
        await here.alice.until("room.idle")
        assert "no route to host" in str(await here.post(here.alice, "/errors", "k2"))
        assert "1 run: 20 tokens in" in str(await here.post(here.alice, "/usage", "k3"))
        for text in ("/errors", "/usage"):
            told = await here.post(here.bob, text, text)
            assert told["text"] == f"Nothing was done: {text} of a room is for its owner."


async def test_the_owner_answers_the_approvals_of_members() -> None:
    async with people(Scripted(call(("pay", {})), say("it is paid"))) as here:
        await here.post(here.bob, "@ann pay", "k1")
        asked = (await here.bob.until("approval.requested"))[-1].data["id"]
        answer = {"id": asked, "decision": "allow-once", "key": "k"}
        assert (await here.bob.error("approvals.resolve", **answer)).code == "not_found"
        assert (await here.bob.error("approvals.list", room=here.room)).code == "not_found"
        assert "Only the owner of this room" in str(
            await here.post(here.bob, "/approve deny", "k2")
        )
        listed = await here.alice.result("approvals.list", room=here.room, state="pending")
        assert str(asked) in str(listed)
        told = await here.post(here.alice, "/approve allow-once", "k3")
        assert told["text"] == "pay: allowed"
        events = await here.alice.until("room.idle")
        assert "it is paid" in str(events)


async def test_people_see_changes_of_messages_and_who_is_here_and_others_nothing() -> None:
    """G16: whoever is not of the room sees no indicator, presence, read mark or change."""
    async with people(Scripted(say("hello"))) as here, connected(here.context, EVE) as eve:
        await here.post(here.alice, "@ann a secret", "k1")
        await here.bob.until("room.idle")
        room = here.room
        assert (await here.alice.result("rooms.present", room=room))["users"] == ["alice", "bob"]
        edited = await here.alice.result("messages.edit", room=room, number=1, text="@ann hi")
        assert edited["text"] == "@ann hi"
        await here.bob.result("messages.react", room=room, number=2, reaction="+1")
        for _ in range(3):
            await here.bob.result("rooms.typing", room=room)
        await here.bob.result("rooms.read", room=room, number=2)
        await here.alice.result("messages.delete", room=room, number=2)
        events = await here.alice.until("message.deleted")
        told = [
            (one.event, one.data) for one in events if one.event.startswith(("message.", "room."))
        ]
        assert told[-5:] == [
            ("message.edited", {"number": 1, "text": "@ann hi", "by": "alice", "change": 1}),
            (
                "message.reaction",
                {"number": 2, "reaction": "+1", "by": "bob", "on": True, "change": 2},
            ),
            ("room.typing", {"name": "bob", "role": "user", "on": True}),
            ("room.read", {"user": "bob", "number": 2}),
            ("message.deleted", {"number": 2, "by": "alice", "change": 3}),
        ]
        for method, more in (
            ("messages.edit", {"number": 1, "text": "mine"}),
            ("messages.delete", {"number": 1}),
            ("messages.react", {"number": 1, "reaction": "+1"}),
            ("rooms.typing", {}),
            ("rooms.read", {"number": 1}),
            ("rooms.present", {}),
        ):
            assert (await eve.error(method, room=room, **more)).code == "not_found"
        await here.bob.result("unsubscribe", stream=here.stream)
        gone = (await here.alice.until("room.presence"))[-1].data
        assert gone == {"user": "bob", "here": False}
        assert not eve.events


async def test_a_list_counts_what_the_user_has_not_read() -> None:
    async with people(Scripted(say("one"))) as here:

        async def unread(who: Client) -> tuple[int, int]:
            (info,) = msgspec.convert(await who.result("rooms.list"), RoomsList).rooms
            return info.read, info.unread

        await here.post(here.alice, "@ann one", "k1")
        await here.bob.until("room.idle")
        for number in range(120):
            await here.host.rooms.post(
                here.room, f"{number}", principal=Principal("alice", "operator")
            )
        assert await unread(here.bob) == (0, 100), "more are not counted"
        assert await unread(here.alice) == (0, 1), "one's own are read"
        await here.bob.result("rooms.read", room=here.room, number=120)
        assert await unread(here.bob) == (120, 2)
        await here.bob.result("rooms.read", room=here.room, number=5)
        assert await unread(here.bob) == (120, 2), "a mark never goes back"
        await here.alice.result("messages.delete", room=here.room, number=122)
        assert await unread(here.bob) == (120, 1)
        await here.bob.result("rooms.read", room=here.room, number=9999)
        await here.post(here.alice, "later", "k2")
        assert await unread(here.bob) == (122, 1), "nor does it pass what is there"


async def test_commands_in_a_room_change_messages() -> None:
    async with people(Scripted(say("hello"))) as here:
        await here.post(here.alice, "@ann a secret", "k1")
        await here.bob.until("room.idle")
        texts = {
            "/edit last @ann hi": "Message 1 has another text.",
            "/react 2 +1": "You react to message 2 with +1.",
            "/react 2 +1 off": "You react to message 2 with +1 no more.",
            "/here": "Here now: alice, bob.",
            "/delete 1": "Message 1 is withdrawn.",
        }
        for at, (text, answer) in enumerate(texts.items()):
            assert (await here.post(here.alice, text, f"c{at}"))["text"] == answer
        error = await here.alice.error("rooms.post", room=here.room, text="/edit x", key="c9")
        assert (error.code, "which message" in error.message) == ("invalid_params", True)
        said = await here.alice.result("sessions.list")
        assert said["sessions"] == []


async def test_whoever_is_banned_is_told_in_the_same_step_with_nothing_queued_behind() -> None:
    async with people(Scripted(say("a"), say("b"))) as here:
        await here.post(here.alice, "@ann one", "k1")
        await here.bob.until("room.idle")
        late = await here.bob.post("rooms.post", room=here.room, text="late", key="k2")
        await here.alice.result("rooms.ban", room=here.room, user="bob")
        # When the ban is answered, the stream has ended: nothing more comes, whatever is said.
        await here.post(here.alice, "@ann two", "k3")
        await here.alice.until("room.idle")
        await here.bob.answer(late)
        await here.bob.result("ping")
        events = names(list(here.bob.events))
        assert events[-1] == "stream.ended"
        assert "two" not in str([one.data for one in here.bob.events])
        for method, params in (
            ("rooms.people", {}),
            ("rooms.leave", {}),
            ("rooms.post", {"text": "/people", "key": "k4"}),
        ):
            error = await here.bob.error(method, room=here.room, **params)
            assert error.code == "not_found"


async def test_members_see_that_a_tool_works_and_only_moderators_see_on_what() -> None:
    steps = (call(("look", {"where": "attic"})), say("seen"))
    async with people(Scripted(*steps, *steps)) as here:
        await here.post(here.alice, "@ann look", "k1")
        for client, sees in ((here.alice, True), (here.bob, False)):
            events = await client.until("room.idle")
            tools = [one for one in events if one.event in ("tool.call", "tool.result")]
            assert len(tools) == 2
            assert ("attic" in str([one.data for one in tools])) is sees
            assert ("found" in str([one.data for one in tools])) is sees
        # Also what is replayed, and after a change of the terms or of the role.
        for terms, sees in (({"details": "moderator"}, False), ({"details": "member"}, True)):
            await here.alice.result("rooms.terms", room=here.room, **terms)
            async with connected(here.context, BOB, resume={here.stream: 0}) as again:
                events = await again.until("room.idle")
                assert ("attic" in str([one.data for one in events])) is sees
        await here.alice.result("rooms.terms", room=here.room, details="owner")
        await here.bob.result("subscribe", stream=here.stream)
        await here.alice.result("rooms.add", room=here.room, user="bob", role="moderator")
        await here.post(here.alice, "@ann look", "k2")
        assert "attic" not in str([one.data for one in await here.bob.until("room.idle")])


async def test_the_commands_of_a_room_do_what_its_methods_do(tmp_path: Path) -> None:
    async with people(Scripted(), tmp_path) as here:

        async def typed(who: Client, text: str) -> str:
            return str((await here.post(who, text, new_token()))["text"])

        assert await typed(here.alice, "/add cleo moderator") == (
            "alice made cleo a moderator of this room"
        )
        assert await typed(here.alice, "/mute @bob 10m") == "alice muted bob for 10 min"
        assert (
            await here.bob.error("rooms.post", room=here.room, text="hello", key="m")
        ).code == "forbidden"
        assert "is for only" in await typed(here.bob, "/ban cleo")
        assert "bob: member, muted" in await typed(here.bob, "/people")
        assert await typed(here.alice, "/slow 30") == "alice set slow mode: one message in 30 s"
        assert "no time" in await typed(here.alice, "/slow soon")
        assert "mti_" in await typed(here.alice, "/invite reader 7d 1")
        assert "is no role" in await typed(here.alice, "/answers everybody")
        assert "transfer it first" in await typed(here.alice, "/leave")
        await typed(here.alice, "/transfer bob")
        assert await typed(here.alice, "/leave") == "alice left this room"
        assert "To delete" in await typed(here.bob, "/deleteroom")
        assert "is deleted" in await typed(here.bob, f"/deleteroom {here.room}")
        assert (await here.bob.error("rooms.history", room=here.room)).code == "not_found"
        session = await here.bob.result(
            "chat.send", session="s", agent="ann", text="/ban x", key="q"
        )
        assert "about a room" in str(session["text"])
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as base:
        assert not [line for line in base.iterdump() if here.room in line], "nothing names it"
