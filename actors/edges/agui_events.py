"""The events of a run as those of AG-UI. Pure.

Invariants: what was started is ended before the run's last event; of a message nothing is told
twice; an event that has no counterpart goes along as ``CUSTOM``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import attrs
import msgspec

from motet.actors.edges import agui_wire as wire
from motet.actors.edges.texts import Texts, Withdrawn
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject

RESPONSE: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["allow-once", "allow-always", "deny"]},
        "note": {"type": "string", "description": "With a denial: the model reads it."},
    },
    "required": ["decision"],
}
_SILENT: Final = (ev.InputAccepted, ev.Activity, ev.RunWaiting, ev.ApprovalRequested)
_Open = tuple[str, str, int]
"""``text`` or ``reasoning``, the id under which a client knows the message, and its number."""


@attrs.define(eq=False)
class Translation:
    """Of one run."""

    run_id: str
    _texts: Texts = attrs.field(init=False, factory=Texts)
    _thoughts: Texts = attrs.field(init=False, factory=Texts)
    _open: _Open | None = attrs.field(init=False, default=None)
    _tries: int = attrs.field(init=False, default=0)

    def events(self, event: ev.AnyEvent) -> Iterator[wire.Event]:
        """What a client is told of an event that does not end the run."""
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
                yield wire.ToolCallStart(event.id, event.name)
                yield wire.ToolCallArgs(event.id, msgspec.json.encode(event.args).decode())
                yield wire.ToolCallEnd(event.id)
            case ev.ToolResult():
                message = f"{self.run_id}:{event.id}"
                yield wire.ToolCallResult(message, event.id, event.preview)
            case ev.ChildStarted():
                yield wire.SubagentStarted(event.run, event.agent, event.text)
            case ev.ChildEnded(status="completed"):
                yield wire.SubagentFinished(event.run)
            case ev.ChildEnded():
                yield wire.SubagentError(event.run, f"it ended as {event.status}")
            case ev.MessageAdded():
                pass
            case _:
                if not isinstance(event, _SILENT):
                    yield custom(event)

    def close(self) -> Iterator[wire.Event]:
        """End the message that is being told."""
        if self._open is None:
            return
        kind, message, _ = self._open
        self._open = None
        if kind == "text":
            yield wire.TextEnd(message)
        else:
            yield wire.ReasoningMessageEnd(message)
            yield wire.ReasoningEnd(message)

    # The parts

    def _more(self, kind: str, i: int, text: str) -> Iterator[wire.Event]:
        if not text:
            return
        if self._open is None or (self._open[0], self._open[2]) != (kind, i):
            yield from self.close()
            message = ":".join([self.run_id, str(i), *([str(self._tries)] if self._tries else [])])
            if kind == "text":
                yield wire.TextStart(message)
            else:
                message += ":reasoning"
                yield wire.ReasoningStart(message)
                yield wire.ReasoningMessageStart(message)
            self._open = kind, message, i
        content: Callable[[str, str], wire.Event]
        content = wire.TextContent if kind == "text" else wire.ReasoningContent
        yield content(self._open[1], text)

    def _message(self, event: ev.MessageAdded) -> Iterator[wire.Event]:
        try:
            yield from self._more("text", event.i, self._texts.whole(event.i, event.text))
        except Withdrawn:
            yield from self._anew(event)
            yield from self._more("text", event.i, event.text)
        yield from self.close()

    def _again(self, event: ev.RunRetrying | ev.RunResumed) -> Iterator[wire.Event]:
        """Text that was told does not count: what follows is a message of its own."""
        told = isinstance(event, ev.RunResumed) or event.withdrawn
        self._thoughts.withdraw(event.i)
        if told and self._texts.withdraw(event.i):
            yield from self._anew(event)
        else:
            yield custom(event)

    def _anew(
        self, event: ev.MessageAdded | ev.RunRetrying | ev.RunResumed
    ) -> Iterator[wire.Event]:
        open_id = None if self._open is None else self._open[1]
        yield from self.close()
        self._tries += 1
        yield wire.Custom("text.withdrawn", {"messageId": open_id, "i": event.i})


def custom(event: ev.AnyEvent) -> wire.Custom:
    return wire.Custom(ev.event_name(event), msgspec.structs.asdict(event))


def interrupt(info: ApprovalInfo) -> wire.Interrupt:
    """A call that waits for a person, as AG-UI asks for the answer."""
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
    """The client's last event for one that ends a run, or has it leave; None for others."""
    match event:
        case ev.RunCompleted(usage=usage):
            return wire.RunFinished(thread, run, wire.Success(), wire.token_usage(usage))
        case ev.RunCancelled(usage=usage):
            return wire.RunFinished(thread, run, wire.Cancelled(), wire.token_usage(usage))
        case ev.RunLimited(usage=usage, limit=limit):
            told = f"The run has reached its limit: {limit}."
            return wire.RunError(told, "run_limited", wire.token_usage(usage))
        case ev.RunFailed(usage=usage, kind=kind, message=message):
            return wire.RunError(message, kind, wire.token_usage(usage))
        case ev.RunEscalated(usage=usage, reason=reason, escalation=escalation):
            told = f"The run was handed to a person ({reason}), who answers {escalation}."
            return wire.RunError(told, "run_escalated", wire.token_usage(usage))
        case ev.RunInterrupted(reason=reason):
            return wire.RunError(f"The host has ended during the run: {reason}.", "run_interrupted")
        case ev.InputDropped(reason=reason):
            return wire.RunError(f"The input is not answered: {reason}.", "input_dropped")
        case ev.InputSteered(into=into):
            return wire.RunError(f"The input is answered by the run {into}.", "input_steered")
        case _:
            return None
