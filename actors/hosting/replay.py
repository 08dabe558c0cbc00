"""The replay of one run in a host of its own, in memory. The state that it comes from is only read.

Invariants: hooks, MCP servers, memory, exports and the gateway of the configuration are left out,
since all of them have effects. With the tools of the journal nothing is executed at all: a call has
its stored result or none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias, get_args

import attrs
import trio
from msgspec.structs import replace as changed

from motet.actors.agents.spec import AnyAgent
from motet.actors.hosting.tree import Parts, StandIns, open_tree
from motet.actors.models.provider import Played
from motet.actors.storage.events import record_of
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import RUNS, run_info
from motet.actors.storage.session_transcripts import TRANSCRIPT, history_row
from motet.actors.telemetry.subscription import EventJournal
from motet.protocols.agents import PLAIN
from motet.protocols.chat import AssistantMessage, Call, ToolMessage
from motet.protocols.config import HostConfig, TracingConfig
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.events import AnyEvent
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    Model,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.run import RunResult
from motet.protocols.run_journal import (
    CUT,
    STOPPED,
    Comparison,
    RunJournal,
    event_lines,
    journal_of,
    require_ended,
    row_lines,
)
from motet.protocols.sessions import (
    AcceptInput,
    FinishRun,
    NewInput,
    Principal,
    RunInfo,
    SessionStoreMessage,
)
from motet.protocols.stable_json import in_order
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, ActorRef, handles

ToolMode: TypeAlias = Literal["journal", "live"]
RECORDED = ("recorded", "scripted")
"""Names for the answers of the journal, where a model is asked for."""
NO_COMPACTION = 1 << 30
PAGE = 1_000

_RUNS = f"{RUNS} WHERE run_id LIKE ? ESCAPE '!' LIMIT 2"
_OWN = "SELECT pos, run_id, ts, body FROM messages WHERE session = ? AND run_id = ? ORDER BY pos"
_EVENTS = (
    "SELECT stream, seq, ts, run_id, data FROM events WHERE stream = ? AND run_id = ? ORDER BY seq"
)


@attrs.frozen
class Replay:
    """The comparison of a run with its replay.

    Attributes:
        result: of the replay.
        rows: the transcripts; usage and texts of errors of the host are not compared.
        events: the durable events, if those of the run are still stored.
    """

    journal: RunJournal
    result: RunResult[object]
    rows: Comparison
    events: Comparison

    @property
    def same(self) -> bool:
        """Whether the replay did the same as the run."""
        return self.rows.same and self.events.same


async def replay(
    journal: RunJournal,
    agent: AnyAgent,
    *,
    config: HostConfig | None = None,
    model: str | Model | None = None,
    tools: ToolMode = "journal",
    deps: object = None,
    workspace: str | Path | None = None,
) -> Replay:
    """Run it again as ``agent``, with the same input and the same rows before it.

    Args:
        agent: the run's agent as it is now.
        config: limits, models and tools of the host.
        model: the model that answers; None or ``recorded``: the model's rows in the journal.
        tools: ``journal``: every call has its stored result, and nothing is executed;
            ``live``: the tools run, with all their effects. Calls that need an approval are denied,
            since there is no person to ask.
        deps: for live tools.
        workspace: for live tools; others get an empty folder.

    Cancelling it ends the replay and all it has started. Raises ``UnknownName`` for other
    ``tools``, ``ConfigError`` for an impossible agent or model.
    """
    if tools not in get_args(ToolMode):
        raise UnknownName("kind of tools", tools, get_args(ToolMode))
    recorded = model is None or model in RECORDED
    player = _player(agent, None if recorded else model, tools)
    quiet = _quiet(config or HostConfig(), tools)
    over = trio.Event()

    async def steer(text: str) -> None:
        session, principal = journal.info.session, Principal(journal.info.user)
        await parts.inputs.send(text, None, session, "steer", principal, None)

    recording = JournalModel(player.model_name, journal, steer, over)
    stand_ins = StandIns(
        (lambda _name: recording) if recorded else None,
        (lambda: JournalTools(journal, over)) if tools == "journal" else None,
    )
    # Without a workspace for live tools the host gets an empty one, which is deleted.
    with TemporaryDirectory(prefix="motet-replay-", ignore_cleanup_errors=True) as empty:
        folder = workspace if workspace is not None and tools == "live" else empty
        async with open_tree(None, folder, quiet, stand_ins=stand_ins) as parts:
            await _seed(parts.stores.sessions, journal)
            result = await _run(parts, journal, player, deps, over)
            events = await _events(parts.journal, journal, result.run_id)
    return _compared(journal, result, events)


def _player(agent: AnyAgent, model: str | Model | None, tools: ToolMode) -> AnyAgent:
    """The agent of the replay: without memory, and compacted only if a live model answers."""
    player = copy(agent)
    player.memory = False
    if model is None:
        player.window = NO_COMPACTION
        player.profile = PLAIN
    else:
        player.model = model
    if tools == "journal":
        # MCP servers are not started; the journal has their results.
        kept = [tool for tool in agent.tools if not str(tool).startswith("mcp:")]
        player._tools = kept  # pyright: ignore[reportPrivateUsage]
    return player


def _quiet(config: HostConfig, tools: ToolMode) -> HostConfig:
    """The configuration without the parts that have effects."""
    quiet = attrs.evolve(
        config,
        state=None,
        workspace=None,
        hooks=(),
        tracing=TracingConfig(),
        approvals=attrs.evolve(config.approvals, ask=False),
    )
    # The guard has marked the stored results already.
    return quiet if tools == "live" else attrs.evolve(quiet, mcp={}, guard="off")


async def _seed(store: ActorRef[SessionStoreMessage], journal: RunJournal) -> None:
    """Give the session the rows it had before the run."""
    if not journal.before:
        return
    info = journal.info
    run_id = f"{info.run_id}:before"
    await store.ask(
        AcceptInput(NewInput(run_id, info.session, info.agent, info.user, "what was before"))
    )
    await store.ask(FinishRun(run_id, "completed", journal.before))


async def _run(
    parts: Parts, journal: RunJournal, agent: AnyAgent, deps: object, over: trio.Event
) -> RunResult[object]:
    """The result of the run; it is stopped where the original run was stopped."""
    info = journal.info
    principal = Principal(info.user)

    async def stop() -> None:
        await over.wait()
        await parts.stops.stop(session=info.session, principal=principal)

    run = await parts.intake.new_run(agent, journal.text, info.session, deps, principal=principal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        run = await parts.intake.run_to_end(run)
        nursery.cancel_scope.cancel()
    assert run.result is not None
    return run.result


async def _events(stored: EventJournal, journal: RunJournal, run_id: str) -> tuple[AnyEvent, ...]:
    """The durable events of the replay."""
    found: list[AnyEvent] = []
    after = 0
    while page := await stored.read(f"session:{journal.info.session}", after, PAGE):
        found += [record.event for record in page if record.run_id == run_id]
        after = page[-1].seq or after + PAGE
    return tuple(found)


def _compared(
    journal: RunJournal, result: RunResult[object], events: tuple[AnyEvent, ...]
) -> Replay:
    then = event_lines(journal.events, journal.rows)
    return Replay(
        journal,
        result,
        Comparison(
            row_lines(journal.rows, journal.info.status), row_lines(result.rows, result.status)
        ),
        Comparison(then, event_lines(events, result.rows) if then else ()),
    )


async def read_journal(readers: Readers, run: str) -> RunJournal:
    """The run of that id, or of the only id that begins so.

    Raises ``NotFound`` when there is none, ``ConfigError`` for one that cannot be replayed: it has
    not ended, or never began.
    """
    info = await _find_run(readers, run)
    require_ended(info)
    stored = await readers.read(_OWN, (info.session, info.run_id))
    shown = map(history_row, await readers.read(TRANSCRIPT, (info.session,)))
    return journal_of(info, [*map(history_row, stored)], shown, await _stored_events(readers, info))


async def _find_run(readers: Readers, run: str) -> RunInfo:
    pattern = "".join(f"!{sign}" if sign in "!%_" else sign for sign in run) + "%"
    found = [run_info(row) for row in await readers.read(_RUNS, (pattern,))] if run else []
    if not found:
        raise NotFound(f"no run {run!r}; `motet traces` lists them")
    exact = [info for info in found if info.run_id == run]
    if len(found) > 1 and not exact:
        raise ConfigError(f"several runs begin with {run!r}: give more of the id")
    return (exact or found)[0]


async def _stored_events(readers: Readers, info: RunInfo) -> tuple[AnyEvent, ...]:
    stored = await readers.read(_EVENTS, (f"session:{info.session}", info.run_id))
    return tuple(record_of(row).event for row in stored)


# The turn appends it to the text of a failure, in the run and in the replay.
_ADVICE = re.compile(r"\n\[Advice: this call has failed [^\n]*\]\Z")

Steer = Callable[[str], Awaitable[object]]


class JournalModel:
    """A model that answers with the rows of a run, in their order, and ends as the run ended.

    ``over`` is set where the run was stopped from outside: nothing follows. ``steer`` sends the run
    a text that had entered it at that place.
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
        """Stream the next answer; the request is ignored."""
        del request
        await trio.lowlevel.checkpoint()
        if not self._answers:
            await self._end()
        answer = self._answers.pop(0)
        for text in self._journal.steered(answer):
            await self._steer(text)
        yield Played(events_of(answer, next(self._shares)))

    async def _end(self) -> None:
        """The journal has no more answers: the run was stopped, failed, or goes another way now."""
        info = self._journal.info
        if info.status in STOPPED or (info.status, info.detail) == ("limited", "wall"):
            self.over.set()
            await trio.sleep_forever()
        if info.status == "refused":
            raise ModelFailure(info.detail, kind="content_filter")
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
    """The usage of each answer: an equal share, because only the sum is stored."""
    count = max(answers, 1)
    part = Usage(
        input_tokens=usage.input_tokens // count,
        output_tokens=usage.output_tokens // count,
        cost=None if usage.cost is None else usage.cost / count,
    )
    for place in range(count):
        last = place == count - 1
        rest = changed(
            part,
            input_tokens=usage.input_tokens - part.input_tokens * (count - 1),
            output_tokens=usage.output_tokens - part.output_tokens * (count - 1),
        )
        yield rest if last else part


class JournalTools(Actor[ExecuteCall]):
    """Replaces the tool executor: a call gets the stored result of the same call.

    The same call has the same name and equal arguments; each result is used once, in order.
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
            return CallResult(call.id, call.name, text, "failed", "not_found", failure="argument")
        if found.outcome in CUT:
            self._over.set()
            await trio.sleep_forever()
        text = _ADVICE.sub("", found.text)
        return CallResult(call.id, call.name, text, found.outcome, failure=found.failure)

    def _take(self, call: Call) -> ToolMessage | None:
        wanted = (call.name, in_order(call.arguments))
        for place, (then, row) in enumerate(self._open):
            if (then.name, in_order(then.arguments)) == wanted:
                del self._open[place]
                return row
        return None
