"""``POST /v1/chat/completions`` and ``GET /v1/models``: an agent as a model of OpenAI's.

Invariant: the history that a model sees is that of the session; the messages of the client only
tell which session that is, and what to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from motet.actors.commands.answers import answer_command
from motet.actors.commands.parse import message_text, parse_command
from motet.actors.edges.conversations import Said, digest_of
from motet.actors.edges.exchange import SESSION_LENGTH, Exchange, new_session
from motet.actors.edges.faults import Fault, wrong
from motet.actors.edges.openai_wire import (
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
    reason_of,
)
from motet.actors.edges.texts import Texts, Withdrawn
from motet.actors.edges.watching import Watch
from motet.protocols.errors import UnknownName
from motet.protocols.events import (
    AnyEvent,
    MessageAdded,
    RunCompleted,
    RunLimited,
    RunResumed,
    RunRetrying,
    TextDelta,
)
from motet.protocols.models import Usage

_NAMES: Final = ("session", "session_id", "thread_id")
_BETWEEN: Final = "\n\n"
_WITHDRAWN: Final = (
    "The answer was begun anew after a part of it had been sent, which cannot be taken back here: "
    "the whole is in the session. Ask without `stream` to get answers only when they are made."
)


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
    session = _session(exchange, request, what.before)
    told = _Told(exchange, request, session, (*what.before, ("user", what.text)))
    command = parse_command(what.text)
    if command is not None:
        answer = await answer_command(exchange.api, exchange.principal, session, command)
        exchange.name(session, f"command-{command.name}")
        return await told.at_once(answer.text)
    submitted = exchange.submitted(
        message_text(what.text), session, request.model, "followup", exchange.key
    )
    async with submitted as events:
        told.run_id = events.run_id
        work: Callable[[], Awaitable[bool]]
        work = (lambda: told.stream(events)) if request.stream else (lambda: told.whole(events))
        return await exchange.attended(events.run_id, work)


async def _check_agent(exchange: Exchange, name: str) -> None:
    try:
        await exchange.api.tools(name, principal=exchange.principal)
    except UnknownName as unknown:
        raise Fault(404, "model_not_found", f"{unknown}", param="model") from None


def _session(exchange: Exchange, request: ChatRequest, before: tuple[Said, ...]) -> str:
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
        return new_session("openai", request.model)
    state = digest_of(exchange.principal.user, request.model, before)
    found = exchange.context.conversations.find(state)
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
    run_id: str = "none"
    _texts: Texts = attrs.field(init=False, factory=Texts)
    _last: str = attrs.field(init=False, default="")
    _sent: list[str] = attrs.field(init=False, factory=list[str])
    _message: int = attrs.field(init=False, default=-1)

    async def whole(self, events: Watch) -> bool:
        """In one piece: the run's last message."""
        while True:
            event = await self.exchange.event(events)
            if isinstance(event, MessageAdded) and event.role == "assistant":
                self._last = event.text
            elif isinstance(event, RunCompleted | RunLimited):
                return await self._answer(self._last, reason_of(event), event.usage)
            elif isinstance(event, End):
                reason_of(event)

    async def at_once(self, text: str) -> bool:
        """An answer for which no run was needed."""
        if not self.request.stream:
            return await self._answer(text, "stop", Usage())
        await self.exchange.begin()
        await self.exchange.tell(self._chunk(Delta("assistant", text)))
        self._sent.append(text)
        return await self._end("stop", Usage())

    async def stream(self, events: Watch) -> bool:
        """As it is made: all that the run says, with a blank line between its messages."""
        await self.exchange.begin()
        await self.exchange.tell(self._chunk(Delta("assistant")))
        while True:
            event = await self.exchange.event(events)
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

    # The parts

    async def _say(self, i: int, text: str) -> None:
        if not text:
            return
        if self._sent and i != self._message:
            text = _BETWEEN + text
        self._message = i
        self._sent.append(text)
        await self.exchange.tell(self._chunk(Delta(content=text)))

    async def _answer(self, text: str, reason: FinishReason, usage: Usage) -> bool:
        self._note(text)
        return await self.exchange.respond(
            Completion(
                self._id,
                self._created,
                self.request.model,
                (Choice(Answer(text), reason),),
                counted(usage),
            )
        )

    async def _end(self, reason: FinishReason, usage: Usage) -> bool:
        self._note("".join(self._sent))
        last = [self._chunk(Delta(), reason)]
        options = self.request.stream_options
        if options is not None and options.include_usage:
            last.append(Chunk(self._id, self._created, self.request.model, (), counted(usage)))
        await self.exchange.tell(*last, DONE)
        return await self.exchange.finish()

    def _note(self, answer: str) -> None:
        """The client sends this next time, with its new message."""
        state = (*self.said, ("assistant", answer))
        digest = digest_of(self.exchange.principal.user, self.request.model, state)
        self.exchange.context.conversations.note(self.session, digest)

    def _chunk(self, delta: Delta, reason: FinishReason | None = None) -> Chunk:
        choice = DeltaChoice(delta, reason)
        return Chunk(self._id, self._created, self.request.model, (choice,))

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.run_id}"

    @property
    def _created(self) -> int:
        return int(self.exchange.context.now())
