"""A world of texts that wait, steer, are collected, parked for a person, cut off and stopped (G15).

Each text has a name, and says which calls it wants. The model does what the texts of its turn say,
one batch of calls for each letter, so that every effect belongs to one text. Every committed state
of the disk is looked at: at each, a text has one owner. Sessions are deleted with their texts, and
made anew; they are compacted, also during runs; approvals expire; people speak in a room, too.
"""

# It looks at the disk beside the host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Literal, TypeAlias

import attrs
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.definition import member_session
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.queueing import QueueConfig, QueueMode
from motet.protocols.rooms import ReadRoom, RoomMessage
from motet.protocols.sessions import RunStatus
from motet.protocols.storage import StorageError
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Job
from tests.slow_commits import SlowCommits, slow_commits

What: TypeAlias = Literal[
    "say",
    "steer",
    "again",
    "allow",
    "deny",
    "wait",
    "steps",
    "crash",
    "power",
    "restart",
    "stop session",
    "stop run",
    "stop text",
    "full",
    "locked",
    "slow",
    "free",
    "send",
    "post",
    "delete",
    "compact",
    "expire",
]
ACTS: tuple[What, ...] = (
    *("say", "say", "steer", "steer", "steer", "again", "allow", "allow", "deny", "wait", "wait"),
    *("steps", "steps", "crash", "power", "restart", "stop session", "stop run", "stop text"),
    *("full", "locked", "slow", "free", "send", "send", "post", "delete", "compact", "expire"),
)
MODES: tuple[QueueMode, ...] = ("followup", "collect", "steer", "steer", "interrupt")
PLANS = ("", "a", "a", "r", "w", "ra", "aw", "wa", "aa")
"""Letters: ``a`` is a call that a person approves, ``r`` reads, ``w`` writes."""
TOOLS = {"a": "act", "r": "read", "w": "write"}
PAUSES = (0.0, 0.05, 0.2, 0.5, 2.0)
PLACES = ("s", "agent:ops:tcp:group:den")
ROOM = "hall"
MEMBER = member_session(ROOM, "ops")
SENDERS = ("ann", "bob")
NAME = re.compile(r"<([\w/]+)>([arwi]*)")
HOLD, EXPIRES = 0.3, 20.0
WINDOW = 500
"""Tokens of the model's window in one world of three: some runs are compacted before they end."""
SUMMARY = "[Previous conversation summary]"

LIVE: tuple[RunStatus, ...] = ("queued", "running", "waiting")
# One statement, so that it sees one committed state.
IMAGE = """
SELECT 'run', run_id, status, text FROM runs
UNION ALL SELECT 'step', run_id, '', body FROM steps
UNION ALL SELECT 'row', run_id, '', body FROM messages WHERE role = 'user'"""


@attrs.frozen
class Act:
    """``number`` decides the rest: the session, the text, the pause."""

    what: What
    number: int = 0


@attrs.define(eq=False)
class Text:
    """``runs``: the ids under which it was acknowledged.

    Attributes:
        done: the effects that had happened when it was to have no more: it was deleted with its
            session, which is ``gone``, or its sender's next input interrupted it.
    """

    name: str
    body: str
    place: str
    mode: QueueMode
    sender: str
    key: str | None
    runs: set[str] = attrs.field(factory=set[str])
    gone: bool = False
    done: frozenset[str] | None = None

    def owns(self, effect: str) -> bool:
        return f"<{effect.split()[1].split('.')[0]}>" == self.name


@attrs.define
class Image:
    """A committed state. By the name of a text, the runs with it in their journals or rows."""

    status: dict[str, str] = attrs.field(factory=dict[str, str])
    texts: dict[str, str] = attrs.field(factory=dict[str, str])
    journalled: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]])
    stored: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]])

    @classmethod
    def of(cls, found: Iterable[Sequence[object]]) -> Image:
        """Made of the rows of a query like :data:`IMAGE`."""
        image = cls()
        for kind, run_id, state, text in found:
            if kind == "run":
                image.status[str(run_id)], image.texts[str(run_id)] = str(state), str(text)
            else:
                held = image.journalled if kind == "step" else image.stored
                for name in names_in(str(text)):
                    held.setdefault(name, []).append(str(run_id))
        return image

    def problems(self, name: str) -> Iterator[str]:
        """A text is an input that has not begun, or in one run, or dropped."""
        named = {run_id for run_id, text in self.texts.items() if name in names_in(text)}
        stored, journalled = self.stored.get(name, []), set(self.journalled.get(name, ()))
        given_up = {one for one in named if self.status[one] in ("steered", "dropped")}
        owners = (named - given_up) | journalled | set(stored)
        shown = ", ".join(f"{one} ({self.status.get(one)})" for one in sorted(owners | given_up))
        if len(owners) > 1 or owners & given_up:
            yield f"the text {name} belongs to {shown}"
        if len(stored) > 1:
            yield f"the text {name} is in {len(stored)} rows: {shown}"
        for one in given_up:
            if (self.status[one] == "steered") != bool(owners):
                yield f"the text {name} is {self.status[one]}: {shown}"


def names_in(text: str) -> list[str]:
    return [f"<{number}>" for number, _ in NAME.findall(text)]


def planned(request: ModelRequest, done: Counter[str]) -> mt.Step:
    """The next calls of the turn, or its answer. ``done``: what needs no second call.

    A summary may have taken the place of the calls that a turn has made.
    """
    rows = request.messages
    own = [i for i, row in enumerate(rows) if isinstance(row, UserMessage) and _is_input(row)]
    if not own or not request.tools:
        return mt.say("nothing is open")
    at = own[-1]
    asked = [one for row in rows[at:] if isinstance(row, UserMessage) for one in _said(row.text)]
    made = sum(1 for row in rows[at:] if isinstance(row, AssistantMessage) and row.calls)
    every = [(f"{number}.{i}", x) for number, plan in asked for i, x in enumerate(plan)]
    wanted = [one for one in every[made:] if f"{TOOLS[one[1]]} {one[0]}" not in done]
    if not wanted:
        return mt.slow(mt.say(f"answer to {len(asked)}"), seconds=0.1 * (made % 2))
    effect, letter = wanted[0]
    return mt.slow(mt.call(TOOLS[letter], effect=effect), seconds=0.1 * (made % 3))


def _is_input(row: UserMessage) -> bool:
    return not row.note and not row.text.startswith(SUMMARY)


def _said(text: str) -> list[tuple[str, str]]:
    return [(str(number), str(plan)) for number, plan in NAME.findall(text)]


def agent_with(
    effects: Counter[str], host: list[mt.SimulatedHost], window: int | None = None
) -> motet.Agent[None, str]:
    """``host`` has the host that runs it, once there is one."""
    known = effects if window is not None else Counter[str]()
    model = mt.FunctionModel(lambda request: planned(request, known))
    agent = motet.Agent("ops", model=model, window=window)

    async def happens(tool: str, effect: str) -> str:
        await trio.sleep(0.05)
        if not host[0].history.cut_off:
            effects[f"{tool} {effect}"] += 1
        await trio.sleep(0.05)
        return f"{tool} {effect}"

    @agent.tool(approval=True, effects="write")
    async def act(effect: str) -> str:
        return await happens("act", effect)

    @agent.tool(effects="read")
    async def read(effect: str) -> str:
        return await happens("read", effect)

    @agent.tool(effects="write")
    async def write(effect: str) -> str:
        return await happens("write", effect)

    return agent


@attrs.define(eq=False)
class Deletion:
    """A deletion of a session whose outcome is unknown until the disk is looked at.

    Attributes:
        texts: acknowledged before it began; ``late``: while it was under way.
    """

    place: str
    texts: tuple[Text, ...]
    late: tuple[Text, ...] = ()
    returned: bool = False

    def problems(self, image: Image, effects: Counter[str]) -> Iterator[str]:
        """All texts are there, or none is, in any table."""
        left = [text.name for text in self.texts if text.runs & image.status.keys()]
        if left and (self.returned or len(left) < len(self.texts)):
            yield f"the deletion of {self.place} has left {left}"
        if not left:
            for text in (*self.texts, *self.late):
                if not text.runs & image.status.keys():
                    text.gone, text.done = True, frozenset(effects)


class Story:
    """People who talk to two sessions of a host that dies, restarts and is stopped."""

    def __init__(
        self,
        host: mt.SimulatedHost,
        effects: Counter[str],
        agent: motet.Agent[None, str],
        slow: SlowCommits,
    ) -> None:
        self.slow = slow
        self.host, self.effects = host, effects
        self.sent: dict[str, Text] = {}
        self.posted: dict[str, str] = {}
        self.problems: list[str] = []
        self._times: tuple[int, ...] = (1,)
        self._deletions: list[Deletion] = []
        self._room = motet.Room(ROOM, members=[agent], mode="steer", max_turns=3)
        host.room(self._room)

    def play(self, acts: list[Act]) -> list[str]:
        """What was broken, in words; empty: nothing."""
        for act in acts:
            self._do(act)
            self.problems += [f"after {act}: {one}" for one in self._image()]
            if self.problems:
                return self.problems
        self._to_the_end()
        self.problems += [f"in the end: {one}" for one in (*self._image(), *self._ended())]
        return self.problems

    # ------------------------------------------------------------------ acts

    def _do(self, act: Act) -> None:
        number = act.number
        match act.what:
            case "say" | "steer":
                self._say(self._new(act), wait=number % 3 > 0)
            case "again":
                again = [one for one in self.sent.values() if one.place != ROOM and not one.gone]
                keyed = [one for one in again if one.key]
                if keyed:
                    self._say(keyed[number % len(keyed)], wait=True)
            case "allow" | "deny":
                self._quietly(self.host.begin(_answer, number, act.what == "allow"))
            case "wait":
                self.host.advance(PAUSES[number % len(PAUSES)])
            case "steps":
                self.host.steps(1 + number % 60)
            case "send":
                if run_id := self._latest(number):
                    self._say(self._new(act), wait=number % 3 > 0, to=run_id)
            case "post":
                text = self._new(act)
                text.place = ROOM
                self._quietly(self.host.begin(self._post, text))
            case "delete":
                self._quietly(self.host.begin(self._delete, PLACES[number % 4 == 3]))
            case "compact":
                self._quietly(self.host.begin(_compact, PLACES[number % 4 == 3]))
            case "expire":
                self.host.advance(EXPIRES + 1)
            case "full":
                self.host.disk.room = self.host.disk.used
                self._times = (0, 1)  # without a journal, an event goes out and is not kept
            case "locked":
                self.host.disk.locked, self._times = True, (0, 1)
            case "slow":
                chance, longest = Random(number), (0.02, 0.1, 0.5)[number % 3]
                self.slow.seconds = lambda: chance.choice((0.0, 0.001, 0.01, longest))
            case "free":
                self._free()
            case "crash":
                self._free()  # the next host can open it
                self.host.crash()
            case "power":
                self._free()
                with mt.power_cut(self.host, 1 + number % 12):
                    self.host.advance(0.3)
            case "restart":
                self.host.disk.room, self.host.disk.locked = None, False
                if number % 2:  # an answer comes while the host shuts down
                    self.host.begin(_answer, number, True)
                self.host.restart(PAUSES[number % 3])
            case "stop session" | "stop run" | "stop text":
                self._quietly(self.host.begin(_stop, act.what, number, self._latest(number)))

    def _new(self, act: Act) -> Text:
        number, count = act.number, len(self.sent)
        name = f"<{count}>"
        text = Text(
            name,
            f"{name}{PLANS[number // 2 % len(PLANS)]}",
            PLACES[number % 4 == 3],
            "steer" if act.what == "steer" else MODES[number // 3 % len(MODES)],
            SENDERS[number // 5 % 2],
            f"key {count}" if number % 7 else None,
        )
        self.sent[name] = text
        return text

    def _say(self, text: Text, *, wait: bool, to: str = "") -> None:
        job = self.host.begin(self._deliver, text, to)
        if wait:
            self._quietly(job)
        else:
            self.host.steps(5)

    def _quietly(self, job: Job[None]) -> None:
        """Wait for it, unless it waits for the disk."""
        if self.host.disk.room is None and not self.host.disk.locked:
            self.host.loop.wait(job)
        else:
            self.host.advance(0.2)

    def _free(self) -> None:
        self.host.disk.room, self.host.disk.locked = None, False
        self.slow.seconds = float

    async def _deliver(self, host: Host, text: Text, to: str) -> None:
        """``to``: the run that it is sent to; empty: it comes into its session."""
        sender = text.sender if text.place != "s" else ""
        with suppress(MotetError, MotetRuntimeError, StorageError):
            earlier = self._before(text)
            if to:
                text.mode = "steer"
                text.place = (await host.find_run(to)).session
                ack = await host.send(text.body, run_id=to, key=text.key)
            else:
                ack = await host.submit(
                    text.body,
                    session=text.place,
                    agent="ops",
                    mode=text.mode,
                    key=text.key,
                    sender=sender,
                    debounce=0.0,
                )
            if self.host.history.cut_off:
                return
            text.runs.add(ack.run_id)
            if text.mode == "interrupt" and ack.status in ("accepted", "queued"):
                for _ in range(3):  # a call may be in its last step
                    await trio.lowlevel.checkpoint()
                for one in earlier:
                    one.done = one.done or frozenset(self.effects)

    def _before(self, text: Text) -> list[Text]:
        """The texts that an input of the same author interrupts."""
        told = [one for one in self.sent.values() if one.runs and one is not text]
        return [one for one in told if (one.place, one.sender) == (text.place, text.sender)]

    async def _post(self, _: Host, text: Text) -> None:
        with suppress(MotetError, MotetRuntimeError, StorageError):
            await self.host.room(self._room).post(text.body, user=text.sender, key=text.key)
            if not self.host.history.cut_off:
                self.posted[text.name] = text.body

    async def _delete(self, host: Host, place: str) -> None:
        acked = [one for one in self.sent.values() if one.place == place and one.runs]
        deletion = Deletion(place, tuple(one for one in acked if not one.gone))
        self._deletions.append(deletion)
        with suppress(MotetError, MotetRuntimeError, StorageError):
            await host.delete(place)
            deletion.returned = not self.host.history.cut_off
        late = (one for one in self.sent.values() if one.place == place and one.runs)
        deletion.late = tuple(one for one in late if one not in deletion.texts)

    def _latest(self, number: int) -> str:
        acked = [run_id for text in self.sent.values() for run_id in text.runs]
        return acked[-1 - number % len(acked)] if acked else ""

    def _to_the_end(self) -> None:
        """Answer what is asked until nothing is left to do."""
        self._free()
        for _ in range(200):
            self.host.advance(1.0)
            if not self.host.call(_answer_all):
                # The ends that the disk had no room for are stored now; a room may go on.
                self.host.advance(10.0)
                if not self.host.call(_answer_all):
                    return
        self.problems.append("it does not come to rest")

    # ------------------------------------------------------------------ laws

    def _image(self) -> Iterator[str]:
        """What is on disk now: each text has one owner."""
        acked = {text.name: set(text.runs) for text in self.sent.values()}
        deletions = list(self._deletions)
        yield from self._at_once()
        image = self.host.call(_image_of)
        for one in deletions:
            yield from one.problems(image, self.effects)
        for name, runs in acked.items():
            if self.sent[name].gone:
                if name in {x for text in image.texts.values() for x in names_in(text)}:
                    yield f"the text {name} is there after its session was deleted"
                continue
            for run_id in runs - image.status.keys():
                yield f"the text {name} was acknowledged as {run_id} and is lost"
            if self.sent[name].place != ROOM:
                yield from image.problems(name)

    def _at_once(self) -> Iterator[str]:
        """A person of a group has one run under way. A text for a run has that run's author."""
        table = self.host.host._parts.table
        if PLACES[1] in table.queues:
            said = [(one.author, one.input.text) for one in table.queues[PLACES[1]].running]
            said += [(one.author, one.text) for one in table.suspended_in(PLACES[1])]
            people = Counter(author for author, _ in said)
            yield from (f"{who} has {runs} runs" for who, runs in people.items() if runs > 1)
            for who, text in said:
                if text.startswith("[") and not text.startswith(f"[{who}] "):
                    yield f"{text!r} is a run of {who}"

    def _ended(self) -> Iterator[str]:
        """All is over: each acknowledged text was answered once, and all of it was told."""
        image = self.host.call(_image_of)
        for run_id, state in image.status.items():
            if state in LIVE:
                yield f"{run_id} ({image.texts[run_id]!r}) is {state} for ever"
        yield from self._said_in_the_room()
        for text in self.sent.values():
            yield from self._over(text, image)
            if text.gone:
                continue
            rows = len(image.stored.get(text.name, ()))
            for run_id in text.runs:
                state = image.status[run_id]
                if rows != (0 if state == "dropped" else 1):
                    yield f"{text.body!r} is {state}, and in {rows} rows"
                if state == "dropped" and any(map(text.owns, self.effects)):
                    yield f"{text.body!r} was dropped, and has effects"
            if len(text.runs) > 1:
                yield f"{text.body!r} was acknowledged as {sorted(text.runs)}"
        for effect, times in self.effects.items():
            if times > 1 and not effect.startswith("read"):
                yield f"the effect {effect} has happened {times} times"
        yield from self._told(image.status)

    def _over(self, text: Text, image: Image) -> Iterator[str]:
        """A text that is deleted or interrupted has no effect any more.

        One that had entered a run is that run's; and a kill while the storage is away takes back
        the ends of runs.
        """
        is_entered = any(image.status.get(one) == "steered" for one in text.runs)
        is_taken_back = 0 in self._times or (is_entered and not text.gone)
        if text.done is not None and not is_taken_back:
            for effect in self.effects.keys() - text.done:
                if text.owns(effect) and not effect.startswith("read"):
                    yield f"the effect {effect} has happened after the end of {text.body!r}"

    def _said_in_the_room(self) -> Iterator[str]:
        said = Counter(one.text for one in self.host.call(_room_rows))
        for body in self.posted.values():
            if said[body] != 1:
                yield f"{body!r} is {said[body]} times in the room"

    def _told(self, status: dict[str, str]) -> Iterator[str]:
        told = Counter[tuple[str, str]]()
        for place in (*PLACES, MEMBER):
            for run_id, event, reason in self.host.call(_events, place):
                told[run_id, event] += 1
                if place == MEMBER:  # a message that comes too late for a turn is in the room
                    continue
                if event in ("input.dropped", "run.cancelled") and not WANTED.search(reason):
                    yield f"{event} of {run_id}, which nobody wanted: {reason}"
        for run_id, state in status.items():
            once = ["input.accepted"]
            once += ["run.started"] if state == "completed" else []
            for event in once:
                if told[run_id, event] not in self._times:
                    yield f"{event} of {run_id} ({state}) is told {told[run_id, event]} times"
            end = {"dropped": "input.dropped", "steered": "input.steered"}.get(
                state, f"run.{state}"
            )
            ends = [(e, n) for (r, e), n in told.items() if r == run_id and e in ENDS]
            if ends != [(end, 1)] and (ends or 0 not in self._times):
                yield f"the end of {run_id} ({state}) is told as {ends}"


EVENTS = """
SELECT run_id, event, json_extract(data, '$.reason') FROM events
WHERE stream = ? AND run_id IS NOT NULL"""
WANTED = re.compile("stopped by|queue was full|newer input")
ENDS = (
    *("input.dropped", "input.steered", "run.completed", "run.failed", "run.cancelled"),
    *("run.limited", "run.escalated", "run.interrupted"),
)


async def _answer(host: Host, number: int, allow: bool) -> None:
    found = await host.approvals(state="pending")
    if found:
        with suppress(MotetError):
            one = sorted(found, key=lambda info: info.created)[number % len(found)]
            await host.approve(one.id, "allow-once" if allow else "deny")


async def _answer_all(host: Host) -> bool:
    """Whether there was something to do."""
    found = list(await host.approvals(state="pending"))
    # One that was taken up too often waits for the person to say so again.
    found += [one for one in await host.approvals(limit=1_000) if one.blocked]
    for one in found:
        with suppress(MotetError):
            await host.approve(one.id, "allow-once" if one.decision is None else one.decision)
    return bool(found) or any([await host.runs(status=status, limit=1) for status in LIVE])


async def _stop(host: Host, what: What, number: int, run_id: str) -> None:
    with suppress(MotetError):
        if what == "stop session":
            await host.stop(session=PLACES[number % 4 == 3])
        elif what == "stop run":
            await host.stop(session=PLACES[number % 4 == 3], newest=True)
        elif run_id:
            await host.stop(run_id=run_id)


async def _compact(host: Host, place: str) -> None:
    with suppress(MotetError, MotetRuntimeError, StorageError):
        await host.compact(place)


async def _room_rows(host: Host) -> tuple[RoomMessage, ...]:
    return await host._parts.stores.rooms.ask(ReadRoom(ROOM, None, 500))


async def _image_of(host: Host) -> Image:
    return Image.of(await host._parts.readers.read(IMAGE))


async def _events(host: Host, place: str) -> list[tuple[str, str, str]]:
    await host._parts.services.events.publisher.settle()
    found = await host._parts.readers.read(EVENTS, (f"session:{place}",))
    return [(str(run_id), str(event), str(reason or "")) for run_id, event, reason in found]


def told(seed: int, acts: list[Act]) -> list[str]:
    """Play the acts in a world of that seed; what was broken."""
    effects, hosts = Counter[str](), list[mt.SimulatedHost]()
    config = motet.HostConfig(
        approvals=ApprovalsConfig(hold=HOLD, expires=EXPIRES),
        queue=QueueConfig(capacity=6, concurrent=2, overflow="drop_oldest"),
        recovery=motet.RecoveryConfig(quarantine_after=100),
    )
    agent = agent_with(effects, hosts, None if seed % 3 else WINDOW)
    world = mt.simulated_host(seed, agents=[agent], config=config)
    with slow_commits() as slow, world as host:
        hosts.append(host)
        return Story(host, effects, agent, slow).play(acts)
