"""Messages of the session store: sessions, inputs, runs, their settings and injected rows.

Invariants: an input that was acknowledged is on disk (G15); the transcript is append-only and
valid (G7); every run ends in exactly one status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.escalations import (
    AnswerEscalation,
    GetEscalation,
    ListEscalations,
    NewEscalation,
)
from motet.protocols.events import AnyEvent, InputEnd, SessionCompacted
from motet.protocols.messages import Message, Request
from motet.protocols.models import Usage
from motet.protocols.queueing import JoinInputs, QueueModes, SetQueueMode

Role: TypeAlias = Literal["viewer", "operator", "admin"]
RunStatus: TypeAlias = Literal[
    "queued",
    "running",
    "waiting",
    "completed",
    "failed",
    "cancelled",
    "limited",
    "escalated",
    "interrupted",
    "dropped",
    "steered",
]
FINAL: frozenset[RunStatus] = frozenset(
    {
        "completed",
        "failed",
        "cancelled",
        "limited",
        "escalated",
        "interrupted",
        "dropped",
        "steered",
    }
)


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Comes from the token or the embedding program, never from a client's field."""

    user: str
    role: Role = "operator"


LOCAL = Principal("local", "admin")
"""The embedding program or the person at the command line."""


RESEND = "runs.resend"
"""The method of the keys of inputs that are sent again. Such a key never expires."""


class NewInput(msgspec.Struct, frozen=True):
    """An input as it arrived. ``key`` makes a resend harmless, ``body_hash`` shows a reuse.

    ``parent``: the run that started this one, in a session of its own; ``beside``: and did not wait
    for it, so that it has to be told what comes of it. ``given``: how another host can take it up
    again, see ``motet.protocols.recovery``; empty: it cannot.
    """

    run_id: str
    session: str
    agent: str
    user: str
    text: str
    key: str | None = None
    body_hash: str = ""
    method: str = "chat.send"
    parent: str | None = None
    beside: bool = False
    given: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """``duplicate``: the key was seen before, with the same body; ``run_id`` is the first one's."""

    run_id: str
    duplicate: bool = False


class KeyConflict(MotetError):
    """The idempotency key was used before with another body."""


class QueueFull(MotetError):
    """The session's queue of inputs is full; nothing was stored. Try again when a run has ended."""


class ShuttingDown(MotetError):
    """The host takes no inputs any more; nothing was stored. Try again when it is back."""


class AcceptInput(Request[Accepted], frozen=True, tag="sessions.accept"):
    """Make an input durable, with its key, its session row and its run row, in one transaction.

    Raises ``KeyConflict``; raises ``NotFound`` when the session belongs to another user (G16).
    """

    input: NewInput


class RecordIntent(Request[None], frozen=True, tag="sessions.intent"):
    """Journal one row of an unfinished run, so that a crash leaves a valid transcript.

    ``step`` counts from 0; an assistant row with calls is the intent of these calls. Answered after
    COMMIT, with all that was journalled before: no call starts before its intent is stored.
    """

    run_id: str
    step: int
    row: ChatMessage
    usage: Usage | None = None
    """What the run has used until now, if that is new."""


class EnterRun(Request[None], frozen=True, tag="sessions.enter"):
    """Inputs have entered a run that goes on: its journal gets ``rows``, and they end as steered.

    In one transaction, so that no crash makes one answered twice. ``step``: of the first row.
    """

    run_id: str
    step: int
    rows: tuple[ChatMessage, ...]
    inputs: tuple[str, ...]


class FinishRun(Request[None], frozen=True, tag="sessions.finish"):
    """End a run: its rows, status and usage in one transaction; its journal is cleared."""

    run_id: str
    status: RunStatus
    rows: tuple[ChatMessage, ...]
    usage: Usage = Usage()
    detail: str = ""
    """What went wrong, the limit's name, or who stopped it."""
    escalation: NewEscalation | None = None
    """For ``escalated``: put on record in the same transaction."""
    withdraw: bool = False
    """Whether approvals of it may be pending: nobody can answer them any more."""
    event: InputEnd | None = None
    """Kept with it until the journal of events has it: see :class:`EndsToTell`."""


class HandOver(Request[None], frozen=True, tag="sessions.hand_over"):
    """The run goes on as ``agent``, which also gets the next input of its session."""

    run_id: str
    agent: str


class LoadTranscript(Request[tuple[ChatMessage, ...]], frozen=True, tag="sessions.load"):
    """The rows since the last reset, those included that a summary stands for."""

    session: str


class SessionContext(msgspec.Struct, frozen=True):
    """What a model is shown of a session: a summary, and the rows behind it.

    Attributes:
        start_pos: the position of the first row; each row has the next one.
        summary: of the rows before ``start_pos``; empty when none was made, or after a reset.
        flushed: what was learned since the last compaction has been written to memory files.
    """

    start_pos: int = 1
    summary: str = ""
    rows: tuple[ChatMessage, ...] = ()
    flushed: bool = False


class LoadContext(Request[SessionContext], frozen=True, tag="sessions.context"):
    """The summary and the rows that a model is shown; empty for an unknown session."""

    session: str


class StoreSummary(Request[bool], frozen=True, tag="sessions.summary"):
    """Move the start pointer forward and store the summary of what is before it then.

    False, and nothing is stored, when the pointer has moved from ``start_pos`` meanwhile, when
    ``next_pos`` is not behind it, or when no row would be left.
    """

    session: str
    start_pos: int
    next_pos: int
    text: str


class MarkFlushed(Request[bool], frozen=True, tag="sessions.flushed"):
    """Note that the memory flush of the cycle that began at ``start_pos`` is done.

    False when the pointer has moved meanwhile: another cycle has begun.
    """

    session: str
    start_pos: int


class HistoryRow(msgspec.Struct, frozen=True):
    """One stored row. ``pos`` counts from 1 in its session, without gaps."""

    pos: int
    run_id: str
    ts: float
    row: ChatMessage


class ReadHistory(Request[tuple[HistoryRow, ...]], frozen=True, tag="sessions.history"):
    """Rows in order, the newest ``limit`` (at most 200) before position ``before``."""

    session: str
    before: int | None = None
    limit: int = 50


class SessionInfo(msgspec.Struct, frozen=True):
    """``needs_review``: one of its runs was escalated, and nobody has answered yet."""

    session: str
    agent: str
    owner: str
    created: float
    updated: float
    rows: int
    needs_review: bool = False


class ListSessions(Request[tuple[SessionInfo, ...]], frozen=True, tag="sessions.list"):
    """Newest first. ``owner`` None: all. ``cursor``: the ``updated`` of the last one seen.

    ``children``: also those of runs that other runs have started.
    """

    owner: str | None = None
    limit: int = 50
    cursor: float | None = None
    children: bool = False


class GetSession(Request[SessionInfo | None], frozen=True, tag="sessions.get"):
    session: str


class RunInfo(msgspec.Struct, frozen=True):
    run_id: str
    session: str
    agent: str
    user: str
    status: RunStatus
    text: str
    created: float
    updated: float
    usage: Usage = Usage()
    detail: str = ""


class ListRuns(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.runs"):
    """Newest first; absent filters match all."""

    user: str | None = None
    session: str | None = None
    status: RunStatus | None = None
    limit: int = 50


class ListBeside(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.beside"):
    """The runs that a run has started and did not wait for, in the order of their start."""

    run_id: str


class GetRun(Request[RunInfo | None], frozen=True, tag="sessions.run"):
    run_id: str


class ResetSession(Request[None], frozen=True, tag="sessions.reset"):
    """Start from an empty history; nothing is deleted, a start pointer moves."""

    session: str


class SessionBusy(MotetError):
    """The session has an input that is not answered yet: stop it, or wait, then try again."""


class DeleteSession(Request[int], frozen=True, tag="sessions.delete"):
    """Delete a session with all that is stored of it; answers how many rows it had.

    Only the last number of its event stream stays, so that none is used twice. Raises
    ``SessionBusy`` while a run of it is unfinished.
    """

    session: str


class RecoverRuns(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.recover"):
    """Unfinished runs of a host before become ``interrupted``, their transcripts made whole.

    ``keep``: not these, which go on; ``only``: none but these; ``reasons``: by run, for its record.
    """

    keep: tuple[str, ...] = ()
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    only: tuple[str, ...] | None = None


class EndToTell(msgspec.Struct, frozen=True):
    session: str
    run_id: str
    event: AnyEvent


class EndsToTell(Request[tuple[EndToTell, ...]], frozen=True, tag="sessions.ends"):
    """Ends of runs that are stored, but not in the journal of events. For the start of a host."""


class StopReport(msgspec.Struct, frozen=True):
    """What a stop did, by the ids of runs.

    Attributes:
        stopped: they have ended.
        already_stopping: their end had been asked for before; they were waited for as well.
        dropped_inputs: they never started and will not be answered.
        still_running: of those that were asked to end, now or before, the ones that clean up.
        held_by: for people: which of their tools cannot be ended, and where each is (G2).
    """

    stopped: list[str] = []
    already_stopping: list[str] = []
    dropped_inputs: list[str] = []
    still_running: list[str] = []
    held_by: list[str] = []


class Ack(msgspec.Struct, frozen=True):
    """The answer to an input: it is on disk. ``position`` counts the queue from 1.

    ``steered``: it is to enter a run that goes on, and if that ends first, a run of its own;
    ``collected``: it waits, and is answered with what else has come; ``dropped``: the queue was
    full, or a stop came first.
    """

    run_id: str
    status: Literal["accepted", "queued", "steered", "collected", "duplicate", "dropped"]
    position: int = 0


# Rows that are put into a transcript without a run are an exchange of their own, so that it stays
# valid (G7).

NOTED = "Noted."
NOTE = "A note was put into this conversation:"


class InjectRows(Request[Accepted], frozen=True, tag="sessions.inject"):
    """Add an exchange at the end of a session's transcript, with its key, in one transaction.

    ``id`` stands where other rows have their run's. A model is shown the rows from the next run
    on. Raises ``NotFound`` for an unknown session, ``KeyConflict``.
    """

    id: str
    session: str
    user: str
    rows: tuple[UserMessage, AssistantMessage]
    key: str
    body_hash: str


def exchange(text: str, role: Literal["user", "assistant"]) -> tuple[UserMessage, AssistantMessage]:
    """The text as said by one side, with a row of the other that people are not shown."""
    if role == "user":
        return UserMessage(text, note="injected"), AssistantMessage(NOTED, note="silent")
    return UserMessage(NOTE, note="hint"), AssistantMessage(text)


class SetSessionModel(Request[None], frozen=True, tag="sessions.set_model"):
    """Set the model of a session; None: its agent's own again. Raises ``NotFound``."""

    session: str
    model: str | None


class SessionModels(Request[dict[str, str]], frozen=True, tag="sessions.models"):
    """The sessions that have a model of their own."""


SessionStoreMessage: TypeAlias = (
    AcceptInput
    | InjectRows
    | RecordIntent
    | EnterRun
    | FinishRun
    | HandOver
    | ResetSession
    | DeleteSession
    | RecoverRuns
    | EndsToTell
    | LoadTranscript
    | LoadContext
    | StoreSummary
    | MarkFlushed
    | ReadHistory
    | ListSessions
    | GetSession
    | ListRuns
    | GetRun
    | ListBeside
    | ListEscalations
    | GetEscalation
    | AnswerEscalation
    | JoinInputs
    | SetQueueMode
    | QueueModes
    | SetSessionModel
    | SessionModels
)


# Messages of a session's actor


class Pump(Message, frozen=True, tag="session.pump"):
    """Process the session's queue: start runs, and record inputs that were dropped."""


class Compact(Request[SessionCompacted | None], frozen=True, tag="session.compact"):
    """Summarise the session now, on behalf of a run in the run table that never starts.

    Answers with the rows that now have a summary; None when the session is too short, or when a
    hook refused.
    """

    run_id: str


SessionMessage: TypeAlias = Pump | Compact
