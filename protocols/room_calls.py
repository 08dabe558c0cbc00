"""Calls by ``@name``: how a text makes them, and those of a room that wait for a turn. Pure.

Invariant: a call ends in one of three ways. Its member gets the floor, or reads the message in a
turn under way, or the call is dropped; then the state says so, as the event ``call.dropped``. Until
then it is among the members that are due, or, if the message has opened no round yet, in ``calls``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from motet.protocols.events import AnyEvent, CallDropped, Warned
from motet.protocols.redaction.redact import redact_text
from motet.protocols.rooms import Due, MemberInfo, RoomMessage, RoomState
from motet.protocols.sessions import Principal

EVERYBODY = "all"
MOST_LATE = 200
"""Messages that are noted, one by one, to be of no call of a message that was edited after them."""
AWAY = "the host was away for long: say it again to have it answered"
CUT_OFF = "was cut off while it used its tools"
MOST_DROPPED = 200
"""Dropped calls, or notices, in the state. Their events are on disk long before so many are."""

# No call is in code, a quoted line, an address (``me@coder``, ``https://x/@coder``,
# ``x.example/@coder``), or behind a backslash. An underscore that no letter is before is emphasis.
_NO_CALLS = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`|\b[a-z][a-z0-9+.-]{1,20}://\S*"
    r"|(?<![\w@.+\\-])[\w-]{1,63}(?:\.[\w-]{1,63})+/\S*|^[ ]{0,3}>[^\n]*",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_BEFORE = r"(?<![^\W_])(?<![^\W_]_)(?<![@.+\\-])@"
_NAME = re.compile(_BEFORE + r"([^\W\d_][\w.-]{0,63})(?![\w/])")
_MOST_STRANGERS = 5


def mentioned(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names that ``text`` calls outside of code, each once, in the order of their first call.

    The longest name wins (``@ann-marie`` does not call ``ann``), case does not count, an address
    (``me@coder``) is no call, and ``@all`` calls everybody.
    """
    if not names or "@" not in text:
        return ()
    known = {name.lower(): name for name in names}
    words = sorted([*known, EVERYBODY], key=len, reverse=True)
    either = "|".join(map(re.escape, words))
    call = re.compile(rf"{_BEFORE}({either})(?![^\W_]|_+[^\W_]|-|\.\w)", re.IGNORECASE)
    found: dict[str, None] = {}
    for match in call.finditer(_NO_CALLS.sub(" ", text)):
        word = match[1].lower()
        for name in [known[word]] if word in known else list(names):
            found.setdefault(name)
    return tuple(found)


def strangers(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """The first names behind an ``@`` in ``text`` that are not ``known``, as they are written."""
    if "@" not in text:
        return ()
    names = {name.lower() for name in known} | {EVERYBODY}
    words = (found[1].rstrip(".-") for found in _NAME.finditer(_NO_CALLS.sub(" ", text)))
    pairs = ((word, word.rstrip("_")) for word in words)
    found = [bare for word, bare in pairs if names.isdisjoint((word.lower(), bare.lower()))]
    return tuple(dict.fromkeys(found))[:_MOST_STRANGERS]


NOBODY: Final = "nobody here is called"


def not_here(names: Sequence[str], members: Sequence[MemberInfo]) -> str:
    """A notice that nobody has one of these names."""
    unknown = ", ".join(f"@{name}" for name in names)
    return f"{NOBODY} {unknown}: {', '.join(member.name for member in members)}"


class Names(Protocol):
    """Who is in a room, as its calls go."""

    @property
    def members(self) -> tuple[MemberInfo, ...]: ...

    def strangers(self, text: str, authors: Collection[str]) -> tuple[str, ...]: ...


def unknown_names(
    name: str, state: RoomState, messages: Sequence[RoomMessage], names: Names
) -> str:
    """A notice for a member that has called names in its last turn which nobody has."""
    own = [one for one in messages if one.author == name and one.seq > state.seen.get(name, 0)]
    authors = {one.author for one in messages if one.kind == "person"}
    unknown = names.strangers(" ".join(one.text for one in own), authors)
    return not_here(unknown, names.members) if unknown else ""


def merged(calls: Iterable[Due], more: Iterable[Due]) -> tuple[Due, ...]:
    """One call for each member, in the order of the first; it is as deep as the least deep one."""
    found: dict[str, Due] = {}
    for one in (*calls, *more):
        before = found.get(one.name)
        found[one.name] = _joined(before, one) if before else one
    return tuple(found.values())


def _joined(one: Due, other: Due) -> Due:
    ended = {*_ended_beside(one, other), *_ended_beside(other, one)}
    return Due(
        one.name,
        min(one.depth, other.depth),
        tuple(dict.fromkeys((*one.called_by, *other.called_by))),
        tuple(dict.fromkeys((*one.asked_by, *other.asked_by))),
        tuple(dict.fromkeys((*one.people, *other.people))),
        min(one.first or other.first, other.first or one.first),
        max(one.last, other.last),
        tuple(sorted(ended)),
    )


def _ended_beside(one: Due, other: Due) -> Iterator[int]:
    """What has ended within ``one``, but for messages that call again in the other."""
    return (number for number in one.ended if not covers(other, number))


def read_also(state: RoomState, name: str, people: Iterable[Principal]) -> RoomState:
    """A member reads the words of these people in its turn: what it says and whom it calls goes
    back to them, too. The other turns of its round have not read them.
    """
    added = tuple(people)

    def also(before: tuple[Principal, ...]) -> tuple[Principal, ...]:
        return tuple(dict.fromkeys((*before, *added)))

    speaking = tuple(
        replace(due, asked_by=also(due.asked_by)) if due.name == name else due
        for due in state.floor.speaking
    )
    waiting = dict(state.waiting)
    if (waits := waiting.get(name)) is not None:
        waiting[name] = replace(waits, asked_by=also(waits.asked_by))
    return replace(state, floor=replace(state.floor, speaking=speaking), waiting=waiting)


def covers(call: Due | CallDropped, number: int) -> bool:
    """Whether the message of this number is among those of a call, if it calls its member."""
    return call.first <= number <= call.last and number not in call.ended


def without(call: Due, number: int) -> Due | None:
    """What is left of a call that has ended for one of its messages; None: nothing.

    The messages between stay a range and no set: ten thousand may call a member that hangs, and
    the state is stored with each. Those that end alone, by a change or by their author's going, are
    few. They are kept beyond the range, too: a later message may make it one that goes over them.
    """
    left = _between(replace(call, ended=tuple(sorted({*call.ended, number}))))
    return left if left.first <= left.last else None


def _between(call: Due, first: int = 0, last: int = 0) -> Due:
    """The part of a call from one message to another, without those at its ends that have ended."""
    first, last = max(call.first, first), min(call.last, last or call.last)
    while first in call.ended and first <= last:
        first += 1
    while last in call.ended and first <= last:
        last -= 1
    return replace(call, first=first, last=last)


def collect(state: RoomState, message: RoomMessage, names: Iterable[str]) -> RoomState:
    """Keep the calls in a person's message until it opens a round, or has entered their turns."""
    seq, who = message.seq, message.principals
    new = (Due(name, 0, (), who, (message.author,), seq, seq) for name in names)
    return replace(state, calls=merged(state.calls, new), collected=seq)


def skip(state: RoomState, message: RoomMessage, names: Collection[str], reason: str) -> RoomState:
    """A person's message that a stop has overtaken opens no round, and its calls are dropped."""
    seq, who = message.seq, message.principals
    calls = [Due(name, 0, (), who, (message.author,), seq, seq) for name in names]
    kept = replace(
        state,
        calls=ended_alone(state.calls, names, seq),
        floor=replace(state.floor, due=ended_alone(state.floor.due, names, seq)),
        collected=seq,
        skipped=(*state.skipped, seq),
    )
    return drop(kept, calls, reason)


def ended_alone(calls: Iterable[Due], names: Collection[str], number: int) -> tuple[Due, ...]:
    """The calls, so that those in this message are of none of them, whatever joins them later."""
    return tuple(
        replace(one, ended=tuple(sorted({*one.ended, number})))
        if one.is_call and one.name in names
        else one
        for one in calls
    )


def call_late(
    state: RoomState, names: Iterable[str], number: int, who: Principal
) -> tuple[Due, ...]:
    """The calls of a message that calls since it was edited.

    The messages around it are of none of these calls: a range may go over some that have ended
    alone, which nobody knows any more, or that wait beside it.
    """
    waiting = (one.first for one in (*state.calls, *state.floor.due) if one.first)
    first = max(min(waiting, default=number), number - MOST_LATE)
    last = min(state.collected, number + MOST_LATE)
    others = tuple(one for one in range(min(first, number), last + 1) if one != number)
    asked = (), (who,), (who.user,), number, number, others
    return tuple(Due(name, 0, *asked) for name in names)


def taken(
    state: RoomState, heard: int, only: Collection[str] | None
) -> tuple[list[Due], list[Due]]:
    """The calls in messages up to number ``heard``, and those that stay for later ones.

    ``only``: the names in the last of these messages, when each one opens a round of its own.
    """
    now: list[Due] = []
    later: list[Due] = []
    for call in state.calls:
        if call.first <= heard and (only is None or call.name in only or call.last <= heard):
            now.append(_between(call, last=heard))
            call = _between(call, heard + 1)
        if call.last > heard:
            later.append(call)
    return now, later


def settled(state: RoomState) -> RoomState:
    """The state without calls in messages that their members have read in a turn under way."""
    if not state.calls:
        return state
    read = [(call, state.told.get(call.name, 0)) for call in state.calls]
    left = (_between(call, told + 1) for call, told in read if call.last > told)
    return replace(state, calls=tuple(left))


def apart(due: Iterable[Due], waiting: Collection[Due]) -> list[Due]:
    """The calls without the messages whose calls wait for rounds of their own: a call that was
    joined by a later one goes over these.
    """
    return [part for one in due for part in (_parts(one, waiting) if one.is_call else [one])]


def _parts(call: Due, waiting: Iterable[Due]) -> list[Due]:
    """The parts of a call before, between and behind others of its member."""
    parts = [call]
    for first, last in (run for one in waiting if one.name == call.name for run in _runs(one)):
        if first <= call.last and call.first <= last:
            sides = ((0, first - 1), (last + 1, call.last))
            cut = (_between(one, *side) for one in parts for side in sides if side[1])
            parts = [one for one in cut if one.first <= one.last]
    return parts


def _runs(call: Due) -> Iterator[tuple[int, int]]:
    """The first and the last number of each run of messages of a call, between those that ended."""
    first = call.first
    for number in (*call.ended, call.last + 1):
        if first < number <= call.last + 1:
            yield first, number - 1
        first = max(first, number + 1)


def drop(state: RoomState, due: Iterable[Due], reason: str) -> RoomState:
    """Say in the state that these calls are dropped; a member that was only chosen had none."""
    events = [
        CallDropped(
            call.name,
            (*call.people, *call.called_by),
            reason,
            state.floor.round,
            number,
            call.first,
            call.last,
            tuple(one for one in call.ended if call.first < one < call.last),
        )
        for number, call in enumerate((one for one in due if one.is_call), state.drops + 1)
    ]
    dropped = (*state.dropped, *events)[-MOST_DROPPED:]
    return replace(state, dropped=dropped, drops=state.drops + len(events))


def noted(state: RoomState, *texts: str) -> RoomState:
    """Say in the state what the room tells its people of the change that is stored with it.

    A notice that is published before the change is told again when a kill comes between the two,
    and one that is only published after it is lost. No secret enters the state: it may quote what
    has failed.
    """
    told = map(redact_text, texts)
    new = [Warned("room", text, number) for number, text in enumerate(told, state.noticed + 1)]
    notices = (*state.notices, *new)[-MOST_DROPPED:]
    return replace(state, notices=notices, noticed=state.noticed + len(new))


def counted(state: RoomState) -> tuple[int, int, int]:
    """How many changes of messages, notices and dropped calls there were."""
    return state.changes, state.noticed, state.drops


def to_tell(state: RoomState) -> tuple[Sequence[tuple[int, AnyEvent]], ...]:
    """The events of the last of each, as in :func:`counted`, with their numbers."""
    return (
        [(one.change, one) for one in state.untold],
        [(one.number, one) for one in state.notices],
        [(one.number, one) for one in state.dropped],
    )
