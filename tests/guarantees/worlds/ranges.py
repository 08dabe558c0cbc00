"""A world of rooms whose members are busy, so that many messages call one of them before its turn.

Such calls are kept as one, with the numbers of its first and last message; those that end alone, by
an edit, a withdrawal, or since their author was removed, are its ``ended`` numbers. The storage is
away now and then, and hosts are killed and closed. Everything is judged by what the room's stream
has told in the end: that is all that its people ever see.
"""

# The state of the room is looked at in the end.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

import attrs
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.definition import member_session
from motet.protocols.chat import UserMessage
from motet.protocols.events import CallDropped, MessageDeleted, MessageEdited, RoomTurn
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import AddPerson, RemovePerson
from motet.protocols.room_calls import covers, mentioned
from motet.protocols.rooms import Due, FindRoom, RoomMessage, RoomMode, RoomPlan
from motet.protocols.sessions import Principal
from motet.protocols.storage import StorageUnavailable
from motet.testing.history import History
from tests.guarantees.worlds import calls

NAMES: Final = ("ann", "ben")
PEOPLE: Final = ("ada", "bob", "cleo")
CALLED: Final = ("@ann", "@ann", "@ann", "@all", "@ben", "")


def agents(seed: object) -> list[motet.Agent[None, str]]:
    """Members that take long, so that calls of them wait."""

    def agent(name: str) -> motet.Agent[None, str]:
        random = Random(f"{seed}/{name}")

        def answer(_: ModelRequest) -> mt.Step:
            return mt.slow(mt.say("here"), seconds=random.choice((1, 8)))

        return motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

    return [agent(name) for name in NAMES]


@attrs.define
class Talk:
    """The random choices of one conversation. ``kills``: its host dies now and then, too.

    ``stopped``: for each stop that has returned, the last message before it, and the turns so far.
    """

    seed: object
    mode: RoomMode
    kills: bool
    given: calls.Record
    words: int = 0
    killed: bool = False
    stopped: list[tuple[int, set[calls.Turn]]] = attrs.field(
        factory=list[tuple[int, "set[calls.Turn]"]]
    )
    random: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = Random(f"{self.seed}")

    def next(self) -> int:
        self.words += 1
        return self.words

    def text(self) -> str:
        return f"{self.random.choice(CALLED)} <m{self.next()}>"


async def begin(host: Host, talk: Talk) -> None:
    plan = RoomPlan(
        NAMES,
        speakers=("mentions",),
        mode=talk.mode,
        max_turns=talk.random.choice((2, 8)),
        concurrency=talk.random.choice((1, 2)),
    )
    await host.rooms.create("den", plan, people=PEOPLE[1:], principal=calls.OWNER)


async def post(host: Host, text: str, user: str) -> None:
    room = await calls.name_of(host)
    with suppress(motet.NotFound, motet.SessionBusy):
        await host.rooms.post(room, text, key=text, principal=Principal(user))


async def change(host: Host, text: str, chance: float, *, insist: bool) -> None:
    """Give a message of people another text; empty: withdraw it.

    Without ``insist`` it is tried once, and nobody knows then whether it was done.
    """
    room = await calls.name_of(host)
    while True:
        try:
            said = [one for one in await host.rooms.history(room, limit=200) if _is_text(one)]
            if said:
                one = said[int(chance * len(said))]
                who = Principal(one.author)
                with suppress(motet.NotFound):  # it was withdrawn meanwhile, or its author is gone
                    if text:
                        await host.rooms.edit_message(room, one.seq, text, principal=who)
                    else:
                        await host.rooms.delete_message(room, one.seq, principal=who)
            return
        except StorageUnavailable:
            if not insist:
                return
            await trio.sleep(0.05)


def _is_text(one: RoomMessage) -> bool:
    return one.kind == "person" and not one.deleted


async def remove(host: Host, user: str) -> None:
    act = RemovePerson(room=await calls.name_of(host), user=user)
    with suppress(motet.NotFound, StorageUnavailable):
        await host.rooms.manage(act, principal=calls.OWNER)


async def add(host: Host, user: str) -> None:
    act = AddPerson(room=await calls.name_of(host), user=user)
    with suppress(StorageUnavailable):
        await host.rooms.manage(act, principal=calls.OWNER)


async def stop(host: Host, talk: Talk) -> None:
    room = await calls.name_of(host)
    live = host._parts.room_table.rooms.get(room)
    last = live.history.last if live else 0
    await host.stop(room=room)
    talk.stopped.append((last, {*talk.given.of(room).turns}))


ACTS: Final = (*("post",) * 5, *("change",) * 5, "remove", "add", "stop", *("fail", "mend") * 2)


def play(talk: Talk, host: mt.SimulatedHost, *, length: int) -> None:
    """Some times a member gets the floor and works; meanwhile people talk, and nobody waits for
    what they have begun. In the end the turn is over, the room is stopped, or the host dies.
    """
    host.call(begin, talk)
    random = talk.random
    for _ in range(length):
        calls.mend(host.disk)
        host.begin(calls.insist, post, f"@ann <m{talk.next()}>", random.choice(PEOPLE))
        host.advance(0.06)
        for _ in range(random.randrange(4, 10)):
            match random.choice(ACTS):
                case "post":
                    host.begin(calls.insist, post, talk.text(), random.choice(PEOPLE))
                case "change":
                    text = random.choice((talk.text(), talk.text(), ""))
                    host.begin(change, text, random.random(), insist=random.random() < 0.5)
                case "remove":
                    host.begin(remove, random.choice(PEOPLE[1:]))
                case "add":
                    host.begin(add, random.choice(PEOPLE[1:]))
                case "stop":
                    host.begin(stop, talk)
                case "fail":
                    calls.fail(host.disk, random.choice(calls.FAULTS))
                case _:
                    calls.mend(host.disk)
            if random.random() < 0.5:
                host.steps(random.randrange(1, 150))  # to the middle of a write
            else:
                host.advance(0.06)
        match random.choice(("turn", "stop", *("kill", "close") * talk.kills)):
            case "turn":
                host.advance(random.choice((0.1, 9)))
            case "stop":
                host.begin(stop, talk)
                host.steps(random.randrange(1, 150))
            case how:
                talk.killed = True
                calls.mend(host.disk)
                host.crash() if how == "kill" else host.restart(0)
    calls.mend(host.disk)


async def last_word(host: Host) -> None:
    await host.rooms.post(await calls.name_of(host), "the end", principal=calls.OWNER)


@attrs.frozen
class Seen:
    """The room in the end: its stream, what is stored, what its members have read, and how its
    memory and its disk differ. ``said``: what was told at the time, by message and change, since
    stored events have the texts of now.
    """

    events: tuple[object, ...]
    said: dict[tuple[int, int], str]
    messages: tuple[RoomMessage, ...]
    read: dict[str, str]
    drops: int
    differ: str


async def look(host: Host, heard: History) -> Seen:
    room = await calls.name_of(host)
    said: dict[tuple[int, int], str] = {}
    for one in (each.record.event for each in heard.events if each.record.stream == f"room:{room}"):
        if isinstance(one, motet.MessageAdded | MessageEdited):
            said.setdefault((one.number, getattr(one, "change", 0)), one.text)
    events: list[object] = []
    after = 0
    while found := await host.events.read(f"room:{room}", after, 200):
        events += [one.event for one in found]
        after = found[-1].seq or 0
    live = host._parts.room_table.rooms[room].history
    stored = await live.store.ask(FindRoom(room, 200))
    assert stored is not None
    known = {one.seq: one for one in stored.messages}
    differ = [one.seq for one in live.messages if known.get(one.seq) != one]
    what = f"messages {differ} differ" if differ else ""
    read: dict[str, str] = {}
    for name in NAMES:
        read[name] = ""
        with suppress(motet.NotFound):
            rows = await host.history(member_session(room, name), limit=500)
            read[name] = " ".join(one.row.text for one in rows if isinstance(one.row, UserMessage))
    whole = "" if live.state == stored.state else "the state in memory is another one"
    return Seen(tuple(events), said, stored.messages, read, stored.state.drops, what or whole)


def broken(seen: Seen, talk: Talk, given: calls.Given) -> Iterator[str]:
    """How the law is broken: by a call without an end, or with two; by what was told of changes;
    by a memory of the room that is not its disk. ``given``: the turns that members got, which a
    kill makes worthless.
    """
    if seen.differ:
        yield seen.differ
    dropped = [one.number for one in seen.events if isinstance(one, CallDropped)]
    if dropped != [*range(1, seen.drops + 1)]:
        yield f"dropped calls {dropped} are told of {seen.drops}"
    changes = [one.change for one in seen.events if isinstance(one, MessageEdited | MessageDeleted)]
    if changes != [*range(1, len(changes) + 1)]:
        yield f"changes {changes} are told"
    told: dict[int, str] = {}
    for event in seen.events:
        if isinstance(event, motet.MessageAdded | MessageEdited):
            told[event.number] = event.text
        elif isinstance(event, MessageDeleted):
            told[event.number] = ""
    texts = {one.seq: one.text for one in seen.messages}
    if told != texts:
        yield f"told is {told}, stored {texts}"
    found = Calls(seen)
    found.follow(() if talk.killed else given.turns.values())
    yield from found.twice
    for last, before in talk.stopped if not talk.killed else ():
        for turn, call in given.turns.items():
            if turn not in before and 0 < call.last <= last and call.last not in found.edited:
                yield f"what was stopped at {last} goes on: {turn} {call}"
    for name, number in sorted(found.open):
        word = calls.WORD.findall(texts[number])
        if name in found.calling[number] and not (word and word[0] in seen.read[name]):
            yield f"the call of {name} in {number} has no end ({texts[number]!r})"
        elif name not in found.calling[number] and talk.mode != "steer":
            yield f"the call of {name} in {number} is gone without a word"


Key: TypeAlias = tuple[str, int]
"""A call: the member, and the number of the message."""


class Calls:
    """The calls that the stream tells of: each is open from the message or the change that makes it
    until an end is told. ``calling``: whom each message calls now; ``edited``: those that were
    changed; ``twice``: ends too many.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._begun, self._ended = Counter[Key](), Counter[Key]()
        self.edited: set[int] = set()
        self._changed: set[Key] = set()  # calls that a change has made
        self._authors: dict[int, str] = {}
        self.calling: dict[int, tuple[str, ...]] = {}
        self.open: set[Key] = set()
        self.twice: list[str] = []

    def follow(self, turns: Iterable[Due]) -> None:
        for event in self._seen.events:
            match event:
                case motet.MessageAdded(role="user") | MessageEdited() | MessageDeleted():
                    self._calls_now(event)
                case RoomTurn(speaker=name):
                    self.open -= {one for one in self.open if one[0] == name}
                case CallDropped():
                    self._end(event.of, event, event.by)
                    numbers = range(event.first, event.last + 1)
                    self.open -= {(event.of, one) for one in numbers if covers(event, one)}
                case _:
                    pass
        for turn in turns:
            self._end(turn.name, turn, (*turn.people, *turn.called_by))

    def _calls_now(self, event: motet.MessageAdded | MessageEdited | MessageDeleted) -> None:
        number, change = event.number, 0
        if isinstance(event, motet.MessageAdded):
            self._authors[number] = event.author
        else:
            self.edited.add(number)
            change = event.change
        now = mentioned(self._seen.said.get((number, change), ""), NAMES)
        new = {(name, number) for name in now if name not in self.calling.get(number, ())}
        self.open |= new
        self._begun.update(new)
        self._changed |= new if change else set()
        self.calling[number] = now

    def _end(self, name: str, call: Due | CallDropped, by: Sequence[str]) -> None:
        # A range that begins with a message which calls only since it was changed may go over
        # others whose calls have ended long ago; and one may go over messages that called nobody.
        unsure = call.first < call.last and call.first in self.edited
        for number in range(call.first, call.last + 1) if not unsure else ():
            key = name, number
            if key in self._changed and call.first < call.last:
                continue
            if key in self._begun and covers(call, number) and self._authors[number] in by:
                self._ended[key] += 1
                if self._ended[key] > self._begun[key]:
                    self.twice.append(f"the call of {name} in {number} ends again: {call}")
