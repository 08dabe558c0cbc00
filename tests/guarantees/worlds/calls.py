"""A world of rooms in which people and agents call each other by name at any moment (G15).

Members answer, call others, pass, fail, or wait for an approval; people talk, in the room and in
the threads of its messages, which have rounds of their own; they edit and withdraw what they said,
stop the room, change its members and its mode. The storage may fail for a while, and the host may
be killed at any step.
"""

# The record is made inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, TypeAlias

import apsw
import attrs
import pytest
import trio
from msgspec import UNSET

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.definition import member_session
from motet.actors.rooms.history import Change, RoomHistory
from motet.protocols import room_floor as floor
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.events import AnyEvent, CallDropped, RoomTurn
from motet.protocols.models import ModelRequest
from motet.protocols.room_calls import covers, mentioned
from motet.protocols.rooms import (
    ROOM_MODES,
    Due,
    RoomChange,
    RoomMessage,
    RoomMode,
    RoomPlan,
    RoomState,
    Said,
)
from motet.protocols.sessions import Principal
from motet.protocols.storage import StorageUnavailable

NAMES: Final = ("ann", "ben", "cid")
RENAMED: Final = {"ben": "bea", "cid": "cyd"}
"""Other names of members: the configuration has the same agents under both."""
EVERYBODY: Final = (*NAMES, *RENAMED.values())
OWNER: Final = Principal("ada")
WORD: Final = re.compile(r"<m\d+>")
FAULTS: Final = ("locked", "full", "io", "readonly")
REPLY: Final = "as for that:"
CONFIG: Final = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.02, expires=60))


def agents(seed: object, *, renames: bool = False) -> list[motet.Agent[None, str]]:
    return [_agent(name, Random(f"{seed}/{name}")) for name in (EVERYBODY if renames else NAMES)]


def _agent(name: str, random: Random) -> motet.Agent[None, str]:
    def answer(request: ModelRequest) -> mt.Step:
        rows = request.messages
        acted = any(isinstance(row, ToolMessage) for row in rows[-2:])
        match random.choice(("says", "says", "calls", "calls", "passes", "acts", "fails")):
            case "acts" if not acted and not _late(rows):
                return mt.call("act")
            case "calls":
                other = random.choice([*(one for one in NAMES if one != name), "all"])
                return mt.slow(mt.say(f"@{other} your turn"), seconds=random.choice((0.01, 0.1)))
            case "passes":
                return mt.say("[pass]")
            case "fails":
                return mt.fail(400)
            case _:
                return mt.slow(mt.say("here"), seconds=random.choice((0.01, 0.1, 1)))

    agent = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

    @agent.tool(approval=True, effects="write")
    async def act() -> str:
        return "done"

    return agent


def _late(rows: Sequence[object]) -> bool:
    return sum(isinstance(row, AssistantMessage) for row in rows) > 12


@attrs.define
class Plan:
    """The random choices of one conversation, and what was acknowledged in it.

    ``troubled``: the storage fails now and then, and everybody tries again. ``renames``: members
    get other names, by which people call them then, but for a few who have not heard of it.
    """

    seed: object
    mode: RoomMode | None = None
    troubled: bool = False
    renames: bool = False
    words: int = 0
    names: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    random: Random = attrs.field(init=False)
    naming: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random, self.naming = Random(f"{self.seed}"), Random(f"{self.seed}/names")

    def room(self) -> RoomPlan:
        random = self.random
        return RoomPlan(
            members=NAMES,
            speakers=random.choice([("mentions",), ("mentions", "round_robin")]),
            max_turns=random.choice([2, 5, 9]),
            max_depth=random.choice([1, 3, 9]),
            concurrency=random.choice([1, 2, 3]),
            history=random.choice([2, 50]),
            mode=mode if (mode := self.mode) else random.choice(ROOM_MODES),
        )

    def text(self) -> str:
        self.words += 1
        called = self.random.choice(["", REPLY, "@ann", "@ben", "@all", "@cid @ann", "@zed"])
        for name, now in self.names.items():
            called = called.replace(f"@{name}", f"@{now}") if self.naming.random() < 0.8 else called
        return f"{called} <m{self.words}>"

    def change(self) -> RoomChange:
        names = [name for name in NAMES if self.random.random() < 0.7] or ["ann"]
        mode = self.random.choice(ROOM_MODES) if self.mode is None else UNSET
        for name, other in RENAMED.items() if self.renames else ():
            self.names[name] = self.naming.choice((name, other))
        return RoomChange(members=tuple(self.names.get(one, one) for one in names), mode=mode)


async def name_of(host: Host) -> str:
    found = await host.rooms.list(principal=OWNER)
    return found[0].name if found else ""


async def begin(host: Host, plan: Plan) -> None:
    if not await name_of(host):
        await host.rooms.create("den", plan.room(), people=("*",), principal=OWNER)


async def post(host: Host, plan: Plan, text: str, user: str) -> None:
    """``text`` with ``reply`` in it answers one of the last messages."""
    room, about = await name_of(host), None
    if REPLY in text:
        last = await host.rooms.history(room, limit=3, principal=OWNER)
        about = last[int(WORD.findall(text)[0][2:-1]) % len(last)].seq if last else None
    who = Principal(user)
    with suppress(motet.SessionBusy):
        await host.rooms.post(room, text, key=text, reply_to=about, principal=who)


async def post_below(host: Host, plan: Plan, text: str, user: str) -> None:
    """Say it in the thread of one of the last messages, unless that was withdrawn."""
    room = await name_of(host)
    last = await host.rooms.history(room, limit=3, principal=OWNER)
    if last:
        about = last[int(WORD.findall(text)[0][2:-1]) % len(last)].seq
        with suppress(motet.SessionBusy, motet.NotFound):
            await host.rooms.post(f"{room}/{about}", text, key=text, principal=Principal(user))


async def insist(host: Host, act: Callable[..., Awaitable[None]], *given: Any) -> None:
    """Do it until the storage takes it."""
    while True:
        try:
            return await act(host, *given)
        except StorageUnavailable:
            await trio.sleep(0.05)


async def stop(host: Host) -> None:
    await host.stop(room=await name_of(host))


async def change(host: Host, what: RoomChange) -> None:
    await host.rooms.change(await name_of(host), what, principal=OWNER)


async def decide(host: Host) -> None:
    for one in await host.approvals(state="pending"):
        with suppress(motet.MotetError):
            await host.approve(one.id, "allow-once")


async def edit(host: Host, plan: Plan) -> None:
    """Give a message of people another text, or withdraw it, in the room or in a thread."""
    room = plan.random.choice(await rooms_of(host))
    said = [one for one in await host.rooms.history(room, limit=200) if one.kind == "person"]
    said = [one for one in said if not one.deleted and (one.seq > 1 or "/" not in room)]
    if said:
        one, text = plan.random.choice(said), plan.random.choice([plan.text(), ""])
        who = Principal(one.author)
        if text:
            await host.rooms.edit_message(room, one.seq, text, principal=who)
        else:
            await host.rooms.delete_message(room, one.seq, principal=who)


def talk(plan: Plan, host: mt.SimulatedHost, *, length: int = 8) -> None:
    """A random conversation. Nobody waits for what they have begun."""
    host.call(begin, plan)
    random = plan.random
    acts = ("post", "post", "post", "thread", "thread", "edit", "stop", "change", "decide")
    for _ in range(length):
        match random.choice((*acts, *("fail", "mend") * 3) if plan.troubled else acts):
            case "stop":
                host.begin(stop)
            case "change":
                _do(plan, host, change, plan.change())
            case "edit":
                _do(plan, host, edit, plan)
            case "decide":
                _do(plan, host, decide)
            case "fail":
                fail(host.disk, random.choice(FAULTS))
            case "mend":
                mend(host.disk)
            case act:
                say = post if act == "post" else post_below
                _do(plan, host, say, plan, plan.text(), random.choice(("ada", "bob")))
        if plan.troubled and random.random() < 0.5:
            host.steps(random.randrange(1, 120))  # to the middle of a write
        elif random.random() < 0.7:
            host.advance(random.choice((0.001, 0.02, 0.15, 2)))


def hurry(plan: Plan, host: mt.SimulatedHost) -> None:
    """People speak and stop the room within a few steps of each other."""
    host.call(begin, plan)
    random = plan.random
    for _ in range(6):
        host.call(post, plan, plan.text(), "ada")
        for _ in range(random.randrange(3)):
            if random.random() < 0.5:
                host.call(post, plan, plan.text(), "bob")
            else:
                host.begin(stop)
            host.steps(random.choice((0, 0, 1, 2, 3, 5, 9)))
        if random.random() < 0.3:
            host.advance(random.choice((0.02, 0.15)))


def _do(
    plan: Plan, host: mt.SimulatedHost, act: Callable[..., Awaitable[None]], *given: Any
) -> None:
    if plan.troubled:
        host.begin(insist, act, *given)
    else:
        host.call(act, *given)


def fail(disk: mt.SimulatedDisk, way: str) -> None:
    """Take the storage away."""
    match way:
        case "locked":
            with suppress(apsw.BusyError):
                disk.locked = True
        case "full":
            disk.room = disk.used
        case _:
            disk.broken = way


def mend(disk: mt.SimulatedDisk) -> None:
    disk.locked, disk.room, disk.broken = False, None, ""


def rest(host: mt.SimulatedHost) -> None:
    """Let all turns end, and those that wait for an approval, too."""
    mend(host.disk)
    for _ in range(40):
        host.advance(2)
        host.call(decide)
        if not host.call(_busy):
            break
    host.settle()


async def _busy(host: Host) -> bool:
    waiting = await host.approvals(state="pending")
    open_rooms = host._parts.room_table.rooms.values()
    return bool(waiting) or not all(one.control.idle.is_set() for one in open_rooms)


async def rooms_of(host: Host) -> list[str]:
    """The room, if there is one, and its threads."""
    room = await name_of(host)
    said = await host.rooms.history(room, limit=1000, principal=OWNER) if room else ()
    return [room, *(f"{room}/{one.seq}" for one in said if one.replies)] if room else []


@attrs.frozen
class Seen:
    """A room or a thread in the end. ``read``: the words that each member has read."""

    messages: tuple[RoomMessage, ...]
    events: tuple[AnyEvent, ...]
    read: dict[str, set[str]]

    def mentions(self, here: dict[int, tuple[str, ...]]) -> list[tuple[str, int]]:
        """The members that each message calls, with its number; a call of oneself is none.

        ``here``: the members when it was said. A reply calls the agent that it answers.
        """
        authors = {one.seq: one.author for one in self.messages if one.kind == "agent"}
        return [
            (name, one.seq)
            for one in self.messages
            for name in here[one.seq]
            if name != one.author
            if name in mentioned(one.text, here[one.seq]) or name == authors.get(one.reply_to)
        ]

    @property
    def dropped(self) -> list[CallDropped]:
        return [one for one in self.events if isinstance(one, CallDropped)]


async def look(host: Host) -> dict[str, Seen]:
    """Empty: the host was killed before there was a room."""
    return {room: await _look(host, room) for room in await rooms_of(host)}


async def _look(host: Host, room: str) -> Seen:
    messages: tuple[RoomMessage, ...] = ()
    before: int | None = None
    while page := await host.rooms.history(room, before=before, limit=1000, principal=OWNER):
        messages = page + messages
        before = page[0].seq
    # The first message of a thread is the room's, and calls there.
    messages = tuple(one for one in messages if one.seq > 1 or "/" not in room)
    events: list[AnyEvent] = []
    after = 0
    while found := await host.events.read(f"room:{room}", after, 200):
        events += [one.event for one in found]
        after = found[-1].seq or 0
    read: dict[str, set[str]] = {}
    for name in EVERYBODY:
        read[name] = set()
        with suppress(motet.NotFound):  # it has never spoken
            rows = await host.history(member_session(room, name), limit=500)
            texts = [item.row.text for item in rows if isinstance(item.row, UserMessage)]
            read[name] = set(WORD.findall(" ".join(texts)))
    return Seen(messages, tuple(events), read)


Turn: TypeAlias = tuple[str, int, int]
"""The member with the floor, the round, and its turns with those that were given at once."""


def turn_of(state: RoomState, name: str, more: int = 0) -> Turn:
    return name, state.floor.round, state.floor.turns + more


@attrs.define
class Given:
    """The calls that have come to a turn, as the floor was given: an independent record.

    A change of the state is made anew for each attempt to store it, so that a turn is known by its
    place: no turn is ever given back, and the next one has another number (``floor.turns``).

    Attributes:
        turns: the call of each turn, as it was given last.
        here: the members who could be called when each message got its text.
    """

    turns: dict[Turn, Due] = attrs.field(factory=dict[Turn, Due])
    here: dict[int, tuple[str, ...]] = attrs.field(factory=dict[int, tuple[str, ...]])


@attrs.define
class Record:
    """What was given in each room. ``room``: whose state is being changed in this step."""

    rooms: dict[str, Given] = attrs.field(factory=dict[str, Given])
    room: str = ""

    def of(self, room: str) -> Given:
        return self.rooms.setdefault(room, Given())


@contextmanager
def recorded() -> Generator[Record]:
    """Record the calls with which the floor is given, and turns that nobody was told of."""
    found, give, end = Record(), floor.give_floor, floor.end_round
    say, amend = RoomHistory._say, RoomHistory.amend
    record, assume = RoomHistory.record, RoomHistory.assume

    def give_floor(state: RoomState, speakers: Sequence[Due], **more: Any) -> RoomState:
        turns = {turn_of(state, one.name, len(speakers)): one for one in speakers}
        found.of(found.room).turns |= turns
        return give(state, speakers, **more)

    def end_round(state: RoomState, reason: str, **more: Any) -> RoomState:
        for name in more["unheard"]:
            found.of(found.room).turns.pop(turn_of(state, name), None)
        return end(state, reason, **more)

    def in_room(history: RoomHistory, change: Change) -> Change:
        tried = set[Turn]()

        def changed(state: RoomState) -> RoomState:
            found.room = history._settings.name
            turns = found.of(found.room).turns
            # The storage did not take the last attempt, and what it gave may be withdrawn by now.
            for turn in tried:
                turns.pop(turn, None)
            before = {*turns}
            after = change(state)
            tried.clear()
            tried.update({*turns} - before)
            return after

        return changed

    async def record_here(self: RoomHistory, change: Change, *more: Any, **how: Any) -> None:
        await record(self, in_room(self, change), *more, **how)

    def assume_here(self: RoomHistory, change: Change) -> None:
        assume(self, in_room(self, change))

    async def say_here(self: RoomHistory, *given_to: Any, **more: Any) -> Said:
        names = tuple(one.name for one in self._settings.expected)
        said = await say(self, *given_to, **more)
        given = found.of(self._settings.name)
        given.here[said.seq] = given.here.get(said.seq, names) if said.duplicate else names
        return said

    async def amend_here(self: RoomHistory, wish: Any, *more: Any) -> RoomMessage:
        after = await amend(self, wish, *more)
        if wish.act == "edit":
            # Another text calls those who are members now, and nobody who has gone meanwhile.
            names = tuple(one.name for one in self._settings.expected)
            found.of(self._settings.name).here[after.seq] = names
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoomHistory, "_say", say_here)
        patch.setattr(RoomHistory, "amend", amend_here)
        patch.setattr(RoomHistory, "record", record_here)
        patch.setattr(RoomHistory, "assume", assume_here)
        patch.setattr(floor, "give_floor", give_floor)
        patch.setattr(floor, "end_round", end_round)
        yield found


def ends(name: str, message: RoomMessage, seen: Seen, given: Given) -> list[str]:
    """The ends of one call: turns that were given for it, and events that it was dropped.

    Calls of people and agents that are one have the numbers of the first and the last of them: in
    mode ``followup``, a call of a person between these may have an end of its own, which counts.
    So may one behind an older message that calls only since it was edited.
    """
    edited = {one.seq for one in seen.messages if one.edited > 0}
    turns: list[tuple[Due | CallDropped, tuple[str, ...], str]] = [
        (one, (*one.people, *one.called_by), "turn")
        for one in given.turns.values()
        if one.name == name
    ]
    drops = [(one, one.by, f"dropped: {one.reason}") for one in seen.dropped if one.of == name]
    found = [
        (
            end,
            call.last > call.first
            and (
                len({*by} - {*EVERYBODY}) not in (0, len(by))
                or (call.first in edited and call.first < message.seq < call.last)
            ),
        )
        for call, by, end in (*turns, *drops)
        if covers(call, message.seq) and message.author in by
    ]
    sure = [end for end, mixed in found if not mixed]
    return sure or [end for end, _ in found][:1]


def broken(seen: Seen, given: Given, *, steered: bool) -> list[str]:
    """How the law is broken. ``steered``: words may have entered turns that were under way."""
    messages = {one.seq: one for one in seen.messages}
    found: list[str] = []
    for name, number in seen.mentions(given.here):
        text = messages[number].text
        ways, words = ends(name, messages[number], seen, given), WORD.findall(text)
        read = steered and set(words) <= seen.read[name] and bool(words)
        # A call that was edited away and back again may have an end for each time.
        again = bool(ways) and messages[number].edited > 0
        if len(ways) != 1 and not (read and not ways) and not again:
            found.append(f"{name} in {number} ({text!r}): {ways}")
    return found


def broken_after_kill(seen: Seen, given: Given) -> list[str]:
    """The same without a record of the floor: a kill takes that away with the host.

    A turn that was cut off may be given again, or its call dropped; nothing is told twice.
    """
    numbers = [one.number for one in seen.dropped]
    found = [f"dropped calls {numbers}"] if numbers != [*range(1, len(numbers) + 1)] else []
    texts = {one.seq: one.text for one in seen.messages}
    at = {
        one.number: at for at, one in enumerate(seen.events) if isinstance(one, motet.MessageAdded)
    }
    for name, number in seen.mentions(given.here):
        turn = any(
            one.author == name and one.seq > number and one.kind == "agent" for one in seen.messages
        )
        later = seen.events[at[number] :]
        turn = turn or any(isinstance(one, RoomTurn) and one.speaker == name for one in later)
        words = set(WORD.findall(texts[number]))
        turn = turn or (bool(words) and words <= seen.read[name])
        drops = [one for one in seen.dropped if one.of == name and covers(one, number)]
        edited = any(one.seq == number and one.edited > 0 for one in seen.messages)
        if (len(drops) > 1 and not edited) or not (turn or drops):
            found.append(f"{name} in {number} ({texts[number]!r}): {turn}, {drops}")
    return found
