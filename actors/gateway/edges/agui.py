"""``POST /v1/ag-ui``: an agent for front ends that speak AG-UI.

Invariants: a thread is a session, and its history that of the session; an interrupt is an approval
of this host, looked up here, and only an answer that says so allows anything (G10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import attrs
import msgspec

from motet.actors.gateway.commands import answer_command, message_text, parse_command
from motet.actors.gateway.edges import agui_wire as wire
from motet.actors.gateway.edges.exchange import Exchange
from motet.actors.gateway.edges.watching import (
    LISTED,
    Asking,
    Fault,
    Texts,
    Watch,
    Withdrawn,
    watch,
    wrong,
)
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.chat import JsonObject

# The events of a run as those of AG-UI. Pure.
#
# Invariants: what was started is ended before the run's last event; of a message nothing is told
# twice; an event that has no counterpart goes along as ``CUSTOM``.


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


class Payload(msgspec.Struct, frozen=True):
    """An answer: what ``responseSchema`` says, or as front ends have it, ``approved``."""

    decision: ApprovalDecision | None = None
    approved: bool | None = None
    note: str = ""


async def run_agent(exchange: Exchange) -> bool:
    """Answer the last message, or go on with answers. Raises :class:`Fault`, and as the host."""
    given = await exchange.body(wire.RunAgentInput)
    if given.resume:
        return await _resume(exchange, given, given.resume)
    text = _last_text(given.messages)
    session, agent = given.thread_id, exchange.tail or None
    command = parse_command(text)
    if command is not None:
        answer = await answer_command(exchange.api, exchange.principal, session, command)
        return await _said(exchange, given, answer.text)
    key = exchange.key or f"{session}:{given.run_id}"
    async with exchange.submitted(message_text(text), session, agent, "reject", key) as events:
        telling = _Telling(exchange, given, Translation(events.run_id))
        return await exchange.attended(events.run_id, lambda: telling.all(events))


def _last_text(messages: Sequence[wire.Message]) -> str:
    """What the user has said since the last answer; the rest is in the session."""
    said: list[str] = []
    for message in reversed(messages):
        if message.role == "user":
            said.append(_text_of(message))
        elif message.role in ("assistant", "tool"):
            break
    text = "\n\n".join(reversed(said))
    if not text.strip():
        raise wrong("The last message has to be the user's, with text.", "messages")
    return text


def _text_of(message: wire.Message) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content if isinstance(message.content, tuple) else ()
    strange = next((part.type for part in parts if part.type != "text"), None)
    if strange is not None:
        raise wrong(f"Parts of type {strange!r} are not taken here, only text.", "messages")
    return "".join(part.text for part in parts)


async def _said(exchange: Exchange, given: wire.RunAgentInput, text: str) -> bool:
    """An answer for which no run was needed."""
    message = f"{given.run_id}:command"
    await exchange.begin()
    await exchange.tell(
        wire.RunStarted(given.thread_id, given.run_id),
        wire.TextStart(message),
        wire.TextContent(message, text),
        wire.TextEnd(message),
        wire.RunFinished(given.thread_id, given.run_id, wire.Success()),
    )
    return await exchange.finish()


# Answers


async def _resume(
    exchange: Exchange, given: wire.RunAgentInput, entries: Sequence[wire.ResumeEntry]
) -> bool:
    answers = [(entry.interrupt_id, *_answer(entry)) for entry in entries]
    known = {one.id: one for one in await _approvals(exchange, given.thread_id)}
    missing = [one.interrupt_id for one in entries if one.interrupt_id not in known]
    if missing:
        raise Fault(
            404, "not_found", f"No interrupt {missing[0]!r} in this thread.", param="resume"
        )
    answered = {entry.interrupt_id for entry in entries}
    runs = {known[approval].run_id for approval in answered}
    if len(runs) > 1:
        raise wrong("These interrupts are of several runs: answer one run at a time.", "resume")
    run_id = runs.pop()
    events = watch(exchange.api.events, given.thread_id, run_id)
    try:
        exchange.follow(events, given.thread_id)
        working: set[str] = set()
        for approval, decision, note in answers:
            working.add(known[approval].call_id)
            info = await exchange.api.approve(
                approval, decision, note=note, principal=exchange.principal
            )
            if info.blocked:
                raise Fault(409, "blocked", f"It was answered, but the run waits: {info.blocked}.")
        if all(known[approval].state != "pending" for approval in answered):
            # The same answers again, from a client that has not heard what came of them.
            await events.from_its_beginning(run_id)
            events.skip_through(lambda event: _is_answer(event, answered))
        telling = _Telling(exchange, given, Translation(run_id), Asking(True, working))
        return await exchange.attended(run_id, lambda: telling.all(events))
    finally:
        events.close()


def _answer(entry: wire.ResumeEntry) -> tuple[ApprovalDecision, str]:
    """Raises :class:`Fault` for what is no answer: nothing is allowed by guessing."""
    if entry.status == "cancelled":
        return "deny", "the person has dismissed the question"
    try:
        payload = msgspec.convert(entry.payload, Payload)
    except msgspec.ValidationError as error:
        raise wrong(f"The payload of {entry.interrupt_id!r}: {error}.", "resume") from None
    if (payload.decision is None) == (payload.approved is None):
        raise wrong(
            f"The payload of {entry.interrupt_id!r} needs `decision`, which is allow-once, "
            "allow-always or deny.",
            "resume",
        )
    if payload.decision is not None:
        return payload.decision, payload.note
    return ("allow-once" if payload.approved else "deny"), payload.note


def _is_answer(event: ev.AnyEvent, approvals: set[str]) -> bool:
    return isinstance(event, ev.ApprovalResolved) and event.id in approvals


async def _approvals(
    exchange: Exchange, session: str, state: Literal["pending"] | None = None
) -> tuple[ApprovalInfo, ...]:
    return await exchange.api.approvals(
        session=session, state=state, limit=LISTED, principal=exchange.principal
    )


# Telling


@attrs.define(eq=False)
class _Telling:
    """What a client gets of a run, until that ends or waits for a person."""

    exchange: Exchange
    given: wire.RunAgentInput
    translation: Translation
    asking: Asking = attrs.field(factory=Asking)

    async def all(self, events: Watch) -> bool:
        thread, run = self.given.thread_id, self.given.run_id
        await self.exchange.begin()
        await self.exchange.tell(wire.RunStarted(thread, run))
        while True:
            event = await self.exchange.event(events, self.asking.patience)
            end = None if event is None else last(event, thread, run)
            if end is None and (event is None or isinstance(event, ev.RunWaiting)):
                end = await self._interrupt(events.run_id)
            elif event is not None and end is None:
                self.asking.note(event)
                await self.exchange.tell(*self.translation.events(event))
            if end is not None:
                self.exchange.answered = True
                await self.exchange.tell(*self.translation.close(), end)
                return await self.exchange.finish()

    async def _interrupt(self, run_id: str) -> wire.Event | None:
        """The end of the client's run if it is for a person to go on; None if it is not."""
        found = await _approvals(self.exchange, self.given.thread_id, "pending")
        waiting = tuple(interrupt(one) for one in reversed(found) if one.run_id == run_id)
        self.asking.asking = bool(waiting)
        if not waiting:
            return None
        thread, run = self.given.thread_id, self.given.run_id
        return wire.RunFinished(thread, run, wire.Interrupted(waiting))
