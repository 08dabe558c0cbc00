"""The people of a room: their roles, one table of rights, and the rules of administration. Pure.

Invariants: a person has one role in a room; a right belongs to a role and to all roles above it;
nobody acts on a person of their own role or a higher one, nor gives such a role away; a ban wins
over every pattern; a host's admin has the rights of an owner in every room. A decision names the
rows that change and no others, so that two at once lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from motet.protocols.errors import Forbidden, InputValidation, MotetError, NotFound
from motet.protocols.events import (
    ApprovalRequested,
    ChildStarted,
    EventRecord,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
)
from motet.protocols.room_acts import (
    AddPerson,
    ArchiveRoom,
    BanPerson,
    Given,
    LeaveRoom,
    MutePerson,
    RateRoom,
    RemovePerson,
    RenameRoom,
    RoomAct,
    RoomRole,
    SetTerms,
    SlowRoom,
    TransferRoom,
    rank,
    span,
)
from motet.protocols.room_newcomers import ALL, DEFAULT, NOTHING, Hidden, Newcomers
from motet.protocols.sessions import Principal

RoomRight: TypeAlias = Literal[
    "read", "leave", "post", "stop", "add", "remove", "mute", "ban", "slow", "moderate", "invite",
    "details", "answer", "inspect", "set", "rename", "archive", "export", "transfer", "delete",
]  # fmt: skip

LEAST: Final[Mapping[RoomRight, RoomRole]] = {
    "read": "reader",
    "leave": "reader",
    "post": "member",
    "stop": "member",
    "add": "moderator",
    "remove": "moderator",
    "mute": "moderator",
    "ban": "moderator",
    "slow": "moderator",
    "moderate": "moderator",  # withdraw messages of others
    "invite": "moderator",
    "details": "moderator",  # arguments and results of tools; a room's terms may say otherwise
    "answer": "owner",  # approvals and escalations; a room's terms may say otherwise
    "inspect": "owner",  # errors, usage, traces and grants of its members
    "set": "owner",
    "rename": "owner",
    "archive": "owner",
    "export": "owner",
    "transfer": "owner",
    "delete": "owner",
}
"""The table of rights: for each, the lowest role that has it."""

_HERE = ("read", "post", "stop", "moderate", "details", "answer", "inspect", "export")
EVERYBODY: Final = "*"
"""The pattern of all users of the host."""


class RoomPerson(msgspec.Struct, frozen=True):
    """A user of a room besides its owner, or a pattern of users: ``irc:*``, ``*``.

    Attributes:
        role: empty: they stand in a pattern or a configuration, and have a row for a mute, a ban or
            a visit; ``left``: they have left, whatever pattern they match.
        joined: number of the room's last message when they came; 0: they were there from the start.
            In a change: -1 for these, else the number is taken when it is stored.
        since: Unix seconds.
        muted: Unix seconds until which they may not speak.
        banned: they may not come back, whatever pattern they match.
        event: number of the last event of the room's stream when they came.
        came: they have visited the room since they were added.
    """

    user: str
    role: RoomRole | Literal["", "left"] = "member"
    joined: int = 0
    since: float = 0.0
    muted: float = 0.0
    banned: bool = False
    event: int = 0
    came: bool = False

    @property
    def given(self) -> RoomRole | None:
        """The role that they were given here."""
        role = self.role
        return None if role == "" or role == "left" else role


class RoomTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """The terms of a room for its people; they change at once.

    Attributes:
        title: shown in place of the name. The name stays, as keys, streams and sessions have it.
        slow: seconds between two messages of one person, moderators excepted.
        rate: messages of one person in a minute, moderators excepted; 0: any number.
        answers: the lowest role that answers approvals and escalations of its members.
        details: the lowest role that sees the arguments and results of tools.
        newcomers: what newcomers read of the earlier talk; None: as the room's definition has it.
        archived: Unix seconds; it takes no messages and is not listed by default. 0: it is in use.
    """

    title: str = ""
    slow: float = 0.0
    answers: RoomRole = "owner"
    details: RoomRole = "moderator"
    archived: float = 0.0
    newcomers: Newcomers | None = None
    rate: int = 0

    def fits(self, name: str, query: str, *, archived: bool) -> bool:
        """Whether a room of these terms belongs in a list, as the SQL of lists has it."""
        found = query.lower() in f"{name} {self.title}".lower()
        return found and bool(self.archived) == archived

    @property
    def least(self) -> Mapping[RoomRight, RoomRole]:
        """The table of rights under these terms."""
        return {**LEAST, "answer": self.answers, "details": self.details}


class PeopleChange(msgspec.Struct, frozen=True):
    """The rows and fields of a room that an act changes.

    Attributes:
        put: rows to add; of one that is there only role, muted and banned change.
        gone: rows to remove.
        revoked: users whose invites end.
    """

    put: tuple[RoomPerson, ...] = ()
    gone: tuple[str, ...] = ()
    owner: str | None = None
    terms: RoomTerms | None = None
    revoked: tuple[str, ...] = ()


TERMS: Final = RoomTerms()
People: TypeAlias = Mapping[str, RoomPerson]


class Standing(msgspec.Struct, frozen=True):
    """All that rights in a room follow from.

    Attributes:
        owner: empty: the room is the host's.
        people: by user and pattern, those of a configuration included.
        configured: those whom a configuration or a program names: they cannot be removed here.
        thread: number of the message whose thread it is, which is administered in its room only;
            0: it is a room. Who is not shown the message is not shown its thread.
        newcomers: what its definition says of them.
    """

    room: str
    owner: str = ""
    people: People = {}
    terms: RoomTerms = TERMS
    configured: frozenset[str] = frozenset()
    thread: int = 0
    newcomers: Newcomers = DEFAULT

    def role(self, who: Principal) -> RoomRole | None:
        """The role of a principal; None: the room does not exist for them (G16)."""
        role = self._role(who)
        return None if self.thread and self._hides(who, role).messages >= self.thread else role

    def _role(self, who: Principal) -> RoomRole | None:
        if who.role == "admin" or (self.owner and who.user == self.owner):
            return "owner"
        for one in rows_of(who.user, self.people):
            if one.banned or one.role == "left":
                return None
            if one.given:
                return one.given
        return None

    def may(self, who: Principal, right: RoomRight) -> bool:
        role = self.role(who)
        here = not self.thread or right in _HERE
        return here and role is not None and rank(role) >= rank(self.terms.least[right])

    def demand(self, who: Principal, right: RoomRight) -> RoomRole:
        """The role of a principal. Raises ``NotFound``, and ``Forbidden`` without the right."""
        role = self.role(who)
        if role is None:
            raise NotFound(f"no room {self.room!r}")
        if not self.may(who, right):
            least = self.terms.least[right]
            only = "owner" if least == "owner" else f"{least}s and those above them"
            word = "title" if right == "rename" else right  # as people type it
            raise Forbidden(f"in the room {self.room!r}, {word!r} is for only its {only}")
        return role

    def hidden(self, who: Principal) -> Hidden:
        """What of the earlier talk a principal is not shown.

        Moderators, and those whom a definition names, are no newcomers. A user of a pattern is one
        from their first visit on, and is shown nothing before it (:meth:`arrival`).
        """
        return self._hides(who, self._role(who))

    def _hides(self, who: Principal, role: RoomRole | None) -> Hidden:
        own = self.people.get(who.user)
        if role is None or not self._is_new(who, role):
            return NOTHING
        return ALL if own is None or self._comes_anew(own) else Hidden(own.joined, own.event)

    def _comes_anew(self, own: RoomPerson) -> bool:
        """Whether somebody comes with their first visit, and not when they were added."""
        return not own.came and (not own.role or (self.reads == "none" and own.joined > 0))

    def _is_new(self, who: Principal, role: RoomRole) -> bool:
        named = who.user in self.configured
        return self.reads != "all" and rank(role) < rank("moderator") and not named

    @property
    def reads(self) -> Newcomers:
        """What newcomers read."""
        return self.terms.newcomers or self.newcomers

    def arrival(self, who: Principal) -> PeopleChange | None:
        """The change that the first visit of a newcomer makes; None: it is no such visit."""
        role, own = self._role(who), self.people.get(who.user)
        if role is None or (own and own.came) or not self._is_new(who, role):
            return None
        row = replace(own or RoomPerson(who.user, ""), came=True)
        anew = own is not None and self._comes_anew(own)
        return PeopleChange(put=(row,), gone=(who.user,) if anew else ())

    def after(self, change: PeopleChange) -> Standing:
        """The same after a change, but for the numbers of those who come with it."""
        people = {user: one for user, one in self.people.items() if user not in change.gone}
        for one in change.put:
            role = "member" if not one.role and one.user in self.configured else one.role
            own = people.get(one.user, one)
            new = {"muted": one.muted, "banned": one.banned, "came": own.came or one.came}
            people[one.user] = replace(own, role=role, **new)
        named = {user: RoomPerson(user) for user in self.configured}
        owner, terms = self.owner if change.owner is None else change.owner, change.terms
        return replace(self, owner=owner, people=named | people, terms=terms or self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """Those who may see the room besides its owner, by name."""
        return tuple(
            sorted(one.user for one in self.people.values() if one.given and not one.banned)
        )


def is_gone(who: Principal, before: Standing, after: Standing) -> bool:
    """Whether somebody was in a room and is not any more."""
    return before.role(who) is not None and after.role(who) is None


def audience(configured: Iterable[str], stored: Iterable[RoomPerson]) -> dict[str, RoomPerson]:
    """The people of a room; what is stored of a person wins over a configuration."""
    people = {name: RoomPerson(name) for name in configured}
    for one in stored:
        named = not one.role and one.user in people
        people[one.user] = replace(one, role="member") if named else one
    return people


def is_pattern(user: str) -> bool:
    return user == EVERYBODY or user.endswith(":*")


def candidates(user: str) -> tuple[str, ...]:
    """The rows that a user can stand in, the most telling first: ``irc:bob``, ``irc:*``, ``*``."""
    parts = user.split(":")
    heads = (":".join(parts[:end]) + ":*" for end in range(len(parts) - 1, 0, -1))
    return (user, *heads, EVERYBODY)


def rows_of(user: str, people: People) -> tuple[RoomPerson, ...]:
    """The rows that a user stands in, their own first, then those of longer patterns."""
    if is_pattern(user):  # no user is called so, and none may pass as everybody
        return ()
    return tuple(people[one] for one in candidates(user) if one in people)


# Speaking


MINUTE: Final = 60.0


class SlowDown(MotetError):
    """The room is in slow mode, or its rate is used up: ``retry_after`` seconds, then again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def mute_of(room: Standing, seconds: float) -> Forbidden:
    """The refusal of what somebody does who is muted for so long."""
    return Forbidden(f"you are muted in the room {room.room!r} for {span(seconds)}")


def refusal(
    room: Standing,
    who: Principal,
    *,
    invited: bool,
    now: float,
    lately: Sequence[float] = (),
    steady: float | None = None,
    muted: float | None = None,
) -> MotetError | None:
    """The reason why a message is not taken; None: it is.

    ``invited``: its author has to be among the people still; else a program vouches for them.
    ``lately``: when they have spoken, the last time last, by a clock that is now at ``steady``;
    ``muted``: seconds for which they may not speak. None: by the clock that ``now`` is of.
    """
    role, rows = room.role(who), rows_of(who.user, room.people)
    if role is None and (invited or any(one.banned for one in rows)):
        return NotFound(f"no room {room.room!r}")
    if room.terms.archived:
        return Forbidden(f"the room {room.room!r} is archived: its owner can open it again")
    if role is not None and rank(role) < rank(LEAST["post"]):
        return Forbidden(f"you are {role} of the room {room.room!r}: you cannot speak in it")
    if role == "owner":
        return None
    muted = max((one.muted - now for one in rows), default=0.0) if muted is None else muted
    if muted > 0:
        return mute_of(room, muted)
    if role is not None and rank(role) >= rank("moderator"):
        return None
    steady = now if steady is None else steady
    wait, most = lately[-1] + room.terms.slow - steady if lately else 0.0, room.terms.rate
    full = lately[-most] + MINUTE - steady if most and len(lately) >= most else 0.0
    if full > max(wait, 0.0):
        return SlowDown(f"{most} messages a minute are the limit: yours in {span(full)}", full)
    if wait > 0:
        return SlowDown(
            f"slow mode: one message in {span(room.terms.slow)}; yours in {span(wait)}", wait
        )
    return None


# Administration


def decide(room: Standing, who: Principal, act: RoomAct, now: float) -> PeopleChange:
    """The change that an act of a principal makes.

    Raises ``NotFound`` to those for whom there is no such room, ``Forbidden`` without the right,
    ``InputValidation`` for what cannot be.
    """
    match act:
        case AddPerson(user=user, role=role):
            return _add(room, who, user, role)
        case RemovePerson(user=user):
            return _remove(room, who, user, now)
        case MutePerson(user=user, seconds=seconds):
            person = _below(room, who, user, "mute")
            return PeopleChange(put=(replace(person, muted=now + seconds if seconds else 0.0),))
        case BanPerson(user=user, banned=banned):
            return _ban(room, who, user, now, banned=banned)
        case LeaveRoom():
            return _leave(room, who, now)
        case TransferRoom(user=user):
            return _transfer(room, who, user)
        case RenameRoom(title=title):
            room.demand(who, "rename")
            return PeopleChange(terms=replace(room.terms, title=" ".join(title.split())))
        case SlowRoom(seconds=seconds):
            room.demand(who, "slow")
            return PeopleChange(terms=replace(room.terms, slow=seconds))
        case RateRoom(messages=messages):
            room.demand(who, "slow")
            return PeopleChange(terms=replace(room.terms, rate=messages))
        case ArchiveRoom(archived=archived):
            room.demand(who, "archive")
            since = room.terms.archived or now
            return PeopleChange(terms=replace(room.terms, archived=since if archived else 0.0))
        case SetTerms():
            room.demand(who, "set")
            named = ((name, getattr(act, name)) for name in ("answers", "details", "newcomers"))
            kept = {name: value for name, value in named if value is not UNSET}
            # Who is here has visited the room: nobody asked while newcomers read all.
            here = () if act.newcomers is UNSET else tuple(room.people.values())
            came = tuple(replace(one, came=True) for one in here if not one.came)
            return PeopleChange(put=came, terms=replace(room.terms, **kept))
        case _:
            raise InputValidation(f"{type(act).__name__} is no act of administration")


def _below(room: Standing, who: Principal, user: str, right: RoomRight) -> RoomPerson:
    """The row of a person of a lower role than the principal's, who has the right.

    One that stands in a pattern, or in none, gets a row of their own.
    """
    role = room.demand(who, right)
    if room.owner and user == room.owner:
        raise Forbidden(f"{user!r} owns the room {room.room!r}")
    own = room.people.get(user, RoomPerson(user, ""))
    theirs = own.given or room.role(Principal(user)) or "reader"
    if rank(theirs) >= rank(role):
        raise Forbidden(f"{user!r} is {theirs} of the room {room.room!r}, as you are {role}")
    if user in room.configured and own.role == "member":
        return replace(own, role="")  # what a configuration gives, it can take away
    return own


def _add(room: Standing, who: Principal, user: str, role: Given) -> PeopleChange:
    person = _below(room, who, user, "add")
    mine = room.demand(who, "add")
    if person.banned:
        raise InputValidation(f"{user!r} is banned: lift the ban first")
    if rank(role) >= rank(mine):
        raise Forbidden(f"you are {mine} of the room {room.room!r}: only its owner makes {role}s")
    if is_pattern(user) and role == "moderator":
        raise InputValidation(f"{user!r} is a pattern: name the moderators one by one")
    if "*" in user and not is_pattern(user):
        raise InputValidation(f"{user!r}: a pattern is '*', or ends with ':*', such as 'irc:*'")
    # Who has a row and was not here is a newcomer, whatever they have read, or were muted, before.
    rows = [one for one in room.people.values() if not one.given and user in candidates(one.user)]
    rows = [one for one in rows if one.role != "left" or one.user == user]
    back = [one for one in rows if not one.banned and room.role(Principal(one.user)) is None]
    muted = (replace(one, came=False) for one in back if one.muted and one.user != user)
    new = replace(person, role=role, came=False if person in back else person.came)
    return PeopleChange(put=(new, *muted), gone=tuple(one.user for one in back))


def newly_named(room: Standing, act: RoomAct) -> str:
    """The user whom a mute or a ban names for the first time in a room; empty: there is none.

    A user of a channel is known to that channel only.
    """
    match act:
        case MutePerson(user=user, seconds=seconds) if seconds:
            pass
        case BanPerson(user=user, banned=True):
            pass
        case _:
            return ""
    here = user in room.people or room.role(Principal(user)) is not None
    return "" if here or ":" in user or is_pattern(user) else user


def _muted(own: RoomPerson | None, now: float) -> tuple[RoomPerson, ...]:
    """The row that stays of somebody who goes while they are muted, since they may come back."""
    muted = own is not None and own.muted > now
    return (RoomPerson(own.user, "", muted=own.muted),) if own is not None and muted else ()


def _remove(room: Standing, who: Principal, user: str, now: float) -> PeopleChange:
    _below(room, who, user, "remove")
    if user in room.configured:
        raise InputValidation(
            f"{user!r} is named where the room is defined: remove them there, or ban them"
        )
    if pattern := _pattern_of(room, user):
        raise InputValidation(f"{user!r} is here by {pattern!r}: ban them, or remove the pattern")
    return PeopleChange(put=_muted(room.people.get(user), now), gone=(user,), revoked=(user,))


def _pattern_of(room: Standing, user: str) -> str:
    """The pattern by which a user would be here without a row of their own."""
    rows = (one for one in rows_of(user, room.people) if one.user != user)
    return next((one.user for one in rows if one.given), "")


def _ban(room: Standing, who: Principal, user: str, now: float, *, banned: bool) -> PeopleChange:
    person = _below(room, who, user, "ban")
    if banned:
        return PeopleChange(put=(replace(person, banned=True),), revoked=(user,))
    # Whoever was banned is not here again: somebody adds them, unless a pattern lets them in.
    if person.role == "left":
        return PeopleChange(put=(replace(person, banned=False),))
    return PeopleChange(put=_muted(person, now), gone=(user,)) if person.banned else PeopleChange()


def _leave(room: Standing, who: Principal, now: float) -> PeopleChange:
    if room.owner and who.user == room.owner:
        raise InputValidation(f"you own the room {room.room!r}: transfer it first, or delete it")
    room.demand(who, "leave")
    if who.user in room.configured:
        raise InputValidation("you are named where the room is defined: you cannot leave it here")
    # With a pattern, a row says that they have left; they come back when somebody adds them.
    own = room.people.get(who.user, RoomPerson(who.user))
    left = (replace(own, role="left"),) if _pattern_of(room, who.user) else _muted(own, now)
    return PeopleChange(put=left, gone=(who.user,), revoked=(who.user,))


def _transfer(room: Standing, who: Principal, user: str) -> PeopleChange:
    room.demand(who, "transfer")
    if not room.owner:
        raise InputValidation(f"the room {room.room!r} is the host's: its definition says whose")
    place = room.people.get(user)
    if place is None or place.banned or not place.given or is_pattern(user):
        raise InputValidation(f"{user!r} is not in the room {room.room!r}: add them first")
    before = RoomPerson(room.owner, "moderator", joined=-1, came=True)
    return PeopleChange(put=(before,), gone=(user,), owner=user)


def _is_away(room: Standing, one: RoomPerson) -> bool:
    """Whether a row is of somebody who has left, or went while they were muted."""
    return one.role == "left" or (not one.role and room.role(Principal(one.user)) is None)


def replaced(room: Standing, users: Iterable[str]) -> PeopleChange:
    """The change after which these users are in a room, and nobody else; bans and mutes stay.

    Who is there keeps their role, the others become members. Who has left stays away, unless they
    are named. Visitors by a pattern that stays have come already.
    """
    named, rows = dict.fromkeys(users), room.people
    stays = {user for user in named if user in rows and rows[user].role not in ("", "left")}
    gone = tuple(
        one.user
        for one in rows.values()
        if not one.banned and _is_away(room, one) == (one.user in named)
        if one.role or not any(pattern in stays for pattern in candidates(one.user)[1:])
    )
    put = [row for user in gone for row in _muted(rows[user], 0.0) if user not in named]
    for user in named:
        own = rows.get(user)
        if own is None or user in gone:
            put.append(RoomPerson(user, muted=own.muted if own else 0.0))
        elif not (own.banned or own.role) or (own.role == "member" and user in room.configured):
            put.append(replace(own, role="member"))
    return PeopleChange(put=tuple(put), gone=gone)


def without_details(record: EventRecord) -> EventRecord:
    """An event as those see it who are not shown the arguments and results of tools."""
    match record.event:
        case ToolCall():
            return replace(record, event=replace(record.event, args={}))
        case ApprovalRequested():  # a tool's reason may quote them, and a hash can be guessed
            return replace(record, event=replace(record.event, args={}, reason="", args_hash=""))
        case ToolResult():
            return replace(record, event=replace(record.event, preview="", result_id=None))
        case ToolProgress():
            return replace(record, event=replace(record.event, message=""))
        case ThinkingDelta() | ChildStarted():  # it may quote them
            return replace(record, event=replace(record.event, text=""))
        case _:
            return record


def invite_digest(token: str) -> str:
    """The SHA-256 of an invite's token in hex, which is all that is stored of it."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
