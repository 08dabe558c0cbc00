"""Rooms of people and agents for the crash test, one in each queue mode.

In each room people call agents by name, reply to them, edit and withdraw what they have said, come
and go, while its owner changes members and stops the agents; agents call each other, pass, and have
effects, some after an approval. One task of a room does one thing after the other and writes down
each before and after it, as a line of JSON, so that it is known what was acknowledged, and to whom
each ``@name`` went. What a killed life has left open is done again by the next one.

Words of people are ``<mode.number>``. Agents say the bare number: no text of a person is left in
what they say, and a withdrawn one can be searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias
from zlib import crc32

import attrs
import msgspec
import trio

import motet
from motet.protocols import room_floor as floor
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import Forbidden, NotFound
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.room_acts import AddPerson, RemovePerson
from motet.protocols.rooms import ROOM_MODES, Due, Floor, RoomChange, RoomMode, RoomPlan, RoomState
from motet.protocols.sessions import Principal, SessionBusy
from tests.crash.workload import Diary, Planner, lines

Line: TypeAlias = dict[str, Any]
Insist: TypeAlias = Callable[[Callable[[], Any]], Any]
OWNER: Final = Principal("ada")
GUESTS: Final = ("bob", "cy")
NAMES: Final = ("eva", "fay", "gus")
WORD: Final = re.compile(r"<(\w+)\.(\d+)>")
PACE: Final = {"followup": 0.3}
"""Mean seconds between two acts; in mode ``followup`` each message has a round of its own."""


def members(mode: str) -> tuple[str, ...]:
    """The agents of one room, which are in no other; the first one is never removed."""
    return tuple(f"{name}-{mode}" for name in NAMES)


def club(name: str) -> str:
    """The mode of the room with this name, or of the one whose thread it is; empty: of none."""
    found = re.match(r"club-(\w+)-[0-9a-f]{8}", name)
    return found[1] if found else ""


def agents(random: Random, folder: Path) -> list[motet.Agent[None, str]]:
    effects = Diary(folder / "effects")
    return [
        _member(random, effects, name, members(mode))
        for mode in ROOM_MODES
        for name in members(mode)
    ]


def _member(
    random: Random, effects: Diary, name: str, all_names: Sequence[str]
) -> motet.Agent[None, str]:
    others = [one for one in all_names if one != name]
    agent = motet.Agent(
        name, model=Planner(random, lambda request: _said(request, name, others), f"of {name}")
    )

    async def happens(tool: str, ctx: motet.Context[None], effect: str) -> str:
        await trio.sleep(random.expovariate(1 / 0.005))
        effects.write(f"{tool} {effect} {ctx.run_id} {ctx.call_id}")
        await trio.sleep(random.expovariate(1 / 0.005))
        return "done"

    @agent.tool(effects="write")
    async def act(ctx: motet.Context[None], effect: str) -> str:
        return await happens("act", ctx, effect)

    @agent.tool(effects="write", approval=True)
    async def ask(ctx: motet.Context[None], effect: str) -> str:
        return await happens("ask", ctx, effect)

    return agent


def _said(request: ModelRequest, name: str, others: Sequence[str]) -> list[ModelEvent]:
    """It acts once for each word, and says what it has heard since it spoke last.

    What it does depends on the word, so that every life asks for the same effects.
    """
    rows = request.messages
    at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
    while at and isinstance(rows[at - 1], UserMessage):
        at -= 1
    texts = [row.text for row in rows[at:] if isinstance(row, UserMessage)]
    words = list(dict.fromkeys(word for text in texts for word in WORD.findall(text)))
    calls = [call for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
    asked = {msgspec.json.decode(call.arguments)["effect"] for call in calls}
    # After a compaction the summary names the effects.
    asked |= {one for row in rows for one in re.findall(rf"\b{name}/\w+\.\d+", row.text)}
    end: list[ModelEvent] = [UsageReport(Usage(10, 5))]
    for mode, number in words:
        effect, choice = f"{name}/{mode}.{number}", crc32(f"{name}{number}".encode()) % 6
        if choice in (0, 1) and effect not in asked:
            args = msgspec.json.encode({"effect": effect}).decode()
            call = CallStart(0, f"c{mode}_{number}", "act" if choice else "ask")
            return [call, CallArguments(0, args), *end, Finished("tool_calls")]
    heard = " ".join(number for _, number in words)
    match crc32(f"{heard}{name}".encode()) % 5:
        case 0:
            text = f"heard {heard}; @{others[crc32(heard.encode()) % len(others)]} your turn"
        case 1 if not heard:
            text = "PASS"
        case _:
            text = f"heard {heard}"
    return [TextPart(text), *end, Finished("stop")]


@contextmanager
def recorded(folder: Path, life: int) -> Generator[None]:
    """Write down the calls with which members get the floor, before that is on disk.

    A change is made anew for each attempt to store it: the same turn is written down again.
    """
    diary, give, end = Diary(folder / "given"), floor.give_floor, floor.end_round

    def note(what: str, calls: Collection[Due], at: Floor, more: int = 0) -> None:
        for one in calls:
            by = [*one.people, *one.called_by]
            if one.is_call and one.name.partition("-")[0] in NAMES:
                line = {"life": life, "what": what, "name": one.name, "by": by}
                line |= {"first": one.first, "last": one.last, "ended": one.ended}
                line |= {"round": at.round, "turns": at.turns + more}
                diary.write(msgspec.json.encode(line).decode())

    def give_floor(state: RoomState, speakers: Sequence[Due], **more: Any) -> RoomState:
        note("given", speakers, state.floor, len(speakers))
        return give(state, speakers, **more)

    def end_round(state: RoomState, reason: str, **more: Any) -> RoomState:
        unheard = more.get("unheard", ())
        note("back", [one for one in state.floor.speaking if one.name in unheard], state.floor)
        return end(state, reason, **more)

    floor.give_floor, floor.end_round = give_floor, end_round
    try:
        yield
    finally:
        floor.give_floor, floor.end_round = give, end


@attrs.define
class Ledger:
    """What was done in the room of one mode, in all lives.

    ``open``: the line of an act that may have happened, and was not acknowledged. ``members``: the
    agents that are called; ``guests``: the people besides the owner.
    """

    mode: RoomMode
    members: tuple[str, ...]
    guests: tuple[str, ...] = ()
    words: int = 0
    open: Line | None = None
    said: dict[int, Line] = attrs.field(factory=dict[int, Line])
    acts: list[Line] = attrs.field(factory=list[Line])

    @classmethod
    def read(cls, folder: Path, mode: RoomMode) -> Ledger:
        found = cls(mode, members(mode))
        for text in lines(folder / f"club-{mode}"):
            found.add(msgspec.json.decode(text))
        return found

    def add(self, line: Line) -> None:
        """``try`` begins an act; ``did`` and ``refused`` are its ends, with the same fields."""
        self.words = max(self.words, line.get("word", 0))
        if line["end"] == "try":
            self.open = line
            return
        self.open = None
        self.acts.append(line)
        match line["what"], line["end"]:
            case "members", "did":
                self.members = tuple(line["members"])
            case "come", "did":
                self.guests = (*self.guests, line["user"])
            case "go", "did":
                self.guests = tuple(one for one in self.guests if one != line["user"])
            case "post", "did":
                self.said[line["seq"]] = line
            case (("edit" | "delete"), "did"):
                self.said[line["seq"]] |= {"edited": True, "text": line["text"]}
            case _:
                pass


class Club:
    """The life of one room. ``insist``: tries again while the storage is away."""

    def __init__(self, folder: Path, mode: RoomMode, random: Random, insist: Insist) -> None:
        self._ledger = Ledger.read(folder, mode)
        self._diary = Diary(folder / f"club-{mode}")
        self._mode: RoomMode = mode
        self._random, self._insist = random, insist
        self._room = ""

    async def live(self, host: motet.Host) -> None:
        await self._open(host)
        if self._ledger.open is not None:
            await self._do(host, self._ledger.open)
        while True:
            await self._do(host, self._next())
            if self._random.random() < 0.05:
                with suppress(NotFound):  # it is not open: nobody has said anything in this life
                    await host.stop(room=self._room)
            mean = PACE.get(self._mode, 0.08)
            await trio.sleep(self._random.choice((0.0, self._random.expovariate(1 / mean))))

    async def _open(self, host: motet.Host) -> None:
        for one in await self._insist(lambda: host.rooms.list(principal=OWNER)):
            self._room = one.name if club(one.name) == self._mode else self._room
        if not self._room:
            plan = RoomPlan(
                members(self._mode),
                speakers=("mentions",),
                max_turns=self._random.choice((3, 6, 9)),
                concurrency=self._random.choice((1, 2, 3)),
                mode=self._mode,
            )
            made = partial(host.rooms.create, f"club-{self._mode}", plan, principal=OWNER)
            self._room = (await self._insist(made)).name

    def _next(self) -> Line:
        """Something to do now, as the line of its beginning."""
        ledger, random = self._ledger, self._random
        mine = [seq for seq, line in ledger.said.items() if line["text"]][-20:]
        line: Line = {"end": "try", "word": ledger.words + 1}
        match random.choices(
            ("post", "members", "come", "go", "edit", "delete"), (20, 2, 2, 1, 2, 1)
        )[0]:
            case "members":
                first, *others = members(self._mode)
                names = [first, *(one for one in others if random.random() < 0.6)]
                return line | {"what": "members", "members": names}
            case ("come" | "go") as what if users := [
                one for one in GUESTS if (one in ledger.guests) == (what == "go")
            ]:
                return line | {"what": what, "user": random.choice(users)}
            case ("edit" | "delete") as what if mine:
                seq = random.choice(mine)
                text = self._text(line["word"]) if what == "edit" else ""
                if text and seq != max(ledger.said):
                    # A new call in an old message would make one range with all that came since.
                    text = f"never mind <{self._mode}.{line['word']}>"
                line |= {"what": what, "seq": seq, "text": text, "old": ledger.said[seq]["text"]}
                return line | {"user": ledger.said[seq]["user"], "here": [*ledger.members]}
            case _:
                user = random.choice((OWNER.user, *ledger.guests))
                user = random.choice(GUESTS) if random.random() < 0.05 else user
                about = random.choice((0, 0, 0, *range(1, max(ledger.said, default=0) + 1)[-3:]))
                line |= {"what": "post", "user": user, "text": self._text(line["word"])}
                return line | {"reply_to": about, "here": [*ledger.members]}

    def _text(self, word: int) -> str:
        names = [f"@{name}" for name in members(self._mode)]
        called = ["", *names, "@all", f"{names[2]} {names[0]}", f"ask {names[1]}", "@zed"]
        return f"{self._random.choice(called)} <{self._mode}.{word}>"

    async def _do(self, host: motet.Host, line: Line) -> None:
        if self._ledger.open is None:
            self._note(line)
        end = line | {"end": "did"}
        try:
            end |= await self._insist(lambda: self._act(host, line))
        except SessionBusy:
            end["end"] = "refused"
        except (NotFound, Forbidden):
            # A guest who has gone, or whose message this was: nobody else is refused.
            if line.get("user") in (None, OWNER.user, *self._ledger.guests):
                raise
            end["end"] = "refused"
        self._note(end)

    async def _act(self, host: motet.Host, line: Line) -> Line:
        room, rooms = self._room, host.rooms
        user = line.get("user", "")
        match line["what"]:
            case "members":
                change = RoomChange(members=tuple(line["members"]))
                await rooms.change(room, change, principal=OWNER)
            case "come":
                await rooms.manage(AddPerson(room=room, user=user), principal=OWNER)
            case "go":
                await rooms.manage(RemovePerson(room=room, user=user), principal=OWNER)
            case "edit":
                who = Principal(user)
                await rooms.edit_message(room, line["seq"], line["text"], principal=who)
            case "delete":
                await rooms.delete_message(room, line["seq"], principal=Principal(user))
            case _:
                said = await rooms.post(
                    room,
                    line["text"],
                    key=f"{self._mode}-{line['word']}",
                    reply_to=line["reply_to"] or None,
                    principal=Principal(user),
                )
                return {"seq": said.seq}
        return {}

    def _note(self, line: Line) -> None:
        self._diary.write(msgspec.json.encode(line).decode())
        self._ledger.add(line)
