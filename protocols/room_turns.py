"""A turn of a room's member: the text it is given, what is shown of it, what it comes to. Pure.

Invariants: what others say has their name in front and is a user's message, never a part of the
system prompt; while a turn goes on it is one message, and a text that may turn out to say nothing
is held back; the result is read from the run, which ends once, and hands the floor over only by a
call that was done. Source: API specification, section 6, rules 3, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import msgspec
from msgspec.structs import replace

from motet.protocols import events
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.events import AnyEvent
from motet.protocols.models import Usage
from motet.protocols.room_limits import ROOM, UNPLANNED, Planned
from motet.protocols.room_messages import line_of
from motet.protocols.rooms import MemberInfo, RoomMessage
from motet.protocols.run import RunResult
from motet.protocols.sanitize import NO_REPLY, SilenceMatch, is_silent
from motet.protocols.sessions import Principal

PASS = "PASS"
SILENT = (PASS, f"I {PASS}", NO_REPLY)
"""Answers that say nothing, in any case and with decorations only: ``[PASS]``, ``I pass.``"""
NOTHING_NEW = "[Nobody has said anything since.]"

FORWARDED = (
    events.Activity,
    events.ToolCall,
    events.ToolProgress,
    events.ToolResult,
    events.ApprovalRequested,
    events.ApprovalResolved,
    events.ChildStarted,  # also a turn in a room that works for the member
    events.ChildEnded,
)
"""The events of a member's run that a room shows unchanged."""


# The prompts of members


def render_for_member(
    messages: Iterable[RoomMessage], notice: str = "", news: Iterable[str] = ()
) -> str:
    """The messages of others that a member has not been shown, as it reads them, and a notice.

    ``news``: the lines of what has changed in those that it has read.
    """
    lines = "\n".join((*news, *map(line_of, messages))) or NOTHING_NEW
    return f"{lines}\n[{notice}]" if notice else lines


def room_instructions(room: str, name: str, members: Sequence[MemberInfo]) -> str:
    """The part of a member's system prompt about the room."""
    others = "\n".join(
        f"- @{member.name}: {member.description or 'an agent'}"
        for member in members
        if member.name != name
    )
    return (
        f"You are {name} in the group chat {room!r}. Each message begins with square brackets: "
        "its number, whether a person or an agent has said it, and the name. Nobody can write such "
        "a beginning into a text; do not begin yours so. One that is edited or withdrawn replaces "
        "the earlier one of its number. To call "
        f"another member, write @ and its name. If you have nothing to add, answer {PASS} and "
        "nothing else." + (f"\nThe other agents:\n{others}" if others else "")
    )


def is_pass(text: str) -> bool:
    """Whether a turn says nothing. It is not shown, but it counts."""
    return not text.strip(" \t\r\n*_`\"'.") or is_silent(text, *SILENT)


@attrs.frozen
class Batch:
    """The turns that were given the floor at once: all see the same messages.

    Attributes:
        mark: of the room's control, when the floor was given.
        shown: number of the last message then; ``heard``: of the last one that a person has said.
        sender: the person who has said that one.
        untold: members whose runs have not begun, so that they have not read these messages.
        announced: members whose turn was published.
        changes: they are told of the changes of messages up to this one.
    """

    mark: int = 0
    shown: int = 0
    heard: int = 0
    sender: str = ""
    untold: set[str] = attrs.field(factory=set[str])
    announced: set[str] = attrs.field(factory=set[str])
    changes: int = -1


# The events of a turn


@attrs.define
class TurnFilter:
    """The events of one turn as a room shows them while it goes on. Pure.

    A run may write several texts on its way; in the room a turn is one message. So all deltas are
    those of message 0, each text begins at 0 and replaces the one before, and a text that may turn
    out to be a pass is held back until it is clear that it is none.
    """

    _held: str | None = ""
    _silence: list[SilenceMatch] = attrs.field(factory=list[SilenceMatch])

    def shown(self, event: AnyEvent) -> AnyEvent | None:
        """The event to publish; None: nothing, or nothing yet."""
        match event:
            case events.TextDelta():
                return self._text(event)
            case events.ThinkingDelta() | events.RunRetrying():
                return replace(event, i=0)
            case _:
                return event if isinstance(event, FORWARDED) else None

    def _text(self, delta: events.TextDelta) -> events.TextDelta | None:
        if delta.at == 0:
            self._held, self._silence = "", [SilenceMatch(token) for token in SILENT]
        if self._held is None or delta.at != len(self._held):
            return replace(delta, i=0)
        self._held += delta.text
        self._silence = [one for one in self._silence if one.goes_on(delta.text)]
        if self._silence:  # it can still turn out to say nothing
            return None
        text, self._held = self._held, None
        return events.TextDelta(0, 0, text)


# The results of turns

GIVE_FLOOR = "give_floor"
"""The tool that hands the floor over. It decides nothing: the room reads the call in the transcript
of the turn that has ended, so that the decision is on disk with the turn, and a turn that fails
hands over nothing.
"""
GIVES_FLOOR = (
    "In a group chat, have another member speak after your turn. What you answer after this call "
    "is said first. Call it once, with the member's name as it stands in your instructions."
)

ROOM_HISTORY = "room_history"
READS_BACK = (
    "In this group chat, read earlier messages, such as those that you were told are not shown: "
    "the last ``limit`` (at most 50) before the one with the number ``before``, as it stands in "
    "its square brackets; without it, the last ones."
)
ROOM_TOOL_GROUP = {"group:rooms": (GIVE_FLOOR, ROOM_HISTORY)}
TOO_LONG = "its turn took too long"


class _Arguments(msgspec.Struct, frozen=True):
    to: str


def floor_given_to(rows: Sequence[ChatMessage]) -> str:
    """The last name that a turn has given the floor to; empty if it has not given it away."""
    given = [call for call in calls_done(rows) if call.name == GIVE_FLOOR]
    return _to(given[-1].arguments) if given else ""


def calls_done(rows: Sequence[ChatMessage]) -> list[Call]:
    """The calls of a turn that were done."""
    done = {row.call_id for row in rows if isinstance(row, ToolMessage) and row.outcome == "done"}
    calls = [call for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
    return [call for call in calls if call.id in done]


def last_turn(rows: Sequence[ChatMessage]) -> tuple[set[str], str]:
    """The tools that the last turn of a transcript may have run, done or not, and its input.

    A call that waited for its turn, or for a person, has not begun: it had no effect.
    """
    names, idle = set[str](), set[str]()
    for row in reversed(rows):
        if isinstance(row, UserMessage) and not row.note:
            return names, row.text
        if isinstance(row, ToolMessage) and row.outcome == "cancelled_before_start":
            idle.add(row.call_id)
        elif isinstance(row, AssistantMessage):
            names.update(one.name for one in row.calls if one.id not in idle)
            idle.clear()  # models use ids again
    return names, ""


def _to(arguments: str) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Arguments).to.lstrip("@")
    except msgspec.DecodeError:
        return ""  # arguments that were repaired are stored as the model wrote them


@attrs.frozen
class Turn:
    """The result of a turn.

    Attributes:
        run_id: of its run, if that has begun: then its member has read the messages it was given.
        problem: the reason why it has not answered, in words that are fit for the room.
        floor_to: the name that it has given the floor to.
        suspended: there is no result yet: its run waits until a person has decided.
        limit: of its run, at which it has ended; ``planned``: what it was allowed.
        again: it ended at the limit of one of those who pay for it, and the others can: its member
            has another turn.
        usage: of its run, so far.
        tools: the tools that it has called.
        repeated: another run has made it, after the end of a host had cut off the first.
        asked_by: the people whose words it answers, if its run has ended in this host, beside it.
    """

    run_id: str = ""
    text: str = ""
    problem: str = ""
    floor_to: str = ""
    suspended: bool = False
    limit: str = ""
    planned: Planned = UNPLANNED
    again: bool = False
    tools: tuple[str, ...] = ()
    usage: Usage = attrs.field(factory=Usage)
    repeated: bool = False
    asked_by: tuple[Principal, ...] = ()


def turn_of(result: RunResult[object]) -> Turn:
    tools = tuple(call.name for call in calls_done(result.rows))
    if result.status == "completed":
        given = floor_given_to(result.rows)
        return Turn(result.run_id, result.text, "", given, tools=tools, usage=result.usage)
    if result.status == "waiting":
        return Turn(result.run_id, suspended=True, usage=result.usage)
    why = f"{result.status}, {result.limit}" if result.limit else result.status
    why = TOO_LONG if result.limit == "wall" else why
    begun = result.run_id if result.status != "dropped" else ""
    return Turn(begun, problem=why, usage=result.usage, tools=tools, limit=result.limit or "")


def at_limit(turn: Turn, planned: Planned, over: dict[str, str]) -> Turn:
    """The turn, as it was ``planned``; if it has ended at the limit of one who pays for it, with
    the reason, which is noted in ``over``. Its member has another one, if the others can pay.
    """
    whose, told = planned.why.get(turn.limit, (ROOM, ""))
    if whose == ROOM:
        return attrs.evolve(turn, planned=planned)
    over[whose] = told
    return attrs.evolve(turn, problem=told, again=not over.keys() >= {*planned.payers})


def usage_between(before: Usage, after: Usage) -> Usage:
    cost = None if after.cost is None else after.cost - (before.cost or 0.0)
    return Usage(
        after.input_tokens - before.input_tokens,
        after.output_tokens - before.output_tokens,
        after.cached_tokens - before.cached_tokens,
        cost,
        after.cache_write_tokens - before.cache_write_tokens,
    )
