"""Events as lines for a terminal. Pure.

Invariants: every message is shown once and whole, whichever of its deltas are lost or merged;
no text of a model or a tool can control the terminal.
"""

from __future__ import annotations

import json
import re
from typing import Literal, TypeAlias

import attrs
import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.events import (
    Activity,
    AgentChanged,
    AnyEvent,
    ApprovalRequested,
    ApprovalResolved,
    ChildEnded,
    ChildStarted,
    ErrorStoreFailed,
    EscalationResolved,
    InputDropped,
    InputSteered,
    MessageAdded,
    MessageDeleted,
    MessageEdited,
    MessageReaction,
    RoomChanged,
    RunCancelled,
    RunEscalated,
    RunFailed,
    RunInterrupted,
    RunLimited,
    RunRefused,
    RunRetrying,
    RunStalled,
    RunStarted,
    RunWaiting,
    SessionReset,
    StorageChanged,
    TextDelta,
    ToolCall,
    ToolResult,
    Warned,
)
from motet.protocols.review import is_whole, review

Kind: TypeAlias = Literal["text", "call", "done", "failed", "warning", "note"]

STOPPED = re.compile(
    r"\s*\[(?:Stopped(?: by user|: [^\]\n]*)|Refused(?:: [^\]\n]*)?|Interrupted: [^\]\n]*)\]\Z"
)
"""A note in the transcript on how a run ended; users see the event of its end."""
ARGUMENT_CHARS = 40
ARGUMENTS_CHARS = 100


@attrs.frozen
class Piece:
    """A thing to print: a part of an answer (``text``), or a line of its own."""

    kind: Kind
    text: str


@attrs.define
class Rendering:
    """Turns the events of one session, in order, into pieces.

    ``stream`` false: an answer is shown when it is whole, so that nothing has to be withdrawn.
    """

    stream: bool = True
    _shown: dict[int, str] = attrs.field(factory=dict[int, str])
    """The parts of each message of the current run that were already shown."""

    def pieces(self, event: AnyEvent) -> list[Piece]:
        match event:
            case RunStarted():
                self._shown.clear()
                return []
            case TextDelta(i=i, at=at, text=text):
                return self._delta(i, at, text) if self.stream else []
            case MessageAdded(role="assistant", i=i, text=text):
                return self._whole(i, text)
            case RunRetrying():
                return self._retrying(event)
            case _:
                piece = line_of(event)
                return [] if piece is None else [piece]

    def _delta(self, i: int, at: int, text: str) -> list[Piece]:
        shown = len(self._shown.get(i, ""))
        if at > shown:  # One was lost: the whole message follows and has it.
            return []
        return self._more(i, text[shown - at :])

    def _whole(self, i: int, text: str) -> list[Piece]:
        shown = self._shown.get(i, "")
        text = STOPPED.sub("", text)
        if text.startswith(shown):
            return self._more(i, text[len(shown) :])
        # The final text was cleaned up; a terminal cannot take back its output.
        return [] if text == shown.strip() else self._more(i, f"\n{text}")

    def _more(self, i: int, text: str) -> list[Piece]:
        if not text:
            return []
        self._shown[i] = self._shown.get(i, "") + text
        return [Piece("text", visible(text))]

    def _retrying(self, event: RunRetrying) -> list[Piece]:
        withdrawn = bool(self._shown.pop(event.i, ""))
        what = "the text above is withdrawn; " if withdrawn else ""
        wait = duration(event.delay_ms)
        return [Piece("warning", f"{what}trying again in {wait}: {one_line(event.reason)}")]


def line_of(event: AnyEvent) -> Piece | None:
    """The line for an event; None for events without one."""
    match event:
        case ToolCall():
            return Piece("call", f"→ {event.name}({arguments(event.args)})")
        case ToolResult():
            return _result(event)
        case Activity(phase="queued", position=position):
            where = f": number {position} of those who wait" if position else ""
            return Piece("note", f"[the model is busy{where}]")
        case RunFailed():
            return Piece("failed", f"failed: {visible(event.message)}{_id(event.error_id)}")
        case RunLimited():
            return Piece("warning", f"[stopped: the limit of {event.limit} is reached]")
        case RunRefused():
            return Piece("failed", f"refused: {visible(event.reason)}")
        case RunEscalated():
            what = f"motet errors escalations resolve {event.escalation}, or /resolve in a chat"
            return Piece("failed", f"handed to a person: {visible(event.reason)}\n  {what}")
        case ApprovalRequested():
            return _asked(event)
        case ApprovalResolved():
            return _decided(event)
        case RunWaiting():
            return Piece("note", f"[waiting: motet approvals allow {' '.join(event.approvals)}]")
        case EscalationResolved():
            return Piece("note", f"[{event.by} has decided: {event.decision}]")
        case RunCancelled():
            return Piece("note", "[stopped]")
        case RunInterrupted():
            return Piece("warning", f"[interrupted: {one_line(event.reason)}]")
        case InputDropped():
            return Piece("warning", f"[not answered: {one_line(event.reason)}]")
        case InputSteered():
            return Piece("note", "[entered the active run]")
        case AgentChanged():
            return Piece("note", f"[{event.before} hands over to {event.agent}]")
        case ChildStarted():
            return Piece("note", f"[{event.agent} works on: {first_line(event.text)}]")
        case ChildEnded():
            return Piece("note", f"[{event.agent} has ended: {event.status}]")
        case RunStalled():
            quiet = duration(event.seconds * 1000)
            waits = one_line(event.waits_on)
            return Piece("warning", f"[quiet for {quiet}, waits on {waits}; /stop ends it]")
        case MessageEdited():
            text = one_line(event.text)
            return Piece(
                "note", f"[{one_line(event.by)} has changed message {event.number}: {text}]"
            )
        case MessageDeleted():
            return Piece("note", f"[{one_line(event.by)} has withdrawn message {event.number}]")
        case MessageReaction():
            does = "reacts to" if event.on else "takes back from"
            what = f"{does} message {event.number}: {one_line(event.reaction)}"
            return Piece("note", f"[{one_line(event.by)} {what}]")
        case SessionReset():
            return Piece("note", "[a new conversation]")
        case RoomChanged():
            return Piece("note", f"[{one_line(event.text)}]")
        case Warned():
            return Piece("warning", f"warning: {one_line(event.message)}")
        case StorageChanged():
            return storage_line(event.reason)
        case ErrorStoreFailed():
            return Piece("warning", f"warning: the error of {event.tool} was not stored")
        case _:
            return None


def storage_line(reason: str) -> Piece:
    """Why nothing can be stored now; empty: it can again."""
    if not reason:
        return Piece("note", "[the host can store again]")
    what = f"the host cannot store anything now, since {one_line(reason)}"
    return Piece("warning", f"warning: {what}: new messages are refused, calls with effects wait")


def _asked(event: ApprovalRequested) -> Piece:
    lines = review(event.tool, event.args)
    if not is_whole(event) and not event.args:  # long ones are cut, and never to nothing
        lines.append("(the arguments are not shown to your role in this room)")
    elif not is_whole(event):
        lines.append(f"(the arguments are cut: motet approvals show {event.id} has all of them)")
    people = f" (asked by {one_line(', '.join(event.people))})" if event.people else ""
    head = f"? {one_line(event.reason)}{people}  [{event.id}]\n"
    return Piece("warning", head + "\n".join(lines))


def _decided(event: ApprovalResolved) -> Piece | None:
    said = f": {one_line(event.note)}" if event.note else ""
    match event.decision:
        case "allow":
            return Piece("note", f"[allowed by {one_line(event.by)}{said}]")
        case "deny":
            return Piece("note", f"[denied by {one_line(event.by)}{said}]")
        case "expired":
            return Piece("warning", "[nobody has answered in time: not run]")
        case "cancelled":
            return None


def _result(event: ToolResult) -> Piece:
    head = f"{event.name} {duration(event.ms)}"
    if event.ok:
        return Piece("done", f"✓ {head}")
    said = event.preview.removeprefix(f"Tool '{event.name}' failed: ")
    why = "cancelled" if event.outcome.startswith("cancelled") else first_line(said)
    return Piece("failed", f"✗ {head}: {why}{_id(event.error_id)}")


def _id(error_id: str | None) -> str:
    return f"  [{error_id}]" if error_id else ""


def first_line(text: str) -> str:
    """The first line that is not blank, cut to 100 characters."""
    lines = (line.strip() for line in text.splitlines())
    return cut(one_line(next((line for line in lines if line), "")), 100)


def arguments(args: JsonObject) -> str:
    """Arguments as one short line: ``path="a.txt", limit=3``."""
    shown = ", ".join(f"{visible(k)}={cut(_literal(v), ARGUMENT_CHARS)}" for k, v in args.items())
    return cut(shown, ARGUMENTS_CHARS)


def _literal(value: object) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str))


def duration(ms: float) -> str:
    """Milliseconds for people: ``3 ms``, ``1.2 s``."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str) -> str:
    """The text without line breaks, tabs and control characters."""
    return " ".join(visible(text).split())


# Control characters, and the marks that reorder what is written after them.
_STEERING = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = {code: "\ufffd" for code in _STEERING if chr(code) not in "\n\t"} | {ord("\r"): ""}


def visible(text: str) -> str:
    """The text with a mark in place of every control character."""
    return text.translate(_VISIBLE)


# In JSON these stand in texts only, where an escape means the same character.
_ESCAPED = {code: f"\\u{code:04x}" for code in _STEERING if code >= 0x7F}


def in_json(value: object) -> str:
    """The value in JSON, on one line, with escapes for what would act on a terminal."""
    return msgspec.json.encode(value).decode().translate(_ESCAPED)
