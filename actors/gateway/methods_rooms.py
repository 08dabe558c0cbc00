"""The methods of ``motet.v1`` about rooms: see gateway.md, section 3."""

from __future__ import annotations

from typing import Final

from motet.actors.commands.parse import message_text, parse_command
from motet.actors.gateway.method import Answer, Caller, Method, fitting, method
from motet.actors.gateway.methods_stop import command_answer
from motet.protocols import gateway_rooms as wire
from motet.protocols.gateway import NoParams


async def _list(caller: Caller, _params: NoParams) -> Answer:
    return Answer(wire.RoomsList(await caller.api.rooms.list(principal=caller.principal)))


async def _create(caller: Caller, params: wire.RoomsCreateParams) -> Answer:
    caller.spend_message()
    made = await caller.api.rooms.create(
        params.name, params.plan, people=params.people, principal=caller.principal
    )
    return Answer(made)


async def _set(caller: Caller, params: wire.RoomsSetParams) -> Answer:
    info = await caller.api.rooms.change(params.room, params, principal=caller.principal)
    return Answer(info)


async def _post(caller: Caller, params: wire.RoomsPostParams) -> Answer:
    command = parse_command(params.text)
    if command is not None:
        if not command.stops:
            await caller.api.rooms.get(params.room, principal=caller.principal)
        return await command_answer(caller, "", command, params.key, room=params.room)
    caller.spend_message()
    said = await caller.api.rooms.post(
        params.room, message_text(params.text), key=params.key, principal=caller.principal
    )
    return Answer(wire.Posted(said.seq, "duplicate" if said.duplicate else "accepted"))


async def _history(caller: Caller, params: wire.RoomsHistoryParams) -> Answer:
    found = await caller.api.rooms.history(
        params.room, before=params.before, limit=params.limit, principal=caller.principal
    )
    kept = tuple(reversed(fitting(tuple(reversed(found)))))
    before = kept[0].seq if kept and kept[0].seq > 1 else None
    return Answer(wire.RoomsHistory(params.room, kept, before))


ROOMS: Final[tuple[Method, ...]] = (
    method("rooms.list", "viewer", NoParams, _list),
    method("rooms.history", "viewer", wire.RoomsHistoryParams, _history),
    method("rooms.create", "operator", wire.RoomsCreateParams, _create),
    method("rooms.set", "operator", wire.RoomsSetParams, _set),
    method("rooms.post", "operator", wire.RoomsPostParams, _post),
)
