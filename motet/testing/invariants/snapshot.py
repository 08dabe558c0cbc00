"""The state of a host at one moment with all events before it, and invariants on it: pure data.

Invariants: everything is as an outsider could see it, by the host's public calls, as a subscriber,
as a model or as a tool. ``at`` numbers all that happened, across crashes, and so orders it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import StoredError
from motet.protocols.events import EventRecord
from motet.protocols.limits import Limits
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import HistoryRow, RunInfo, SessionInfo, StopReport

__all__ = [
    "Asked",
    "Effect",
    "Finding",
    "Happened",
    "Invariant",
    "Ran",
    "RoomSeen",
    "Sent",
    "Snapshot",
    "Stopped",
    "Task",
    "Violation",
    "name_of",
    "token_of",
]


class Sent(msgspec.Struct, frozen=True):
    """An input that somebody sent. ``accepted``: the host, or the program's own door, took it.

    Attributes:
        place: the session, or the name of the room.
        run_id: of the run that it became, as far as the host said.
        why: it was refused.
        again: it is the same as one before, sent once more.
    """

    at: int
    user: str
    place: str
    text: str
    key: str | None = None
    run_id: str | None = None
    accepted: bool = True
    why: str = ""
    again: bool = False
    to_room: bool = False
    steers: bool = False

    @property
    def token(self) -> str:
        """What shows that a text is, or has in it, this one."""
        return token_of(self.text)


class Asked(msgspec.Struct, frozen=True):
    """A request as a model got it."""

    at: int
    run_id: str
    session: str
    user: str
    agent: str
    request: ModelRequest


class Effect(msgspec.Struct, frozen=True):
    """One thing that was done for a call. ``repeatable``: to do it twice is as good as once."""

    call: str
    what: str
    repeatable: bool = False


class Ran(msgspec.Struct, frozen=True):
    """A call that reached the function of its tool. ``ended``: it has left it."""

    at: int
    run_id: str
    call_id: str
    tool: str
    session: str
    user: str
    ended: bool = True
    gated: bool = False


class Happened(msgspec.Struct, frozen=True):
    """An event as a subscriber saw it."""

    at: int
    record: EventRecord


class Stopped(msgspec.Struct, frozen=True):
    """A stop that has returned. ``left``: what of the stopped runs was alive then, in words."""

    at: int
    user: str
    place: str
    report: StopReport
    left: tuple[str, ...] = ()
    to_room: bool = False


class Task(msgspec.Struct, frozen=True):
    """A task that a tool of a run has started, itself or through others, and that is alive."""

    run_id: str
    name: str


class RoomSeen(msgspec.Struct, frozen=True):
    """A room, and what was said in it."""

    name: str
    members: tuple[str, ...]
    messages: tuple[RoomMessage, ...] = ()
    idle: bool = True


class Snapshot(msgspec.Struct, frozen=True):
    """One moment of a host, and its history.

    Attributes:
        sent, asked, ran, events, stops, effects: what happened, in order.
        journal: the durable events of each stream, as the host has them stored.
        crashes: when the power was cut.
        sessions, transcripts, runs, errors, approvals, rooms: what the host's own calls say.
        limits: of agents, by name.
        laws: what the kernel's own counters say is broken.
        tasks: what tools have started, and is alive; programs too.
        actors: paths of live actors.
        settled: nothing in the host could run any more.
        restless: why it did not come to rest, if it should have.
    """

    sent: tuple[Sent, ...] = ()
    asked: tuple[Asked, ...] = ()
    ran: tuple[Ran, ...] = ()
    events: tuple[Happened, ...] = ()
    stops: tuple[Stopped, ...] = ()
    effects: tuple[Effect, ...] = ()
    journal: dict[str, tuple[EventRecord, ...]] = {}
    crashes: tuple[int, ...] = ()
    sessions: tuple[SessionInfo, ...] = ()
    transcripts: dict[str, tuple[HistoryRow, ...]] = {}
    runs: tuple[RunInfo, ...] = ()
    errors: tuple[StoredError, ...] = ()
    approvals: tuple[ApprovalInfo, ...] = ()
    rooms: tuple[RoomSeen, ...] = ()
    limits: dict[str, Limits] = {}
    laws: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    actors: tuple[str, ...] = ()
    settled: bool = False
    restless: str = ""

    def rows(self, session: str) -> list[ChatMessage]:
        """The transcript of a session, oldest row first."""
        return [item.row for item in self.transcripts.get(session, ())]

    def run(self, run_id: str) -> RunInfo | None:
        return next((run for run in self.runs if run.run_id == run_id), None)

    def room(self, name: str) -> RoomSeen | None:
        return next((room for room in self.rooms if room.name == name), None)

    def crashed_after(self, at: int) -> bool:
        """Whether the power was cut later than that."""
        return any(crash > at for crash in self.crashes)


def token_of(text: str) -> str:
    """A text of a generated program begins with its author and a number: ``ann/3: hello``."""
    head, colon, _ = text.partition(":")
    user, slash, number = head.partition("/")
    return f"{head}:" if colon and slash and user and number.isdigit() else text


Finding: TypeAlias = str
"""A sentence: what is wrong, with the names of the run, the session and the call."""

Invariant: TypeAlias = Callable[[Snapshot], Iterable[Finding]]
"""Gives a sentence for everything that is wrong; nothing when all is well."""


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold. ``guarantee``: ``G1`` to ``G16``, empty for others."""

    invariant: str
    sentence: Finding
    guarantee: str = ""

    def __str__(self) -> str:
        number = f" ({self.guarantee})" if self.guarantee else ""
        return f"{self.invariant}{number}: {self.sentence}"


def name_of(invariant: Invariant) -> str:
    """How an invariant is called in a violation."""
    name = str(getattr(invariant, "__name__", "") or invariant)
    return name.removeprefix("mt.invariants.")
