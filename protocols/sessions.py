"""Messages of the session store, and the records of sessions, inputs and runs.

Invariants: an acknowledged input is on disk (G15); the transcript is append-only and valid (G7);
every run ends in exactly one status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
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
from motet.protocols.queueing import JoinInputs, QueueMode, SetQueueMode

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
    "refused",
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
        "refused",
        "interrupted",
        "dropped",
        "steered",
    }
)


class Principal(msgspec.Struct, frozen=True):
    """The authenticated user: from the token or the embedding program, never a client's field."""

    user: str
    role: Role = "operator"


LOCAL = Principal("local", "admin")
"""The embedding program or the person at the command line."""


RESEND = "runs.resend"
"""The method of the keys of inputs that are sent again. Such a key never expires."""


class NewInput(msgspec.Struct, frozen=True):
    """An input as it arrived.

    Attributes:
        key: the idempotency key; a resend with it is a duplicate.
        body_hash: tells a resend from another input with the same key. Its agent does not count:
            an input that names none has another one after a hand-over.
        old_hash: as an earlier version made it, with the agent.
        method: the API method of the input. A key is scoped to (user, method).
        parent: the run that started this one, in a session of its own.
        beside: the parent did not wait for it, and gets a notice of its end.
        given: how another host can resume it, see ``motet.protocols.recovery``; empty: it cannot.
        answers: the answer to an escalation that it carries out, which is stored with it. When that
            very answer is on record, the input is a duplicate.
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
    answers: AnswerEscalation | None = None
    old_hash: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """``duplicate``: the key was used before for the same body; ``run_id``: of that input."""

    run_id: str
    duplicate: bool = False


class KeyConflict(MotetError):
    """The idempotency key was used before for another body."""


class QueueFull(MotetError):
    """The session's input queue is full; nothing was stored. Try again when a run has ended."""


class ShuttingDown(MotetError):
    """The host accepts no more inputs; nothing was stored. Try again after its restart."""


class AcceptInput(Request[Accepted], frozen=True, tag="sessions.accept"):
    """Store an input: its key, its session and its run, in one transaction.

    Raises ``KeyConflict``; raises ``NotFound`` when the session belongs to another user (G16).
    """

    input: NewInput


class RecordIntent(Request[None], frozen=True, tag="sessions.intent"):
    """Journal one row of an unfinished run, so that a crash leaves a valid transcript.

    ``step`` counts from 0; an assistant row with calls is the intent of these calls. Answered after
    COMMIT, earlier steps included: no call starts before its intent is stored.
    """

    run_id: str
    step: int
    row: ChatMessage
    usage: Usage | None = None
    """The usage of the run so far, if it has changed."""
    earlier: tuple[ChatMessage, ...] = ()
    """All rows of the run before ``step``, if the journal may lack some; empty: it has them."""
    inputs: tuple[str, ...] = ()
    """Inputs that have entered these rows, and end as steered with them."""
    agents: tuple[str, ...] = ()
    """The agents that have taken over, if that is not on disk yet: see ``HandOver``."""
    results: tuple[tuple[int, ToolMessage], ...] = ()
    """Results of calls of ``row``, with their places: of those that will not be run, and the marks
    of those that have not begun, and begin only once that is stored."""


class EnterRun(Request[None], frozen=True, tag="sessions.enter"):
    """Inputs enter a running turn: ``rows`` go to its journal, and the inputs end as steered.

    In one transaction, so that no crash has an input answered twice. ``step``: of the first row;
    ``late``: inputs that have entered before, which perhaps is on disk.
    """

    run_id: str
    step: int
    rows: tuple[ChatMessage, ...]
    inputs: tuple[str, ...]
    late: tuple[str, ...] = ()


class FinishRun(Request[tuple[str, ...]], frozen=True, tag="sessions.finish"):
    """End a run: its rows, status and usage in one transaction; its journal is cleared.

    The answer: the ids of the approvals that this request has withdrawn.
    """

    run_id: str
    status: RunStatus
    rows: tuple[ChatMessage, ...]
    usage: Usage = Usage()
    detail: str = ""
    """The failure, the name of the limit, or who stopped it."""
    escalation: NewEscalation | None = None
    """For ``escalated``: stored in the same transaction."""
    withdraw: bool = False
    """Whether the run may have pending approvals, which become withdrawn."""
    inputs: tuple[str, ...] = ()
    """Inputs that have entered its rows, and end as steered with it if they have not yet."""
    agents: tuple[str, ...] = ()
    """The agents that have taken over, if that is not on disk yet: see ``HandOver``."""
    event: InputEnd | None = None
    """Kept with the run until the event journal has it: see :class:`ListUnpublishedEnds`."""
    user: str = ""
    """Whose run it is: a message that is changed meanwhile is changed in ``rows``, too."""


class HandOver(Request[None], frozen=True, tag="sessions.hand_over"):
    """The run continues as the last of ``agents``, which also gets the next input of its session.

    The policies of those before it hold for it, also in the next host.
    """

    run_id: str
    agents: tuple[str, ...]


class MarkStopped(Request[None], frozen=True, tag="sessions.mark_stopped"):
    """A run was stopped and still cleans up: no other host goes on with it."""

    run_id: str
    reason: str


class LoadTranscript(Request[tuple[ChatMessage, ...]], frozen=True, tag="sessions.load"):
    """The rows since the last reset, including those that a summary replaces."""

    session: str


class SessionContext(msgspec.Struct, frozen=True):
    """The part of a session that a model sees: a summary, and the rows behind it.

    Attributes:
        start_pos: the position of the first row; positions have no gaps.
        summary: of the rows before ``start_pos``; empty without one, and after a reset.
        flushed: the memory flush of this cycle of compaction is done.
        generation: see :class:`SessionInfo`.
        corrected: a number that changes whenever its rows were changed.
    """

    start_pos: int = 1
    summary: str = ""
    rows: tuple[ChatMessage, ...] = ()
    flushed: bool = False
    generation: str = ""
    corrected: int = 0


class LoadContext(Request[SessionContext], frozen=True, tag="sessions.context"):
    """The summary and the rows for a model; empty for an unknown session."""

    session: str


class StoreSummary(Request[bool], frozen=True, tag="sessions.summary"):
    """Move the start pointer forward, and store the summary of the rows before it.

    False, and nothing is stored, when the pointer has moved from ``start_pos`` meanwhile, when
    ``next_pos`` is not greater, when no row would be left, or when the rows were changed since
    ``corrected`` was read with them; None: that is not asked.
    """

    session: str
    start_pos: int
    next_pos: int
    text: str
    generation: str | None = None
    corrected: int | None = None


class MarkFlushed(Request[bool], frozen=True, tag="sessions.flushed"):
    """Store that the memory flush of the cycle that began at ``start_pos`` is done.

    False when the pointer has moved meanwhile: another cycle has begun.
    """

    session: str
    start_pos: int
    generation: str | None = None


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
    generation: str | None = None


class SessionInfo(msgspec.Struct, frozen=True):
    """A session.

    ``needs_review``: one of its escalations is open. ``generation`` tells it from other sessions
    of its name, that were deleted before or are made later. A request that names a generation is
    about that session only: of another one ``NotFound`` is raised, or nothing is answered (G16).
    """

    session: str
    agent: str
    owner: str
    created: float
    updated: float
    rows: int
    needs_review: bool = False
    generation: str = ""


class ListSessions(Request[tuple[SessionInfo, ...]], frozen=True, tag="sessions.list"):
    """Newest first. ``owner`` None: all. ``cursor``: the ``updated`` of the last one seen.

    ``children``: also sessions of sub-agents.
    """

    owner: str | None = None
    limit: int = 50
    cursor: float | None = None
    children: bool = False


class GetSession(Request[SessionInfo | None], frozen=True, tag="sessions.get"):
    session: str


class IsRelated(Request[bool], frozen=True, tag="sessions.related"):
    """Whether one of two sessions is a sub-agent's that the other has started, at any depth.

    Sub-agents of one caller are not related, nor are sessions of two users.
    """

    session: str
    other: str


class RunInfo(msgspec.Struct, frozen=True):
    """``unsaved``: it has ended with this status, which is not on disk yet: see ``FinishRun``."""

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
    unsaved: bool = False


class ListRuns(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.runs"):
    """Newest first; absent filters match all.

    ``turn``: of the room whose member's session it is: only its run, and what has arrived since; in
    the order of arrival, whatever the wall clock said.
    """

    user: str | None = None
    session: str | None = None
    status: RunStatus | None = None
    limit: int = 50
    turn: str = ""


class ListBackgroundRuns(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.beside"):
    """The background runs that a run has started, in the order of their start."""

    run_id: str


class GetRun(Request[RunInfo | None], frozen=True, tag="sessions.run"):
    run_id: str


class ResetSession(Request[None], frozen=True, tag="sessions.reset"):
    """Start from an empty history; nothing is deleted, a start pointer moves."""

    session: str
    generation: str | None = None


class SessionBusy(MotetError):
    """The session has an unanswered input: stop it, or wait, then try again."""


class DeleteSession(Request[int], frozen=True, tag="sessions.delete"):
    """Delete a session and everything stored about it; answers the number of its rows.

    Only the last number of its event stream stays, so that no number is used twice. Raises
    ``SessionBusy`` while it has an unfinished run. ``unused_since``: it goes for its age, so it is
    ``SessionBusy`` if it was used since then, and what agents remember stays.
    """

    session: str
    generation: str | None = None
    unused_since: float | None = None


class RecoverRuns(Request[tuple[RunInfo, ...]], frozen=True, tag="sessions.recover"):
    """Unfinished runs of an earlier host become ``interrupted``, with valid transcripts.

    ``keep``: runs that are resumed instead; ``only``: no others than these; ``reasons``: by run;
    ``drop``: inputs that become ``dropped``, and leave no rows.
    """

    keep: tuple[str, ...] = ()
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    only: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()


class UnpublishedEnd(msgspec.Struct, frozen=True):
    session: str
    user: str
    run_id: str
    event: AnyEvent


class ListUnpublishedEnds(Request[tuple[UnpublishedEnd, ...]], frozen=True, tag="sessions.ends"):
    """Ends of runs that are not in the event journal yet. For the start of a host."""


class StopReport(msgspec.Struct, frozen=True):
    """The effect of a stop, as ids of runs.

    Attributes:
        stopped: have ended.
        already_stopping: were stopped by an earlier request; the stop waited for them, too.
        dropped_inputs: never started, and will not be answered.
        still_running: are stopped, but still cleaning up.
        held_by: for people: the tools that do not end, and where each of them is (G2).
        processes: for people: the processes that began during a tool of these runs and still run,
            since the tool did not start them by its context. On Linux only.
    """

    stopped: list[str] = []
    already_stopping: list[str] = []
    dropped_inputs: list[str] = []
    still_running: list[str] = []
    held_by: list[str] = []
    processes: list[str] = []


class Ack(msgspec.Struct, frozen=True):
    """The acknowledgement of an input: it is on disk. ``position``: in the queue, from 1.

    ``steered``: it enters the running turn, or becomes a run of its own if that ends first;
    ``collected``: it waits, and is answered together with other inputs; ``dropped``: the queue was
    full, or a stop came first.
    """

    run_id: str
    status: Literal["accepted", "queued", "steered", "collected", "duplicate", "dropped"]
    position: int = 0


# Rows that are injected into a transcript without a run form a whole exchange, so that the
# transcript stays valid (G7).

NOTED = "Noted."
NOTE = "A note was put into this conversation:"


class InjectRows(Request[Accepted], frozen=True, tag="sessions.inject"):
    """Append an exchange to a session's transcript, with its key, in one transaction.

    ``id`` takes the place of a run id. Models see the rows from the next run on. Raises
    ``NotFound`` for an unknown session, and ``KeyConflict``.
    """

    id: str
    session: str
    user: str
    rows: tuple[UserMessage, AssistantMessage]
    key: str
    body_hash: str
    generation: str | None = None


def exchange(text: str, role: Literal["user", "assistant"]) -> tuple[UserMessage, AssistantMessage]:
    """The text as a message of one side, with a hidden row of the other side."""
    if role == "user":
        return UserMessage(text, note="injected"), AssistantMessage(NOTED, note="silent")
    return UserMessage(NOTE, note="hint"), AssistantMessage(text)


class SetSessionModel(Request[None], frozen=True, tag="sessions.set_model"):
    """Set the model of a session; None: its agent's own again. Raises ``NotFound``."""

    session: str
    model: str | None
    generation: str | None = None


class SessionSetting(msgspec.Struct, frozen=True):
    """The queue mode and the model that were set for a session. ``model`` empty: its agent's."""

    session: str
    owner: str
    generation: str
    mode: QueueMode | None = None
    model: str = ""


class ListSettings(Request[tuple[SessionSetting, ...]], frozen=True, tag="sessions.settings"):
    """The sessions that have a mode or a model of their own."""


SessionStoreMessage: TypeAlias = (
    AcceptInput
    | InjectRows
    | RecordIntent
    | EnterRun
    | FinishRun
    | HandOver
    | MarkStopped
    | ResetSession
    | DeleteSession
    | RecoverRuns
    | ListUnpublishedEnds
    | LoadTranscript
    | LoadContext
    | StoreSummary
    | MarkFlushed
    | ReadHistory
    | ListSessions
    | GetSession
    | IsRelated
    | ListRuns
    | GetRun
    | ListBackgroundRuns
    | ListEscalations
    | GetEscalation
    | AnswerEscalation
    | JoinInputs
    | SetQueueMode
    | SetSessionModel
    | ListSettings
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
    generation: str | None = None


SessionMessage: TypeAlias = Pump | Compact
