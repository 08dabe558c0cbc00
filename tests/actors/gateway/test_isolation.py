"""User B cannot see, stop, subscribe to or infer anything of user A's: one test for each method.

A method without a row in :data:`ROWS` fails its test, so that none is added without one.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Literal, TypeAlias

import attrs
import msgspec
import pytest
import trio.testing

from motet.actors.gateway.methods import METHODS
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from tests.actors.gateway.alices import ADMIN, BOB, SECRET, World, alices
from tests.actors.gateway.fakes import Client, connected

Told: TypeAlias = Literal["not_found", "nothing", "forbidden", "own"]
"""The answer for Bob: there is no such thing, an empty list, it is for admins, or only his own
things."""


@attrs.frozen
class Row:
    """Parameters with ``{names}`` of Alice's things, and the answer.

    ``alike``: with unknown names, Bob gets the very same answer.
    """

    told: Told
    params: tuple[JsonObject, ...] = ({},)
    alike: bool = True


SESSION: JsonObject = {"session": "{session}"}
KEY = {"key": "k"}
ROOM: JsonObject = {"room": "{room}"}
ROWS: dict[str, Row] = {
    "connect": Row("own", ({"resume": {"session:{session}": 0}},), alike=False),
    "ping": Row("own", alike=False),
    "status": Row("own", alike=False),
    "agents.list": Row("own"),
    "tools.list": Row("forbidden", ({"agent": "helper", "as": "alice"},)),
    # A name that is free can be taken by whoever comes first: there the answers differ.
    "chat.send": Row(
        "not_found",
        ({**SESSION, **KEY, "text": "hi"}, {"session": "{live}", "text": "hi", **KEY}),
        alike=False,
    ),
    "chat.inject": Row("not_found", ({**SESSION, **KEY, "text": "hi"},)),
    "subscribe": Row(
        "not_found",
        (
            {"stream": "session:{session}"},
            {"stream": "session:{live}", "after": 0},
            {"stream": "room:{room}", "after": 0},
        ),
        alike=False,
    ),
    "unsubscribe": Row("own", ({"stream": "session:{session}"},)),
    "sessions.list": Row("nothing"),
    "sessions.history": Row("not_found", (SESSION,)),
    "sessions.reset": Row("not_found", (SESSION,)),
    "sessions.compact": Row("not_found", (SESSION,)),
    "sessions.delete": Row("not_found", (SESSION, {"session": "{live}"})),
    "runs.list": Row("nothing", ({}, SESSION, {"session": "{live}", "status": "running"})),
    "runs.get": Row("not_found", ({"run_id": "{run_id}"},)),
    "runs.wait": Row("not_found", ({"run_id": "{run_id}", "timeout_ms": 0},)),
    "runs.resend": Row("not_found", ({"run_id": "{run_id}"},)),
    "runs.stop": Row(
        "own",
        ({"session": "{live}", **KEY}, {"run_id": "{run_id}", **KEY}, {"all": True, **KEY}),
    ),
    "rooms.list": Row("nothing"),
    "rooms.get": Row("not_found", ({"room": "{room}"},)),
    "rooms.history": Row("not_found", ({"room": "{room}"},)),
    "rooms.create": Row("own", ({"name": "{room}", "members": ["helper"]},), alike=False),
    "rooms.set": Row("not_found", ({"room": "{room}", "people": ["bob"]},)),
    "rooms.post": Row(
        "not_found",
        (
            {"room": "{room}", "text": "hi", **KEY},
            {"room": "{room}", "text": "/status", **KEY},
        ),
    ),
    "rooms.people": Row("not_found", (ROOM,)),
    "rooms.summary": Row("not_found", (ROOM,)),
    "rooms.add": Row("not_found", ({**ROOM, "user": "bob"}, {**ROOM, "user": "*"})),
    "rooms.remove": Row("not_found", ({**ROOM, "user": "carol"},)),
    "rooms.mute": Row("not_found", ({**ROOM, "user": "carol"},)),
    "rooms.ban": Row("not_found", ({**ROOM, "user": "carol"},)),
    "rooms.leave": Row("not_found", (ROOM,)),
    "rooms.transfer": Row("not_found", ({**ROOM, "user": "bob"},)),
    "rooms.rename": Row("not_found", ({**ROOM, "title": "mine"},)),
    "rooms.slow": Row("not_found", ({**ROOM, "seconds": 60},)),
    "rooms.rate": Row("not_found", ({**ROOM, "messages": 6},)),
    "rooms.archive": Row("not_found", (ROOM,)),
    "rooms.terms": Row("not_found", ({**ROOM, "answers": "member"},)),
    "rooms.invite": Row("not_found", (ROOM,)),
    "rooms.invites": Row("not_found", (ROOM,)),
    "rooms.revoke": Row("not_found", ({**ROOM, "invite": "{invite}"},)),
    "rooms.join": Row("not_found", ({"token": "{token}"}, {"token": "{invite}"})),
    "rooms.export": Row("not_found", (ROOM,)),
    "rooms.delete": Row("not_found", (ROOM,)),
    "rooms.read": Row("not_found", ({"room": "{room}", "number": 1},)),
    "rooms.typing": Row("not_found", ({"room": "{room}"}, {"room": "{room}", "on": False})),
    "rooms.present": Row("not_found", ({"room": "{room}"},)),
    "messages.edit": Row("not_found", ({"room": "{room}", "number": 1, "text": "hi"},)),
    "messages.delete": Row("not_found", ({"room": "{room}", "number": 1},)),
    "messages.react": Row("not_found", ({"room": "{room}", "number": 1, "reaction": "+1"},)),
    "escalations.list": Row("nothing", ({}, {"session": "al:bad"})),
    "escalations.resolve": Row(
        "not_found", ({"escalation": "{escalation}", "decision": "give_up", **KEY},)
    ),
    "approvals.list": Row("nothing", ({}, {"session": "al:ask"})),
    "approvals.resolve": Row("not_found", ({"id": "{approval}", "decision": "allow-once", **KEY},)),
    "approvals.grants": Row("nothing", ({}, {"agent": "granted"})),
    "approvals.revoke": Row("not_found", ({"grant": "{grant}", **KEY},)),
    "errors.list": Row("nothing", ({}, {"session": "al:bad"}, {"tool": "fail"})),
    "errors.get": Row("not_found", ({"id": "{error}"},)),
    "traces.list": Row("nothing", ({}, SESSION, {"agent": "helper"})),
    "traces.get": Row("not_found", ({"run_id": "{run_id}"},)),
    "config.get": Row("forbidden"),
    "config.reload": Row("forbidden"),
    "actors.list": Row("forbidden"),
    "logs.tail": Row("forbidden"),
    "tokens.list": Row("forbidden"),
    "tokens.new": Row("forbidden", ({"user": "alice"},)),
    "tokens.revoke": Row("forbidden", ({"id": "{token}"},)),
    "users.delete": Row("forbidden", ({"user": "alice", "rooms": "delete"},)),
}
COMMANDS = ("/status", "/stop", "stop", "/new", "/approve {approval} allow-once", "/stopall")


def filled(params: JsonObject, names: dict[str, str]) -> JsonObject:
    """The same with the names put in."""
    text = msgspec.json.encode(params).decode()
    for name, known in names.items():
        text = text.replace(f"{{{name}}}", known)
    return msgspec.json.decode(text, type=JsonObject)


async def asked(client: Client, method: str, params: JsonObject, names: dict[str, str]) -> str:
    """The answer as it came over the wire, without the names of Bob's own request."""
    given = filled(params, names)
    if "key" in given:
        given["key"] = token_hex(4)
    answer = await client.ask(method, **given)
    frame = wire.encode(msgspec.structs.replace(answer, id="1"))
    for name in names.values():
        frame = frame.replace(name, "…")
    return frame


def check(told: Told, frame: str) -> None:
    answer = wire.decode_frame(frame)
    assert isinstance(answer, wire.ResponseFrame)
    if told in ("not_found", "forbidden"):
        assert isinstance(answer.error, wire.ErrorBody), frame
        assert answer.error.code == told
    elif told == "nothing":
        assert answer.ok, frame
        assert not any(msgspec.convert(answer.result, dict[str, object]).values()), frame


async def heard_nothing(world: World, client: Client, before: bytes) -> None:
    """No event came, and Alice has what she had."""
    await client.ask("ping")
    await trio.testing.wait_all_tasks_blocked()
    assert [event for event in client.events if event.stream != wire.SYSTEM_STREAM] == []
    assert await world.state() == before


@pytest.mark.parametrize("method", sorted(METHODS))
async def test_no_method_shows_or_changes_the_things_of_another_user(method: str) -> None:
    row = ROWS[method]
    async with alices() as world, connected(world.context, BOB) as client:
        before = await world.state()
        for params in row.params:
            frame = await asked(client, method, params, world.known)
            assert SECRET not in frame
            assert "al:" not in frame
            check(row.told, frame)
            if row.alike:
                assert frame == await asked(client, method, params, world.unknown)
        await heard_nothing(world, client, before)


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_in_a_foreign_session_changes_nothing(command: str) -> None:
    params: JsonObject = {"session": "{live}", "text": command, "key": "k"}
    async with alices() as world, connected(world.context, BOB) as client:
        before = await world.state()
        frame = await asked(client, "chat.send", params, world.known)
        assert SECRET not in frame
        assert world.known["run_id"] not in frame
        await heard_nothing(world, client, before)


async def test_only_admins_see_the_counts_of_all_users() -> None:
    async with alices() as world:
        async with connected(world.context, BOB) as client:
            status = await client.result("status")
            assert (status["live_sessions"], status["running"]) == (0, 0)
        async with connected(world.context, ADMIN) as client:
            assert (await client.result("status"))["running"] == 1


async def test_an_admin_sees_what_is_hidden_from_bob() -> None:
    """The names are right: the same requests find something for a user who may see it."""
    async with alices() as world, connected(world.context, ADMIN) as client:
        for method, row in sorted(ROWS.items()):
            if method not in METHODS or row.told != "not_found" or METHODS[method].role != "viewer":
                continue
            for params in row.params:
                frame = await asked(client, method, params, world.known)
                assert '"ok":true' in frame, (method, frame)
