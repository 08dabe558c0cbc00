"""The methods of the client about rooms, at a real gateway: what each returns, and a refusal."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

import motet
from motet.client import connect
from motet.client.requests import RequestFailed
from motet.protocols.config import GatewayConfig
from motet.protocols.gateway_rooms import Posted
from motet.protocols.room_acts import MutePerson
from motet.protocols.rooms import RoomChange, RoomPlan
from tests.actors.rooms.talk import agent


async def refused(act: Awaitable[object], code: str) -> None:
    with pytest.raises(RequestFailed) as found:
        await act
    assert found.value.code == code


async def test_each_method_about_rooms_returns_what_it_says_and_refuses_strangers() -> None:
    async with motet.open_host(agents=[agent("ann", "yes"), agent("ben", "yes")]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        tokens = [(await host.new_token(name, "operator")).token for name in ("alice", "bob")]
        async with connect(url, token=tokens[0]) as alice, connect(url, token=tokens[1]) as bob:
            plan = RoomPlan(("ann",), speakers=("mentions",))
            room = (await alice.create_room("den", plan)).name
            await refused(alice.create_room("den", RoomPlan(("nobody",))), "unknown_agent")
            assert [one.name for one in await alice.rooms(query="den")] == [room]
            assert await bob.rooms() == ()
            made = await alice.invite(room, "member", uses=1)
            assert [one.id for one in await alice.invites(room)] == [made.invite.id]
            await refused(bob.invites(room), "not_found")
            await refused(bob.invite(room), "not_found")
            assert (await bob.join(made.token)).role == "member"
            await refused(bob.join("mti_none"), "not_found")
            other = await alice.invite(room)
            await alice.revoke_invite(room, other.invite.id)
            await refused(alice.revoke_invite(room, other.invite.id), "not_found")

            said = await bob.post(room, "hello")
            assert isinstance(said, Posted)
            number = said.seq
            await refused(bob.post(room, ""), "invalid_params")
            assert (await bob.edit(room, number, "hello all")).text == "hello all"
            await refused(alice.edit(room, number, "no"), "not_found")
            (reaction,) = (await alice.react(room, number, "+1")).reactions
            assert reaction.users == ("alice",)
            await refused(alice.react(room, 99, "+1"), "not_found")
            await alice.mark_read(room, number)
            assert [one.unread for one in await alice.rooms()] == [0]
            await refused(alice.mark_read("elsewhere", 1), "not_found")
            async with bob.stream(f"room:{room}"):
                while await alice.present(room) != ("bob",):
                    pass  # each question is a request of its own
            await refused(alice.present("elsewhere"), "not_found")
            await bob.typing(room)
            await refused(bob.typing("elsewhere"), "not_found")

            history = (await bob.room_history(room)).messages
            assert [one.text for one in history] == ["hello all"]
            await refused(bob.room_history("elsewhere"), "not_found")
            assert (await bob.room_summary(room)).text == ""
            await refused(bob.room_summary("elsewhere"), "not_found")
            assert [one.user for one in (await bob.room_people(room)).people] == ["bob"]
            await refused(bob.room_people("elsewhere"), "not_found")
            muted = await alice.manage_room(MutePerson(room=room, user="bob", seconds=60))
            assert muted.people[0].muted > 0
            await refused(bob.manage_room(MutePerson(room=room, user="alice")), "forbidden")
            await refused(bob.post(room, "and"), "forbidden")
            assert (await alice.export_room(room)).messages[0].text == "hello all"
            await refused(bob.export_room(room), "forbidden")
            changed = await alice.change_room(room, RoomChange(members=("ann", "ben")))
            assert changed.plan is not None
            assert changed.plan.members == ("ann", "ben")
            await refused(bob.change_room(room, RoomChange(max_turns=2)), "forbidden")
            assert (await alice.delete(room, number)).deleted
            await refused(bob.delete(room, 99), "not_found")
            await refused(bob.delete_room(room), "forbidden")
            await alice.delete_room(room)
            assert await alice.rooms() == ()
