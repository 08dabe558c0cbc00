"""``POST /v1/ag-ui``: an agent for front ends that speak AG-UI.

Invariants: a thread is a session, and its history that of the session; an interrupt is an approval
of this host, looked up here, and only an explicit answer allows anything (G10).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec

from motet.actors.gateway.commands import answer_command
from motet.actors.gateway.edges.exchange import Exchange, Fault, bad_request, text_of
from motet.actors.gateway.edges.run_events import RunEvents
from motet.protocols import agui_wire as wire
from motet.protocols import events as ev
from motet.protocols.agui_events import Payload, Translation, interrupt, last
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.commands import message_text, parse_command
from motet.protocols.edge_events import ApprovalWait


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
