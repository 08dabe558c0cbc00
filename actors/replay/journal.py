"""What is stored of one run: its input, the rows before it, its own rows and its events."""

from __future__ import annotations

import attrs

from motet.actors.events.rows import record_of
from motet.actors.sessions import store_rows as rows
from motet.actors.storage.readers import Readers
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.events import AnyEvent, RunStarted
from motet.protocols.sessions import FINAL, RunInfo

# Whoever replays a run has no use for the whole of a session that goes on for years.
BEFORE = 1_000
SAID = frozenset({"", "silent"})
"""Notes of the rows that a model wrote; the host wrote those with others."""

_RUNS = f"{rows.RUN.partition(' WHERE ')[0]} WHERE run_id LIKE ? ESCAPE '!' LIMIT 2"
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
    own = [rows.history_row(row) for row in stored]
    if not own:
        raise ConfigError(f"run {info.run_id} is {info.status} and has no rows: it never began")
    shown = map(rows.history_row, await readers.read(rows.TRANSCRIPT, (info.session,)))
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
    found = [rows.run_info(row) for row in await readers.read(_RUNS, (pattern,))] if run else []
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
