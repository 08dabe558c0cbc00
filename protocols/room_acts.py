"""Acts of administration in rooms, and the words in which people type them. Pure.

Invariants: an act is data, and is the same from a method, a command in a chat, the command line and
the page; an act in words that are none raises before anything is done. What an act may do, and to
whom, is decided in ``room_people``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.errors import InputValidation
from motet.protocols.events import RoomChanged
from motet.protocols.room_newcomers import NEWCOMERS, Newcomers

RoomRole: TypeAlias = Literal["reader", "member", "moderator", "owner"]
ROLES: Final[tuple[RoomRole, ...]] = ("reader", "member", "moderator", "owner")
"""From the fewest rights to all of them."""
LONGEST_MUTE: Final = 365 * 86_400.0
MOST_RATE: Final = 100
"""Messages of one person in a minute, where a room has such a bound."""
SLOWEST: Final = 21_600.0

UserName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]
Given: TypeAlias = Literal["reader", "member", "moderator"]


def rank(role: RoomRole) -> int:
    return ROLES.index(role)


def span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"


class RoomAct(msgspec.Struct, frozen=True, kw_only=True):
    """One act of administration; its fields are the parameters of its method."""

    room: Name


class AddPerson(RoomAct, frozen=True, kw_only=True):
    """Add a user, or all users of a pattern, or give one who is there another role."""

    user: UserName
    role: Given = "member"


class RemovePerson(RoomAct, frozen=True, kw_only=True):
    """Take a user, or a pattern, out of the room. They may be added again."""

    user: UserName


class MutePerson(RoomAct, frozen=True, kw_only=True):
    """Let a person read and not speak for so many seconds; 0: they may speak again."""

    user: UserName
    seconds: Annotated[float, Meta(ge=0, le=LONGEST_MUTE)] = 3_600.0


class BanPerson(RoomAct, frozen=True, kw_only=True):
    """Take a user out, and keep them out whatever pattern they match; False: lift the ban."""

    user: UserName
    banned: bool = True


class LeaveRoom(RoomAct, frozen=True, kw_only=True):
    """Go, of one's own accord."""


class TransferRoom(RoomAct, frozen=True, kw_only=True):
    """Make a person of the room its owner; the owner so far becomes a moderator."""

    user: UserName


class RenameRoom(RoomAct, frozen=True, kw_only=True):
    """Give the room another title; empty: its name is shown."""

    title: Annotated[str, Meta(max_length=200)]


class SlowRoom(RoomAct, frozen=True, kw_only=True):
    """Set the seconds between two messages of one person; 0: none."""

    seconds: Annotated[float, Meta(ge=0, le=SLOWEST)]


class RateRoom(RoomAct, frozen=True, kw_only=True):
    """Set how many messages one person may send in a minute; 0: any number."""

    messages: Annotated[int, Meta(ge=0, le=MOST_RATE)]


class ArchiveRoom(RoomAct, frozen=True, kw_only=True):
    """Close the room for messages and keep it to be read; False: open it again."""

    archived: bool = True


class SetTerms(RoomAct, frozen=True, kw_only=True):
    """Set who answers approvals, who sees the arguments and results of tools, and what newcomers
    read of the earlier talk; ``newcomers`` None: as the room's definition has it.
    """

    answers: RoomRole | UnsetType = UNSET
    details: RoomRole | UnsetType = UNSET
    newcomers: Newcomers | UnsetType | None = UNSET


ACTS: Final[Mapping[str, type[RoomAct]]] = {
    "rooms.add": AddPerson,
    "rooms.remove": RemovePerson,
    "rooms.mute": MutePerson,
    "rooms.ban": BanPerson,
    "rooms.leave": LeaveRoom,
    "rooms.transfer": TransferRoom,
    "rooms.rename": RenameRoom,
    "rooms.slow": SlowRoom,
    "rooms.rate": RateRoom,
    "rooms.archive": ArchiveRoom,
    "rooms.terms": SetTerms,
}
"""The acts by their methods."""


_USER_ACTS: Final[Mapping[str, Callable[[str, str, str], RoomAct]]] = {
    "add": lambda room, user, rest: AddPerson(room=room, user=user, role=_given(rest)),
    "remove": lambda room, user, _: RemovePerson(room=room, user=user),
    "mute": lambda room, user, rest: MutePerson(
        room=room, user=user, seconds=seconds_of(rest or "1h", LONGEST_MUTE)
    ),
    "unmute": lambda room, user, _: MutePerson(room=room, user=user, seconds=0),
    "ban": lambda room, user, _: BanPerson(room=room, user=user),
    "unban": lambda room, user, _: BanPerson(room=room, user=user, banned=False),
    "transfer": lambda room, user, _: TransferRoom(room=room, user=user),
}
_ROOM_ACTS: Final[Mapping[str, Callable[[str, str], RoomAct]]] = {
    "leave": lambda room, _: LeaveRoom(room=room),
    "title": lambda room, rest: RenameRoom(room=room, title=rest),
    "slow": lambda room, rest: SlowRoom(room=room, seconds=seconds_of(rest, SLOWEST)),
    "rate": lambda room, rest: RateRoom(room=room, messages=_rate(rest)),
    "archive": lambda room, _: ArchiveRoom(room=room),
    "unarchive": lambda room, _: ArchiveRoom(room=room, archived=False),
    "answers": lambda room, rest: SetTerms(room=room, answers=_role(rest)),
    "details": lambda room, rest: SetTerms(room=room, details=_role(rest)),
    "newcomers": lambda room, rest: SetTerms(room=room, newcomers=_newcomers(rest)),
}
WORDS: Final = (*_USER_ACTS, *_ROOM_ACTS)
"""The words for acts, in chats and at the command line."""


def act_of(word: str, room: str, rest: str) -> RoomAct:
    """The act that somebody has typed: ``mute`` and ``bob 10m``. Raises ``InputValidation``."""
    if word in _ROOM_ACTS:
        return _ROOM_ACTS[word](room, rest.strip())
    user, _, rest = rest.strip().removeprefix("@").partition(" ")
    if not user:
        raise InputValidation(f"{word} whom? Give the name of a user, such as bob or irc:bob")
    return _USER_ACTS[word](room, user, rest.strip())


def invited_as(text: str, now: float) -> tuple[Given, float | None, int | None]:
    """Role, end and uses of an invite that somebody has typed, in any order: ``reader 7d 5``."""
    role: Given = "member"
    expires: float | None = None
    uses: int | None = None
    for word in text.split():
        if word.isdecimal():
            uses = int(word)
        elif word in ROLES:
            role = _given(word)
        else:
            expires = now + seconds_of(word, LONGEST_MUTE)
    return role, expires, uses


def method_of(act: RoomAct) -> str:
    return next(name for name, kind in ACTS.items() if kind is type(act))


def _role(text: str) -> RoomRole:
    known: dict[str, RoomRole] = {one: one for one in ROLES}
    if (role := known.get(text)) is None:
        raise InputValidation(f"{text!r} is no role: {', '.join(ROLES)}")
    return role


def _rate(text: str) -> int:
    number = "0" if text == "off" else text
    if not number.isdecimal() or int(number) > MOST_RATE:
        raise InputValidation(f"{text!r} is no number of messages a minute: 1 to {MOST_RATE}, off")
    return int(number)


def _newcomers(text: str) -> Newcomers | None:
    known: dict[str, Newcomers | None] = {one: one for one in NEWCOMERS}
    known["default"] = None
    if text not in known:
        raise InputValidation(f"newcomers read one of {', '.join(known)}, not {text!r}")
    return known[text]


def _given(text: str) -> Given:
    role = _role(text or "member")
    if role == "owner":
        raise InputValidation("a room has one owner: transfer it instead")
    return role


def seconds_of(text: str, most: float) -> float:
    """A time as people write it: ``90``, ``10m``, ``2h``, ``7d``, ``off``."""
    if text == "off":
        return 0.0
    size = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}.get(text[-1:], 0)
    number = text[:-1] if size else text
    if not number.isdecimal() or not 0 <= (found := int(number) * (size or 1)) <= most:
        raise InputValidation(f"{text!r} is no time of at most {span(most)}: 90, 10m, 2h, 7d, off")
    return float(found)


def told(act: RoomAct, by: str) -> RoomChanged:
    """The event that tells the room of an act."""
    match act:
        case AddPerson(user=user, role=role):
            text = f"{by} made {user} a {role} of this room"
        case RemovePerson(user=user):
            text = f"{by} removed {user} from this room"
        case MutePerson(user=user, seconds=seconds):
            how = f"muted {user} for {span(seconds)}" if seconds else f"let {user} speak again"
            text = f"{by} {how}"
        case BanPerson(user=user, banned=banned):
            text = f"{by} banned {user}" if banned else f"{by} lifted the ban of {user}"
        case TransferRoom(user=user):
            text = f"{by} gave this room to {user}"
        case RenameRoom(title=title):
            user, text = "", f"{by} named this room {title!r}" if title else f"{by} took its title"
        case SlowRoom(seconds=seconds):
            how = f"one message in {span(seconds)}" if seconds else "off"
            user, text = "", f"{by} set slow mode: {how}"
        case RateRoom(messages=messages):
            how = f"{messages} messages a minute" if messages else "off"
            user, text = "", f"{by} set the rate of each person: {how}"
        case ArchiveRoom(archived=archived):
            user, text = (
                "",
                f"{by} {'archived this room' if archived else 'opened this room again'}",
            )
        case LeaveRoom():
            user, text = by, f"{by} left this room"
        case SetTerms() if act.newcomers is not UNSET:
            user, text = "", f"{by} set what newcomers read: {act.newcomers or 'as by default'}"
        case _:
            user, text = "", f"{by} changed who answers and who sees the work of tools"
    return RoomChanged(text, by, user)
