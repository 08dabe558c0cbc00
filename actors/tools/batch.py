"""The calls of one answer, run in parallel or in order; results are always by call index (G8).

One task asks for all of them and takes each result as it comes.
Invariant: the record is true at every step. It holds one result per call from the beginning:
"cancelled before start"; from a call's first step on, "cancelled while running"; from its end on,
its result. So a cancelled batch needs no clean-up of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import trio
from msgspec.structs import replace

from motet.protocols.chat import Call
from motet.protocols.redaction.redact import redact_text
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import ActorRef, Asks, Failed, Settled
from motet.runtime.describe import error_text, summarize

BEFORE_START = "Cancelled before it started: nothing was done."
WHILE_RUNNING = "Cancelled while it was running: part of its effect may have happened."


class Around(Protocol):
    """The caller's part in each call of a batch: everything but the ask."""

    async def begin(self, index: int) -> ExecuteCall | CallResult:
        """Begin a call: the request, or the result if there is nothing to ask.

        An exception settles the call, like one of the ask.
        """
        ...

    def end(self, index: int, became: Settled[CallResult]) -> CallResult | None:
        """End a call that was asked for. Its result; None if it was cut off."""
        ...

    async def tell(self, index: int, result: CallResult) -> None:
        """Publish a result of a call that was asked for."""
        ...


class _Asked(msgspec.Struct, frozen=True):
    """A call that was asked for."""

    index: int
    started: float


class RunningBatch:
    """Runs each call once; ``around`` prepares, ends and publishes it.

    Calls start in order, at most ``limit`` at once, each when ``may_begin`` allows it. A failed ask
    is the result of its own call only, which may have had its effect.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        tools: ActorRef[ExecuteCall],
        around: Around,
        *,
        limit: int,
        may_begin: Callable[[int], bool] | None = None,
        record: list[CallResult] | None = None,
    ) -> None:
        self.record: list[CallResult] = [] if record is None else record
        self.record[:] = [
            CallResult(call.id, call.name, BEFORE_START, "cancelled_before_start", "cancelled")
            for call in calls
        ]
        self._calls = calls
        self._tools = tools
        self._around = around
        self._limit = limit
        self._may_begin = may_begin
        self._asks: Asks[CallResult] | None = None
        self._begun = 0
        self._under_way = 0
        self._asked: list[_Asked] = []  # by the numbers of the asks

    def look_again(self) -> None:
        """Ask ``may_begin`` again, although no call has ended."""
        if self._asks is not None:
            self._asks.pause()

    async def run(self) -> list[CallResult]:
        """Run all calls; returns their results by call index, in any order of their ends.

        Cancellation: running calls are cancelled and waited for, no further one starts; a call that
        finishes nevertheless keeps its result.
        """
        asks = self._asks = Asks[CallResult]()
        try:
            async with asks:
                while await self._begin(asks):
                    async for number, became in asks:
                        self._under_way -= 1
                        asked = self._asked[number]
                        if self._settle(asked, became):
                            await self._around.tell(asked.index, self.record[asked.index])
                        if self._begun < len(self._calls):
                            await self._begin(asks)
        finally:
            # Results of calls that have ended in spite of a cancellation.
            late = [(self._asked[number], became) async for number, became in asks]
            done = [asked.index for asked, became in late if self._settle(asked, became)]
            for index in done:
                await self._around.tell(index, self.record[index])
        return self.record

    async def _begin(self, asks: Asks[CallResult]) -> bool:
        """Begin the calls that may; returns whether there is any to wait for."""
        if self._begun == len(self._calls):
            return self._under_way > 0
        # A call that finished in spite of a cancellation must not be followed by another one.
        await trio.lowlevel.checkpoint_if_cancelled()
        now, may_begin = trio.current_time(), self._may_begin
        while self._begun < len(self._calls) and self._under_way < self._limit:
            if may_begin is not None and not may_begin(self._begun):
                break
            index, self._begun = self._begun, self._begun + 1
            await self._ask(asks, index, now)
        return self._under_way > 0

    async def _ask(self, asks: Asks[CallResult], index: int, now: float) -> None:
        call, asked = self._calls[index], _Asked(index, now)
        self.record[index] = CallResult(
            call.id, call.name, WHILE_RUNNING, "cancelled_while_running", "cancelled"
        )
        try:
            request = await self._around.begin(index)
        except Exception as error:
            if self._settle(asked, Failed(error)):
                await self._around.tell(index, self.record[index])
            return
        if isinstance(request, CallResult):
            self.record[index] = request
            return
        self._under_way += 1
        self._asked.append(asked)
        asks.begin(self._tools, request)

    def _settle(self, asked: _Asked, became: Settled[CallResult]) -> bool:
        """Record the end of a call; returns whether it has a result and was not cut off."""
        index = asked.index
        result = self._around.end(index, became)
        self.record[index] = result or self.record[index]
        if not self.record[index].ms:
            ms = (trio.current_time() - asked.started) * 1000
            self.record[index] = replace(self.record[index], ms=ms)
        return result is not None


def unknown(call: Call, error: Exception) -> CallResult:
    """The result of a call without an answer, which may have had its effect."""
    said = summarize(redact_text(error_text(error)))
    text = f"Nobody knows how this call ended ({said}); check before repeating it."
    return CallResult(call.id, call.name, text, "unknown", kind="unknown")
