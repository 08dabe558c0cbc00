"""``POST /v1/chat/completions`` and ``GET /v1/models``: an agent as a model of OpenAI's.

Invariant: the history that a model sees is that of the session; the messages of the client only
tell which session that is, and what to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.gateway.commands import Command, answer_command, message_text, parse_command
from motet.actors.gateway.edges.exchange import SESSION_LENGTH, Exchange, new_session
from motet.actors.gateway.edges.openai_wire import (
    DONE,
    Answer,
    ChatRequest,
    Choice,
    Chunk,
    Completion,
    Delta,
    DeltaChoice,
    End,
    FinishReason,
    Model,
    Models,
    asked,
    counted,
    listed,
    reason_of,
)
from motet.actors.gateway.edges.watching import (
    LISTED,
    Asking,
    Fault,
    Texts,
    Watch,
    Withdrawn,
    question,
    watch,
    wrong,
)
from motet.actors.gateway.stores import Said, digest_of
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.errors import UnknownName
from motet.protocols.events import (
    AnyEvent,
    MessageAdded,
    RunCompleted,
    RunLimited,
    RunResumed,
    RunRetrying,
    RunWaiting,
    TextDelta,
)
from motet.protocols.models import Usage
from motet.protocols.storage import StorageError

PATIENCE: Final = 5.0
"""Seconds that an answer waits for the disk to know the conversation again that it belongs to."""
_NAMES: Final = ("session", "session_id", "thread_id")
_BETWEEN: Final = "\n\n"
_NOT_SENT: Final = (
    "Your message was not sent: what was begun has to go on, or to be ended by /stop."
)
_WITHDRAWN: Final = (
    "The answer was begun anew after a part of it had been sent, which cannot be taken back here: "
    "the whole is in the session. Ask without `stream` to get answers only when they are made."
)
_log = logger("motet.edges")


async def models(exchange: Exchange) -> bool:
    """The agents as models."""
    started = int(exchange.api.status().started)
    return await exchange.respond(
        Models(tuple(Model(one.name, started) for one in exchange.api.agents()))
    )


async def complete(exchange: Exchange) -> bool:
    """Answer the last message. Raises :class:`Fault`, and what the host raises."""
    request = await exchange.body(ChatRequest)
    what = asked(request)
    await _check_agent(exchange, request.model)
    session = await _session(exchange, request, what.before)
    told = _Told(exchange, request, session, (*what.before, ("user", what.text)))
    command = parse_command(what.text)
    if command is not None:
        return await _command(exchange, told, command)
    waiting = await told.waiting() if exchange.key is None else ()
    if waiting:
        exchange.name(session, waiting[0].run_id)
        return await told.at_once(f"{_NOT_SENT}{_BETWEEN}{question(waiting)}", waiting)
    submitted = exchange.submitted(
        message_text(what.text), session, request.model, "followup", exchange.key
    )
    async with submitted as events:
        return await told.attended(events)


async def _command(exchange: Exchange, told: _Told, command: Command) -> bool:
    """Carry it out. The answer to a call that waited is answered by what its run says then."""
    asked_before = await told.waiting() if command.name == "approve" else ()
    run_id = told.run_id = asked_before[0].run_id if asked_before else ""
    events = watch(exchange.api.events, told.session, run_id)
    try:
        answer = await answer_command(exchange.api, exchange.principal, told.session, command)
        left = await told.waiting() if asked_before else ()
        goes_on = bool(asked_before) and not left and not await told.blocked(run_id)
        if goes_on:
            exchange.follow(events, told.session)
            told.asking = Asking(True, {one.call_id for one in asked_before})
            return await told.attended(events)
    finally:
        events.close()
    exchange.name(told.session, f"command-{command.name}")
    more = f"{_BETWEEN}{question(left)}" if left and len(left) < len(asked_before) else ""
    return await told.at_once(f"{answer.text}{more}", left)


async def _check_agent(exchange: Exchange, name: str) -> None:
    try:
        await exchange.api.tools(name, principal=exchange.principal)
    except UnknownName as unknown:
        raise Fault(404, "model_not_found", f"{unknown}", param="model") from None


async def _session(exchange: Exchange, request: ChatRequest, before: tuple[Said, ...]) -> str:
    """Where the conversation goes on. Raises :class:`Fault` when that cannot be told."""
    given = request.metadata or {}
    named = exchange.head.headers.get("x-session") or next(
        (given[name] for name in _NAMES if given.get(name)), None
    )
    if named:
        if len(named) > SESSION_LENGTH:
            raise wrong(f"A session's name has at most {SESSION_LENGTH} characters.", "metadata")
        return named
    if not before:
        user = exchange.principal.user
        return new_session("openai", request.model, user, exchange.key)
    state = digest_of(exchange.principal.user, request.model, before)
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
class _Told:
    """What a client gets of one run."""

    exchange: Exchange
    request: ChatRequest
    session: str
    said: tuple[Said, ...]
    run_id: str = ""
    asking: Asking = attrs.field(factory=Asking)
    _texts: Texts = attrs.field(init=False, factory=Texts)
    _last: str = attrs.field(init=False, default="")
    _sent: list[str] = attrs.field(init=False, factory=list[str])
    _message: int = attrs.field(init=False, default=-1)

    async def attended(self, events: Watch) -> bool:
        """All of it, while the client is there."""
        self.run_id = events.run_id
        work: Callable[[], Awaitable[bool]]
        work = (
            (lambda: self.stream(events)) if self.request.stream else (lambda: self.whole(events))
        )
        return await self.exchange.attended(events.run_id, work)

    async def whole(self, events: Watch) -> bool:
        """In one piece: the run's last message, or what a person is asked."""
        while True:
            event = await self._next(events)
            if event is None:
                if waiting := await self.waiting():
                    text = f"{self._last}{_BETWEEN}{question(waiting)}".strip()
                    return await self._answer(text, "stop", await self._usage(), waiting)
            elif isinstance(event, MessageAdded) and event.role == "assistant":
                self._last = event.text
            elif isinstance(event, RunCompleted | RunLimited):
                return await self._answer(self._last, reason_of(event), event.usage)
            elif isinstance(event, End):
                reason_of(event)

    async def at_once(self, text: str, waiting: Sequence[ApprovalInfo] = ()) -> bool:
        """An answer for which no run was needed."""
        if not self.request.stream:
            return await self._answer(text, "stop", Usage(), waiting)
        await self.exchange.begin()
        await self.exchange.tell(self._chunk(Delta("assistant", text)))
        self._sent.append(text)
        return await self._end("stop", Usage(), waiting)

    async def stream(self, events: Watch) -> bool:
        """As it is made: all that the run says, with a blank line between its messages."""
        await self.exchange.begin()
        await self.exchange.tell(self._chunk(Delta("assistant")))
        while True:
            event = await self._next(events)
            if event is None and (waiting := await self.waiting()):
                await self._say(-1, question(waiting))
                return await self._end("stop", await self._usage(), waiting)
            try:
                await self._pass_on(event)
            except Withdrawn:
                raise Fault(500, "answer_withdrawn", _WITHDRAWN) from None
            if isinstance(event, RunCompleted | RunLimited):
                return await self._end(reason_of(event), event.usage)
            if isinstance(event, End):
                reason_of(event)

    async def _pass_on(self, event: AnyEvent | None) -> None:
        match event:
            case TextDelta(i=i, at=at, text=text):
                await self._say(i, self._texts.delta(i, at, text))
            case MessageAdded(role="assistant", text=text, i=i):
                await self._say(i, self._texts.whole(i, text))
            case RunRetrying(i=i, withdrawn=True) | RunResumed(i=i):
                if self._texts.withdraw(i):
                    raise Withdrawn
            case _:
                pass

    # What waits

    async def _next(self, events: Watch) -> AnyEvent | None:
        """The next event; None: it may wait for a person."""
        event = await self.exchange.event(events, self.asking.patience)
        if event is None or isinstance(event, RunWaiting):
            self.asking.asking = False
            return None
        self.asking.note(event)
        return event

    async def waiting(self) -> tuple[ApprovalInfo, ...]:
        """Calls of one run of the session that wait for a person, the first one first."""
        found = await self._approvals("pending")
        own = [one for one in found if one.run_id == (self.run_id or found[-1].run_id)]
        return tuple(reversed(own))

    async def blocked(self, run_id: str) -> bool:
        """Whether the run was answered and cannot go on here."""
        return any(one.blocked for one in await self._approvals() if one.run_id == run_id)

    async def _approvals(self, state: Literal["pending"] | None = None) -> tuple[ApprovalInfo, ...]:
        return await self.exchange.api.approvals(
            session=self.session, state=state, limit=LISTED, principal=self.exchange.principal
        )

    async def _usage(self) -> Usage:
        principal = self.exchange.principal
        return (await self.exchange.api.find_run(self.run_id, principal=principal)).usage

    # The parts

    async def _say(self, i: int, text: str) -> None:
        if not text:
            return
        if self._sent and i != self._message:
            text = _BETWEEN + text
        self._message = i
        self._sent.append(text)
        await self.exchange.tell(self._chunk(Delta(content=text)))

    async def _answer(
        self,
        text: str,
        reason: FinishReason,
        usage: Usage,
        waiting: Sequence[ApprovalInfo] = (),
    ) -> bool:
        self.exchange.answered = True
        await self._note(text)
        return await self.exchange.respond(
            Completion(
                self._id,
                self._created,
                self.request.model,
                (Choice(Answer(text), reason),),
                counted(usage),
                listed(waiting),
            )
        )

    async def _end(
        self, reason: FinishReason, usage: Usage, waiting: Sequence[ApprovalInfo] = ()
    ) -> bool:
        self.exchange.answered = True
        await self._note("".join(self._sent))
        last = [replace(self._chunk(Delta(), reason), approvals=listed(waiting))]
        options = self.request.stream_options
        if options is not None and options.include_usage:
            last.append(Chunk(self._id, self._created, self.request.model, (), counted(usage)))
        await self.exchange.tell(*last, DONE)
        return await self.exchange.finish()

    async def _note(self, answer: str) -> None:
        """The client sends this next time, with its new message: on disk before it has it."""
        state = (*self.said, ("assistant", answer))
        digest = digest_of(self.exchange.principal.user, self.request.model, state)
        problem = f"the disk has not answered within {PATIENCE:g} s"
        with trio.move_on_after(PATIENCE):
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
