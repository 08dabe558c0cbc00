"""A worker that takes the time that its task says, for tests of those who have others work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

import motet
from motet.protocols.models import ModelEvent, ModelRequest
from tests.scripted import Scripted, say

LIMITS = motet.Limits()


@attrs.define
class Paced:
    """A worker that answers its task ``3 name`` after three seconds; ``never`` takes for ever."""

    name: str = "paced"
    working: int = 0
    most: int = 0
    requests: list[ModelRequest] = attrs.field(factory=list[ModelRequest])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.requests.append(request)
        seconds, _, name = request.messages[-1].text.partition(" ")
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            await trio.sleep(float("inf") if seconds == "never" else float(seconds))
        finally:
            self.working -= 1
        async with Scripted(say(f"did {name}")).request(request) as parts:
            yield parts

    def agent(self, limits: motet.Limits = LIMITS) -> motet.Agent[None]:
        return motet.Agent("worker", model=self, description="Works.", limits=limits)
