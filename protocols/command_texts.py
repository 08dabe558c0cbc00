"""The texts with which commands are answered, and what the answers of people say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final, get_args

import msgspec

from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.errors import StoredError
from motet.protocols.escalations import Answer, EscalationInfo
from motet.protocols.events import SessionCompacted
from motet.protocols.host import AgentInfo
from motet.protocols.host_rooms import NewInvite, RoomExport, RoomInfo, RoomPeople
from motet.protocols.models import Usage
from motet.protocols.queueing import QueueMode
from motet.protocols.review import decision as review_of
from motet.protocols.review import question
from motet.protocols.room_invites import RoomInvite
from motet.protocols.room_newcomers import Summary
from motet.protocols.rooms import Activation, RoomMessage
from motet.protocols.sessions import Principal, RunInfo, SessionInfo, StopReport
from motet.protocols.traces import TraceInfo

_TEXT = 60
QUEUEING: Final[dict[QueueMode, str]] = {
    "steer": "a message enters the run",
    "followup": "a message is answered after it",
    "collect": "messages are answered after it, as one",
    "interrupt": "a message ends it and takes its place",
    "reject": "a message is refused",
}


IN_ROOMS: Final[dict[QueueMode, str]] = {
    "steer": "a message enters the turns that go on",
    "followup": "a message gets a round of its own after this one",
    "collect": "messages open the next round together",
    "interrupt": "a message ends the turns and opens the next round",
    "reject": "a message is refused",
}


ACTIVATING: Final[dict[Activation | None, str]] = {
    "always": "every message (always)",
    "mention": "messages that call one of them, by @name or as a reply (mention)",
    "off": "nothing (off)",
    None: "as the room's speakers say: by default one person alone always, several when they call",
}


def stop_text(report: StopReport) -> str:
    """A stop: how many runs have ended, and the names of those that have not."""
    parts = [
        f"{len(ids)} {what}"
        for ids, what in (
            (report.stopped, "stopped"),
            (report.already_stopping, "already stopping"),
            (report.dropped_inputs, "dropped from the queue"),
            (report.still_running, "still cleaning up: " + ", ".join(report.still_running)),
        )
        if ids
    ]
    head = "; ".join(parts) if parts else "Nothing was running."
    return "\n".join([head, *report.held_by, *report.processes])


def status_text(info: SessionInfo, runs: Sequence[RunInfo]) -> str:
    """A session and its runs."""
    head = f"{info.session}: agent {info.agent}, {info.rows} rows"
    return "\n".join([head, *(map(run_line, runs) if runs else ["No run."])])


def run_line(run: RunInfo) -> str:
    return f"{run.status} {run.run_id}: {run.text[:_TEXT]}"


def queue_text(mode: QueueMode, waiting: Sequence[RunInfo]) -> str:
    """The queue mode, and the waiting inputs."""
    lines = [f"{number}. {run.text[:_TEXT]}" for number, run in enumerate(waiting, 1)]
    head = f"During a run: {mode}, {QUEUEING[mode]}."
    return "\n".join([head, *(lines or ["Nothing waits here."])])


def room_text(room: RoomInfo, now: float) -> str:
    """A room and the state of its round. ``now``: Unix seconds."""
    members = ", ".join(member.name for member in room.members)
    if room.speaking:
        lines = [
            f"{one.name} has the floor, for {max(0.0, now - one.since):.0f} s so far: "
            f"it waits for {_WAITS.get(one.waits_for, f'the {one.waits_for}')}."
            for one in room.floor
        ]
        goes_on = "\n".join([*lines, f"{room.left} turns are left."])
    else:
        goes_on = "It waits for a person." if room.idle else "Somebody is being chosen."
    stuck = [f"Given up, since it does not return: {one}" for one in room.stuck]
    return "\n".join([f"{room.name}: {members}", goes_on, *stuck])


_WAITS: Final = {
    "queue": "its place in a queue",
    "approval": "a person's approval",
    "sub-agents": "its sub-agents",
    "summary": "a summary by the model",
}


def mode_text(room: RoomInfo, mode: QueueMode | None = None) -> str:
    """The queue mode of a room; ``mode``: the one from the next round on."""
    shown = mode or room.mode
    when = "From the next round on, while" if mode and mode != room.mode else "While"
    return f"{when} agents speak: {shown}, {IN_ROOMS[shown]}."


def activation_text(room: RoomInfo, wanted: str = "") -> str:
    """The messages that the agents of a room answer; ``wanted``: was set, also to ``default``."""
    planned = room.plan.activation if wanted and room.plan else room.activation
    when = "From the next round on, the" if planned != room.activation else "The"
    return f"{when} agents answer {ACTIVATING[planned]}."


def compacted_text(done: SessionCompacted | None) -> str:
    if done is None:
        return "Nothing was summarised: too short, refused by a hook, or stopped."
    return f"Rows {done.start} to {done.end} are summarised; the transcript stays whole."


def errors_text(errors: Sequence[StoredError]) -> str:
    """Newest first, each with the id of its whole record."""
    lines = [f"{one.id} {one.tool_name} ({one.kind}): {one.short_summary}" for one in errors]
    return "\n".join(lines) if lines else "No error was stored here."


def usage_text(traces: Sequence[TraceInfo]) -> str:
    """The sum of the usage of these runs."""
    if not traces:
        return "No run has used anything here yet."
    total = reduce(add, (trace.usage for trace in traces), Usage())
    price = "price unknown" if total.cost is None else f"${total.cost:.4f}"
    runs = "1 run" if len(traces) == 1 else f"{len(traces)} runs"
    tokens = f"{total.input_tokens:,} tokens in, {total.output_tokens:,} out"
    return f"{runs}: {tokens}, {price}"


def agents_text(agents: Sequence[AgentInfo]) -> str:
    lines = [f"{one.name} ({one.model}) {one.description}".rstrip() for one in agents]
    return "\n".join(lines) if lines else "This host has no agent yet."


def model_text(
    agent: str, agents: Sequence[AgentInfo], chosen: str | None, models: Sequence[str] = ()
) -> str:
    """The model of the agent here, and the ones it could have."""
    own = next((one.model for one in agents if one.name == agent), None)
    if own is None:
        return f"The host does not have the agent {agent} now."
    here = f", set for this session; its own is {own}" if chosen and chosen != own else ""
    others = [name for name in models if name != (chosen or own)]
    head = f"{agent} uses {chosen or own}{here}."
    return "\n".join([head, *(["/model NAME changes that: " + ", ".join(others)] * bool(others))])


def who_text(principal: Principal, place: str, agent: str | None) -> str:
    talks = f", with {agent}" if agent else ""
    return f"You are {principal.user} ({principal.role}) in {place}{talks}."


def people_text(found: RoomPeople) -> str:
    """The people of a room, one a line, and its terms."""
    lines = [f"{found.owner or 'the host'}: owner"]
    for one in found.people:
        marks: list[str] = [one.role] if one.role else []
        marks += ["banned"] if one.banned else []
        marks += ["muted"] if one.muted else []
        lines.append(f"{one.user}: {', '.join(marks) or 'here by a pattern'}")
    if found.terms.slow:
        lines.append(f"slow mode: one message in {found.terms.slow:g} s")
    if found.terms.rate:
        lines.append(f"rate: {found.terms.rate} messages of one person a minute")
    if found.terms.newcomers:
        lines.append(f"newcomers read: {found.terms.newcomers}")
    return "\n".join(lines)


def summary_text(found: Summary) -> str:
    """What was said before a newcomer came."""
    if not found.upto:
        return "There is no summary for you: you may read what was said, or nobody made one."
    return found.text or "The summary cannot be made now. Try again later."


def invite_text(made: NewInvite) -> str:
    """An invite, with the token that is not shown again."""
    one = made.invite
    uses = "any number of times" if one.uses is None else f"{one.uses} times"
    ends = "" if one.expires is None else ", until it ends"
    return (
        f"{made.token}\nA user of this host becomes a {one.role} with it, {uses}{ends}: motet rooms"
        " join TOKEN, or #join=TOKEN behind the address of the page. It is shown this"
        f" once; its id is {one.id}."
    )


def found_text(found: Sequence[RoomMessage], words: str) -> str:
    """The messages that a search has found, oldest first."""
    lines = [f"#{one.seq} {one.author}: {' '.join(one.text.split())[:_FOUND]}" for one in found]
    return "\n".join(lines) or f"No message has {words!r}."


def here_text(users: Sequence[str]) -> str:
    return f"Here now: {', '.join(users)}." if users else "Nobody has this room open."


def invites_text(invites: Sequence[RoomInvite]) -> str:
    lines = [f"{one.id}: {one.role}, by {one.by}" for one in invites]
    return "\n".join(lines) or "There are no invites."


def export_text(part: RoomExport, *, first: bool) -> str:
    """A part of an export as JSON lines, not much longer than :data:`_EXPORTED` characters."""
    head = {"room": part.room, "owner": part.owner, "terms": part.terms, "people": part.people}
    lines, size = [msgspec.json.encode(head).decode()] if first else [], 0
    more = part.next
    for last, message in zip((0, *(one.seq for one in part.messages)), part.messages, strict=False):
        line = msgspec.json.encode(message).decode()
        if size and size + len(line) > _EXPORTED:
            more = last
            break
        lines.append(line)
        size += len(line)
    return "\n".join((*lines, *([f"More: /export {more}"] if more else ())))


_FOUND: Final = 120
_EXPORTED: Final = 60_000


# The answers to approvals and escalations


def approval_wanted(
    argument: str, pending: Sequence[ApprovalInfo]
) -> tuple[str, ApprovalDecision, str] | str:
    """The approval that ``/approve`` names, or the only one, the decision and a note; or else the
    reply. ``pending``: newest first.
    """
    words = argument.split(None, 2)
    if words and words[0] in get_args(ApprovalDecision):
        words.insert(0, pending[0].id if len(pending) == 1 else "")
    if len(words) < 2 or not words[0]:
        # Quotes the calls only for an argument that changes nothing; see `Command.shows`.
        asked = [one.id if argument else "\n".join(question(one)) for one in reversed(pending)]
        waiting = "\n".join(asked)
        how = "To answer: /approve ID allow-once, allow-always or deny."
        return f"{waiting}\n{how}" if waiting else "No approval is pending here."
    decision = next((one for one in get_args(ApprovalDecision) if one == words[1]), None)
    if decision is None:
        return f"{words[1]!r} is not a decision: {', '.join(get_args(ApprovalDecision))}"
    return words[0], decision, " ".join(words[2:])


def answer_wanted(argument: str, found: Sequence[EscalationInfo]) -> tuple[str, Answer, str] | str:
    """The same for ``/resolve`` and escalations; the note is kept as it was typed."""
    said = re.sub(r"^((?:esc_\w+\s+)?)give[ -]up\b", r"\1give_up", argument.strip())
    word, rest = _split(said)
    if word in get_args(Answer):
        word, rest = (found[0].id if len(found) == 1 else ""), said
    decided, note = _split(rest)
    if not word or not decided:
        failed = [one.id if argument else "\n".join(review_of(one)) for one in reversed(found)]
        waiting = "\n".join(failed)
        how = "Say which and how: /resolve ID retry [TEXT], advice TEXT, skip TEXT or give_up."
        return f"{waiting}\n{how}" if waiting else "No escalation is open here."
    decision = next((one for one in get_args(Answer) if one == decided), None)
    if decision is None:
        return f"{decided!r} is not a decision: {', '.join(get_args(Answer))}"
    return word, decision, note


def _split(text: str) -> tuple[str, str]:
    """The first word, and the rest as it was typed."""
    word = next(iter(text.split(None, 1)), "")
    return word, text.strip()[len(word) :].strip()
