"""Methods and commands about messages of rooms, and about the people who read and write them.

Each acts for a principal, through the rooms of the host: a room that the principal may not see does
not exist (G16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from motet.protocols import gateway_rooms as wire
from motet.protocols.command_texts import (
    export_text,
    found_text,
    here_text,
    invite_text,
    invites_text,
    people_text,
    summary_text,
)  # fmt: skip
from motet.protocols.errors import Forbidden, InputValidation
from motet.protocols.host_rooms import HostRooms
from motet.protocols.room_acts import WORDS, act_of, invited_as, told
from motet.protocols.room_newcomers import Summary
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


def shows(name: str, wrap: Callable[[str, Any], object] | None = None) -> Act[wire.RoomParams]:
    """A method that shows something of a room; ``wrap``: makes its answer of the room and that."""

    async def show(rooms: HostRooms, who: Principal, params: wire.RoomParams) -> object:
        found = await getattr(rooms, name)(params.room, principal=who)
        return wrap(params.room, found) if wrap else found

    return show


def brief(room: str, found: Summary) -> wire.RoomSummary:
    return wire.RoomSummary(room, found.upto, found.text)


async def end_invite(
    rooms: HostRooms, who: Principal, params: wire.RoomsRevokeParams
) -> wire.RoomDone:
    await rooms.revoke_invite(params.room, params.invite, principal=who)
    return wire.RoomDone(params.room)


TALK: Final[dict[str, tuple[Role, type[Any], Act[Any]]]] = {
    "rooms.read": ("viewer", wire.RoomsReadParams, read),
    "rooms.typing": ("operator", wire.RoomsTypingParams, typing),
    "rooms.present": ("viewer", wire.RoomsPresentParams, shows("present", wire.RoomsPresent)),
    "messages.edit": ("operator", wire.MessagesEditParams, edit),
    "messages.delete": ("operator", wire.MessagesDeleteParams, delete),
    "messages.react": ("operator", wire.MessagesReactParams, react),
    "rooms.people": ("viewer", wire.RoomParams, shows("people")),
    "rooms.summary": ("viewer", wire.RoomParams, shows("summary", brief)),
    "rooms.invites": ("operator", wire.RoomParams, shows("invites", wire.RoomInvites)),
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


def _shown(name: str, text: Callable[[Any], str]) -> RoomCommand:
    """A command that shows the same in words."""

    async def shown(rooms: HostRooms, who: Principal, room: str, _: str) -> str:
        return text(await getattr(rooms, name)(room, principal=who))

    return shown


async def _revoke(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    await rooms.revoke_invite(room, argument, principal=who)
    return f"The invite {argument} is over."


async def _export(rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    after = int(argument) if argument.isdecimal() and len(argument) < 10 else 0
    return export_text(await rooms.export(room, after=after, principal=who), first=not after)


async def _act(word: str, rooms: HostRooms, who: Principal, room: str, argument: str) -> str:
    try:
        act = act_of(word, room, argument)
        await rooms.manage(act, principal=who)
        return told(act, who.user).text
    except (Forbidden, InputValidation) as error:
        return f"Nothing was done: {error}"


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
    "here": _shown("present", here_text), "people": _shown("people", people_text),
    "summary": _shown("summary", summary_text), "invites": _shown("invites", invites_text),
    "invite": _invite, "revoke": _revoke, "export": _export,
    **{word: partial(_act, word) for word in WORDS},
}  # fmt: skip
