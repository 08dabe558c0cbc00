"""The laws of the rooms of :mod:`tests.crash.clubs` after a kill, read from the database.

Nothing acknowledged is lost, or there twice; nobody who is not in a room has said anything there. A
call by ``@name`` is either open (in the stored state of its room), or has had its one end: a turn,
the member's reading it in a turn under way, or ``call.dropped``. What has ended stays so. A member
has one effect for one word, and one answer to it. What is withdrawn is nowhere.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from motet.protocols.room_calls import covers, mentioned
from motet.protocols.rooms import ROOM_MODES, Due, RoomMode, RoomPlan, RoomState
from tests.crash.clubs import GUESTS, WORD, Ledger, club, members
from tests.crash.workload import lines

Named: TypeAlias = tuple[str, int]
"""The member that is called, and the number of the message that calls it."""
MESSAGES: Final = """
SELECT seq, author, kind, text, reply_agent, edited
FROM room_messages WHERE room = ? ORDER BY seq"""
TOLD: Final = """
SELECT event, data FROM events WHERE stream = ? AND event IN ('message', 'call.dropped')
ORDER BY seq"""
READ: Final = """
SELECT session, body FROM messages WHERE role = 'user' AND session GLOB ?1
UNION ALL SELECT session, text FROM runs WHERE status != 'dropped' AND session GLOB ?1
UNION ALL SELECT session, body FROM steps JOIN runs USING (run_id) WHERE session GLOB ?1"""
"""What a member has read: a text that has entered its turn is among the inputs first."""
COPIES: Final = {
    "room_messages": "SELECT count(*) FROM room_messages WHERE instr(text, ?)",
    "runs": "SELECT count(*) FROM runs WHERE instr(text, ?)",
    "messages": "SELECT count(*) FROM messages WHERE instr(body, ?)",
    "steps": "SELECT count(*) FROM steps WHERE instr(body, ?)",
    "events": "SELECT count(*) FROM events WHERE instr(data, ?)",
}


@attrs.frozen
class Message:
    seq: int
    author: str
    kind: str
    text: str
    reply_agent: str
    edited: float

    @property
    def calling(self) -> str:
        return f"@{self.reply_agent} {self.text}" if self.reply_agent else self.text


@attrs.define
class Club:
    """One room as a kill has left it.

    ``read``: the words in the rows and inputs of each member's session; ``drops``: dropped calls,
    as told and as the state has them; ``numbers``: of those that were told; ``told``: of messages.
    """

    ledger: Ledger
    name: str
    state: RoomState
    plan: RoomPlan
    messages: dict[int, Message]
    read: dict[str, set[str]]
    drops: dict[int, dict[str, Any]]
    numbers: list[int]
    told: list[int]

    @classmethod
    def found(cls, db: sqlite3.Connection, folder: Path, mode: RoomMode) -> Club | None:
        rooms = db.execute("SELECT name, state, plan FROM rooms").fetchall()
        room = next((one for one in rooms if club(str(one[0])) == mode), None)
        if room is None:
            return None
        name, state, plan = room
        stored = msgspec.json.decode(state, type=RoomState)
        rows = [Message(*row) for row in db.execute(MESSAGES, (name,))]
        drops, numbers, told = dict[int, dict[str, Any]](), list[int](), list[int]()
        for event, data in db.execute(TOLD, (f"room:{name}",)):
            known = json.loads(data)
            if event == "message":
                told.append(known["number"])
            else:
                numbers.append(known["number"])
                drops[known["number"]] = known
        for one in stored.dropped:
            drops.setdefault(one.number, msgspec.to_builtins(one))
        read: dict[str, set[str]] = defaultdict(set)
        for session, text in db.execute(READ, (f"agent:*-{mode}:room:*",)):
            read[session.split(":")[1]] |= {found[0] for found in WORD.finditer(str(text))}
        ledger = Ledger.read(folder, mode)
        planned = msgspec.json.decode(plan, type=RoomPlan)
        by_number = {one.seq: one for one in rows}
        return cls(ledger, name, stored, planned, by_number, read, drops, numbers, told)

    def calls(self) -> dict[Named, Message]:
        """The calls that were surely made and acknowledged, and by texts that nobody has edited."""
        first = members(self.ledger.mode)[:1]
        here = {seq: tuple(line["here"]) for seq, line in self.ledger.said.items()}
        found = dict[Named, Message]()
        for one in self.messages.values():
            known = here.get(one.seq, ()) if one.kind == "person" else first
            for name in mentioned(one.calling, known):
                if name != one.author and not one.edited:
                    found[name, one.seq] = one
        return found

    def is_open(self, name: str, number: int) -> bool:
        floor = self.state.floor
        return any(
            due.name == name and covers(due, number)
            for due in (*self.state.calls, *floor.due, *floor.speaking)
        )

    def begins(self, name: str, message: Message) -> bool:
        """Whether an open range of calls begins or ends with this one."""
        floor = self.state.floor
        return any(
            due.name == name
            and message.seq in (due.first, due.last)
            and message.author in (*due.people, *due.called_by)
            for due in (*self.state.calls, *floor.due, *floor.speaking)
        )


def _due(name: str, line: dict[str, Any]) -> Due:
    """A call as the record of the floor and the event ``call.dropped`` have it."""
    ended = tuple(line.get("ended", ()))
    return Due(name, 0, tuple(line["by"]), first=line["first"], last=line["last"], ended=ended)


@attrs.define
class Calls:
    """The judge. ``ends``: for each call, what has ended it, once it was not open after a kill."""

    folder: Path
    ends: dict[Named, list[str]] = attrs.field(factory=dict[Named, list[str]])
    accounted: Counter[str] = attrs.field(factory=Counter[str])

    def problems(self, db: sqlite3.Connection, *, quiet: bool) -> Iterator[str]:
        given = self._given()
        yield from self._effects()
        for mode in ROOM_MODES:
            one = Club.found(db, self.folder, mode)
            if one is None:
                if Ledger.read(self.folder, mode).acts:
                    yield f"the room in mode {mode} is lost"
                continue
            yield from self._said(one)
            yield from self._people(db, one)
            yield from self._told(one, quiet=quiet)
            yield from self._ended(one, given, quiet=quiet)
            yield from self._withdrawn(db, one, quiet=quiet)

    def _given(self) -> dict[str, list[tuple[Due, int]]]:
        """By member, the calls with which it got the floor and was heard, with the life.

        A round never gives a turn back: the next one has another number.
        """
        turns = dict[tuple[int, str, int, int], Due]()
        for text in lines(self.folder / "given"):
            line = msgspec.json.decode(text)
            call = _due(line["name"], line)
            turn = line["life"], call.name, line["round"], line["turns"]
            if line["what"] == "given":
                turns[turn] = call
            else:
                turns.pop(turn, None)
        found: dict[str, list[tuple[Due, int]]] = defaultdict(list)
        for (life, name, *_), call in turns.items():
            found[name].append((call, life))
        return found

    def _said(self, one: Club) -> Iterator[str]:
        """What was acknowledged is there, once and as it was said last; what was refused is not."""
        words = Counter(
            found[0]
            for message in one.messages.values()
            if message.kind == "person"
            for found in WORD.finditer(message.text)
        )
        for word, times in words.items():
            if times > 1:
                yield f"{one.name}: {word} is said {times} times"
        opened = one.ledger.open or {}
        for seq, line in one.ledger.said.items():
            message = one.messages.get(seq)
            if message is None or message.author != line["user"]:
                yield f"{one.name}: message {seq} was acknowledged, and is {message}"
            elif message.text != line["text"] and opened.get("seq") != seq:
                yield f"{one.name}: {line['text']!r} was acknowledged, and is {message.text!r}"
        for line in one.ledger.acts:
            is_refused = line["end"] == "refused" and line["what"] in ("post", "edit")
            if is_refused and words[f"<{one.ledger.mode}.{line['word']}>"]:
                yield f"{one.name}: {line} was refused, and is there"
        if [*one.messages] != [*range(1, len(one.messages) + 1)]:
            yield f"{one.name}: its messages have gaps"
        heard = Counter(
            (message.author, number)
            for message in one.messages.values()
            if message.kind == "agent"
            for part in re.findall(r"heard ([\d ]*)", message.text)
            for number in set(part.split())
        )
        # An edited text is in the row that had the old one, and among the news of a later turn.
        edits = {str(line["word"]) for line in one.ledger.acts if line["what"] == "edit"}
        for (name, number), times in heard.items():
            if times > 1 and number not in edits:
                yield f"{one.name}: word {number} is answered by {name} {times} times"

    def _people(self, db: sqlite3.Connection, one: Club) -> Iterator[str]:
        """Who has come is there, who has gone is not, and has said nothing meanwhile."""
        ledger, opened = one.ledger, one.ledger.open or {}
        query = "SELECT user FROM room_people WHERE room = ?"
        here = {str(user) for (user,) in db.execute(query, (one.name,))}
        for user in GUESTS:
            if (user in here) != (user in ledger.guests) and opened.get("user") != user:
                yield f"{one.name}: {user} is among {here}, and {ledger.guests} was acknowledged"
        if one.plan.members != ledger.members and opened.get("what") != "members":
            yield f"{one.name}: has {one.plan.members}, and {ledger.members} was acknowledged"
        guests = set[str]()
        for line in ledger.acts:
            user = line.get("user", "")
            match line["what"], line["end"]:
                case "come", "did":
                    guests.add(user)
                case "go", "did":
                    guests.discard(user)
                case "post", "did" if user in GUESTS and user not in guests:
                    yield f"{one.name}: {user} was not there, and has said {line['text']!r}"
                case _:
                    pass

    def _told(self, one: Club, *, quiet: bool) -> Iterator[str]:
        """Each message and each dropped call is told once, and in the end all are."""
        for what, told, most in (
            ("messages", one.told, len(one.messages)),
            ("dropped calls", one.numbers, one.state.drops),
        ):
            if told != [*range(1, len(told) + 1)] or len(told) > most:
                yield f"{one.name}: {what} told as {told[-20:]}"
            elif quiet and len(told) != most:
                yield f"{one.name}: {len(told)} of {most} {what} are told"
        if [*sorted(one.drops)] != [*range(1, one.state.drops + 1)]:
            yield f"{one.name}: of {one.state.drops} dropped calls, the known ones have gaps"

    def _ended(
        self, one: Club, given: dict[str, list[tuple[Due, int]]], *, quiet: bool
    ) -> Iterator[str]:
        """A call is open, or has its one end. A turn that a kill has cut off may be given again."""
        for (name, number), message in one.calls().items():
            found = self._found(one, given, name, message)
            where = f"{one.name}: the call of {name} in {number} ({message.text!r})"
            if one.is_open(name, number):
                if (before := self.ends.get((name, number))) and one.begins(name, message):
                    yield f"{where} has ended by {before}, and is open again"
                if quiet:
                    yield f"{where} is open for ever"
                continue
            words = {word[0] for word in WORD.finditer(message.text)}
            if not found and words and words <= one.read[name]:
                found = ["read"]
            if not found:
                yield f"{where} is lost"
            elif (before := self.ends.setdefault((name, number), found)) != found:
                yield f"{where} has ended by {before}, and then by {found}"
            elif len(set(found)) < len(found) or sum(" in life " not in way for way in found) > 1:
                yield f"{where} has ended by {found}"
            last = found[-1].split(" in life")[0] if found else "lost"
            if quiet:
                self.accounted[last if last in ("turn", "read") else "dropped"] += 1

    def _found(
        self, one: Club, given: dict[str, list[tuple[Due, int]]], name: str, message: Message
    ) -> list[str]:
        """The ends of a call. A range of calls by people and agents may leave it out: such a one
        counts if there is no other.
        """
        turns = [(due, f"turn in life {life}") for due, life in given[name]]
        drops = [
            (_due(name, drop), drop["reason"]) for drop in one.drops.values() if drop["of"] == name
        ]
        found = [
            (
                way,
                due.last > due.first
                and len({*due.called_by} - agents) not in (0, len(due.called_by)),
            )
            for agents in ({*members(one.ledger.mode)},)
            for due, way in (*turns, *drops)
            if covers(due, message.seq) and message.author in due.called_by
        ]
        sure = [way for way, mixed in found if not mixed]
        return sure or [way for way, _ in found][:1]

    def _withdrawn(self, db: sqlite3.Connection, one: Club, *, quiet: bool) -> Iterator[str]:
        """No copy is left of a text that was withdrawn, or that another one has replaced."""
        gone = [line for line in one.ledger.acts if line["what"] in ("edit", "delete")]
        for line in gone if quiet else gone[-3:]:
            for word in WORD.finditer(line["old"] if line["end"] == "did" else ""):
                for table, query in COPIES.items():
                    (times,) = db.execute(query, (word[0],)).fetchone()
                    if times:
                        yield f"{one.name}: {word[0]} was withdrawn, and is in {times} {table}"

    def _effects(self) -> Iterator[str]:
        """A member acts once for each word."""
        acts = Counter(
            line.split(" ")[1]
            for line in lines(self.folder / "effects")
            if line[:4] in ("act ", "ask ")
        )
        for effect, times in acts.items():
            if times > 1:
                yield f"effect {effect} of a member has happened {times} times"

    def summary(self) -> str:
        """What was done in the rooms, and how the calls have ended."""
        done = Counter(
            f"{line['what']} {line['end']}" if line["end"] == "refused" else line["what"]
            for mode in ROOM_MODES
            for line in Ledger.read(self.folder, mode).acts
        )
        acts = ", ".join(f"{times} {what}" for what, times in sorted(done.items()))
        ends = ", ".join(f"{times} {what}" for what, times in sorted(self.accounted.items()))
        return f"rooms: {acts}; calls by name: {ends}"
