"""The events of a host, as its watchers see them.

Durable events get a number in their stream when they are journalled; it is contiguous, never
reused and survives a restart. Ephemeral ones, whose class says so, have none: they may be merged
or dropped, because a durable event that follows carries the whole.
Source: seed 002 (payloads), gateway protocol section 4 (names).
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from motet.protocols.chat import FailureClass, JsonObject, Outcome
from motet.protocols.escalations import Answer
from motet.protocols.models import Usage
from motet.protocols.reload import Change

Role: TypeAlias = Literal["user", "assistant"]


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Root of all events; the tag is the event's name on the wire."""

    durable: ClassVar[bool] = True


class InputAccepted(Event, frozen=True, tag="input.accepted"):
    """An input is on disk. ``key`` is the sender's idempotency key."""

    text: str
    author: str
    key: str | None = None


class RunStarted(Event, frozen=True, tag="run.started"):
    """A run begins. ``model``: the full name, such as ``openai:gpt-5.2``."""

    agent: str
    model: str


class MessageAdded(Event, frozen=True, tag="message"):
    """A whole message. ``i`` is its number in its run, as in :class:`TextDelta`. In the stream of a
    room a run says one thing, number 0; ``number`` is the message's own in the room, ``reply_to``
    that of the message there that it answers.
    """

    role: Role
    author: str
    text: str
    i: int = 0
    number: int = 0
    reply_to: int = 0


class TextDelta(Event, frozen=True, tag="text.delta"):
    """More text of message ``i`` of the run; ``at`` is its offset in code points."""

    durable: ClassVar[bool] = False

    i: int
    at: int
    text: str


class ThinkingDelta(Event, frozen=True, tag="thinking.delta"):
    """A part of the model's reasoning; fields as in :class:`TextDelta`."""

    durable: ClassVar[bool] = False

    i: int
    at: int
    text: str


class ToolCall(Event, frozen=True, tag="tool.call"):
    """A call begins. ``index`` is its place in its batch; strings in ``args`` are cut to 500."""

    id: str
    name: str
    args: JsonObject
    index: int = 0


class ToolResult(Event, frozen=True, tag="tool.result"):
    """A call ended; these come in completion order. ``preview``: at most 1,000 code points.

    ``result_id``: under which the whole is stored, when the model was given a part of it.
    ``failure``: the class of a failure; ``negative`` is an answer of a tool that worked.
    """

    id: str
    name: str
    ok: bool
    outcome: Outcome
    preview: str
    ms: float
    index: int = 0
    error_id: str | None = None
    result_id: str | None = None
    failure: FailureClass | Literal[""] = ""


class ToolProgress(Event, frozen=True, tag="tool.progress"):
    """How far a call has come, as its tool says, for people: ``done`` of ``total``."""

    durable: ClassVar[bool] = False

    id: str
    message: str = ""
    done: float | None = None
    total: float | None = None


class Activity(Event, frozen=True, tag="activity"):
    """The current activity of a run. ``queued`` waits for one of the model's places.

    ``position``: in that line; 1 is the next one, 0 is not known yet. It is told again every few
    seconds.
    """

    durable: ClassVar[bool] = False

    phase: Literal["waiting_model", "tool", "waiting_children", "compacting", "queued"]
    iteration: int = 0
    position: int = 0


class RunRetrying(Event, frozen=True, tag="run.retrying"):
    """A model request failed and is tried again.

    ``withdrawn`` is true when text of message ``i`` had been streamed: clients drop it.
    """

    attempt: int
    delay_ms: int
    reason: str
    i: int = 0
    withdrawn: bool = False


class AgentChanged(Event, frozen=True, tag="agent.changed"):
    """The run goes on as another agent, to which ``before`` has handed the conversation."""

    agent: str
    model: str
    before: str


class ChildStarted(Event, frozen=True, tag="child.started"):
    """The run has started another one as a part of its work; ``text``: its task, cut to 500."""

    run: str
    session: str
    agent: str
    text: str


class ChildEnded(Event, frozen=True, tag="child.ended"):
    """A child of the run has ended, with all that it had started. ``status``: as of any run."""

    run: str
    agent: str
    status: str
    usage: Usage


class RunCompleted(Event, frozen=True, tag="run.completed"):
    """A run has ended with an answer, which is its last message."""

    usage: Usage


class RunFailed(Event, frozen=True, tag="run.failed"):
    """``kind`` is the variant of ``AgentError``; ``message`` is fit for the user to read."""

    usage: Usage
    kind: str
    message: str
    error_id: str | None = None


class RunCancelled(Event, frozen=True, tag="run.cancelled"):
    usage: Usage
    reason: str


class RunLimited(Event, frozen=True, tag="run.limited"):
    """A run has ended at a limit. ``limit``: its name, such as ``turns`` or ``tool_loop``."""

    usage: Usage
    limit: str


class RunRefused(Event, frozen=True, tag="run.refused"):
    """The model, or a filter of its provider, refused to answer, maybe after some text.

    ``reason``: the provider's words, if it gave any.
    """

    usage: Usage
    reason: str


class RunEscalated(Event, frozen=True, tag="run.escalated"):
    """Too many calls failed: the run was handed to a person, who answers ``escalation``.

    ``reason`` says which limit was reached; ``tool`` is the one that failed last.
    """

    usage: Usage
    reason: str
    tool: str
    escalation: str


class RunInterrupted(Event, frozen=True, tag="run.interrupted"):
    """The host died during this run; found and recorded at the next start."""

    reason: str


class InputDropped(Event, frozen=True, tag="input.dropped"):
    """An accepted input will not be answered, and why."""

    reason: str


class InputSteered(Event, frozen=True, tag="input.steered"):
    """An accepted input has entered a run, which goes on or begins, and is answered by that."""

    into: str


class EscalationResolved(Event, frozen=True, tag="escalation.resolved"):
    """A person has answered an escalation. ``next_run`` is the run that goes on, if one does."""

    escalation: str
    decision: Answer
    note: str
    by: str
    next_run: str | None = None


class ApprovalRequested(Event, frozen=True, tag="approval.requested"):
    """A call waits for a person. Strings in ``args`` are cut to 500.

    ``args_hash`` is the SHA-256 of the canonical JSON of the whole arguments, for which an answer
    holds; ``expires``: Unix seconds; ``people``: in a room, those whose words the run answers.
    """

    id: str
    call_id: str
    tool: str
    args: JsonObject
    reason: str
    args_hash: str
    expires: float
    people: tuple[str, ...] = ()


class ApprovalResolved(Event, frozen=True, tag="approval.resolved"):
    """It waits no more. ``cancelled``: the run has ended before, or asks for something else."""

    id: str
    decision: Literal["allow", "deny", "expired", "cancelled"]
    by: str
    note: str = ""


class RunWaiting(Event, frozen=True, tag="run.waiting"):
    """The run is suspended until one of these approvals is answered. It has not ended."""

    approvals: tuple[str, ...]


class RunResumed(Event, frozen=True, tag="run.resumed"):
    """A run goes on that was suspended, or whose host had ended.

    Of its messages those before number ``i`` stand: what was told of others is told anew.
    """

    i: int = 0


class RunStalled(Event, frozen=True, tag="run.stalled"):
    """Nothing was heard of a run for ``seconds``; ``waits_on`` says in words for what it waits."""

    seconds: float
    waits_on: str


class SessionQuarantined(Event, frozen=True, tag="session.quarantined"):
    """The session is not taken up any more: ``tries`` hosts in a row have died while they did."""

    tries: int


class SessionReset(Event, frozen=True, tag="session.reset"):
    """The model starts from an empty history; the stored transcript stays."""


class SessionCompacted(Event, frozen=True, tag="session.compacted"):
    """A summary stands for the rows ``start`` to ``end`` now; the stored transcript stays."""

    start: int
    end: int


class RoomTurn(Event, frozen=True, tag="room.turn"):
    """A member has the floor: its round's turn number ``turn``; ``left`` are still to be had.

    ``asked_by``: the people whose words it answers; ``called_by``: the agents that called it.
    """

    speaker: str
    turn: int
    left: int
    asked_by: tuple[str, ...] = ()
    called_by: tuple[str, ...] = ()


class CallDropped(Event, frozen=True, tag="call.dropped"):
    """A member that was called by ``@name`` will not speak for it; ``reason`` says why.

    ``of``: the member; ``by``: the people and agents that have called it, in the messages number
    ``first`` to ``last`` of the room but for those in ``ended``, whose calls have ended before;
    ``number``: of the dropped call in the room.
    """

    of: str
    by: tuple[str, ...]
    reason: str
    round: int
    number: int
    first: int = 0
    last: int = 0
    ended: tuple[int, ...] = ()


class MessageEdited(Event, frozen=True, tag="message.edited"):
    """A message of a room has another text, which a replay of the message itself has, too.

    ``number``: of the message in the room; ``by``: its author; ``change``: counts the changes of
    messages in the room.
    """

    number: int
    text: str
    by: str
    change: int = 0


class MessageDeleted(Event, frozen=True, tag="message.deleted"):
    """A message of a room was withdrawn, and has no text any more; fields as in the edited one."""

    number: int
    by: str
    change: int = 0


class MessageReaction(Event, frozen=True, tag="message.reaction"):
    """A person reacts to a message of a room; ``on`` false: does so no more."""

    number: int
    reaction: str
    by: str
    on: bool = True
    change: int = 0


MessageChanged: TypeAlias = MessageEdited | MessageDeleted | MessageReaction


class RoomReplied(Event, frozen=True, tag="room.replied"):
    """The thread of a message of the room has ``replies`` messages now."""

    durable: ClassVar[bool] = False

    number: int
    replies: int


class RoomTyping(Event, frozen=True, tag="room.typing"):
    """A person writes a message, or an agent works on one; ``on`` false: does so no more."""

    durable: ClassVar[bool] = False

    name: str
    role: Role = "user"
    on: bool = True


class RoomPresence(Event, frozen=True, tag="room.presence"):
    """A user has the room open now, or no more."""

    durable: ClassVar[bool] = False

    user: str
    here: bool


class RoomRead(Event, frozen=True, tag="room.read"):
    """A user has read the room up to message ``number``."""

    durable: ClassVar[bool] = False

    user: str
    number: int


class RoomChanged(Event, frozen=True, tag="room.changed"):
    """The people or the terms of a room have changed; ``text`` says how, in a sentence.

    ``by``: who has done it; ``user``: to whom, if to somebody.
    """

    text: str
    by: str
    user: str = ""


class RoomIdle(Event, frozen=True, tag="room.idle"):
    """The round is over, and the room waits for a person. ``reason`` says why."""

    reason: str


class Warned(Event, frozen=True, omit_defaults=True, tag="warning"):
    """Something degraded and the run went on (seed 001). ``source`` says what; ``number``: of a
    notice that its room has stored, so that no kill has it told twice.
    """

    source: str
    message: str
    number: int = 0


class ErrorStoreFailed(Event, frozen=True, tag="error_store.failed"):
    """A failed call could not be stored; the model got the text itself."""

    tool: str
    message: str


HOST_STREAM = "host"
"""The stream of what concerns no session."""


class ConfigChanged(Event, frozen=True, tag="config.changed"):
    """The host has another configuration; what needs a restart is told and not in force.

    ``hash``: of the one in force, as ``config.get`` tells it. Of the stream ``host``.
    """

    hash: str
    changes: tuple[Change, ...] = ()


class Tick(Event, frozen=True, tag="tick"):
    """Head of each subscribed stream, so that a client that lost the last event notices."""

    durable: ClassVar[bool] = False

    heads: dict[str, int]


class Gap(Event, frozen=True, tag="gap"):
    """Events ``start`` to ``end`` of a stream were not sent: fetch them by ``subscribe``."""

    durable: ClassVar[bool] = False

    start: int
    end: int


StreamEnd: TypeAlias = Literal["deleted", "removed"]


class StreamEnded(Event, frozen=True, tag="stream.ended"):
    """The subscription to a stream has ended: the session was deleted, or the stream is not the
    user's any more. No event of it follows.
    """

    durable: ClassVar[bool] = False

    reason: StreamEnd


class Shutdown(Event, frozen=True, tag="shutdown"):
    durable: ClassVar[bool] = False

    restart_in_ms: int | None = None


class StorageChanged(Event, frozen=True, tag="storage"):
    """On the stream ``system``. ``reason``: why nothing can be stored now; empty: it can again."""

    durable: ClassVar[bool] = False

    reason: str


Terminal: TypeAlias = (
    RunCompleted
    | RunFailed
    | RunCancelled
    | RunLimited
    | RunRefused
    | RunEscalated
    | RunInterrupted
)
"""Exactly one of these ends every run that has begun."""

InputEnd: TypeAlias = Terminal | InputDropped | InputSteered
"""Exactly one of these ends every input."""

AnyEvent: TypeAlias = (
    InputAccepted
    | RunStarted
    | MessageAdded
    | TextDelta
    | ThinkingDelta
    | ToolCall
    | ToolResult
    | ToolProgress
    | Activity
    | RunRetrying
    | AgentChanged
    | ChildStarted
    | ChildEnded
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunLimited
    | RunRefused
    | RunEscalated
    | RunInterrupted
    | InputDropped
    | InputSteered
    | EscalationResolved
    | ApprovalRequested
    | ApprovalResolved
    | RunWaiting
    | RunResumed
    | RunStalled
    | SessionQuarantined
    | RoomTurn
    | CallDropped
    | MessageEdited
    | MessageDeleted
    | MessageReaction
    | RoomReplied
    | RoomTyping
    | RoomPresence
    | RoomRead
    | RoomChanged
    | RoomIdle
    | SessionReset
    | SessionCompacted
    | Warned
    | ErrorStoreFailed
    | ConfigChanged
    | Tick
    | Gap
    | StreamEnded
    | Shutdown
    | StorageChanged
)


def event_name(event: Event) -> str:
    """The event's name on the wire, for example ``tool.call``."""
    return str(event.__struct_config__.tag)


def is_durable(event: Event) -> bool:
    return event.durable


class EventRecord(msgspec.Struct, frozen=True):
    """An event with its place. ``seq`` is None for ephemeral events; ``ts`` is Unix seconds.

    ``owner``: in the stream of a session, the user whose session it was when the event happened; it
    stays inside the host. A session can be deleted and its name taken by another user (G16).
    """

    stream: str
    event: AnyEvent
    ts: float
    seq: int | None = None
    run_id: str | None = None
    owner: str | None = None
    live: bool = False
    """Delivered and never journalled, since what it tells of is not on disk yet."""
