"""``POST /v1/ag-ui``: an agent for front ends that speak AG-UI.

Invariants: a thread is a session, and its history that of the session; an interrupt is an approval
of this host, looked up here, and only an explicit answer allows anything (G10). Every message that
was started is ended before the run's last event; no part of a message is sent twice; an event
without a counterpart is sent as ``CUSTOM``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import msgspec

from motet.actors.gateway.commands import answer_command
from motet.actors.gateway.edges.exchange import Exchange, Fault, bad_request, text_of
from motet.actors.gateway.edges.run_events import (
    ApprovalWait,
    RunEvents,
    SentTexts,
    TextWithdrawn,
    failure_of,
)
from motet.protocols import agui_wire as wire
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.commands import message_text, parse_command

RESPONSE: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["allow-once", "allow-always", "deny"]},
        "note": {"type": "string", "description": "With a denial: the model reads it."},
    },
    "required": ["decision"],
}
_SILENT: Final = (ev.InputAccepted, ev.Activity, ev.RunWaiting, ev.ApprovalRequested)


@attrs.define(eq=False)
class Translation:
    """The events of one run as those of AG-UI. Pure."""

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


class Payload(msgspec.Struct, frozen=True):
    """An answer by ``responseSchema``, or as some front ends send it: ``approved``."""

    decision: ApprovalDecision | None = None
    approved: bool | None = None
    note: str = ""


async def run_agent(exchange: Exchange) -> bool:
    """Answer the last message, or resume a run with answers to its interrupts.

    Raises :class:`Fault`, and the errors of the host.
    """
    given = await exchange.body(wire.RunAgentInput)
    if given.resume:
        return await _resume(exchange, given, given.resume)
    text = _last_text(given.messages)
    session, agent = given.thread_id, exchange.tail or None
    command = parse_command(text)
    if command is not None:
        answer = await answer_command(exchange.api, exchange.principal, session, command)
        return await _answer_command(exchange, given, answer.text)
    key = exchange.key or f"{session}:{given.run_id}"
    async with exchange.submitted(message_text(text), session, agent, "reject", key) as events:
        sender = _Sender(exchange, given, Translation(events.run_id))
        return await exchange.while_connected(events.run_id, lambda: sender.run(events))


def _last_text(messages: Sequence[wire.Message]) -> str:
    """The user's text since the last answer; the rest of the history is in the session."""
    texts: list[str] = []
    for message in reversed(messages):
        if message.role == "user":
            content = message.content
            texts.append("" if isinstance(content, dict) else text_of(content))
        elif message.role in ("assistant", "tool"):
            break
    text = "\n\n".join(reversed(texts))
    if not text.strip():
        raise bad_request("The last message has to be the user's, with text.", "messages")
    return text


async def _answer_command(exchange: Exchange, given: wire.RunAgentInput, text: str) -> bool:
    """The answer of a command, as a run that had none of its own."""
    message = f"{given.run_id}:command"
    await exchange.begin()
    await exchange.send(
        wire.RunStarted(given.thread_id, given.run_id),
        *wire.message_start("text", message),
        wire.message_content("text", message, text),
        *wire.message_end("text", message),
        wire.RunFinished(given.thread_id, given.run_id, wire.Success()),
    )
    return await exchange.finish()


async def _resume(
    exchange: Exchange, given: wire.RunAgentInput, entries: Sequence[wire.ResumeEntry]
) -> bool:
    answers = [(entry.interrupt_id, *_answer(entry)) for entry in entries]
    known = {one.id: one for one in await exchange.approvals(given.thread_id)}
    missing = [one.interrupt_id for one in entries if one.interrupt_id not in known]
    if missing:
        raise Fault(
            404, "not_found", f"No interrupt {missing[0]!r} in this thread.", param="resume"
        )
    answered = {entry.interrupt_id for entry in entries}
    runs = {known[approval].run_id for approval in answered}
    if len(runs) > 1:
        raise bad_request(
            "These interrupts are of several runs: answer one run at a time.", "resume"
        )
    run_id = runs.pop()
    events = RunEvents(exchange.api.events, given.thread_id, run_id)
    try:
        exchange.follow(events)
        working: set[str] = set()
        for approval, decision, note in answers:
            working.add(known[approval].call_id)
            info = await exchange.api.approve(
                approval, decision, note=note, principal=exchange.principal
            )
            if info.blocked:
                raise Fault(409, "blocked", f"It was answered, but the run waits: {info.blocked}.")
        if all(known[approval].state != "pending" for approval in answered):
            # The same answers again, from a client that did not get their result.
            await events.replay(run_id)
            events.skip_through(
                lambda event: isinstance(event, ev.ApprovalResolved) and event.id in answered
            )
        wait = ApprovalWait(True, working)
        sender = _Sender(exchange, given, Translation(run_id), wait)
        return await exchange.while_connected(run_id, lambda: sender.run(events))
    finally:
        events.close()


def _answer(entry: wire.ResumeEntry) -> tuple[ApprovalDecision, str]:
    """Raises :class:`Fault` for anything unclear: nothing is allowed by guessing."""
    if entry.status == "cancelled":
        return "deny", "the person has dismissed the question"
    try:
        payload = msgspec.convert(entry.payload, Payload)
    except msgspec.ValidationError as error:
        raise bad_request(f"The payload of {entry.interrupt_id!r}: {error}.", "resume") from None
    if (payload.decision is None) == (payload.approved is None):
        raise bad_request(
            f"The payload of {entry.interrupt_id!r} needs `decision`, which is allow-once, "
            "allow-always or deny.",
            "resume",
        )
    if payload.decision is not None:
        return payload.decision, payload.note
    return ("allow-once" if payload.approved else "deny"), payload.note


@attrs.define(eq=False)
class _Sender:
    """Sends the events of a run until it ends or waits for a person."""

    exchange: Exchange
    given: wire.RunAgentInput
    translation: Translation
    wait: ApprovalWait = attrs.field(factory=ApprovalWait)

    async def run(self, events: RunEvents) -> bool:
        thread, run = self.given.thread_id, self.given.run_id
        await self.exchange.begin()
        await self.exchange.send(wire.RunStarted(thread, run))
        while True:
            event = await self.exchange.event(events, self.wait.timeout)
            end = None if event is None else last(event, thread, run)
            if end is None and (event is None or isinstance(event, ev.RunWaiting)):
                end = await self._interrupt(events.run_id)
            elif event is not None and end is None:
                self.wait.note(event)
                await self.exchange.send(*self.translation.events(event))
            if end is not None:
                self.exchange.mark_answered()
                await self.exchange.send(*self.translation.close(), end)
                return await self.exchange.finish()

    async def _interrupt(self, run_id: str) -> wire.Event | None:
        """The end of the client's run if approvals are pending; else None."""
        found = await self.exchange.approvals(self.given.thread_id, "pending")
        pending = tuple(interrupt(one) for one in reversed(found) if one.run_id == run_id)
        self.wait.resolve(pending=bool(pending))
        if not pending:
            return None
        return wire.RunFinished(self.given.thread_id, self.given.run_id, wire.Interrupted(pending))
