"""``POST /v1/chat/completions`` and ``GET /v1/models``: an agent as a model of OpenAI's API.

Invariant: the model sees the history of the session. The client's messages only tell which session
that is, and what to answer. A request with a field that an agent cannot serve is refused by the
field's name, never answered as if it had no such field; fields that only tune a model are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.gateway.commands import answer_command
from motet.actors.gateway.edges.exchange import (
    SESSION_LENGTH,
    Exchange,
    Fault,
    bad_request,
    new_session,
    text_of,
)
from motet.actors.gateway.edges.run_events import RunEvents
from motet.actors.gateway.idempotency import Message, state_digest
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.commands import Command, message_text, parse_command
from motet.protocols.edge_events import (
    ApprovalWait,
    SentTexts,
    TextWithdrawn,
    approval_question,
    failure_of,
)
from motet.protocols.errors import UnknownName
from motet.protocols.events import (
    AnyEvent,
    InputDropped,
    InputSteered,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunEscalated,
    RunFailed,
    RunInterrupted,
    RunLimited,
    RunRefused,
    RunResumed,
    RunRetrying,
    RunWaiting,
    TextDelta,
)
from motet.protocols.models import Usage
from motet.protocols.openai_wire import (
    DONE,
    Answer,
    ChatRequest,
    Choice,
    Chunk,
    Completion,
    Delta,
    DeltaChoice,
    FinishReason,
    Model,
    Models,
    ResponseFormat,
    approvals_of,
    usage_of,
)
from motet.protocols.storage import StorageError

NOTE_SECONDS: Final = 5.0
"""Time for which an answer waits until its conversation is stored."""
_NAMES: Final = ("session", "session_id", "thread_id")
_BETWEEN: Final = "\n\n"
_NOT_SENT: Final = (
    "Your message was not sent: first let the active run continue, or end it with /stop."
)
_WITHDRAWN: Final = (
    "The answer was begun anew after a part of it had been sent, which cannot be taken back here: "
    "the whole is in the session. Ask without `stream` to get answers only when they are made."
)
End: TypeAlias = (
    RunCompleted
    | RunLimited
    | RunRefused
    | RunFailed
    | RunCancelled
    | RunEscalated
    | RunInterrupted
    | InputDropped
    | InputSteered
)
_HISTORY: Final = frozenset({"user", "assistant"})
_log = logger("motet.edges")


class Question(msgspec.Struct, frozen=True):
    """``before``: the messages until the last answer, as the client has them."""

    text: str
    before: tuple[Message, ...]


def question_of(request: ChatRequest) -> Question:
    """The text to be answered. Raises :class:`Fault` for unsupported requests."""
    _check(request)
    said = tuple(
        (one.role, text_of(one.content)) for one in request.messages if one.role in _HISTORY
    )
    if request.messages[-1].role not in ("user", "system", "developer"):
        raise bad_request("The last message has to be the user's.", "messages")
    last = max((place for place, one in enumerate(said) if one[0] == "assistant"), default=-1)
    text = "\n\n".join(text for _, text in said[last + 1 :])
    if not text.strip():
        raise bad_request("There is no text of the user after the last answer.", "messages")
    return Question(text, said[: last + 1])


def _check(request: ChatRequest) -> None:
    refused = {
        "n": request.n not in (None, 1),
        "tools": bool(request.tools),
        "functions": bool(request.functions),
        "response_format": request.response_format not in (None, ResponseFormat()),
        "logprobs": bool(request.logprobs),
        "modalities": request.modalities not in (None, ("text",)),
    }
    for name, is_asked in refused.items():
        if is_asked:
            raise bad_request(
                f"`{name}` is not supported: tools and the form of answers are the agent's own. "
                "Leave it out.",
                name,
                "unsupported_parameter",
            )


def finish_reason(end: End) -> FinishReason:
    """Why an answer ended. Raises :class:`Fault` for a run without an answer."""
    match end:
        case RunCompleted():
            return "stop"
        case RunLimited():
            return "length"
        case RunRefused():
            return "content_filter"
        case RunCancelled(reason=reason):
            raise Fault(409, "run_cancelled", f"The run was stopped: {reason}.")
        case RunInterrupted():
            raise Fault(503, "run_interrupted", "The host has ended during the run.")
        case _:
            code, message = failure_of(end) or ("internal", "The run has ended.")
            raise Fault(500 if isinstance(end, RunFailed) else 409, code, message)


async def models(exchange: Exchange) -> bool:
    """The agents as models."""
    started = int(exchange.api.status().started)
    return await exchange.respond(
        Models(tuple(Model(one.name, started) for one in exchange.api.agents()))
    )


async def complete(exchange: Exchange) -> bool:
    """Answer the last message. Raises :class:`Fault`, and the errors of the host."""
    request = await exchange.body(ChatRequest)
    question = question_of(request)
    await _check_agent(exchange, request.model)
    session = await _session(exchange, request, question.before)
    said = (*question.before, ("user", question.text))
    command = parse_command(question.text)
    if command is not None:
        return await _command(exchange, request, session, said, command)
    sender = _Sender(exchange, request, session, said)
    pending = await sender.pending() if exchange.key is None else ()
    if pending:
        exchange.name(session, pending[0].run_id)
        return await sender.at_once(f"{_NOT_SENT}{_BETWEEN}{approval_question(pending)}", pending)
    submitted = exchange.submitted(
        message_text(question.text), session, request.model, "followup", exchange.key
    )
    async with submitted as events:
        return await attrs.evolve(sender, run_id=events.run_id).run(events)


async def _command(
    exchange: Exchange,
    request: ChatRequest,
    session: str,
    said: tuple[Message, ...],
    command: Command,
) -> bool:
    """Carry out a command. If it was the last answer that a run waited for, answer with the rest
    of that run.
    """
    sender = _Sender(exchange, request, session, said)
    before = await sender.pending() if command.name == "approve" else ()
    run_id = before[0].run_id if before else ""
    wait = ApprovalWait(True, {one.call_id for one in before})
    sender = _Sender(exchange, request, session, said, run_id, wait)
    events = RunEvents(exchange.api.events, session, run_id)
    try:
        answer = await answer_command(exchange.api, exchange.principal, session, command)
        pending = await sender.pending() if before else ()
        if before and not pending and not await sender.blocked(run_id):
            exchange.follow(events)
            return await sender.run(events)
    finally:
        events.close()
    exchange.name(session, f"command-{command.name}")
    answered = pending and len(pending) < len(before)
    more = f"{_BETWEEN}{approval_question(pending)}" if answered else ""
    return await sender.at_once(f"{answer.text}{more}", pending)


async def _check_agent(exchange: Exchange, name: str) -> None:
    try:
        await exchange.api.tools(name, principal=exchange.principal)
    except UnknownName as unknown:
        raise Fault(404, "model_not_found", f"{unknown}", param="model") from None


async def _session(exchange: Exchange, request: ChatRequest, before: tuple[Message, ...]) -> str:
    """The session of the conversation. Raises :class:`Fault` when it is not known."""
    given = request.metadata or {}
    named = exchange.head.headers.get("x-session") or next(
        (given[name] for name in _NAMES if given.get(name)), None
    )
    if named:
        if len(named) > SESSION_LENGTH:
            raise bad_request(
                f"A session's name has at most {SESSION_LENGTH} characters.", "metadata"
            )
        return named
    if not before:
        user = exchange.principal.user
        return new_session("openai", request.model, user, exchange.key)
    state = state_digest(exchange.principal.user, request.model, before)
    found = await exchange.context.conversations.find(state)
    if found is None:
        raise Fault(
            409,
            "unknown_conversation",
            "These messages are not the newest state of a conversation that this host knows. "
            "Name its session in `metadata.session` or the header X-Session; every answer has it "
            "in that header. Or send the new message alone, to begin a conversation.",
            param="messages",
        )
    return found


@attrs.define(eq=False)
class _Sender:
    """Sends the answer of one run, or of a command. ``run_id``: empty before there is a run."""

    exchange: Exchange
    request: ChatRequest
    session: str
    said: tuple[Message, ...]
    run_id: str = ""
    wait: ApprovalWait = attrs.field(factory=ApprovalWait)
    _texts: SentTexts = attrs.field(init=False, factory=SentTexts)
    _sent: list[str] = attrs.field(init=False, factory=list[str])
    _message: int = attrs.field(init=False, default=-1)

    async def run(self, events: RunEvents) -> bool:
        """Answer with a run, while the client is there."""
        work = self._stream if self.request.stream else self._whole
        return await self.exchange.while_connected(events.run_id, partial(work, events))

    async def at_once(self, text: str, pending: Sequence[ApprovalInfo] = ()) -> bool:
        """An answer that needs no run."""
        if not self.request.stream:
            return await self._answer(text, "stop", Usage(), pending)
        await self.exchange.begin()
        await self.exchange.send(self._chunk(Delta("assistant", text)))
        self._sent.append(text)
        return await self._end("stop", Usage(), pending)

    async def _whole(self, events: RunEvents) -> bool:
        """Answer in one piece: the run's last message, or its question for a person."""
        last = ""
        while True:
            event = await self._next(events)
            if event is None:
                if pending := await self.pending():
                    text = f"{last}{_BETWEEN}{approval_question(pending)}".strip()
                    return await self._answer(text, "stop", await self._usage(), pending)
            elif isinstance(event, MessageAdded) and event.role == "assistant":
                last = event.text
            elif isinstance(event, RunCompleted | RunLimited | RunRefused):
                return await self._answer(last, finish_reason(event), event.usage)
            elif isinstance(event, End):
                finish_reason(event)

    async def _stream(self, events: RunEvents) -> bool:
        """Answer with all text of the run as it comes, a blank line between its messages."""
        await self.exchange.begin()
        await self.exchange.send(self._chunk(Delta("assistant")))
        while True:
            event = await self._next(events)
            if event is None and (pending := await self.pending()):
                await self._say(-1, approval_question(pending))
                return await self._end("stop", await self._usage(), pending)
            try:
                await self._pass_on(event)
            except TextWithdrawn:
                raise Fault(500, "answer_withdrawn", _WITHDRAWN) from None
            if isinstance(event, RunCompleted | RunLimited | RunRefused):
                return await self._end(finish_reason(event), event.usage)
            if isinstance(event, End):
                finish_reason(event)

    async def _pass_on(self, event: AnyEvent | None) -> None:
        match event:
            case TextDelta(i=i, at=at, text=text):
                await self._say(i, self._texts.delta(i, at, text))
            case MessageAdded(role="assistant", text=text, i=i):
                await self._say(i, self._texts.whole(i, text))
            case RunRetrying(i=i, withdrawn=True) | RunResumed(i=i):
                if self._texts.withdraw(i):
                    raise TextWithdrawn
            case _:
                pass

    async def _next(self, events: RunEvents) -> AnyEvent | None:
        """The next event; None: the run may wait for a person."""
        event = await self.exchange.event(events, self.wait.timeout)
        if event is None or isinstance(event, RunWaiting):
            self.wait.resolve(pending=False)
            return None
        self.wait.note(event)
        return event

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        """The pending approvals of one run of the session, oldest first."""
        found = await self.exchange.approvals(self.session, "pending")
        own = [one for one in found if one.run_id == (self.run_id or found[-1].run_id)]
        return tuple(reversed(own))

    async def blocked(self, run_id: str) -> bool:
        """Whether the run was answered and cannot go on here."""
        found = await self.exchange.approvals(self.session)
        return any(one.blocked for one in found if one.run_id == run_id)

    async def _usage(self) -> Usage:
        principal = self.exchange.principal
        return (await self.exchange.api.find_run(self.run_id, principal=principal)).usage

    async def _say(self, i: int, text: str) -> None:
        if not text:
            return
        if self._sent and i != self._message:
            text = _BETWEEN + text
        self._message = i
        self._sent.append(text)
        await self.exchange.send(self._chunk(Delta(content=text)))

    async def _answer(
        self, text: str, reason: FinishReason, usage: Usage, pending: Sequence[ApprovalInfo] = ()
    ) -> bool:
        self.exchange.mark_answered()
        await self._note(text)
        return await self.exchange.respond(
            Completion(
                self._id,
                self._created,
                self.request.model,
                (Choice(Answer(text), reason),),
                usage_of(usage),
                approvals_of(pending),
            )
        )

    async def _end(
        self, reason: FinishReason, usage: Usage, pending: Sequence[ApprovalInfo] = ()
    ) -> bool:
        self.exchange.mark_answered()
        await self._note("".join(self._sent))
        last = [replace(self._chunk(Delta(), reason), approvals=approvals_of(pending))]
        options = self.request.stream_options
        if options is not None and options.include_usage:
            last.append(Chunk(self._id, self._created, self.request.model, (), usage_of(usage)))
        await self.exchange.send(*last, DONE)
        return await self.exchange.finish()

    async def _note(self, answer: str) -> None:
        """Store the conversation's new state, which the client sends with its next message."""
        state = (*self.said, ("assistant", answer))
        digest = state_digest(self.exchange.principal.user, self.request.model, state)
        problem = f"the disk has not answered within {NOTE_SECONDS:g} s"
        with trio.move_on_after(NOTE_SECONDS):
            try:
                await self.exchange.context.conversations.note(self.session, digest)
            except StorageError as error:
                problem = str(error)
            else:
                return
        _log.error("a conversation will not be known again", session=self.session, error=problem)

    def _chunk(self, delta: Delta, reason: FinishReason | None = None) -> Chunk:
        choice = DeltaChoice(delta, reason)
        return Chunk(self._id, self._created, self.request.model, (choice,))

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.run_id or 'none'}"

    @property
    def _created(self) -> int:
        return int(self.exchange.context.now())
