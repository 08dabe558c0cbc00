"""Messages of a room after they were said: edits, withdrawals, reactions, and the form in which
members read them. Pure.

Invariants: each line that a member reads begins with the number, the role and the name of its
author, in a form that no text of a user and no name can imitate; a withdrawn message has no text;
what a member has read and was changed afterwards is corrected where it stands, and told once, in
its next turn; a call that is edited away before its turn is dropped, a new one is collected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs
import msgspec
from msgspec.structs import replace

from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.events import MessageChanged, MessageDeleted, MessageEdited, MessageReaction
from motet.protocols.messages import Request
from motet.protocols.room_calls import (
    call_late,
    covers,
    drop,
    ended_alone,
    merged,
    read_also,
    without,
)
from motet.protocols.room_newcomers import FindSummary, FoundSummary, Joined, KeepSummary
from motet.protocols.room_presence import CountUnread, CountUnshown, KnowsUser, MarkRead, RolesOf
from motet.protocols.rooms import (
    Due,
    Kind,
    News,
    Reaction,
    RoomMessage,
    RoomState,
    RoomStoreMessage,
    Said,
)
from motet.protocols.sessions import Principal
from motet.protocols.texts import escaped, plain_name

# The states of a message

# live       as it was said
# edited     with another text than it was said with
# withdrawn  without a text; its number, author and time stay
Standing = Literal["live", "edited", "withdrawn"]
Act = Literal["edit", "delete", "react", "unreact"]

STANDINGS: Final[dict[Standing, dict[Act, Standing]]] = {
    "live": {"edit": "edited", "delete": "withdrawn", "react": "live", "unreact": "live"},
    "edited": {"edit": "edited", "delete": "withdrawn", "react": "edited", "unreact": "edited"},
    "withdrawn": {"delete": "withdrawn"},
}
"""The state after each act; an act that is missing is refused."""

MOST_NEWS = 100
"""Changes that a member is told at most in one turn, the last ones."""
MOST_REACTION = 32
"""Code points of a reaction."""
MOST_REACTIONS = 200
"""Reactions to one message."""


def standing_of(message: RoomMessage) -> Standing:
    if message.deleted:
        return "withdrawn"
    return "edited" if message.edited else "live"


@attrs.frozen
class Draft:
    """A message that is not stored yet.

    ``run_id``: the run of the turn that wrote it; the others: as of ``RoomMessage``.
    """

    author: str
    text: str
    kind: Kind = "agent"
    run_id: str | None = None
    asked_by: tuple[Principal, ...] = ()
    reply_to: int = 0
    reply_agent: str = ""


def draft_of(
    who: Principal, text: str, asked_by: tuple[Principal, ...], reply_to: int | None
) -> Draft:
    """The message of a person. ``asked_by``: the people whose words it is, if they are others."""
    return Draft(who.user, text, "person", asked_by=asked_by or (who,), reply_to=reply_to or 0)


@attrs.frozen
class Amendment:
    """The wish of a person to change a message. ``text``: the new one, or the reaction.

    ``moderates``: the person may withdraw the messages of others; ``asked_by``: whose words the new
    text is, if it is not theirs.
    """

    act: Act
    number: int
    who: Principal
    text: str = ""
    moderates: bool = False
    asked_by: tuple[Principal, ...] = ()


class Post(Request[Said], frozen=True, tag="room.post"):
    """A message of a person. Answered when it is on disk. Raises as ``RoomHistory.post``.

    ``clears``: the stops of the room when it was sent, so that one that overtakes it counts for it;
    ``asked_by``: the people whose words they are, if a run says them.
    """

    author: Principal
    text: str
    key: str | None = None
    clears: int = 0
    answers: AnswerEscalation | None = None
    invited: bool = False
    asked_by: tuple[Principal, ...] = ()
    reply_to: int | None = None


class Amend(Request[RoomMessage], frozen=True, tag="room.amend"):
    """A change of a message. Answered when it is on disk. Raises as ``RoomHistory.amend``."""

    wish: Amendment


RoomMessages: TypeAlias = Post | Amend


def checked(wish: Amendment, message: RoomMessage) -> Standing:
    """The state that the message comes to. Raises ``NotFound``, ``InputValidation``."""
    after = STANDINGS[standing_of(message)].get(wish.act)
    if after is None:
        raise NotFound(f"message {message.seq} was withdrawn")
    own = message.kind == "person" and message.author == wish.who.user
    if wish.act == "edit":
        if not own:
            raise NotFound(f"message {message.seq} is not yours: only its author edits it")
        if not wish.text.strip():
            raise InputValidation("the new text is empty: delete the message instead")
    elif wish.act == "delete" and not (own or wish.moderates):
        raise NotFound(
            f"message {message.seq} is not yours: its author, or who moderates, withdraws it"
        )
    elif wish.act in ("react", "unreact") and not _is_reaction(wish.text):
        raise InputValidation(f"a reaction is a word or a sign of 1 to {MOST_REACTION} characters")
    return after


def _is_reaction(text: str) -> bool:
    """Whether it is short, one word, and cannot be taken for a line of somebody."""
    return bool(text) and len(text) <= MOST_REACTION and not re.search(r"[\s\[\]\x00-\x1f]", text)


def amended(wish: Amendment, message: RoomMessage, now: float) -> RoomMessage | None:
    """The message with the change; None: it is as wished already. Raises as :func:`checked`."""
    checked(wish, message)
    user = wish.who.user
    match wish.act:
        case "edit":
            people = wish.asked_by or (wish.who,)
            edited = replace(message, text=wish.text, edited=now, asked_by=people)
            return None if message.text == wish.text else edited
        case "delete":
            gone = replace(message, text="", edited=now, deleted=True, reactions=())
            return None if message.deleted else gone
        case act:
            found = {one.text: one.users for one in message.reactions}
            users = found.get(wish.text, ())
            if (user in users) == (act == "react"):
                return None
            if act == "react" and sum(map(len, found.values())) >= MOST_REACTIONS:
                raise InputValidation(f"message {message.seq} has {MOST_REACTIONS} reactions")
            others = tuple(one for one in users if one != user)
            found[wish.text] = (*users, user) if act == "react" else others
            kept = (Reaction(text, users) for text, users in found.items() if users)
            return replace(message, reactions=tuple(kept))


def event_of(wish: Amendment, change: int) -> MessageChanged:
    """The event that tells of the change; ``change``: its number in the room."""
    match wish.act:
        case "edit":
            return MessageEdited(wish.number, wish.text, wish.who.user, change)
        case "delete":
            return MessageDeleted(wish.number, wish.who.user, change)
        case act:
            on = act == "react"
            return MessageReaction(wish.number, wish.text, wish.who.user, on, change)


# The state of the room after a change


def after_change(
    state: RoomState,
    wish: Amendment,
    message: RoomMessage,
    *,
    gone: Collection[str] = (),
    new: Iterable[str] = (),
    members: Iterable[str] = (),
    settled: bool = True,
) -> RoomState:
    """The state with the change: its calls, what members are told, and the event to publish.

    ``message``: as it was; ``gone``, ``new``: the members that only the old text calls, and those
    that only the new one does; ``members``: those that are told of the change if they have read the
    message, and newcomers of what was said before only if it calls them now; ``settled``: the
    events of earlier changes are on disk.
    """
    for name in gone:
        state = forget_call(state, name, message)
    names = tuple(new)
    if names:
        state = _call(state, names, message, wish.who)
    news = dict(state.news)
    reaction = wish.text if wish.act in ("react", "unreact") else ""
    number = state.changes + 1
    is_on = wish.act not in ("unreact", "delete")
    one = News(message.seq, wish.who, reaction, is_on, number)
    if wish.act == "edit":  # who has read it reads the new words from its next model request on
        people = wish.asked_by or (wish.who,)
        for name in {*state.waiting, *(due.name for due in state.floor.speaking)}:
            if has_read(state, name, message):
                state = read_also(state, name, people)
    for name in members:
        if has_read(state, name, message) and (
            name in names or not is_before(state, name, message)
        ):
            news[name] = told_also(news.get(name, ()), one)
    untold = () if settled else _without_texts(state.untold, message.seq)
    event = event_of(wish, number)
    return replace(state, news=news, changes=number, untold=(*untold, event))


def read_by_all(state: RoomState, people: Sequence[Principal]) -> RoomState:
    """The turns under way read these people's words in the message that their thread is about."""
    for name in {*state.waiting, *(due.name for due in state.floor.speaking)}:
        state = read_also(state, name, people)
    return state


def _without_texts(events: Iterable[MessageChanged], number: int) -> tuple[MessageChanged, ...]:
    """Earlier events of a message without its texts, which are not the message's any more."""
    return tuple(
        replace(one, text="") if isinstance(one, MessageEdited) and one.number == number else one
        for one in events
    )


def has_read(state: RoomState, name: str, message: RoomMessage) -> bool:
    """Whether a member was shown the message, or has said it, or is being shown it."""
    seen = state.seen.get(name, 0)
    told = state.told.get(name, seen)
    if message.kind == "agent" and message.author == name:
        return True
    cursor = told if message.kind == "person" else seen
    speaking = any(turn.name == name for turn in state.floor.speaking)
    return message.seq <= cursor or speaking


def is_before(state: RoomState, name: str, message: RoomMessage) -> bool:
    """Whether a message was said before a member was added, so that it is not shown it."""
    when = state.joined.get(name, Joined())
    return message.seq <= (when.people if message.kind == "person" else when.agents)


def read_before(
    state: RoomState, name: str, news: Iterable[News], messages: Mapping[int, RoomMessage]
) -> tuple[News, ...]:
    """The news of messages that a member has read; the others it reads as they are now."""
    known = (one for one in news if not one.number or one.number in messages)
    return tuple(
        one for one in known if not one.number or has_read(state, name, messages[one.number])
    )


def told_also(news: Sequence[News], one: News) -> tuple[News, ...]:
    """The news with one more; a later change of a message, or of a reaction, replaces it.

    Of more than :data:`MOST_NEWS` the first are not told, but the member has read their words: for
    each person behind them there is one without a number.
    """
    key = _change_of(one)
    left = [*(each for each in news if _change_of(each) != key), one]
    told = [each for each in left if each.number]
    whose = {each.who: each for each in left if not each.number}
    for each in told[:-MOST_NEWS]:
        if each.who and each.on:
            whose[each.who] = replace(each, number=0, reaction="")
    return (*whose.values(), *told[-MOST_NEWS:])


def _change_of(one: News) -> tuple[int, Principal | None, str]:
    """The same for two changes if the later one replaces the earlier."""
    return one.number, one.who if one.reaction or not one.number else None, one.reaction


def still_owes(state: RoomState, name: str, people: Iterable[Principal]) -> RoomState:
    """The turn of a member was cut off or has failed: its next one answers these people, too.

    Their words are in its transcript, and its model may read them in that turn first.
    """
    news = state.news.get(name, ())
    for who in people:
        news = told_also(news, News(0, who, change=state.changes))
    return replace(state, news={**state.news, name: news}) if news else state


def without_news(state: RoomState, name: str, upto: int) -> RoomState:
    """A member was told the changes up to this one."""
    left = tuple(one for one in state.news.get(name, ()) if one.change > upto)
    news = {other: some for other, some in state.news.items() if other != name}
    return replace(state, news={**news, name: left} if left else news)


def forget_call(state: RoomState, name: str, message: RoomMessage, reason: str = "") -> RoomState:
    """Drop the call of a member in a message that calls it no more, if it has had no turn yet."""
    calls, first = _without_call(state.calls, name, message.seq)
    due, second = _without_call(state.floor.due, name, message.seq)
    if not (first or second):
        return state
    number, author = message.seq, (message.author,)
    # Others of the member, for this round or the next, may become a range that goes over it.
    calls, due = ended_alone(calls, (name,), number), ended_alone(due, (name,), number)
    people, agents = (author, ()) if message.kind == "person" else ((), author)
    lost = Due(name, 0, agents, (), people, number, number)
    state = replace(state, calls=calls, floor=replace(state.floor, due=due))
    return drop(state, (lost,), reason or EDITED)


EDITED = "the message was changed"
GONE = "who said it is not here any more"


def retract(
    state: RoomState,
    messages: Iterable[RoomMessage],
    called: Callable[[str], Iterable[str]],
    *,
    last: bool,
) -> RoomState:
    """Messages that wait for an answer, of people who were removed, open no round and call nobody.

    ``last``: no other message waits.
    """
    mine = [one for one in messages if one.seq > state.heard and one.seq not in state.skipped]
    for message in mine:
        for name in called(message.calling):
            state = forget_call(state, name, message, GONE)
    numbers = tuple(one.seq for one in mine)
    if last and numbers and not state.calls:  # one number says as much as all of them
        return replace(state, heard=max(numbers), skipped=())
    return replace(state, skipped=(*state.skipped, *numbers))


def _without_call(due: Iterable[Due], name: str, number: int) -> tuple[tuple[Due, ...], bool]:
    kept: list[Due] = []
    found = False
    for one in due:
        left: Due | None = one
        if one.name == name and one.is_call and covers(one, number):
            found, left = True, without(one, number)
        kept += [left] if left is not None else []
    return tuple(kept), found


def _call(
    state: RoomState, names: Sequence[str], message: RoomMessage, who: Principal
) -> RoomState:
    """New calls in a message: they wait with it, or for the round that goes on, or for one."""
    number = message.seq
    due = call_late(state, names, number, who)
    # What waits beside it, and went over it while it called nobody, is not of it.
    if number <= state.heard and state.floor.going:
        calls, waiting = ended_alone(state.calls, names, number), merged(state.floor.due, due)
    else:
        calls, waiting = merged(state.calls, due), ended_alone(state.floor.due, names, number)
    return replace(state, calls=calls, floor=replace(state.floor, due=waiting))


def is_recalled(state: RoomState) -> bool:
    """Whether a message that was answered calls somebody now, so that a round has to be opened."""
    return not state.floor.going and any(call.first <= state.heard for call in state.calls)


# The form in which members read messages
#
# Law: in a text made of lines, exactly one line of each message begins with a square bracket. The
# words between the number and the name are ours, so that a name cannot imitate them.

_BRACKET: Final = (
    r"\[#(\d+(?:\.\d+)?) (?:reply to #[\d.]+ )?(?:(?:edited|withdrawn) )?"
    r"(?:person|agent) [^\[\]\n]*\]"
)
HEAD: Final = re.compile(rf"(?:(?<=\n)|\A){_BRACKET}")
QUOTED_HEAD: Final = re.compile(rf"(?<!\\){_BRACKET}")
"""The same anywhere in a line, as an error or a tool may quote it; not one that was escaped."""


def head_of(message: RoomMessage) -> str:
    """``[#12 person alice]``, ``[#14 reply to #12 agent coder]``: who says what follows."""
    state = standing_of(message)
    about = replace(message, seq=message.reply_to).label
    mark = f"reply to #{about} " if message.reply_to else ""
    mark += "" if state == "live" else f"{state} "
    return f"[#{message.label} {mark}{message.kind} {plain_name(message.author)}]"


def line_of(message: RoomMessage) -> str:
    """A message as a member reads it."""
    return head_of(message) if message.deleted else f"{head_of(message)} {escaped(message.text)}"


def newest_in(text: str) -> int:
    """The highest number of a message in a text that a member was given; 0: it has none."""
    return max((int(label.rpartition(".")[2]) for label in HEAD.findall(text)), default=0)


def news_lines(news: Iterable[News], messages: Mapping[int, RoomMessage]) -> list[str]:
    """Changes as a member reads them: the new line of a message, or a reaction to it."""
    found: list[str] = []
    for one in news:
        if one.reaction and one.who:
            does = "reacts to" if one.on else "takes back from"
            label = messages[one.number].label if one.number in messages else str(one.number)
            found.append(f"[person {plain_name(one.who.user)} {does} #{label}] {one.reaction}")
        elif one.number in messages:
            found.append(line_of(messages[one.number]))
    return found


def whose(
    state: RoomState, name: str, change: int, summaries: Mapping[str, FoundSummary]
) -> list[Principal]:
    """The people whose words a member reads in a summary, and in changes after this one, which
    came while its turn was prepared.
    """
    late = [one.who for one in state.news.get(name, ()) if one.change > change and one.on]
    return [*summaries[name].people, *(who for who in late if who)]


def asked_also(
    speaker: Due,
    news: Iterable[News],
    messages: Mapping[int, RoomMessage],
    people: Iterable[Principal] = (),
) -> Due:
    """A member that answers those whose changes it is told of, too, and ``people``.

    In a thread also those whose words the changed message is that it is about: it may have read
    that in an earlier turn, as it was then.
    """
    edits = (messages[one.number] for one in news if not one.reaction and one.number in messages)
    whose = [one.who for one in news if one.who and (one.reaction or not one.number)]
    root = messages.get(1)
    read = [*edits, *([root] if root and root.thread and root.edited else [])]
    whose += [who for one in read if not one.deleted for who in one.principals]
    return replace(speaker, asked_by=tuple(dict.fromkeys((*speaker.asked_by, *people, *whose))))


def without_head(text: str, name: str) -> str:
    """The text without its speaker's own name in front: models copy the form they see."""
    stripped = text.strip()
    front = rf"\[(?:#\d+ )?(?:edited )?(?:agent )?{re.escape(name)}\][ :]*"
    found = re.match(front, stripped)
    return stripped[found.end() :] if found else stripped


# Requests to the store of rooms


class ChangedCopy(msgspec.Struct, frozen=True):
    """A message of a room below that was given a changed one. ``before``: its old text."""

    room: str
    message: RoomMessage
    before: str


class ChangeMessage(Request[tuple[ChangedCopy, ...]], frozen=True, tag="rooms.change_message"):
    """Store a message as it is now, and the state of the room, in one transaction.

    ``before``: its old text, of which no copy is left, also below; None: the text is as it was.
    """

    name: str
    message: RoomMessage
    state: RoomState
    before: str | None = None


class OpenThread(Request[None], frozen=True, tag="rooms.open_thread"):
    """Store the thread of a message with that as its first one, if there is none."""

    name: str


class FindMessages(Request[tuple[RoomMessage, ...]], frozen=True, tag="rooms.messages"):
    """The messages with these numbers that there are, in order."""

    name: str
    numbers: tuple[int, ...]


RoomStoreRequest: TypeAlias = (
    RoomStoreMessage
    | ChangeMessage
    | OpenThread
    | FindMessages
    | MarkRead
    | CountUnread
    | CountUnshown
    | KnowsUser
    | RolesOf
    | FindSummary
    | KeepSummary
)
