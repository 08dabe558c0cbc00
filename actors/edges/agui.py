"""``POST /v1/ag-ui``: an agent for front ends that speak AG-UI.

Invariants: a thread is a session, and its history that of the session; an interrupt is an approval
of this host, looked up here, and only an answer that says so allows anything (G10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
import msgspec

from motet.actors.commands.answers import answer_command
from motet.actors.commands.parse import message_text, parse_command
from motet.actors.edges import agui_wire as wire
from motet.actors.edges.agui_events import Translation, interrupt, last
from motet.actors.edges.asking import LISTED, Asking
from motet.actors.edges.exchange import Exchange
from motet.actors.edges.faults import Fault, wrong
from motet.actors.edges.watching import Watch, watch
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo


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
