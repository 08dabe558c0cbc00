"""Earlier messages of a room, as its members read them: what those read who were added later, how
many are not shown, and pages. Pure.

Invariants: the messages of others that a member is not shown when it gets the floor are counted
exactly; a page has the form in which members read all messages, fits into one result of a tool, and
has no message of a person that waits for its round; a member answers the people whose words it has
read, in its run and in what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from motet.protocols.errors import InputValidation
from motet.protocols.room_floor import asked_by, unread
from motet.protocols.room_messages import line_of
from motet.protocols.room_newcomers import Agents, Joined, Newcomers
from motet.protocols.room_presence import CountUnshown
from motet.protocols.rooms import (
    LATELY,
    Activation,
    MemberInfo,
    RoomMessage,
    RoomMode,
    RoomState,
    RoomView,
)
from motet.protocols.sessions import Principal, SessionBusy
from motet.protocols.storage import Statement

PAGE: Final = 20
"""Messages of a page, unless its reader wants fewer or more."""
MOST: Final = 50
MOST_BYTES: Final = 12_000
"""Of the lines of a page: a tool gives at most 16,384 at once, and stores the rest elsewhere."""
_LEFT_OUT: Final = "\n[The rest of this message is left out.]"

UNSHOWN: Final = """
SELECT count(*) FROM room_messages
WHERE room = ?1 AND seq > min(?3, ?4) AND seq <= ?6 AND NOT deleted
AND CASE kind WHEN 'person' THEN seq > ?4 AND seq <= ?5
    ELSE seq > ?3 AND (author <> ?2 OR seq = 1 AND instr(room, '/') > 0) END
AND seq NOT IN (SELECT value FROM json_each(?7))"""
"""The count of ``CountUnshown``, by the rule of ``room_floor.unread``."""


def join(state: RoomState, names: Collection[str], newcomers: Newcomers, last: int) -> RoomState:
    """The state with the members as they are now; who is not known yet was added just now.

    ``last``: number of the last message. What waits for an answer is new to newcomers, too. While
    they read all, nothing is kept of them: who is there when that changes has come.
    """
    founders = {name: Joined(came=True) for name in names}
    known = state.joined or founders
    new = Joined(last, state.heard)
    joined = {name: known.get(name, new) for name in names} if newcomers != "all" else {}
    return state if joined == state.joined else replace(state, joined=joined)


def joined_json(stored: str, agents: str, last: int) -> str:
    """A stored state after a change of :class:`.Agents`, which is in JSON, too."""
    state, change = msgspec.json.decode(stored, type=RoomState), decode_agents(agents)
    for names in change.names:
        state = join(state, names, change.newcomers, last)
    return msgspec.json.encode(state).decode()


decode_agents: Final = msgspec.json.Decoder(Agents).decode
_JOINED: Final = (
    "UPDATE rooms SET state = room_joined(state, ?2, (SELECT coalesce(max(seq), 0)"
    " FROM room_messages WHERE room = rooms.name))"
    " WHERE name = ?1 OR name > ?1 || '/' AND name < ?1 || '0'"
)


def note_joined(room: str, agents: Agents) -> Statement:
    """Store with a change which agents were added just now, in a room and its threads.

    Otherwise a room that is opened again, before anything else is stored, would take all who are
    there for its first members, who read everything.
    """
    return Statement(_JOINED, (room, msgspec.json.encode(agents).decode()))


def arrive(
    state: RoomState, name: str, newcomers: Newcomers, messages: Sequence[RoomMessage]
) -> RoomState:
    """A member gets the floor. In its first turn, nothing is new to it that was said before.

    ``messages``: in memory. Which messages are before follows from what newcomers read.
    """
    when = state.joined.get(name)
    if when is None or when.came:
        return state
    agents, people = when.agents, when.people
    if newcomers == "none":
        number = state.floor.round
        own = [one.seq for one in messages if one.kind == "agent" and one.round == number]
        last = max((one.seq for one in messages), default=0)
        agents, people = max(agents, min(own, default=last + 1) - 1), max(people, state.floor.after)
    joined = {**state.joined, name: Joined(agents, people, came=True)}
    seen = {**state.seen, name: max(agents, state.seen.get(name, 0))}
    told = {**state.told, name: max(people, state.told.get(name, state.seen.get(name, 0)))}
    return replace(state, joined=joined, seen=seen, told=told)


def hidden_from(state: RoomState, name: str, hidden: Callable[[Principal], int]) -> tuple[int, int]:
    """The numbers up to which no message of people, and of agents, is read back in a turn.

    ``hidden``: such a number of a person; a turn reads for all whose words it answers.
    """
    when, waits = state.joined.get(name, Joined()), state.waiting.get(name)
    people = {*(waits.asked_by if waits else ()), *asked_by(state, name)}
    most = max(map(hidden, people), default=0)
    return max(when.people, most), max(when.agents, most)


def unshown(
    state: RoomState,
    messages: Sequence[RoomMessage],
    room: str,
    name: str,
    shown: Sequence[RoomMessage],
) -> int | CountUnshown:
    """How many new messages of others a member is not shown; or, if memory lacks some, the request
    that counts them. ``messages``: in memory, when ``shown`` were taken from them.
    """
    seen = state.seen.get(name, 0)
    told = state.told.get(name, seen)
    first, last = min(seen, told), messages[-1].seq if messages else 0
    if len([1 for one in messages if one.seq > first]) == max(0, last - first):
        return len(unread(state, messages, name, len(messages) or 1)) - len(shown)
    numbers = tuple(one.seq for one in shown)
    return CountUnshown(room, name, seen, told, state.heard, last, numbers)


def unshown_lines(count: int | None) -> list[str]:
    """What a member reads of that, as a line of its own; None: the number is unknown."""
    if count is None:
        return ["[Earlier messages may not be shown.]"]
    what = "1 earlier message is" if count == 1 else f"{count} earlier messages are"
    return [f"[{what} not shown.]"] if count > 0 else []


def number_of(label: str | int, thread: int) -> int | None:
    """The number of a message in its room, from that in front of its text; None: there is none.

    ``12``, or in the thread of message 12 ``12.3``. Raises ``InputValidation``.
    """
    text = str(label).strip(" #[]")
    if not text:
        return None
    home, dot, reply = text.partition(".")
    if thread and home == str(thread) and (reply.isdecimal() or not dot):
        return int(reply or 0) + 1
    if thread or not text.isdecimal():
        example = f"{thread}.3" if thread else "12"
        raise InputValidation(f"before: {text!r} is no number of a message here, such as {example}")
    return int(text)


def page_of(found: Sequence[RoomMessage], hidden: int = 0) -> tuple[tuple[RoomMessage, ...], str]:
    """The last of these messages that fit into a page, and their text. Oldest first.

    ``hidden``: none up to this number is read.
    """
    lines: list[str] = []
    size = 0
    for one in reversed(found):
        line = line_of(one)
        size += len(line.encode()) + 1
        if size > MOST_BYTES:
            if lines:
                break
            line = line.encode()[:MOST_BYTES].decode(errors="ignore") + _LEFT_OUT
        lines.append(line)
    if not lines:
        return (), "[There are no messages before that.]"
    shown = tuple(found[-len(lines) :])
    first = shown[0]
    none = "[There are none before.]" if not hidden else "[Earlier ones are not shown here.]"
    more = f"[Earlier ones: before={first.label}]" if first.seq > hidden + 1 else none
    return shown, "\n".join((*reversed(lines), more))


def people_of(messages: Iterable[RoomMessage]) -> tuple[Principal, ...]:
    """The people whose words these messages are, or answer. A withdrawn one has no words."""
    texts = (one for one in messages if not one.deleted)
    return tuple(dict.fromkeys(who for one in texts for who in one.principals))


def has_turn(state: RoomState, name: str) -> bool:
    """Whether a member has the floor, or its turn waits for a person."""
    return name in state.waiting or any(due.name == name for due in state.floor.speaking)


# The messages in memory, and the attempts to store them


PAUSE, LONGEST_PAUSE = 0.1, 10.0
BUSY: Final = (
    "the agents of room {!r} are speaking, and nothing is taken meanwhile: "
    "try again when their round is over, or stop it"
)


def busy(room: str, mode: RoomMode, state: RoomState, *, waits: bool) -> SessionBusy | None:
    """The refusal of a message that would call agents while they speak, if the room has it so.

    ``waits``: whether messages of people wait for an answer.
    """
    speaking = state.floor.going and not state.held
    return SessionBusy(BUSY.format(room)) if mode == "reject" and (speaking or waits) else None


def kept(
    messages: Sequence[RoomMessage],
    waiting: Sequence[RoomMessage],
    most: int,
    heard: int,
    round: int,
) -> tuple[list[RoomMessage], int]:
    """The messages that a member may still be shown, and the last ones that wait for an answer.

    With them the number up to which those that wait are dropped; 0: none. ``heard``: the last
    message that is answered.
    """
    last = waiting[-max(most, LATELY) :]
    cut = last[0].seq - 1 if len(last) < len(waiting) else 0
    wait = {one.seq for one in waiting}
    heard_by = [one for one in messages if one.seq not in wait]
    older = (
        one
        for one in heard_by[:-most]
        if one.seq == heard or (one.kind == "agent" and one.round == round)
    )
    return sorted((*older, *heard_by[-most:], *last), key=lambda one: one.seq), cut


def pauses() -> Iterator[float]:
    """Seconds to wait between attempts, for ever."""
    pause = PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def view_of(
    room: str,
    state: RoomState,
    messages: Sequence[RoomMessage],
    members: tuple[MemberInfo, ...],
    *,
    most: int,
    turns: int,
    elapsed: float,
    alone: Callable[[Collection[str]], bool],
    activation: Activation | None,
) -> RoomView:
    """A room as policies and conditions see it. ``most``, ``turns``: messages that an agent is
    shown, and turns for one message of a person; ``alone``: whether these people are at most one.
    """
    said = [one for one in messages if not one.deleted]
    shown = [one for one in said if one.kind == "agent" or one.seq <= state.heard][-most:]
    return RoomView(
        room=room,
        members=members,
        messages=tuple(shown),
        round=tuple([one for one in messages if one.round == state.floor.round]),
        floor=state.floor,
        left=turns - state.floor.turns,
        elapsed=elapsed if state.opened else 0.0,
        waiting=tuple(state.waiting),
        alone=alone({one.author for one in shown if one.kind == "person"}),
        activation=activation,
    )
