"""The round of a room as a pure state machine: its states, its transitions and the next move.

Two rules, as in ``runtime/lifecycle.py``. Every change of a stored round is made by one of the
transitions below; a transition that the table does not have is a bug in the room and raises.
Nothing here knows of tasks, time or disks.

Invariants: only a person's message opens a round, with fresh counters; a turn is counted when the
floor is given, so that neither silence nor a crash gives one back; a round takes at most
``max_turns`` turns, whatever is said in it; no member has the floor twice at once; no call is lost
without a word (:mod:`motet.protocols.room_calls`).
Source: API specification, section 6, rules 1 to 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import attrs
from msgspec.structs import replace

from motet.protocols.events import RoomTurn
from motet.protocols.models import Usage
from motet.protocols.room_calls import apart, drop, merged, settled, taken
from motet.protocols.room_messages import still_owes, without_news
from motet.protocols.rooms import (
    DEPTH,
    NOBODY,
    REMOVED,
    SILENT,
    TOO_LATE,
    TURNS,
    Due,
    Floor,
    RoomMessage,
    RoomState,
    Used,
    Waiting,
)
from motet.protocols.sessions import Principal

# idle      no round is open: the room waits for a person
# deciding  no member has the floor; the next speakers are due, or have to be chosen
# speaking  at least one member has the floor and works
# held      all members with the floor wait for a person's approval
Phase = Literal["idle", "deciding", "speaking", "held"]

Transition = Literal[
    "open",  # a person's message opens a round, whatever became of the last one
    "choose",  # a policy has named the next speakers
    "give",  # members get the floor, all at once
    "suspend",  # a member's run waits for an approval; the member keeps the floor
    "settle",  # such a run has ended
    "speak",  # a turn is over, with a message or without
    "recover",  # the turns that died with their host lose the floor
    "end",  # the round is over
]

TRANSITIONS: Final[dict[Phase, dict[Transition, tuple[Phase, ...]]]] = {
    "idle": {"open": ("deciding",), "settle": ("idle",), "recover": ("idle",), "end": ("idle",)},
    "deciding": {
        "open": ("deciding",),
        "choose": ("deciding",),
        "give": ("speaking",),
        "settle": ("deciding",),
        "recover": ("deciding",),
        "end": ("idle",),
    },
    "speaking": {
        "open": ("deciding",),
        "suspend": ("speaking", "held"),
        "settle": ("speaking",),
        "speak": ("speaking", "held", "deciding"),
        "recover": ("held", "deciding"),
        "end": ("idle",),
    },
    "held": {
        "open": ("deciding",),
        "settle": ("speaking", "held"),
        "recover": ("held",),
        "end": ("idle",),
    },
}
"""The phases that each transition may lead to: others may have the floor, or wait, too."""


def phase_of(state: RoomState) -> Phase:
    if not state.floor.going:
        return "idle"
    if not state.floor.speaking:
        return "deciding"
    return "held" if state.held else "speaking"


def _after(transition: Transition, before: RoomState, after: RoomState) -> RoomState:
    """``after``, if the table has this transition; else an error that names the possible ones."""
    found, reached = phase_of(before), phase_of(after)
    if reached not in TRANSITIONS[found].get(transition, ()):
        possible = ", ".join(TRANSITIONS[found])
        raise RuntimeError(
            f"round {before.floor.round}: {transition!r} cannot lead from {found!r} to "
            f"{reached!r} (possible from there: {possible})"
        )
    return after


# Transitions

NOTHING: Final[Mapping[str, Sequence[RoomMessage]]] = MappingProxyType({})


def open_round(
    state: RoomState,
    *,
    heard: int,
    now: float,
    asked_by: Iterable[Principal] = (),
    only: Collection[str] | None = None,
    told: tuple[int, int] = (0, 0),
) -> RoomState:
    """A new round for the messages of people up to number ``heard``, with fresh counters.

    Calls that wait for a turn come first, then those in the messages; ``only``: as of ``taken``.
    ``told``: the notices and the dropped calls up to these numbers are on disk as events.
    """
    called, later = taken(state, heard, only)
    floor = Floor(
        round=state.floor.round + 1,
        going=True,
        due=merged((one for one in state.floor.due if one.is_call), called),
        last=state.floor.last,
        asked_by=tuple(dict.fromkeys(asked_by)),
        after=state.heard,
    )
    after = replace(
        state,
        floor=floor,
        heard=heard,
        opened=now,
        usage=Usage(),
        calls=tuple(later),
        notices=tuple(one for one in state.notices if one.number > told[0]),
        dropped=tuple(one for one in state.dropped if one.number > told[1]),
        skipped=_skipped(state, heard),
    )
    return _after("open", state, after)


def _skipped(state: RoomState, heard: int) -> tuple[int, ...]:
    return tuple(number for number in state.skipped if number > heard)


def ask_also(state: RoomState, who: Principal) -> RoomState:
    """The words of one more person enter the turns under way, and thereby the round."""
    floor = state.floor
    speaking = tuple(replace(due, asked_by=_with(due.asked_by, who)) for due in floor.speaking)
    after = replace(floor, asked_by=_with(floor.asked_by, who), speaking=speaking)
    return replace(state, floor=after)


def _with(people: Sequence[Principal], who: Principal) -> tuple[Principal, ...]:
    return tuple(dict.fromkeys((*people, who)))


def asked_by(state: RoomState, name: str, *, late: bool = False) -> tuple[Principal, ...]:
    """The people whose words a member answers that has the floor. ``late``: in an earlier turn that
    has waited; it may end while its member has the floor again.
    """
    if late and name in state.waiting:
        return state.waiting[name].asked_by
    return next((due.asked_by for due in state.floor.speaking if due.name == name), ())


def choose(state: RoomState, names: Iterable[str]) -> RoomState:
    """These members speak next; calls of members who wait for an approval stay."""
    due = merged(state.floor.due, map(Due, names))
    return _after("choose", state, replace(state, floor=replace(state.floor, due=due)))


def give_floor(
    state: RoomState,
    speakers: Sequence[Due],
    *,
    now: float,
    shown: Mapping[str, Sequence[RoomMessage]] = NOTHING,
    last: int = 0,
    changed: int = 0,
) -> RoomState:
    """They have the floor; their turns are spent. ``shown``: what they have not read, by name;
    ``last``: the number of the room's last message; ``changed``: they are told of the changes of
    messages up to this one.

    They answer the people of the round and those behind their calls and all that they read: the
    words of one person could otherwise act with the rights of another, in the next round, straight
    or by an agent.
    """
    floor, names = state.floor, {speaker.name for speaker in speakers}
    assert len(names) == len(speakers)
    people = {
        one.name: dict.fromkeys(
            (
                *floor.asked_by,
                *one.asked_by,
                *(who for message in shown.get(one.name, ()) for who in message.principals),
            )
        )
        for one in speakers
    }
    given = replace(
        floor,
        turns=floor.turns + len(speakers),
        speaking=tuple(
            replace(one, asked_by=tuple(people[one.name]), turn=turn)
            for turn, one in enumerate(speakers, floor.turns + 1)
        ),
        due=tuple(due for due in floor.due if due.name not in names),
        depth=max(speaker.depth for speaker in speakers),
        last=speakers[-1].name,
    )
    turn = f"{given.round}.{given.turns}"
    after = replace(state, floor=given, given=now, turn=turn, last=last, changed=changed)
    return _after("give", state, after)


def told_turn(due: Due, most: int) -> RoomTurn:
    """The event of a turn of a round that has at most so many."""
    users = tuple(dict.fromkeys([who.user for who in due.asked_by]))
    return RoomTurn(due.name, due.turn, most - due.turn, users, due.called_by)


def last_when_given(state: RoomState, messages: Sequence[RoomMessage]) -> int:
    """The last message of the room when the floor was given; 0: unknown."""
    if state.turn:
        return state.last
    return max((one.seq for one in messages if one.at <= state.given), default=0)


def suspend_turn(state: RoomState, name: str, waits: Waiting) -> RoomState:
    """The run of a turn outlives its task; its member keeps the floor until people speak again."""
    of = replace(waits, turn=state.turn, given=state.given)
    waits = replace(of, asked_by=asked_by(state, name))
    return _after("suspend", state, replace(state, waiting={**state.waiting, name: waits}))


def settle_turn(state: RoomState, name: str, seconds: float, problem: str = "") -> RoomState:
    """A suspended run has ended, perhaps without an answer.

    ``seconds``: time that does not count against the round.
    """
    if problem and (waits := state.waiting.get(name)) is not None:
        state = still_owes(state, name, waits.asked_by)
    others = {other: waits for other, waits in state.waiting.items() if other != name}
    after = replace(state, waiting=others, opened=state.opened + seconds)
    return _after("settle", state, after)


def end_turn(
    state: RoomState,
    name: str,
    *,
    silent: bool,
    called: Iterable[str] = (),
    number: int = 0,
    tools: Iterable[str] = (),
    again: bool = False,
) -> RoomState:
    """A turn is over. ``called``: the members that it calls by name; a call of itself is none.

    ``number``: of its message in the room; ``tools``: those that it has called; ``again``: its
    member speaks next, in another turn.
    """
    floor = state.floor
    (turn,) = (due for due in floor.speaking if due.name == name)
    depth, others = turn.depth + 1, (other for other in called if other != name)
    calls = (Due(one, depth, (name,), turn.asked_by, (), number, number) for one in others)
    floor = replace(
        floor,
        speaking=tuple(due for due in floor.speaking if due is not turn),
        due=merged((turn,) * again, merged(floor.due, calls)),
        passes=floor.passes + 1 if silent else 0,
        used=tuple(dict.fromkeys((*floor.used, *(Used(name, tool) for tool in tools)))),
    )
    return _after("speak", state, replace(state, floor=floor))


def call_late(
    state: RoomState,
    name: str,
    called: Iterable[str],
    asked_by: tuple[Principal, ...],
    number: int,
) -> RoomState:
    """A member calls others in a turn of an earlier round: in the round that is going, if one is.

    It opens none: its calls are dropped in a room at rest.
    """
    others = (other for other in called if other != name)
    calls = [Due(one, 1, (name,), asked_by, (), number, number) for one in others]
    if not state.floor.going:
        return drop(state, calls, TOO_LATE)
    return replace(state, floor=replace(state.floor, due=merged(state.floor.due, calls)))


def recover_round(state: RoomState, again: Iterable[str] = ()) -> RoomState:
    """The members that had the floor when the host died lose it; the counters stay.

    ``again``: they speak next, in another turn. Suspended turns go on. The others have passed.
    """
    floor, names = state.floor, set(again)
    for turn in floor.speaking:
        if not (turn.name in names or state.holds(turn.name)):
            state = still_owes(state, turn.name, turn.asked_by)
    back = tuple(turn for turn in floor.speaking if turn.name in names)
    kept = tuple(turn for turn in floor.speaking if state.holds(turn.name))
    passes = floor.passes + len(floor.speaking) - len(back) - len(kept)
    due = merged((*back, *floor.due), ())  # one may have been called again while it spoke
    floor = replace(floor, speaking=kept, due=due, passes=passes)
    return _after("recover", state, replace(state, floor=floor))


def end_round(
    state: RoomState,
    reason: str,
    *,
    heard: int = 0,
    unheard: Collection[str] = (),
    keep: bool = False,
) -> RoomState:
    """The round is over. ``heard``: the messages of people up to this one open no other.

    Calls that have come to no turn are dropped; ``keep``: they wait for the next round. So are
    those of members with the floor whose turn nobody has been told of (``unheard``).
    """
    floor, heard = state.floor, max(state.heard, heard)
    answered, later = taken(state, heard, ())
    back = (turn for turn in floor.speaking if turn.name in unheard)
    calls = merged((*back, *floor.due), answered)
    ended = replace(floor, going=False, due=calls if keep else (), speaking=(), reason=reason)
    calls_left, skipped = tuple(later), _skipped(state, heard)
    after = replace(state, floor=ended, heard=heard, calls=calls_left, skipped=skipped)
    return _after("end", state, after if keep else drop(after, apart(calls, later), reason))


# Cursors: the messages that each member has been shown


def unread(
    state: RoomState, messages: Sequence[RoomMessage], name: str, most: int
) -> Sequence[RoomMessage]:
    """The messages of others that a member has not been shown, at most the last ``most``."""
    seen = state.seen.get(name, 0)
    told = state.told.get(name, seen)
    new = [
        one
        for one in messages
        if not one.deleted
        and (
            told < one.seq <= state.heard
            if one.kind == "person"
            else seen < one.seq and (one.author != name or (one.thread > 0 and one.seq == 1))
        )
    ]
    return new[-most:]


def shown_at_least(
    state: RoomState, names: Iterable[str], *, agents: int, people: int
) -> RoomState:
    """These members were shown the messages of agents up to one number, of people to another."""
    names = tuple(names)
    after = replace(
        state,
        seen=state.seen | {name: max(agents, state.seen.get(name, 0)) for name in names},
        told=state.told | {name: max(people, state.told.get(name, 0)) for name in names},
    )
    return settled(after)


def shown_when_cut(state: RoomState, *, agents: int, read: Mapping[str, int]) -> RoomState:
    """Turns were cut off: what had entered them is read, and what was changed before is told.
    ``read``: of people, by member.
    """
    for name, people in read.items():
        state = shown_at_least(state, (name,), agents=agents, people=people)
        state = without_news(state, name, state.changed)
    return replace(state, heard=max(state.heard, *read.values(), 0))


def shown_in_turn(
    state: RoomState, name: str, *, agents: int, people: int, heard: int
) -> RoomState:
    """A member was shown this much in its turn, and no message of a person up to ``heard`` is left
    to open a round.
    """
    after = replace(
        state, heard=heard, seen={**state.seen, name: agents}, told={**state.told, name: people}
    )
    return settled(after)


# The next move


@attrs.frozen
class Rules:
    """The limits of a room's rounds.

    Attributes:
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: how many speak at once; all of them see the same messages.
    """

    max_turns: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    max_depth: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    concurrency: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen
class Give:
    """These members get the floor, at once."""

    speakers: tuple[Due, ...]


@attrs.frozen
class Choose:
    """The policy of the room has to name the next speakers."""


@attrs.frozen
class Wait:
    """A turn is under way, or the room waits for a person."""


@attrs.frozen
class Over:
    """The round ends here."""

    reason: str


Move: TypeAlias = Give | Choose | Wait | Over


def next_move(floor: Floor, rules: Rules, *, met: str = "", waiting: Collection[str] = ()) -> Move:
    """The next move of a round. ``met``: a condition that ends it.

    ``waiting``: members whose earlier turn waits for an approval: calls of them wait, too.
    """
    if not floor.going or floor.speaking:
        return Wait()
    if met:
        return Over(met)
    left = rules.max_turns - floor.turns
    if left < 1:
        return Over(TURNS)
    ready = tuple(due for due in floor.due if due.name not in waiting)
    return Give(ready[: min(left, rules.concurrency)]) if ready else Choose()


def take_unread(state: RoomState) -> RoomState:
    """Make members due that are called in a message which has entered the turns of others only."""
    late, _ = taken(state, state.heard, ())
    if not (late and state.floor.going):
        return state
    calls = tuple(call for call in state.calls if call.last > state.heard)
    due = merged(state.floor.due, late)
    return replace(state, floor=replace(state.floor, due=due), calls=calls)


def drop_impossible(
    state: RoomState, rules: Rules, members: Sequence[str]
) -> tuple[RoomState, str]:
    """The state without calls that go too deep and calls of agents that are no members any more.

    With it the reason why the round ends, if calls that go too deep were the only ones left.
    """
    floor = state.floor
    here = tuple(due for due in floor.due if due.name in members)
    possible = tuple(due for due in here if due.depth <= rules.max_depth)
    if len(possible) == len(floor.due):
        return state, ""
    gone = (due for due in floor.due if due not in here)
    deep = (due for due in here if due not in possible)
    after = replace(state, floor=replace(floor, due=possible))
    after = drop(after, apart(gone, state.calls), REMOVED)
    after = drop(after, apart(deep, state.calls), DEPTH)
    return after, DEPTH if here and not possible else ""


def refusal(speakers: Sequence[Due], refused: Mapping[str, str]) -> str:
    """The reason to end a round whose next speakers are refused; empty if they were called: then
    only their calls are dropped. ``speakers`` none: nobody else is to speak.
    """
    chosen = not (speakers and all(one.is_call for one in speakers))
    return "; ".join(dict.fromkeys(refused.values())) if chosen else ""


def is_empty(floor: Floor) -> bool:
    """Whether nobody speaks or is to speak next."""
    return not (floor.speaking or floor.due)


def used_up(floor: Floor, over: Mapping[str, str]) -> str:
    """The reason to end a round when the limits of all are used up for whom somebody speaks in it,
    or is to. ``over``: by user, what to tell of their limit.
    """
    people = (*floor.asked_by, *(who for one in floor.due if one.is_call for who in one.asked_by))
    reasons = [over.get(who.user, "") for who in people]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


def refuse(state: RoomState, refused: Mapping[str, str]) -> RoomState:
    """The state without the calls of these members, which are dropped for the given reasons."""
    gone = [due for due in state.floor.due if due.name in refused]
    due = tuple(due for due in state.floor.due if due.name not in refused)
    after = replace(state, floor=replace(state.floor, due=due))
    for one in gone:
        after = drop(after, apart((one,), state.calls), refused[one.name])
    return after


def no_choice(floor: Floor, names: Sequence[str], free: Sequence[str]) -> str:
    """The reason to end a round after a policy was asked; empty: it has named a speaker.

    A round ends too when all who may be chosen have passed since the last message.
    """
    if free and floor.passes >= len(free):
        return SILENT
    return "" if names else NOBODY
