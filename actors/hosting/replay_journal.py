"""What is stored of one run: its input, the rows before it, its own rows and its events."""

from __future__ import annotations

import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.classify import canonical
from motet.actors.models.recorded import Played
from motet.actors.storage.events import record_of
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import RUNS, run_info
from motet.actors.storage.session_transcripts import TRANSCRIPT, history_row
from motet.protocols import events as ev
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.events import AnyEvent, RunStarted
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
from motet.protocols.sessions import FINAL, RunInfo, RunStatus
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, handles

# Whoever replays a run has no use for the whole of a session that goes on for years.
BEFORE = 1_000
SAID = frozenset({"", "silent"})
"""Notes of the rows that a model wrote; the host wrote those with others."""

_RUNS = f"{RUNS} WHERE run_id LIKE ? ESCAPE '!' LIMIT 2"
_OWN = "SELECT pos, run_id, ts, body FROM messages WHERE session = ? AND run_id = ? ORDER BY pos"
_EVENTS = (
    "SELECT stream, seq, ts, run_id, data FROM events WHERE stream = ? AND run_id = ? ORDER BY seq"
)


@attrs.frozen
class RunJournal:
    """One run that has ended.

    Attributes:
        before: the rows that its session had then, since it was last reset, the newest of them.
        rows: those it added, its input first.
        events: the durable ones; empty when they were pruned.
    """

    info: RunInfo
    before: tuple[ChatMessage, ...]
    rows: tuple[ChatMessage, ...]
    events: tuple[AnyEvent, ...] = ()

    @property
    def agent(self) -> str:
        """The agent it began with: it may have handed the conversation to another."""
        started = (event.agent for event in self.events if isinstance(event, RunStarted))
        return next(started, self.info.agent)

    @property
    def text(self) -> str:
        """The input, as the gates of then let it pass."""
        first = self.rows[0]
        return first.text if isinstance(first, UserMessage) else self.info.text

    @property
    def answers(self) -> tuple[AssistantMessage, ...]:
        """What the model said: the rows that the host wrote itself are left out."""
        found = (row for row in self.rows if isinstance(row, AssistantMessage))
        return tuple(row for row in found if row.note in SAID)

    @property
    def results(self) -> tuple[ToolMessage, ...]:
        return tuple(row for row in self.rows if isinstance(row, ToolMessage))

    def steered(self, answer: AssistantMessage) -> tuple[str, ...]:
        """The texts that entered the run behind this answer and its results."""
        texts: list[str] = []
        at = next(place for place, row in enumerate(self.rows) if row is answer)
        for row in self.rows[at + 1 :]:
            if isinstance(row, AssistantMessage):
                break
            if isinstance(row, UserMessage) and row.note == "injected":
                texts.append(row.text)
        return tuple(texts)


async def read_journal(readers: Readers, run: str) -> RunJournal:
    """The run of that id, or of the only id that begins so.

    Raises ``NotFound`` when there is none, ``ConfigError`` for one that cannot be replayed: it has
    not ended, or never began.
    """
    info = await _find(readers, run)
    require_ended(info)
    stored = await readers.read(_OWN, (info.session, info.run_id))
    own = [history_row(row) for row in stored]
    if not own:
        raise ConfigError(f"run {info.run_id} is {info.status} and has no rows: it never began")
    shown = map(history_row, await readers.read(TRANSCRIPT, (info.session,)))
    before = [row.row for row in shown if row.pos < own[0].pos]
    return RunJournal(
        info,
        from_a_turn(before[-BEFORE:]),
        tuple(row.row for row in own),
        await _events(readers, info),
    )


def require_ended(info: RunInfo) -> None:
    """Raises ``ConfigError`` for a run that still goes on."""
    if info.status not in FINAL:
        raise ConfigError(f"run {info.run_id} is {info.status}: replay it when it has ended")


async def _find(readers: Readers, run: str) -> RunInfo:
    pattern = "".join(f"!{sign}" if sign in "!%_" else sign for sign in run) + "%"
    found = [run_info(row) for row in await readers.read(_RUNS, (pattern,))] if run else []
    if not found:
        raise NotFound(f"no run {run!r}; `motet traces` lists them")
    exact = [info for info in found if info.run_id == run]
    if len(found) > 1 and not exact:
        raise ConfigError(f"several runs begin with {run!r}: give more of the id")
    return (exact or found)[0]


async def _events(readers: Readers, info: RunInfo) -> tuple[AnyEvent, ...]:
    stored = await readers.read(_EVENTS, (f"session:{info.session}", info.run_id))
    return tuple(record_of(row).event for row in stored)


def from_a_turn(before: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows from the first one that begins a turn, so that no result lacks its call."""
    for place, row in enumerate(before):
        if isinstance(row, UserMessage) and not row.note:
            return tuple(before[place:])
    return ()


# The model and the tools of a replay: both say what the journal has, and do nothing.
#
# Invariant: a call has its stored result or none; nothing is ever executed.


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

    def __init__(self, name: str, journal: RunJournal, steer: Steer, over: trio.Event) -> None:
        self.name = name
        self.over = over
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


# How a replay differs from the run: rows and events as lines, without what always differs. Pure.
#
# Left out are ids, times, prices and the texts that the host adds to a run that was cut off.


CONTEXT = 3
"""Lines that are shown on both sides of a difference."""

_ERROR_ID = re.compile(r"\berr_\d{8}_\d{6}_[0-9a-f]{6}\b")

Mark: TypeAlias = Literal[" ", "-", "+"]


class Change(msgspec.Struct, frozen=True):
    """One line: of both, of then only (``-``) or of now only (``+``)."""

    mark: Mark
    line: str


@attrs.frozen
class Comparison:
    """The lines of then and those of now."""

    then: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.then == self.now

    def changes(self) -> Iterator[Change]:
        """All lines in order, what was then before what is now."""
        matcher = SequenceMatcher(None, self.then, self.now, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                yield from (Change(" ", line) for line in self.then[a:b])
            else:
                yield from (Change("-", line) for line in self.then[a:b])
                yield from (Change("+", line) for line in self.now[c:d])


def near(changes: tuple[Change, ...], context: int = CONTEXT) -> Iterator[Change | None]:
    """The differences with some lines around each; None stands for lines that are left out."""
    marked = [place for place, change in enumerate(changes) if change.mark != " "]
    kept = {
        place
        for mark in marked
        for place in range(max(0, mark - context), min(len(changes), mark + context + 1))
    }
    last = -1
    for place in sorted(kept):
        if place > last + 1:
            yield None
        yield changes[place]
        last = place
    if last < len(changes) - 1:
        yield None


def row_lines(rows: Iterable[ChatMessage], status: RunStatus) -> tuple[str, ...]:
    """The rows of a run, and how it ended."""
    end = "stopped" if status in STOPPED else status
    return (*(line for row in rows for line in _row(row)), f"end {end}")


def _row(row: ChatMessage) -> Iterator[str]:
    match row:
        case UserMessage():
            who = row.note or "user"
            yield from (f"{who}: {line}" for line in row.text.splitlines() or [""])
        case AssistantMessage() if row.note in SAID:
            yield from (f"assistant: {line}" for line in row.text.splitlines())
            yield from (f"call {c.name} {canonical(c.arguments)}" for c in row.calls)
        case AssistantMessage():
            yield "host: the run was cut off" if row.note != "limited" else "host: limited"
        case ToolMessage():
            if row.outcome in CUT:
                yield f"result {row.name} (cut off)"
                return
            head = f"result {row.name} ({row.outcome})"
            text = _ERROR_ID.sub("err_…", row.text)
            yield from (f"{head} {line}" for line in text.splitlines() or [""])


def event_lines(events: Sequence[ev.AnyEvent], rows: Iterable[ChatMessage] = ()) -> tuple[str, ...]:
    """The events that a replay has as well: not retries, children, waits, warnings.

    ``rows`` are those of the same run: what the host wrote into them is left out here, too.
    """
    own = {row.text for row in rows if isinstance(row, AssistantMessage) and row.note not in SAID}
    lines: list[tuple[int, str]] = []
    group = 0
    for event in events:
        line = _event(event)
        if line is None or (isinstance(event, ev.MessageAdded) and event.text in own):
            continue
        # Calls of one batch begin in any order.
        group += not (isinstance(event, ev.ToolCall) and lines and "tool.call" in lines[-1][1])
        lines.append((group, line))
    return tuple(line for _, line in sorted(lines))


def _event(event: ev.AnyEvent) -> str | None:
    name = ev.event_name(event)
    match event:
        case ev.RunStarted():
            return f"{name} {event.agent}"
        case ev.MessageAdded():
            return f"{name} {event.role}: {' '.join(event.text.split())}"
        case ev.ToolCall():
            return f"{name} {event.index} {event.name}"
        case ev.RunLimited():
            return f"{name} {event.limit}"
        case ev.RunCompleted() | ev.RunFailed() | ev.RunEscalated():
            return name
        case ev.RunCancelled() | ev.RunInterrupted():
            return "run stopped"
        case _:
            return None
