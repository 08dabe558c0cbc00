"""Batches that are watched, and calls that functions of a test answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs

from motet.actors.tools.batch import RunningBatch, unknown
from motet.protocols.chat import Call
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, ActorRef, Cut, Failed, Settled, handles, open_system

Execute: TypeAlias = Callable[[int, Call], Awaitable[CallResult]]


@attrs.define
class Watched:
    """Notes the calls of a batch as they begin and end; the run id of a request is its index."""

    calls: Sequence[Call]
    agent: str = "agent"
    log: list[tuple[str, int]] = attrs.field(factory=list[tuple[str, int]])
    finished: set[int] = attrs.field(factory=set[int])
    told: list[int] = attrs.field(factory=list[int])

    @property
    def begun(self) -> list[int]:
        return [index for what, index in self.log if what == "start"]

    @property
    def ended(self) -> list[int]:
        return [index for what, index in self.log if what == "end"]

    async def begin(self, index: int) -> ExecuteCall:
        self.log.append(("start", index))
        return ExecuteCall(str(index), "session", self.agent, "local", self.calls[index])

    def end(self, index: int, became: Settled[CallResult]) -> CallResult | None:
        self.log.append(("end", index))
        if isinstance(became, Cut):
            return None
        self.finished.add(index)
        if isinstance(became, Failed):
            return unknown(self.calls[index], became.error)
        return became.value

    async def tell(self, index: int, result: CallResult) -> None:
        assert result.call_id == self.calls[index].id
        self.told.append(index)


class Answers(Actor[ExecuteCall]):
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    @handles(ExecuteCall, concurrent=100)
    async def execute(self, request: ExecuteCall) -> CallResult:
        return await self._execute(int(request.run_id), request.call)


@asynccontextmanager
async def answering(execute: Execute) -> AsyncGenerator[ActorRef[ExecuteCall]]:
    """An actor that answers the calls of a batch by one function."""
    async with open_system() as system:
        yield await system.start(lambda: Answers(execute), name="tools")


async def run_batch(
    calls: Sequence[Call],
    tools: ActorRef[ExecuteCall],
    *,
    limit: int,
    watched: Watched | None = None,
    record: list[CallResult] | None = None,
) -> list[CallResult]:
    around = watched or Watched(calls)
    return await RunningBatch(calls, tools, around, limit=limit, record=record).run()
