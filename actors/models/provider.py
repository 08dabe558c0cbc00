"""The actor in front of one model: it limits, retries and assembles.

Whatever a model's adapter raises, an asker sees events of one attempt, ``Retrying`` between
attempts, and at the end either the one whole :class:`ModelResponse` or :class:`Llm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from random import random as any_chance
from typing import TypeAlias
from urllib.parse import quote

import msgspec
import trio
from msgspec.structs import replace

from motet.actors.models.catalog import Billed, priced
from motet.protocols.chat import Call
from motet.protocols.errors import Llm
from motet.protocols.messages import Request
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    Generate,
    Model,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    ModelResponse,
    Retrying,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)
from motet.runtime import Actor, ActorRef, Replies, handles
from motet.runtime.backoff import Backoff

# From a model's events to one :class:`ModelResponse`: pure, and forgiving of bad ids.
#
# Invariants: calls are in index order whatever order they came in; every call has an id that is
# not empty and that no other call of the answer has; equal events give an equal response.


class _CallParts(msgspec.Struct, eq=False):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Assembler(msgspec.Struct, eq=False):
    """Collects the events of one attempt. Feed all of them, then ask for the response."""

    _text: list[str] = []
    _thinking: list[str] = []
    _calls: dict[int, _CallParts] = {}
    _usage: Usage = Usage()
    _reason: StopReason | None = None

    def feed(self, event: ModelEvent) -> None:
        match event:
            case TextPart(text):
                self._text.append(text)
            case ThinkingPart(text):
                self._thinking.append(text)
            case CallStart(index, id, name):
                call = self._call(index)
                call.id = call.id or id
                call.name = call.name or name
            case CallArguments(index, text):
                call = self._calls.get(index) or self._call(index)
                call.arguments.append(text)
            case UsageReport(usage):
                self._usage = usage
            case Finished(reason):
                self._reason = reason

    def _call(self, index: int) -> _CallParts:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _CallParts()
        return call

    def response(self) -> ModelResponse:
        """The whole answer; :class:`ModelFailure` ``cut`` when it never finished."""
        if self._reason is None:
            raise ModelFailure("the answer ended before it was complete", kind="cut")
        calls = self._ordered_calls() if self._calls else ()
        return ModelResponse(
            text="".join(self._text),
            thinking="".join(self._thinking),
            calls=calls,
            usage=self._usage,
            # Several servers finish an answer that has calls with a plain "stop".
            stop_reason="tool_calls" if calls and self._reason == "stop" else self._reason,
        )

    def _ordered_calls(self) -> tuple[Call, ...]:
        parts = [self._calls[index] for index in sorted(self._calls)]
        ids = unique_ids([part.id for part in parts])
        return tuple(
            [
                Call(id=id, name=part.name, arguments="".join(part.arguments) or "{}")
                for id, part in zip(ids, parts, strict=True)
            ]
        )


def assemble(events: Iterable[ModelEvent]) -> ModelResponse:
    """The response that these events of one attempt make."""
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.response()


def unique_ids(ids: list[str]) -> list[str]:
    """The ids, made unique: the first holder keeps its own, a later one gets ``_2``, ``_3``...

    An empty id becomes ``call_<place>``, counted from 1. No made-up id takes one that the
    provider gave to another call.
    """
    given = set(ids)
    used: set[str] = set()
    unique: list[str] = []
    for place, id in enumerate(ids, start=1):
        name = id or f"call_{place}"
        made_up = not id
        number = 2
        candidate = name
        while candidate in used or (candidate in given and (made_up or candidate != id)):
            candidate = f"{name}_{number}"
            number += 1
        used.add(candidate)
        unique.append(candidate)
    return unique


# When to try a failed model request again: a pure policy.
#
# Retried is what may pass by itself. What a person or another request must put right (a key, an
# empty account, a mistake in the request, a full context) is never retried. The back-off is
# exponential with full jitter: clients that failed together do not come back together.


PASSING_KINDS = frozenset({"rate_limit", "timeout", "connection", "cut", "overloaded", "server"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how patiently. Times in seconds.

    Attributes:
        attempts: requests in all, the first included.
        backoff: the delays that we choose ourselves, with full jitter.
        patience: the longest wait that a provider may ask for.
    """

    attempts: int = 4
    backoff: Backoff = Backoff(0.5, most=30.0)
    patience: float = 120.0


class Retry(msgspec.Struct, frozen=True):
    """Try again after ``delay`` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not try again; ``reason`` is empty when the failure says enough."""

    reason: str = ""


Decision: TypeAlias = Retry | GiveUp

DEFAULT = RetryPolicy()


def decide(
    failure: ModelFailure, attempt: int, chance: float, policy: RetryPolicy = DEFAULT
) -> Decision:
    """What to do after ``attempt`` attempts, the last of which ended with ``failure``.

    ``chance`` is a random number of [0, 1). A wait that the provider asks for wins over ours.
    """
    assert attempt >= 1, attempt
    assert 0 <= chance < 1, chance
    if failure.kind not in PASSING_KINDS:
        return GiveUp()
    if attempt >= policy.attempts:
        return GiveUp(f"after {attempt} attempts")
    if failure.retry_after is None:
        return Retry(policy.backoff.full_jitter(attempt, chance))
    if failure.retry_after > policy.patience:
        return GiveUp(
            f"the provider asks to wait {failure.retry_after:.0f} s,"
            f" longer than the {policy.patience:.0f} s we wait"
        )
    return Retry(failure.retry_after)


WAITING = 1024
"""Requests that may wait for their turn at the model, next to those in flight."""

LLM_KINDS = {
    "overloaded": "unavailable",
    "server": "unavailable",
    "cut": "connection",
    "quota": "rate_limit",
}
"""Kinds of ModelFailure that have another name in Llm; all others keep theirs."""

ADVICE = {
    "auth": "check the key and what it may use",
    "rate_limit": "wait a while, or run fewer requests at once",
    "quota": "add credit at the provider",
    "timeout": "try again, or allow the model more time",
    "connection": "check the network and the base URL",
    "context_exhausted": "shorten the conversation",
    "bad_request": "check the model's name and what was sent",
    "overloaded": "try again later",
    "server": "try again later",
    "cut": "try again",
    "refused": "use a scripted or recorded model",
    "script": "add a step to the script",
    "not_recorded": "record it with mode='missing', if that is meant",
    "journal": "the replay ends here",
}


class Provider(Actor[Generate]):
    """One model with at most ``concurrency`` requests at it.

    A request that waits for its turn, for the model or for a retry can be cancelled; its
    connection is closed at once. A retry waits outside of its turn.
    """

    def __init__(self, model: Model, *, concurrency: int = 16, random: Random | None = None):
        self._model = model
        self._billed = model if isinstance(model, Billed) else None
        self._turns = trio.CapacityLimiter(concurrency)
        self._random = random or Random(any_chance())

    @handles(Generate, concurrent=WAITING)
    async def generate(
        self, message: Generate, replies: Replies[ModelEvent | Retrying]
    ) -> ModelResponse:
        attempt = 1
        while True:
            try:
                return await self._attempt(message.request, replies)
            except ModelFailure as failure:
                delay = self._delay(failure, attempt)
                await replies.send(Retrying(attempt, delay, str(failure)))
            await trio.sleep(delay)
            attempt += 1

    async def _attempt(
        self, request: ModelRequest, replies: Replies[ModelEvent | Retrying]
    ) -> ModelResponse:
        """One answer, while it is the request's turn at the model."""
        try:
            self._turns.acquire_nowait()  # where nobody waits, neither does this
        except trio.WouldBlock:
            await self._turns.acquire()
        try:
            assembler = Assembler()
            async with self._model.request(request) as events:
                async for event in events:
                    assembler.feed(event)
                    try:
                        replies.send_nowait(event)
                    except trio.WouldBlock:
                        await replies.send(event)
            response = assembler.response()
            if self._billed is None:
                return response
            usage = await priced(response.usage, self._billed)
        finally:
            self._turns.release()
        return response if usage is response.usage else replace(response, usage=usage)

    def _delay(self, failure: ModelFailure, attempt: int) -> float:
        """Seconds until the next attempt. Raises :class:`Llm` when there is to be none."""
        decision = decide(failure, attempt, self._random.random())
        if isinstance(decision, GiveUp):
            raise ended(self._model.name, failure, decision.reason) from failure
        return decision.delay


def ended(model: str, failure: ModelFailure, reason: str) -> Llm:
    """What an asker is told: which model failed, how, and what to do."""
    why = f" ({reason})" if reason else ""
    return Llm(
        f"{model} failed: {failure}{why}; {ADVICE.get(failure.kind, 'try again later')}",
        kind=LLM_KINDS.get(failure.kind, failure.kind),
        status=failure.status,
    )


# The models of a host: one provider actor per model, started when first asked for.


Find: TypeAlias = Callable[[str], Model]


class Provide(Request[ActorRef[Generate]], frozen=True, tag="models.provide"):
    """The actor that speaks to this model. Raises ``UnknownName`` or ``MissingExtra``.

    ``generation``: as which configuration of models says.
    """

    model: str
    generation: int = 0


class ForgetModels(Request[None], frozen=True, tag="models.forget"):
    """Stop the actors of a generation that nobody uses any more."""

    generation: int


class Models(Actor[Provide | ForgetModels]):
    """Parent of the provider actors. A provider that crashes is restarted alone.

    ``later``: how models are found in generations after the first one.
    """

    def __init__(self, find: Find, later: Mapping[int, Find] | None = None) -> None:
        self.find = find
        self.later: Mapping[int, Find] = {} if later is None else later

    @handles(Provide)
    async def provide(self, message: Provide) -> ActorRef[Generate]:
        name = _name(message.model, message.generation)
        known = self.child(name)
        if known is not None and known.is_alive:
            return known
        model = self.later.get(message.generation, self.find)(message.model)
        await self.stop_child(name)  # one that is ending has its name until it has ended
        return await self.start_child(lambda: Provider(model), name=name)

    @handles(ForgetModels)
    async def forget(self, message: ForgetModels) -> None:
        ending = _name("", message.generation)
        for name in [name for name in self.children if _generation_of(name) == ending]:
            await self.stop_child(name)


def _name(model: str, generation: int) -> str:
    """The name of the actor of a model; quoted, no model's own name has the sign in it."""
    return quote(model, safe=":") + (f"+{generation}" if generation else "")


def _generation_of(name: str) -> str:
    sign = name.rfind("+")
    return "" if sign < 0 else name[sign:]
