"""Run the calls of one answer: side by side or in order, results always by call index (G8).

Invariant: the record tells the truth at every step. It holds one result per call from the
beginning: "cancelled before start", from a call's first step on "cancelled while running", from
its end on its result. So a cancelled batch needs no clean-up to be accounted for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.protocols.chat import Call, Outcome
from motet.protocols.tools import CallResult
from motet.runtime.fanout import gather_ordered

Execute: TypeAlias = Callable[[int, Call], Awaitable[CallResult]]
OnStart: TypeAlias = Callable[[int, Call], None]
OnEnd: TypeAlias = Callable[[int, CallResult], None]
Admit: TypeAlias = Callable[[int], Awaitable[None]]

BEFORE_START = "Cancelled before it started: nothing was done."
WHILE_RUNNING = "Cancelled while it was running: part of its effect may have happened."


def _nothing(_index: int, _what: Call | CallResult) -> None:
    pass


async def run_batch(
    calls: Sequence[Call],
    execute: Execute,
    *,
    limit: int,
    serial: bool,
    record: list[CallResult] | None = None,
    on_start: OnStart = _nothing,
    on_end: OnEnd = _nothing,
    admit: Admit | None = None,
) -> list[CallResult]:
    """Run every call once and return the results by call index, whatever ends first.

    Calls start in call order, at most ``limit`` at once, one at a time when ``serial``. A failure
    or the cancellation of one call changes no other entry: an exception of ``execute`` becomes a
    result with outcome ``unknown``, since the call may have had its effect.

    Cancellation: running calls are cancelled and waited for, no further one starts; a call that
    finishes nevertheless keeps its result. ``record``, emptied first, then holds one result per
    call. ``on_start`` and ``on_end`` are called in pairs, also around a call that is cancelled.

    ``admit``, awaited before a call starts, keeps the order of a ``serial`` batch in its own way.
    """
    results: list[CallResult] = [] if record is None else record
    results[:] = [_cancelled(call, "cancelled_before_start", BEFORE_START) for call in calls]
    batch = _Batch(execute, results, on_start, on_end, admit)
    # A call's failure is in its result; what fails here is the accounting, and that ends the batch.
    in_order = 1 if admit is None else len(calls)
    limit = in_order if serial else max(1, limit)
    await gather_ordered(batch.calls(calls), limit=limit, isolate=False)
    return results


@attrs.define
class _Batch:
    execute: Execute
    record: list[CallResult]
    on_start: OnStart
    on_end: OnEnd
    admit: Admit | None

    def calls(self, calls: Sequence[Call]) -> list[Callable[[], Awaitable[None]]]:
        return [partial(self._run, index, call) for index, call in enumerate(calls)]

    async def _run(self, index: int, call: Call) -> None:
        if self.admit is not None:
            await self.admit(index)
        self.record[index] = _cancelled(call, "cancelled_while_running", WHILE_RUNNING)
        started = trio.current_time()
        self.on_start(index, call)
        try:
            self.record[index] = await self.execute(index, call)
        except Exception as error:
            self.record[index] = _unknown(call, error)
        finally:
            if not self.record[index].ms:
                ms = (trio.current_time() - started) * 1000
                self.record[index] = replace(self.record[index], ms=ms)
            self.on_end(index, self.record[index])


def _cancelled(call: Call, outcome: Outcome, text: str) -> CallResult:
    return CallResult(call.id, call.name, text, outcome, "cancelled")


def _unknown(call: Call, error: Exception) -> CallResult:
    text = f"Nobody knows how this call ended ({type(error).__name__}); check before repeating it."
    return CallResult(call.id, call.name, text, "unknown", "unknown")
