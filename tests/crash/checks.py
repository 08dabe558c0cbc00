"""The laws of a state directory after every kill, read by the database's own means.

Each law is a sentence; what breaks it is a line that names the run or the effect.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import attrs

from motet.actors.storage.location import DATABASE_FILE
from motet.actors.storage.tables import decode_message
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from tests.crash.calls import Calls
from tests.crash.workload import INPUT, ONCE, lines
from tests.guarantees.worlds.texts import WANTED, Image, names_in
from tests.room_sums import DIFFERENCES

FINAL = (
    "completed",
    "failed",
    "cancelled",
    "limited",
    "escalated",
    "refused",
    "interrupted",
    "dropped",
)
LIVE = ("queued", "running", "waiting")
ENDS = (
    *("run.completed", "run.failed", "run.cancelled"),
    *("run.limited", "run.refused", "run.escalated", "run.interrupted"),
)
ROUNDS = (
    "SELECT event FROM events WHERE stream = ? AND event IN ('room.turn', 'room.idle')"
    " ORDER BY seq DESC LIMIT 1"
)
TOLD = """
SELECT run_id, event, CASE event WHEN 'message' THEN json_extract(data, '$.text')
                                 WHEN 'input.accepted' THEN ''
                                 ELSE json_extract(data, '$.id') END
FROM events WHERE stream LIKE 'session:%' AND event IN (
    'input.accepted', 'message', 'tool.call', 'tool.result', 'approval.requested',
    'approval.resolved')"""


NO_EFFECT = ("denied", "answered", "cancelled_before_start")
NEW, ALL = 500, 1_000_000
"""Runs whose texts are looked at after a kill, and in the end; always with all that go on, which an
input that came much later may have joined."""
OWNERS = """
SELECT * FROM (SELECT 'run', run_id, status, text FROM runs
               WHERE session GLOB 'm[0-9]*' ORDER BY rowid DESC LIMIT ?1)
UNION SELECT 'run', run_id, status, text FROM runs
      WHERE session GLOB 'm[0-9]*' AND status IN ('queued', 'running', 'waiting')
UNION ALL SELECT 'step', run_id, '', body FROM steps JOIN runs USING (run_id)
          WHERE session GLOB 'm[0-9]*'
UNION ALL SELECT * FROM (SELECT 'row', run_id, '', body FROM messages
                         WHERE session GLOB 'm[0-9]*' AND role = 'user'
                         ORDER BY rowid DESC LIMIT ?2)"""
GIVEN_UP = """
SELECT run_id, event, json_extract(data, '$.reason') FROM events
WHERE event IN ('input.dropped', 'run.cancelled') AND stream GLOB 'session:[ms][0-9]*'"""
STARTS = """
SELECT run_id, (SELECT count(*) FROM events WHERE stream = 'session:' || runs.session
                AND events.run_id = runs.run_id AND event = 'run.started')
FROM runs WHERE status = 'completed' AND session GLOB '[ms][0-9]*'"""


@attrs.define
class Checker:
    """Reads on where it has stopped before; only while no host has the directory open.

    ``known``: by session, the last row that was looked at; ``ends``: by run, how often it was told.
    """

    folder: Path
    known: dict[str, int] = attrs.field(factory=dict[str, int])
    ends: Counter[str] = attrs.field(factory=Counter[str])
    finals: Counter[str] = attrs.field(factory=Counter[str])
    effects: set[str] = attrs.field(factory=set[str])
    _events: dict[str, int] = attrs.field(factory=dict[str, int])
    _acks: int = 0
    _asked: dict[tuple[str, str], Call] = attrs.field(factory=dict[tuple[str, str], Call])
    _times: Counter[str] = attrs.field(factory=Counter[str])
    calls: Calls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.calls = Calls(self.folder)

    def problems(self, *, quiet: bool = False) -> list[str]:
        """``quiet``: the host has ended by itself, with nothing left to do."""
        file = self.folder / "state" / DATABASE_FILE
        if not file.exists():
            return []
        if is_being_made(file):
            acks = lines(self.folder / "acks")
            return [f"input {line} was acknowledged before it could be stored" for line in acks]
        with closing(_opened(file)) as db:
            return [
                *self._lost(db),
                *self._effects(),
                *self._transcripts(db),
                *self._told(db),
                *self._posts(db, "posts", "carl", "cat"),
                *self._posts(db, "said", "dora", "dot"),
                *self._owners(db, NEW if not quiet else ALL),
                *self._sums(db),
                *self.calls.problems(db, quiet=quiet),
                *((*self._left(db), *self._retold(db), *self._wanted(db)) if quiet else ()),
            ]

    def _lost(self, db: sqlite3.Connection) -> Iterator[str]:
        """No acknowledged input is missing, and each key has started one run."""
        acks = lines(self.folder / "acks")
        for line in acks[self._acks :]:
            key, run_id = line.split(" ")
            found = db.execute("SELECT status, text FROM runs WHERE run_id = ?", (run_id,))
            row = found.fetchone()
            if row is None:
                yield f"input {key} was acknowledged as {run_id} and is lost"
            elif not str(row[1]).startswith((f"{key} ", f"<{key}>")):
                yield f"input {key} was acknowledged as {run_id}, which is {row[1]!r}"
        self._acks = len(acks)
        for text, times in db.execute(
            "SELECT text, count(*) FROM runs WHERE session LIKE 's%' "
            "GROUP BY text HAVING count(*) > 1"
        ):
            yield f"input {text!r} has started {times} runs"

    def _effects(self) -> Iterator[str]:
        """No effect of a tool that is not idempotent has happened twice."""
        for line, times in Counter(lines(self.folder / "effects")).items():
            if times > 1 and line.split(" ")[0] in ONCE:
                yield f"effect {line!r} has happened {times} times"

    def _transcripts(self, db: sqlite3.Connection) -> Iterator[str]:
        """Every transcript is valid, and answers each input once."""
        rows: dict[str, list[tuple[str, ChatMessage]]] = {}
        for (session,) in db.execute("SELECT session FROM sessions"):
            found = db.execute(
                "SELECT pos, run_id, body FROM messages WHERE session = ? AND pos > ? ORDER BY pos",
                (session, self.known.get(session, 0)),
            )
            for pos, run_id, body in found:
                rows.setdefault(session, []).append((run_id, decode_message(body)))
                if pos != self.known.get(session, 0) + 1:
                    yield f"session {session} has a gap before row {pos}"
                self.known[session] = pos
        done = set(lines(self.folder / "effects"))
        for session, new in rows.items():
            yield from self.recorded(session, new, done)
            for problem in violations([row for _, row in new]):
                yield f"session {session}: {problem}"
            # A turn that texts enter may answer several times.
            if not session.startswith("m") and "dot" not in session and "club-" not in session:
                yield from self._answers(session, new)
        self.effects = done

    def recorded(
        self, session: str, new: list[tuple[str, ChatMessage]], done: set[str]
    ) -> Iterator[str]:
        """A call on record as done has had its effect; one that did not run has had none.

        A call that only reads begins without a record while the storage takes none. If its host is
        killed, the next one knows nothing of it, begins anew, and records its own attempt.
        """
        for run_id, row in new:
            for call in row.calls if isinstance(row, AssistantMessage) else ():
                self._asked[session, call.id] = call
                self._times[call.arguments] += 1
            if isinstance(row, ToolMessage):
                call = self._asked.pop((session, row.call_id))
                effect = json.loads(call.arguments)["effect"]
                ways = (
                    f"{call.name} {effect}",
                    f"{call.name} {run_id} {effect}",
                    f"{call.name} {effect} {run_id} {call.id}",
                )
                happened = not done.isdisjoint(ways)
                forgotten = call.name == "read" and not self.effects.isdisjoint(ways)
                if row.outcome == "done" and not happened:
                    yield f"{call} of run {run_id} is on record as done, and has had no effect"
                ran = happened and not forgotten and self._times[call.arguments] == 1
                if row.outcome in NO_EFFECT and ran:
                    yield f"{call} of run {run_id} is on record as {row.outcome}, and has an effect"

    def _answers(self, session: str, new: list[tuple[str, ChatMessage]]) -> Iterator[str]:
        for run_id, row in new:
            if isinstance(row, AssistantMessage) and not row.calls:
                self.finals[run_id] += 1
                if self.finals[run_id] > 1:
                    yield f"run {run_id} of session {session} is answered twice"
        for (run_id, asked), (other, answer) in pairwise(new):
            if isinstance(asked, UserMessage) and isinstance(answer, AssistantMessage):
                found = INPUT.search(asked.text)
                said = answer.text.startswith("answer to ") and not answer.calls
                if run_id != other or (said and found and answer.text != f"answer to {found[1]}"):
                    yield f"run {run_id}: {asked.text!r} is answered by {answer.text!r}"

    def _told(self, db: sqlite3.Connection) -> Iterator[str]:
        """The end of a run is told once, and none is told that has not ended."""
        for run_id in self._new_ends(db):
            self.ends[run_id] += 1
            if self.ends[run_id] > 1:
                yield f"the end of run {run_id} is told {self.ends[run_id]} times"
            row = db.execute("SELECT status FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None or row[0] not in FINAL:
                yield f"the end of run {run_id} is told, which is {row and row[0]}"

    def _new_ends(self, db: sqlite3.Connection) -> Iterator[str]:
        marks = ", ".join("?" * len(ENDS))
        for stream, head in db.execute("SELECT stream, head FROM streams").fetchall():
            given = (stream, self._events.get(stream, 0), head, *ENDS)
            found = db.execute(
                "SELECT run_id FROM events WHERE stream = ? AND seq > ? AND seq <= ? "
                f"AND event IN ({marks})",
                given,
            )
            yield from [str(run_id) for (run_id,) in found]
            self._events[stream] = head

    def _posts(self, db: sqlite3.Connection, diary: str, person: str, member: str) -> Iterator[str]:
        """What was said in the room is there, once."""
        by_author = "SELECT text FROM room_messages WHERE author = ?"
        said = Counter(str(text) for (text,) in db.execute(by_author, (person,)))
        for line in lines(self.folder / diary):
            text = f"words {line.split(' ')[0]}"
            if said[text] != 1:
                yield f"{text!r} was acknowledged and is in the room {said[text]} times"
        answers = [text for (text,) in db.execute(by_author, (member,))]
        heard = Counter(number for text in answers for number in re.findall(r"\d+", text))
        for number, times in heard.items():
            if times > 1:
                yield f"'words {number}' of {person} is answered by {member} {times} times"

    def _sums(self, db: sqlite3.Connection) -> Iterator[str]:
        """The sums of rooms are those that triggers on the table of runs have kept beside them."""
        for row in db.execute(DIFFERENCES):
            yield f"the sums of what a room has spent are too high (room, user, hour, ...): {row}"

    def _owners(self, db: sqlite3.Connection, most: int) -> Iterator[str]:
        """Where texts meet, each is an input that has not begun, in one run, or dropped."""
        image = Image.of(db.execute(OWNERS, (most, most * 10)).fetchall())
        for text in image.texts.values():
            for name in names_in(text)[:1]:
                yield from image.problems(name)

    def _wanted(self, db: sqlite3.Connection) -> Iterator[str]:
        """No input was given up that nobody wanted to be; one that was had no effect."""
        for run_id, event, reason in db.execute(GIVEN_UP):
            if not WANTED.search(str(reason)):
                yield f"{event} of {run_id}, which nobody wanted: {reason}"
        done = {line.split(" ", 1)[1] for line in lines(self.folder / "effects")}
        begun = {effect.rsplit(".", 1)[0] for effect in done}
        for (text,) in db.execute("SELECT text FROM runs WHERE status = 'dropped'"):
            for name in names_in(str(text)):
                if name.strip("<>") in begun:
                    yield f"{text!r} was dropped, and has effects"
        for run_id, times in db.execute(STARTS):
            if times != 1:
                yield f"the start of run {run_id} is told {times} times"

    def _left(self, db: sqlite3.Connection) -> Iterator[str]:
        """In the end nothing is left undone, and all of it is told."""
        for name, state in db.execute("SELECT name, state FROM rooms"):
            known = json.loads(state)
            told = db.execute(ROUNDS, (f"room:{name}",)).fetchone()
            if "floor" not in known:
                if db.execute("SELECT 1 FROM room_messages WHERE room = ?", (name,)).fetchone():
                    yield f"the room {name} has messages, and no round was opened"
                continue
            # No round has ended ("") if nobody has spoken yet since a change of the members. A stop
            # that comes before the first round ends that, too: round 0, with a reason.
            last = ("room.idle",) if known["floor"]["reason"] else None
            left = known["floor"]["going"] or known["waiting"] or (last is None and known["calls"])
            if left or told != last:
                yield f"the room {name} is left with {told} told last, as {state}"
        for run_id, status in db.execute("SELECT run_id, status FROM runs"):
            if status in LIVE:
                yield f"run {run_id} is {status} for ever"
            elif self.ends[run_id] != 1 and status not in ("dropped", "steered"):
                yield f"the end of run {run_id} ({status}) is told {self.ends[run_id]} times"

    def _retold(self, db: sqlite3.Connection) -> Iterator[str]:
        """In the end the streams tell all there is, whatever a kill had kept to itself."""
        heard = Counter(
            (str(run_id), str(event), str(what)) for run_id, event, what in db.execute(TOLD)
        )
        expected, silent = set[tuple[str, str, str]](), set[tuple[str, str, str]]()
        for run_id, body in db.execute("SELECT run_id, body FROM messages"):
            row = decode_message(body)
            if isinstance(row, AssistantMessage):
                expected |= {(run_id, "message", row.text)} if row.text else set()
                expected |= {(run_id, "tool.call", call.id) for call in row.calls}
                expected |= {(run_id, "tool.result", call.id) for call in row.calls}
            elif isinstance(row, ToolMessage) and row.outcome == "cancelled_before_start":
                # A stop came first: then a call need not be announced.
                silent |= {(run_id, kind, row.call_id) for kind in ("tool.call", "tool.result")}
        for what in expected - silent:
            if not heard[what]:
                yield f"{what} is told by no stream"
        once = [
            (run_id, "input.accepted", "") for (run_id,) in db.execute("SELECT run_id FROM runs")
        ]
        for approval, run_id, state in db.execute("SELECT id, run_id, state FROM approvals"):
            once.append((run_id, "approval.requested", approval))
            if state in ("allowed", "denied"):
                once.append((run_id, "approval.resolved", approval))
        for what in once:
            if heard[what] != 1:
                yield f"{what} is told {heard[what]} times"

    def counts(self) -> Counter[str]:
        with closing(_opened(self.folder / "state" / DATABASE_FILE)) as db:
            return Counter(dict(db.execute("SELECT status, count(*) FROM runs GROUP BY status")))


def is_being_made(file: Path) -> bool:
    """Whether a kill has cut off the creation of the database, which the next host begins anew.

    Only then is there a rollback journal, which cannot be undone without writing.
    """
    if Path(f"{file}-journal").exists():
        return True
    with closing(_opened(file)) as db:
        return not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()


def _opened(file: Path) -> sqlite3.Connection:
    """Read only, so that what a kill has left is for the next host to mend."""
    return sqlite3.connect(f"file:{file}?mode=ro", uri=True)
