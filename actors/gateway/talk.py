"""Methods and commands about messages of rooms, and about the people who read and write them.

Each acts for a principal, through the rooms of the host: a room that the principal may not see does
not exist (G16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from motet.protocols import gateway_rooms as wire
from motet.protocols.command_texts import found_text, invite_text, people_text, summary_text
from motet.protocols.errors import Forbidden, InputValidation
from motet.protocols.host_rooms import HostRooms, RoomPeople
from motet.protocols.room_acts import WORDS, act_of, invited_as
from motet.protocols.room_people import told
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import Principal, Role
from motet.runtime.outside import wall_time

P = TypeVar("P")
Act: TypeAlias = Callable[[HostRooms, Principal, P], Awaitable[object]]

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


async def people(rooms: HostRooms, who: Principal, params: wire.RoomParams) -> RoomPeople:
    return await rooms.people(params.room, principal=who)


async def summary(rooms: HostRooms, who: Principal, params: wire.RoomParams) -> wire.RoomSummary:
    found = await rooms.summary(params.room, principal=who)
    return wire.RoomSummary(params.room, found.upto, found.text)


async def invites(rooms: HostRooms, who: Principal, params: wire.RoomParams) -> wire.RoomInvites:
    return wire.RoomInvites(params.room, await rooms.invites(params.room, principal=who))


async def end_invite(
    rooms: HostRooms, who: Principal, params: wire.RoomsRevokeParams
) -> wire.RoomDone:
    await rooms.revoke_invite(params.room, params.invite, principal=who)
    return wire.RoomDone(params.room)


TALK: Final[dict[str, tuple[Role, type[Any], Act[Any]]]] = {
    "rooms.read": ("viewer", wire.RoomsReadParams, read),
    "rooms.typing": ("operator", wire.RoomsTypingParams, typing),
    "rooms.present": ("viewer", wire.RoomsPresentParams, present),
    "messages.edit": ("operator", wire.MessagesEditParams, edit),
    "messages.delete": ("operator", wire.MessagesDeleteParams, delete),
    "messages.react": ("operator", wire.MessagesReactParams, react),
    "rooms.people": ("viewer", wire.RoomParams, people),
    "rooms.summary": ("viewer", wire.RoomParams, summary),
    "rooms.invites": ("operator", wire.RoomParams, invites),
    "rooms.revoke": ("operator", wire.RoomsRevokeParams, end_invite),
}
"""The methods by name: the least role, the parameters and what they do."""
COUNTED: Final[frozenset[Act[Any]]] = frozenset({edit, react})
"""Those that spend a message of the user."""

# Commands

FOUND: Final = 20  # messages that a search shows
LATELY: Final = 200  # messages among which one's own last one is looked for
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


async def _thread(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    number, text = await _message(rooms, who, room, argument)
    if not text:
        raise InputValidation("what is to be said in the thread? /thread NUMBER TEXT")
    await rooms.post(f"{room}/{number}", text, principal=who)
    return f"Said in the thread of message {number}."


async def _search(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    if not argument:
        raise InputValidation("which words? /search WORDS")
    found = await rooms.history(room, limit=FOUND, query=argument, principal=who)
    return found_text(found, argument)


async def _here(rooms: HostRooms, who: Principal, room: str, _: str) -> str:
    users = await rooms.present(room, principal=who)
    return f"Here now: {', '.join(users)}." if users else "Nobody has this room open."


async def _act(word: str, rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    try:
        act = act_of(word, room, argument)
        await rooms.manage(act, principal=who)
        return told(act, who.user).text
    except (Forbidden, InputValidation) as error:
        return f"Nothing was done: {error}"


async def _people(rooms: HostRooms, who: Principal, room: str, _: str) -> str:
    return people_text(await rooms.people(room, principal=who))


async def _summary(rooms: HostRooms, who: Principal, room: str, _: str) -> str:
    return summary_text(await rooms.summary(room, principal=who))


async def _invite(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    try:
        role, ends, uses = invited_as(argument, wall_time())
        made = await rooms.invite(room, role, expires=ends, uses=uses, principal=who)
    except (Forbidden, InputValidation) as error:
        return f"Nothing was done: {error}"
    return invite_text(made)


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
    "edit": _edit, "delete": _delete, "react": _react, "thread": _thread, "search": _search,
    "here": _here, "people": _people, "summary": _summary, "invite": _invite,
    **{word: partial(_act, word) for word in WORDS},
}  # fmt: skip
