"""The actor in front of one model: it limits, retries and assembles.

Whatever a model's adapter raises, an asker sees events of one attempt, ``Retrying`` between
attempts, and at the end either the one whole :class:`ModelResponse` or :class:`Llm`.
"""

from __future__ import annotations

from random import Random
from random import random as any_chance

import trio
from msgspec.structs import replace

from motet.actors.models.assemble import Assembler
from motet.actors.models.prices import Billed, priced
from motet.actors.models.retry import GiveUp, decide
from motet.protocols.errors import Llm
from motet.protocols.models import (
    Generate,
    Model,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    ModelResponse,
    Retrying,
)
from motet.runtime import Actor, Replies, handles

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
