"""A world of texts that wait, steer, are collected, parked for a person, cut off and stopped (G15).

Each text has a name, and says which calls it wants. The model does what the texts of its turn say,
one batch of calls for each letter, so that every effect belongs to one text. Every committed state
of the disk is looked at: at each, a text has one owner.
"""

# It looks at the disk beside the host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import attrs
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.queueing import QueueConfig, QueueMode
from motet.protocols.sessions import RunStatus
from motet.protocols.storage import StorageError
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Job

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
    "free",
]
ACTS: tuple[What, ...] = (
    *("say", "say", "steer", "steer", "steer", "again", "allow", "allow", "deny", "wait", "wait"),
    *("steps", "steps", "crash", "power", "restart", "stop session", "stop run", "stop text"),
    *("full", "free"),
)
MODES: tuple[QueueMode, ...] = ("followup", "collect", "steer", "steer", "interrupt")
PLANS = ("", "a", "a", "r", "w", "ra", "aw", "wa", "aa")
"""Letters: ``a`` is a call that a person approves, ``r`` reads, ``w`` writes."""
TOOLS = {"a": "act", "r": "read", "w": "write"}
PAUSES = (0.0, 0.05, 0.2, 0.5, 2.0)
PLACES = ("s", "agent:ops:tcp:group:den")
SENDERS = ("ann", "bob")
NAME = re.compile(r"<([\w/]+)>([arwi]*)")
HOLD = 0.3

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
    """``runs``: the ids under which it was acknowledged."""

    name: str
    body: str
    place: str
    mode: QueueMode
    sender: str
    key: str | None
    runs: set[str] = attrs.field(factory=set[str])

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


def planned(request: ModelRequest) -> mt.Step:
    """The next calls of the turn, or its answer."""
    rows = request.messages
    at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
    asked = [one for row in rows[at:] if isinstance(row, UserMessage) for one in _said(row.text)]
    done = sum(1 for row in rows[at:] if isinstance(row, AssistantMessage) and row.calls)
    wanted = [(f"{number}.{i}", x) for number, plan in asked for i, x in enumerate(plan)]
    if done >= len(wanted):
        return mt.slow(mt.say(f"answer to {len(asked)}"), seconds=0.1 * (done % 2))
    effect, letter = wanted[done]
    return mt.slow(mt.call(TOOLS[letter], effect=effect), seconds=0.1 * (done % 3))


def _said(text: str) -> list[tuple[str, str]]:
    return [(str(number), str(plan)) for number, plan in NAME.findall(text)]


def agent_with(effects: Counter[str], host: list[mt.SimulatedHost]) -> motet.Agent[None, str]:
    """``host`` has the host that runs it, once there is one."""
    agent = motet.Agent("ops", model=mt.FunctionModel(planned))

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


class Story:
    """People who talk to two sessions of a host that dies, restarts and is stopped."""

    def __init__(self, host: mt.SimulatedHost, effects: Counter[str]) -> None:
        self.host, self.effects = host, effects
        self.sent: dict[str, Text] = {}
        self.stopped: set[str] = set()
        self.problems: list[str] = []
        self._times: tuple[int, ...] = (1,)

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
                keyed = [one for one in self.sent.values() if one.key is not None]
                if keyed:
                    self._say(keyed[number % len(keyed)], wait=True)
            case "allow" | "deny":
                self._quietly(self.host.begin(_answer, number, act.what == "allow"))
            case "wait":
                self.host.advance(PAUSES[number % len(PAUSES)])
            case "steps":
                self.host.steps(1 + number % 60)
            case "full":
                self.host.disk.room = self.host.disk.used
                self._times = (0, 1)  # without a journal, an event goes out and is not kept
            case "free":
                self.host.disk.room = None
            case "crash":
                self.host.disk.room = None  # the next host can open it
                self.host.crash()
            case "power":
                self.host.disk.room = None
                with mt.power_cut(self.host, 1 + number % 12):
                    self.host.advance(0.3)
            case "restart":
                self.host.disk.room = None
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

    def _say(self, text: Text, *, wait: bool) -> None:
        job = self.host.begin(self._deliver, text)
        if wait:
            self._quietly(job)
        else:
            self.host.steps(5)

    def _quietly(self, job: Job[None]) -> None:
        """Wait for it, unless it waits for room on the disk."""
        if self.host.disk.room is None:
            self.host.loop.wait(job)
        else:
            self.host.advance(0.2)

    async def _deliver(self, host: Host, text: Text) -> None:
        with suppress(MotetError, MotetRuntimeError, StorageError):
            ack = await host.submit(
                text.body,
                session=text.place,
                agent="ops",
                mode=text.mode,
                key=text.key,
                sender=text.sender if text.place != "s" else "",
                debounce=0.0,
            )
            if not self.host.history.cut_off:
                text.runs.add(ack.run_id)

    def _latest(self, number: int) -> str:
        acked = [run_id for text in self.sent.values() for run_id in text.runs]
        return acked[-1 - number % len(acked)] if acked else ""

    def _to_the_end(self) -> None:
        """Answer what is asked until nothing is left to do."""
        self.host.disk.room = None
        for _ in range(200):
            self.host.advance(1.0)
            if not self.host.call(_answer_all):
                self.host.advance(10.0)  # the ends that the disk had no room for are stored now
                return
        self.problems.append("it does not come to rest")

    # ------------------------------------------------------------------ laws

    def _image(self) -> Iterator[str]:
        """What is on disk now: each text has one owner."""
        acked = {text.name: set(text.runs) for text in self.sent.values()}
        image = self.host.call(_image_of)
        for name, runs in acked.items():
            for run_id in runs - image.status.keys():
                yield f"the text {name} was acknowledged as {run_id} and is lost"
            yield from image.problems(name)

    def _ended(self) -> Iterator[str]:
        """All is over: each acknowledged text was answered once, and all of it was told."""
        image = self.host.call(_image_of)
        for text in self.sent.values():
            rows = len(image.stored.get(text.name, ()))
            for run_id in text.runs:
                state = image.status.get(run_id)
                if state in LIVE:
                    yield f"{text.body!r} is {state} for ever"
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

    def _told(self, status: dict[str, str]) -> Iterator[str]:
        told = Counter[tuple[str, str]]()
        for place in PLACES:
            for run_id, event, reason in self.host.call(_events, place):
                told[run_id, event] += 1
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
WANTED = re.compile("stopped by|queue was full|newer input|could not be suspended")
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
        approvals=ApprovalsConfig(hold=HOLD),
        queue=QueueConfig(capacity=6, concurrent=2, overflow="drop_oldest"),
        recovery=motet.RecoveryConfig(quarantine_after=100),
    )
    with mt.simulated_host(seed, agents=[agent_with(effects, hosts)], config=config) as host:
        hosts.append(host)
        return Story(host, effects).play(acts)
