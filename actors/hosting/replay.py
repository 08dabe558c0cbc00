"""Replays one run in a host of its own, in memory: the state it is from is only read.

Invariants: hooks, MCP servers, memory, exports and the gateway of the configuration are left out,
since all of them have effects; with the tools of the journal nothing is executed at all.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias, get_args

import attrs
import msgspec
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.redact import redact
from motet.actors.hosting.replay_journal import (
    Change,
    Comparison,
    JournalModel,
    JournalTools,
    RunJournal,
    event_lines,
    near,
    read_journal,
    row_lines,
)
from motet.actors.hosting.tree import Parts, StandIns, open_tree
from motet.actors.telemetry.subscription import EventJournal
from motet.protocols.agents import PLAIN
from motet.protocols.chat import ChatMessage
from motet.protocols.config import HostConfig, TracingConfig
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.events import AnyEvent
from motet.protocols.models import Model
from motet.protocols.run import RunResult
from motet.protocols.sessions import (
    AcceptInput,
    FinishRun,
    NewInput,
    Principal,
    RunInfo,
    SessionStoreMessage,
)
from motet.protocols.version import __version__
from motet.runtime import ActorRef

ToolMode: TypeAlias = Literal["journal", "live"]
RECORDED = ("recorded", "scripted")
"""Names for the answers of the journal, where a model is asked for."""
NO_COMPACTION = 1 << 30
PAGE = 1_000


@attrs.frozen
class Replay:
    """What a run did then, and what it does now.

    Attributes:
        result: of the replay.
        rows: the transcripts; usage and texts of errors of the host are not compared.
        events: the durable events, where those of then are still stored.
    """

    journal: RunJournal
    result: RunResult[object]
    rows: Comparison
    events: Comparison

    @property
    def same(self) -> bool:
        """Whether the run does now what it did then."""
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
        agent: what the run's agent is now.
        config: limits, models and tools of the host.
        model: who answers; None or ``recorded``: the model's rows in the journal.
        tools: ``journal``: every call has the result it had then, and nothing is executed;
            ``live``: the tools run, with all their effects. There is nobody to be asked: what
            needs an approval is denied.
        deps: for live tools.
        workspace: for live tools; others get an empty folder.

    Cancelling it ends the replay and all it has started. Raises ``UnknownName`` for other
    ``tools``, ``ConfigError`` for an agent or a model that cannot be.
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

    stand_ins = StandIns(
        JournalModel(player.model_name, journal, steer, over) if recorded else None,
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
    """The agent of the replay: it remembers nobody, and is compacted only for a model's sake."""
    player = copy(agent)
    player.memory = False
    if model is None:
        player.window = NO_COMPACTION
        player.profile = PLAIN
    else:
        player.model = model
    if tools == "journal":
        # Their servers are not started, and the journal knows their results without them.
        kept = [tool for tool in agent.tools if not str(tool).startswith("mcp:")]
        player._tools = kept  # pyright: ignore[reportPrivateUsage]
    return player


def _quiet(config: HostConfig, tools: ToolMode) -> HostConfig:
    """The configuration without what has effects."""
    quiet = attrs.evolve(
        config,
        state=None,
        workspace=None,
        hooks=(),
        tracing=TracingConfig(),
        approvals=attrs.evolve(config.approvals, ask=False),
    )
    # The guard has marked the results of then already.
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
        run = await parts.intake.answered(run)
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


# A run as one JSON file: what came before it, what was said to it, by its model and by its tools.
#
# Secrets and personal data are taken out before anything is written, so that a record may be put
# under version control; it is played as it was written.


VERSION: Final = 1


class RunRecord(msgspec.Struct, frozen=True, tag="run", tag_field="case"):
    """What the file holds: the fields of :class:`RunJournal`, and who wrote it."""

    version: int
    motet: str
    info: RunInfo
    before: tuple[ChatMessage, ...]
    rows: tuple[ChatMessage, ...]
    events: tuple[AnyEvent, ...]


def encoded(journal: RunJournal) -> bytes:
    """The file of a run, on lines that a person reads."""
    fields = attrs.asdict(journal, recurse=False)
    record = RunRecord(VERSION, __version__, **fields)
    plain: object = msgspec.json.decode(msgspec.json.encode(record))
    return msgspec.json.format(msgspec.json.encode(redact(plain)), indent=1) + b"\n"


def read_record(file: str | Path) -> RunJournal:
    """The run in a file. Raises ``ConfigError`` for one that is none, or of another version."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"the record {file} cannot be read: {error.strerror}") from error
    return decoded(data, str(file))


def decoded(data: bytes, file: str) -> RunJournal:
    """As :func:`read_record`, from bytes; ``file`` is what errors call them."""
    try:
        record = msgspec.json.decode(data, type=RunRecord)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{file} is no record of a run: {error}; `motet record RUN > {file}` writes one"
        ) from None
    if record.version != VERSION:
        raise ConfigError(
            f"{file} is a record of version {record.version}, this motet reads {VERSION}: "
            "record the run anew"
        )
    if not record.rows:
        raise ConfigError(f"{file} has no rows: a run that never began cannot be played")
    return RunJournal(record.info, record.before, record.rows, record.events)


# Runs a stored run once more, beside the session it is of, and tells what is different now.


__all__ = [
    "Change",
    "Comparison",
    "Replay",
    "RunJournal",
    "ToolMode",
    "near",
    "read_journal",
    "read_record",
    "replay",
]
