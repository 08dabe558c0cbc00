"""Defects of what is written down of calls: too late, not at all, disordered, not made whole."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import sys
from collections.abc import Iterable

import trio

from motet.actors.runs.runner import Runner
from motet.actors.runs.tool_step import ToolStep
from motet.actors.storage import recovery, session_runs
from motet.actors.storage.run_access import PATIENCE, RunJournal
from motet.actors.storage.session_runs import RunTables
from motet.actors.transcript import grammar as transcript
from motet.protocols.chat import ChatMessage, Outcome, ToolMessage
from motet.protocols.storage import Rows, Transaction
from motet.protocols.tools import CallResult
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _begin_unwritten() -> list[Patch]:
    """Calls start before it is on disk that they were asked for."""

    async def journal(batch: ToolStep) -> None:
        (intent,) = batch._rows[-1:]
        await batch.services.journal.note(batch.run.id, batch.step, intent)
        batch.approvals.is_journalled = True

    return [(ToolStep, "_journal", journal)]


def _forget_outcomes() -> list[Patch]:
    """The outcome of a call is on disk only when its whole run has ended."""
    note = RunJournal.note

    async def note_others(journal: RunJournal, run_id: str, step: int, row: ChatMessage) -> None:
        if not isinstance(row, ToolMessage):
            await note(journal, run_id, step, row)

    return [(RunJournal, "note", note_others)]


def _leave_gaps() -> list[Patch]:
    """What the last host has left is loaded as it is."""
    return [(module, "close_calls", _as_it_is) for module in (recovery, session_runs)]


def _forget_the_batch() -> list[Patch]:
    """A run that is stopped has forgotten what its calls have done by then."""

    def known(runner: Runner) -> list[CallResult]:
        return []

    return [(Runner, "_known", known)]


def _as_it_is(rows: Iterable[ChatMessage], outcome: Outcome) -> tuple[ChatMessage, ...]:
    return tuple(rows)


def _sort_by_id() -> list[Patch]:
    """Results stand in the order of their ids, as text: the tenth before the second."""

    def close_sorted(rows: Iterable[ChatMessage], outcome: Outcome) -> tuple[ChatMessage, ...]:
        closed: list[ChatMessage] = []
        for row in transcript.close_calls(rows, outcome):
            if not isinstance(row, ToolMessage):
                closed.append(row)
                continue
            at = len(closed)
            while isinstance(last := closed[at - 1], ToolMessage) and last.call_id > row.call_id:
                at -= 1
            closed.insert(at, row)
        return tuple(closed)

    close = transcript.close_calls
    users = [module for name, module in sys.modules.items() if name.startswith("motet.actors.")]
    users = [module for module in users if module is not transcript]
    mine = [module for module in users if getattr(module, "close_calls", None) is close]
    return [(module, "close_calls", close_sorted) for module in mine]


def _end_in_two_commits() -> list[Patch]:
    """That a run has ended is on disk at once, and its rows with what is written behind."""
    write = RunTables._write

    async def write_apart(itself: RunTables, statements: Transaction) -> Rows:
        if len(statements) > 1 and statements[0].sql is session_runs.END_RUN:
            ended = await write(itself, statements[:1])
            await trio.sleep(PATIENCE)
            return (*ended, *await write(itself, statements[1:]))
        return await write(itself, statements)

    return [(RunTables, "_write", write_apart)]


MUTANTS = (
    Mutant("G7", "starts calls before they are on disk", _begin_unwritten),
    Mutant("G7", "writes no outcomes while a run goes on", _forget_outcomes),
    Mutant("G7", "loads gaps as they are", _leave_gaps),
    Mutant("G7", "forgets what calls have done when it is stopped", _forget_the_batch),
    Mutant("G7", "sorts results by id", _sort_by_id),
    Mutant("G7", "ends a run before its rows are stored", _end_in_two_commits),
)
