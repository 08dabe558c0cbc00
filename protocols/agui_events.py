"""The events of a run as those of AG-UI 1.0. Pure.

Invariants: every message that was started is ended before the run's last event; no part of a
message is sent twice; an event without a counterpart is sent as ``CUSTOM``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import attrs
import msgspec

from motet.protocols import agui_wire as wire
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.edge_events import SentTexts, TextWithdrawn, failure_of

RESPONSE: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["allow-once", "allow-always", "deny"]},
        "note": {"type": "string", "description": "With a denial: the model reads it."},
    },
    "required": ["decision"],
}


class Payload(msgspec.Struct, frozen=True):
    """An answer by ``responseSchema``, or as some front ends send it: ``approved``."""

    decision: ApprovalDecision | None = None
    approved: bool | None = None
    note: str = ""


_SILENT: Final = (ev.InputAccepted, ev.Activity, ev.RunWaiting, ev.ApprovalRequested)


@attrs.define(eq=False)
class Translation:
    """Translates the events of one run, up to the last."""

    run_id: str
    _texts: SentTexts = attrs.field(init=False, factory=SentTexts)
    _thoughts: SentTexts = attrs.field(init=False, factory=SentTexts)
    _open: tuple[wire.MessageKind, str, int] | None = attrs.field(init=False, default=None)
    """The message that is being sent: kind, AG-UI's id and number in the run."""
    _tries: int = attrs.field(init=False, default=0)

    def events(self, event: ev.AnyEvent) -> Iterator[wire.Event]:
        """The client's events for one that does not end the run."""
        match event:
            case ev.TextDelta(i=i, at=at, text=text):
                yield from self._more("text", i, self._texts.delta(i, at, text))
            case ev.ThinkingDelta(i=i, at=at, text=text):
                yield from self._more("reasoning", i, self._thoughts.delta(i, at, text))
            case ev.MessageAdded(role="assistant"):
                yield from self._message(event)
            case ev.RunRetrying() | ev.RunResumed():
                yield from self._again(event)
            case ev.ToolCall():
                yield from self.close()
                args = msgspec.json.encode(event.args).decode()
                yield wire.ToolCallEvent("TOOL_CALL_START", event.id, event.name)
                yield wire.ToolCallEvent("TOOL_CALL_ARGS", event.id, delta=args)
                yield wire.ToolCallEvent("TOOL_CALL_END", event.id)
            case ev.ToolResult():
                message = f"{self.run_id}:{event.id}"
                yield wire.ToolCallResult(message, event.id, event.preview)
            case ev.ChildStarted():
                yield wire.SubagentEvent("SUBAGENT_STARTED", event.run, event.agent, event.text)
            case ev.ChildEnded(status="completed"):
                yield wire.SubagentEvent("SUBAGENT_FINISHED", event.run)
            case ev.ChildEnded():
                message = f"it ended as {event.status}"
                yield wire.SubagentEvent("SUBAGENT_ERROR", event.run, message=message)
            case ev.MessageAdded():
                pass
            case _:
                if not isinstance(event, _SILENT):
                    yield custom(event)

    def close(self) -> Iterator[wire.Event]:
        """End the message that is being sent."""
        if self._open is not None:
            (kind, message, _), self._open = self._open, None
            yield from wire.message_end(kind, message)

    def _more(self, kind: wire.MessageKind, i: int, text: str) -> Iterator[wire.Event]:
        if not text:
            return
        if self._open is None or (self._open[0], self._open[2]) != (kind, i):
            yield from self.close()
            message = ":".join([self.run_id, str(i), *([str(self._tries)] if self._tries else [])])
            message += "" if kind == "text" else ":reasoning"
            yield from wire.message_start(kind, message)
            self._open = kind, message, i
        yield wire.message_content(kind, self._open[1], text)

    def _message(self, event: ev.MessageAdded) -> Iterator[wire.Event]:
        try:
            yield from self._more("text", event.i, self._texts.whole(event.i, event.text))
        except TextWithdrawn:
            yield from self._withdraw(event)
            yield from self._more("text", event.i, event.text)
        yield from self.close()

    def _again(self, event: ev.RunRetrying | ev.RunResumed) -> Iterator[wire.Event]:
        """Text that was sent may be withdrawn: the text after it is a message of its own."""
        withdrawn = isinstance(event, ev.RunResumed) or event.withdrawn
        self._thoughts.withdraw(event.i)
        if withdrawn and self._texts.withdraw(event.i):
            yield from self._withdraw(event)
        else:
            yield custom(event)

    def _withdraw(
        self, event: ev.MessageAdded | ev.RunRetrying | ev.RunResumed
    ) -> Iterator[wire.Event]:
        open_id = None if self._open is None else self._open[1]
        yield from self.close()
        self._tries += 1
        yield wire.Custom("text.withdrawn", {"messageId": open_id, "i": event.i})


def custom(event: ev.AnyEvent) -> wire.Custom:
    return wire.Custom(ev.event_name(event), msgspec.structs.asdict(event))


def interrupt(info: ApprovalInfo) -> wire.Interrupt:
    """A pending approval as a question of AG-UI."""
    return wire.Interrupt(
        id=info.id,
        reason="tool_call",
        message=f"{info.tool}: {info.reason}",
        tool_call_id=info.call_id,
        response_schema=RESPONSE,
        expires_at=datetime.fromtimestamp(info.expires, UTC).isoformat(),
        metadata={"tool": info.tool, "args": info.args},
    )


def last(event: ev.AnyEvent, thread: str, run: str) -> wire.Event | None:
    """The client's last event for one that ends a run; None for others."""
    match event:
        case ev.RunCompleted(usage=usage):
            return wire.RunFinished(thread, run, wire.Success(), wire.token_usage(usage))
        case ev.RunCancelled(usage=usage):
            return wire.RunFinished(thread, run, wire.Cancelled(), wire.token_usage(usage))
        case ev.RunLimited(usage=usage, limit=limit):
            message = f"The run has reached its limit: {limit}."
            return wire.RunError(message, "run_limited", wire.token_usage(usage))
        case ev.RunInterrupted(reason=reason):
            return wire.RunError(f"The host has ended during the run: {reason}.", "run_interrupted")
        case _:
            failure = failure_of(event)
            if failure is None:
                return None
            code, message = failure
            if isinstance(event, ev.RunFailed | ev.RunEscalated | ev.RunRefused):
                return wire.RunError(message, code, wire.token_usage(event.usage))
            return wire.RunError(message, code)
