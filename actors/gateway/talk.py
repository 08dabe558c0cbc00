"""Methods and commands about messages of rooms, and about the people who read and write them.

Each acts for a principal, through the rooms of the host: a room that the principal may not see does
not exist (G16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from motet.protocols import gateway_rooms as wire
from motet.protocols.errors import InputValidation
from motet.protocols.host_rooms import HostRooms
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import Principal

# Methods


async def edit(rooms: HostRooms, who: Principal, params: wire.MessagesEditParams) -> RoomMessage:
    return await rooms.edit_message(params.room, params.number, params.text, principal=who)


async def delete(
    rooms: HostRooms, who: Principal, params: wire.MessagesDeleteParams
) -> RoomMessage:
    return await rooms.delete_message(params.room, params.number, principal=who)


async def react(rooms: HostRooms, who: Principal, params: wire.MessagesReactParams) -> RoomMessage:
    room, number, reaction = params.room, params.number, params.reaction
    return await rooms.react(room, number, reaction, on=params.on, principal=who)


async def read(rooms: HostRooms, who: Principal, params: wire.RoomsReadParams) -> object:
    await rooms.mark_read(params.room, params.number, principal=who)
    return params


async def typing(rooms: HostRooms, who: Principal, params: wire.RoomsTypingParams) -> object:
    await rooms.typing(params.room, on=params.on, principal=who)
    return params


async def present(
    rooms: HostRooms, who: Principal, params: wire.RoomsPresentParams
) -> wire.RoomsPresent:
    return wire.RoomsPresent(params.room, await rooms.present(params.room, principal=who))


# Commands

LATELY: Final = 200
"""Messages among which one's own last one is looked for."""
RoomCommand: TypeAlias = Callable[[HostRooms, Principal, str, str], Awaitable[str]]


async def _edit(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    number, text = await _message(rooms, who, room, argument)
    await rooms.edit_message(room, number, text, principal=who)
    return f"Message {number} has another text."


async def _delete(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    number, _ = await _message(rooms, who, room, argument)
    await rooms.delete_message(room, number, principal=who)
    return f"Message {number} is withdrawn."


async def _react(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    number, wanted = await _message(rooms, who, room, argument)
    sign, _, off = wanted.partition(" ")
    on = off.strip() != "off"
    await rooms.react(room, number, sign, on=on, principal=who)
    return f"You react to message {number} with {sign}{'' if on else ' no more'}."


async def _here(rooms: HostRooms, who: Principal, room: str, _: str) -> str:
    users = await rooms.present(room, principal=who)
    return f"Here now: {', '.join(users)}." if users else "Nobody has this room open."


async def _message(rooms: HostRooms, who: Principal, room: str, argument: str) -> tuple[int, str]:
    """The message that a command is about, and the rest of its argument. ``last``: one's own."""
    which, _, rest = argument.partition(" ")
    number = int(which) if which.isdecimal() and len(which) < 10 else 0
    if which == "last":
        said = await rooms.history(room, limit=LATELY, principal=who)
        people = (one for one in said if one.kind == "person" and not one.deleted)
        number = max((one.seq for one in people if one.author == who.user), default=0)
    if not number:
        raise InputValidation("which message? Give its number in the room, or `last` for your own")
    return number, rest.strip()


ROOM_COMMANDS: Final[dict[str, RoomCommand]] = {
    "edit": _edit,
    "delete": _delete,
    "react": _react,
    "here": _here,
}
