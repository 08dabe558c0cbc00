"""The model and the tools of a replay: both say what the journal has, and do nothing.

Invariant: a call has its stored result or none; nothing is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import trio
from msgspec.structs import replace

from motet.actors.errors.advice import canonical
from motet.actors.models.played import Played
from motet.actors.replay.journal import RunJournal
from motet.protocols.chat import AssistantMessage, Call, ToolMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, handles

CUT = frozenset({"cancelled_before_start", "cancelled_while_running", "unknown"})
"""Outcomes of calls that the end of their run has cut off."""
STOPPED = frozenset({"cancelled", "interrupted"})
"""Ends that come from outside of a run, and so are asked for from outside of a replay."""

# The turn adds it to the text of a failure, then as now.
_ADVICE = re.compile(r"\n\[Advice: this call has failed [^\n]*\]\Z")

Steer = Callable[[str], Awaitable[object]]


class JournalModel:
    """Answers with the rows of a run, in their order, and ends as the run has ended.

    ``over`` is set where the run was stopped from outside: nothing follows then. ``steer`` gives
    the run a text that had entered it at that place.
    """

    def __init__(self, name: str, journal: RunJournal, steer: Steer) -> None:
        self.name = name
        self.over = trio.Event()
        self._journal = journal
        self._answers = list(journal.answers)
        self._shares = shares(journal.info.usage, len(self._answers))
        self._steer = steer

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer, whatever is asked; see :class:`motet.protocols.models.Model`."""
        del request
        await trio.lowlevel.checkpoint()
        if not self._answers:
            await self._end()
        answer = self._answers.pop(0)
        for text in self._journal.steered(answer):
            await self._steer(text)
        yield Played(events_of(answer, next(self._shares)))

    async def _end(self) -> None:
        """Where the model has nothing more to say: stopped, failed, or other than then."""
        info = self._journal.info
        if info.status in STOPPED or (info.status, info.detail) == ("limited", "wall"):
            self.over.set()
            await trio.sleep_forever()
        if info.status == "failed":
            said = info.detail.removeprefix(f"{self.name} failed: ")
            raise ModelFailure(said or "the run failed here", kind="journal")
        raise ModelFailure("the run asked the model no further then", kind="journal")


def events_of(answer: AssistantMessage, usage: Usage) -> Iterator[ModelEvent]:
    if answer.text:
        yield TextPart(answer.text)
    for index, call in enumerate(answer.calls):
        yield CallStart(index, call.id, call.name)
        yield CallArguments(index, call.arguments)
    yield UsageReport(usage)
    yield Finished("tool_calls" if answer.calls else "stop")


def shares(usage: Usage, answers: int) -> Iterator[Usage]:
    """What each answer used: only their sum is stored, so that each has its share of it."""
    count = max(answers, 1)
    part = Usage(
        input_tokens=usage.input_tokens // count,
        output_tokens=usage.output_tokens // count,
        cost=None if usage.cost is None else usage.cost / count,
    )
    for place in range(count):
        last = place == count - 1
        rest = replace(
            part,
            input_tokens=usage.input_tokens - part.input_tokens * (count - 1),
            output_tokens=usage.output_tokens - part.output_tokens * (count - 1),
        )
        yield rest if last else part


class JournalTools(Actor[ExecuteCall]):
    """Stands in for the tools: a call has the result that the same call had then.

    The same is one of that name with equal arguments, each result used once, in their order.
    """

    def __init__(self, journal: RunJournal, over: trio.Event) -> None:
        calls = {call.id: call for answer in journal.answers for call in answer.calls}
        self._open = [
            (calls.get(row.call_id, Call(row.call_id, row.name)), row) for row in journal.results
        ]
        self._over = over

    @handles(ExecuteCall, concurrent=1024)
    async def execute(self, request: ExecuteCall) -> CallResult:
        call = request.call
        found = self._take(call)
        if found is None:
            text = (
                "Not run: this run made no such call then, and a replay has only the results of "
                "then. Replay it with live tools to have it run."
            )
            return CallResult(call.id, call.name, text, "failed", "not_found")
        if found.outcome in CUT:
            self._over.set()
            await trio.sleep_forever()
        text = _ADVICE.sub("", found.text)
        return CallResult(call.id, call.name, text, found.outcome)

    def _take(self, call: Call) -> ToolMessage | None:
        wanted = (call.name, canonical(call.arguments))
        for place, (then, row) in enumerate(self._open):
            if (then.name, canonical(then.arguments)) == wanted:
                del self._open[place]
                return row
        return None
