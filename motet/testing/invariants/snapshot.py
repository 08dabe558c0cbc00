"""The state of a host at one moment with all events before it, and invariants on it: pure data.

Invariants: everything is as an outsider could see it, by the host's public calls, as a subscriber,
as a model or as a tool. ``at`` numbers all that happened, across crashes, and so orders it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import ChatMessage, JsonObject
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
    """An input of a user. ``accepted``: the host, or the program's own ``receive``, took it.

    Attributes:
        place: the session, or the name of the room.
        run_id: the run of the input, if the host named it.
        why: the reason of the refusal.
        again: a resend of an earlier input.
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
        """The part of the text by which it is found in other texts."""
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
    """One effect of a call on the outside world. ``repeatable``: idempotent."""

    call: str
    what: str
    repeatable: bool = False


class Ran(msgspec.Struct, frozen=True):
    """A call that reached the function of its tool.

    Attributes:
        ended: the function has returned.
        gated: its tool is declared to need an approval.
        args: the arguments that the function got.
        result: its return value as JSON data; None if it has returned none.
    """

    at: int
    run_id: str
    call_id: str
    tool: str
    session: str
    user: str
    ended: bool = True
    gated: bool = False
    args: JsonObject = {}
    result: object = None


class Happened(msgspec.Struct, frozen=True):
    """An event as a subscriber saw it."""

    at: int
    record: EventRecord


class Stopped(msgspec.Struct, frozen=True):
    """A stop that has returned. ``left``: the live tasks of the stopped runs, in words."""

    at: int
    user: str
    place: str
    report: StopReport
    left: tuple[str, ...] = ()
    to_room: bool = False


class Task(msgspec.Struct, frozen=True):
    """A live task that a tool of a run has started, directly or indirectly."""

    run_id: str
    name: str


class RoomSeen(msgspec.Struct, frozen=True):
    """A room and its messages."""

    name: str
    members: tuple[str, ...]
    messages: tuple[RoomMessage, ...] = ()
    idle: bool = True


class Snapshot(msgspec.Struct, frozen=True):
    """One moment of a host, and its history.

    Attributes:
        sent, asked, ran, events, stops, effects: the history, in order.
        journal: the stored durable events of each stream.
        crashes: the ``at`` of each power cut.
        sessions, transcripts, runs, errors, approvals, rooms: the results of the host's own calls.
        limits: the limits of agents, by name.
        laws: violations that the kernel's counters show.
        tasks: live tasks and programs that tools have started.
        misbehaved: what tools and hooks did that no code may do: swallow a cancellation, or leave a
            system task behind.
        actors: paths of live actors.
        settled: nothing in the host could run any more.
        restless: the reason why the host did not come to rest, if it should have.
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
    misbehaved: tuple[str, ...] = ()
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
        """True if a power cut came later."""
        return any(crash > at for crash in self.crashes)


def token_of(text: str) -> str:
    """The author and number of a generated text (``ann/3: hello``); else the whole text."""
    head, colon, _ = text.partition(":")
    user, slash, number = head.partition("/")
    return f"{head}:" if colon and slash and user and number.isdigit() else text


Finding: TypeAlias = str
"""A sentence about one violation, with the names of the run, session and call."""

Invariant: TypeAlias = Callable[[Snapshot], Iterable[Finding]]
"""Yields a sentence for each violation."""


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold. ``guarantee``: ``G1`` to ``G16``, empty for others."""

    invariant: str
    sentence: Finding
    guarantee: str = ""

    def __str__(self) -> str:
        number = f" ({self.guarantee})" if self.guarantee else ""
        return f"{self.invariant}{number}: {self.sentence}"


def name_of(invariant: Invariant) -> str:
    """The name of an invariant in its violations."""
    name = str(getattr(invariant, "__name__", "") or invariant)
    return name.removeprefix("mt.invariants.")
