"""One actor per model, which limits, retries and assembles; and their parent, :class:`Models`.

Protocol of a request: ``Queued`` if it has to wait for a place, the events of one attempt,
``Retrying`` between attempts, and at the end either one complete :class:`ModelResponse` or
:class:`Llm`, whatever the adapter raises.

Only a failure that may pass by itself is retried; one that needs a person or another request (a
wrong key, an empty account, a bad request, a full context) never is. The back-off is exponential
with full jitter, so that clients that failed together do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from random import random as any_chance
from typing import Self, TypeAlias
from urllib.parse import quote

import msgspec
import trio
from msgspec.structs import replace

from motet.actors.models.catalog import Billed, priced
from motet.protocols.fair_queue import FairQueue, Ticket
from motet.protocols.messages import Request
from motet.protocols.model_answers import Assembler, llm_error
from motet.protocols.models import (
    Finished,
    Generate,
    Model,
    ModelEvent,
    ModelFailure,
    ModelProtocol,
    ModelRequest,
    ModelResponse,
    Queued,
    Retrying,
    Revise,
    Streamed,
)
from motet.runtime import Actor, ActorRef, Replies, handles
from motet.runtime.backoff import Backoff


class Played:
    """Known events as the stream of a model, with a checkpoint before each."""

    def __init__(self, events: Iterable[ModelEvent]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise StopAsyncIteration


PASSING_KINDS = frozenset({"rate_limit", "timeout", "connection", "cut", "overloaded", "server"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """Number and delays of attempts. Times in seconds.

    Attributes:
        attempts: all requests, the first included.
        backoff: the delays when the provider asks for none.
        patience: the longest delay that a provider may ask for.
    """

    attempts: int = 4
    backoff: Backoff = Backoff(0.5, most=30.0)
    patience: float = 120.0


class Retry(msgspec.Struct, frozen=True):
    """Try again after ``delay`` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not try again; ``reason`` is empty when the failure is explanation enough."""

    reason: str = ""


Decision: TypeAlias = Retry | GiveUp

DEFAULT = RetryPolicy()


def decide(
    failure: ModelFailure, attempt: int, chance: float, policy: RetryPolicy = DEFAULT
) -> Decision:
    """Retry or give up after ``attempt`` attempts, the last of which ended with ``failure``.

    ``chance`` is a random number of [0, 1). A delay that the provider asks for replaces ours.
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


WAITING = 1 << 20
"""Requests of one model that may be queued or in flight. The tasks that ask hold them; in the
mailbox, where more would wait, those of a flood would stand before all others."""
CONCURRENCY = 16
POSITION_EVERY = 3.0
"""Seconds between two looks at the position of a request that waits."""


class Provider(Actor[ModelProtocol]):
    """One model. The requests in flight have the places of ``queue``, which users share fairly.

    A request can be cancelled while it waits in the queue, for the model or for a retry; its
    connection is closed at once. The delay before a retry does not occupy a place in flight.
    """

    def __init__(
        self, model: Model, *, queue: FairQueue | None = None, random: Random | None = None
    ):
        self._model = model
        self._billed = model if isinstance(model, Billed) else None
        self._queue = FairQueue(CONCURRENCY) if queue is None else queue
        self._waiting: dict[Ticket, trio.Event] = {}
        self._requests: dict[str, ModelRequest] = {}
        self._random = random or Random(any_chance())

    @handles(Generate, concurrent=WAITING, here=True)
    async def generate(self, message: Generate, replies: Replies[Streamed]) -> ModelResponse:
        attempt = 1
        if message.id:
            self._requests[message.id] = message.request
        try:
            while True:
                try:
                    return await self._attempt(message, replies)
                except ModelFailure as failure:
                    delay = self._delay(failure, attempt)
                    await replies.send(Retrying(attempt, delay, str(failure)))
                await trio.sleep(delay)
                attempt += 1
        finally:
            self._requests.pop(message.id, None)

    @handles(Revise)
    async def revise(self, message: Revise) -> None:
        if message.id in self._requests:  # else it is over
            self._requests[message.id] = message.request

    async def _attempt(self, message: Generate, replies: Replies[Streamed]) -> ModelResponse:
        """One attempt, with a place among the requests in flight."""
        ticket = self._queue.enter(message.user, message.payer, trio.current_time())
        try:
            if ticket.since is None:
                await self._placed(ticket, replies)
            assembler = Assembler()
            request = self._requests.get(message.id, message.request)
            try:
                async with self._model.request(request) as events:
                    async for event in events:
                        assembler.feed(event)
                        try:
                            replies.send_nowait(event)
                        except trio.WouldBlock:
                            await replies.send(event)
            except ModelFailure as failure:
                if failure.kind != "content_filter":
                    raise
                # Some providers report a refusal as an error: it is an answer, and no fault.
                assembler.feed(Finished("content_filter", str(failure)))
            response = assembler.response()
            if self._billed is None:
                return response
            usage = await priced(response.usage, self._billed)
        finally:
            self._waiting.pop(ticket, None)
            for one in self._queue.leave(ticket, trio.current_time):
                self._waiting[one].set()
        return response if usage is response.usage else replace(response, usage=usage)

    async def _placed(self, ticket: Ticket, replies: Replies[Streamed]) -> None:
        """Wait for a place, and say the position now and then."""
        placed = self._waiting[ticket] = trio.Event()
        await _say(replies, Queued())
        said = 0
        while not placed.is_set():
            now = trio.current_time()
            position = self._queue.position(ticket, now)
            if position != said:
                said = position
                await _say(replies, Queued(position=position))
            with trio.CancelScope(deadline=now + POSITION_EVERY):
                await placed.wait()
        await _say(replies, Queued(waits=False))

    def _delay(self, failure: ModelFailure, attempt: int) -> float:
        """Seconds until the next attempt. Raises :class:`Llm` when there is none."""
        decision = decide(failure, attempt, self._random.random())
        if isinstance(decision, GiveUp):
            raise llm_error(self._model.name, failure, decision.reason) from failure
        return decision.delay


async def _say(replies: Replies[Streamed], notice: Queued) -> None:
    """Send a notice; without a step of its own, unless the reader is far behind."""
    try:
        replies.send_nowait(notice)
    except trio.WouldBlock:
        await replies.send(notice)


Find: TypeAlias = Callable[[str], Model]


class Provide(Request[ActorRef[ModelProtocol]], frozen=True, tag="models.provide"):
    """Get the actor of this model. Raises ``UnknownName`` or ``MissingExtra``.

    ``generation``: the configuration of models to use.
    """

    model: str
    generation: int = 0


class ForgetModels(Request[None], frozen=True, tag="models.forget"):
    """Stop the actors of a generation that is no longer in use."""

    generation: int


class Models(Actor[Provide | ForgetModels]):
    """Parent of the provider actors, one per model, each started on first use.

    A provider that crashes is restarted alone. ``find`` finds the models of the first generation
    of the configuration, ``later`` those of later ones; ``queue`` makes the places of a model.
    """

    def __init__(
        self,
        find: Find,
        later: Mapping[int, Find] | None = None,
        queue: Callable[[], FairQueue] = lambda: FairQueue(CONCURRENCY),
    ) -> None:
        self.find = find
        self.later: Mapping[int, Find] = {} if later is None else later
        self._queue = queue

    @handles(Provide)
    async def provide(self, message: Provide) -> ActorRef[ModelProtocol]:
        name = _name(message.model, message.generation)
        known = self.child(name)
        if known is not None and known.is_alive:
            return known
        model = self.later.get(message.generation, self.find)(message.model)
        await self.stop_child(name)  # an actor that is stopping still holds its name
        made = self._queue
        return await self.start_child(lambda: Provider(model, queue=made()), name=name)

    @handles(ForgetModels)
    async def forget(self, message: ForgetModels) -> None:
        ending = _name("", message.generation)
        for name in [name for name in self.children if _generation_of(name) == ending]:
            await self.stop_child(name)


def _name(model: str, generation: int) -> str:
    """The name of a model's actor. Quoting removes every ``+`` from the model's own name."""
    return quote(model, safe=":") + (f"+{generation}" if generation else "")


def _generation_of(name: str) -> str:
    sign = name.rfind("+")
    return "" if sign < 0 else name[sign:]
