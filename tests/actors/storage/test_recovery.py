"""After the end of a host, however it ended: each accepted input is answered or interrupted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.events import append_events, storable
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import INTERRUPTED, interrupted_rows
from motet.actors.storage.run_access import RunJournal, add_step
from motet.actors.storage.sessions import SessionStore
from motet.actors.storage.tables import encode_message
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.events import EventRecord, RunCompleted, RunInterrupted
from motet.protocols.models import Usage
from motet.protocols.sessions import (
    FinishRun,
    GetRun,
    ListRuns,
    ListUnpublishedEnds,
    ReadHistory,
    RecordIntent,
    RecoverRuns,
    RunInfo,
    UnpublishedEnd,
)
from motet.protocols.storage import Rows, Statement, Transaction
from motet.runtime import open_system
from tests import forks
from tests.actors.sessions.store_builders import ANSWER, ASKS, CALL, RESULT, ROWS, open_store

CLOSING = AssistantMessage(INTERRUPTED, note="interrupted")

# Accepts three inputs, has one begin a call, answers one, says so, and waits to be killed.
HOST = """
import sys, trio
from motet.actors.storage.location import Location
from motet.protocols.sessions import RecordIntent
from tests.actors.sessions.store_builders import ASKS, open_store

async def main():
    with Location.directory(sys.argv[1]) as location:
        async with open_store(location) as store:
            await store.complete("done")
            await store.accept("working")
            await store.begin("working")
            await store.ref.ask(RecordIntent("working", 0, ASKS))
            await store.accept("queued")
            print("acknowledged", flush=True)
            await trio.sleep_forever()

trio.run(main)
"""


async def test_inputs_of_a_killed_host_are_answered_or_interrupted(tmp_path: Path) -> None:
    with forks.started("-c", HOST, str(tmp_path)) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"acknowledged\n"
        host.kill()
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            interrupted = await store.ref.ask(RecoverRuns())
            assert [(run.run_id, run.status) for run in interrupted] == [
                ("working", "interrupted"),
                ("queued", "interrupted"),
            ]
            runs = await store.ref.ask(ListRuns())
            assert {run.run_id: run.status for run in runs} == {
                "done": "completed",
                "working": "interrupted",
                "queued": "interrupted",
            }
            transcript = await store.transcript()
            assert violations(transcript) == ()
            assert transcript[:6] == (*ROWS, UserMessage("hi"), ASKS)
            assert isinstance(transcript[6], ToolMessage)
            assert transcript[6].outcome == "unknown"
            assert transcript[7:] == (CLOSING, UserMessage("hi"), CLOSING)


async def test_recovering_again_finds_nothing(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            (run,) = await store.ref.ask(RecoverRuns())
            assert run.run_id == "r1"
            assert await store.ref.ask(RecoverRuns()) == ()
            assert await store.transcript() == (UserMessage("hi"), CLOSING)
            assert await store.database.execute("SELECT * FROM steps WHERE step >= 0") == ()


async def test_a_step_noted_before_an_intent_is_on_disk_with_it(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            await store.begin("r1")
            await store.ref.ask(RecordIntent("r1", 0, ASKS))
            await store.note("r1", 1, RESULT)
            await store.ref.ask(RecordIntent("r1", 2, AssistantMessage("", (Call("c2", "t"),))))
            await store.ref.ask(RecoverRuns())
            rows = await store.ref.ask(ReadHistory("s"))
            assert [row.row for row in rows[:3]] == [UserMessage("hi"), ASKS, RESULT]
            run = await store.ref.ask(GetRun("r1"))
            assert run is not None
            assert run.detail == "the host stopped"


class Recording:
    """A writer that writes nothing and knows the order of what it was asked to write."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    async def submit(self, transaction: Transaction) -> Rows:
        await trio.lowlevel.checkpoint()
        self.statements += transaction
        return ()


async def test_no_schedule_writes_an_intent_before_a_step_that_was_noted_before_it() -> None:
    """The order of tasks is Trio's choice, and another one in each of these rounds."""
    with Location.memory() as location:
        async with open_system() as system:
            writer, readers, journal = Recording(), Readers(location), RunJournal()
            store = await system.start(
                lambda: SessionStore(writer.submit, readers, journal=journal), name="store"
            )
            for number in range(40):
                run = f"r{number}"
                await journal.note(run, 1, RESULT)
                await store.ask(RecordIntent(run, 2, ASKS))
                written = [one.params for one in writer.statements]
                places = [add_step(run, step, row).params for step, row in ((1, RESULT), (2, ASKS))]
                assert [place in written for place in places] == [True, True]
                assert written.index(places[0]) < written.index(places[1])
            await readers.aclose()


async def test_a_journal_row_that_cannot_be_read_does_not_stop_the_recovery(
    tmp_path: Path,
) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            await store.ref.ask(RecordIntent("r1", 0, ASKS))
            await store.database.execute("INSERT INTO steps VALUES ('r1', 1, 'not json')")
            await store.database.execute("INSERT INTO steps VALUES ('r1', 2, 7)")
            (run,) = await store.ref.ask(RecoverRuns())
            assert run.run_id == "r1"
            assert violations(await store.transcript()) == ()


def test_an_answer_that_was_journalled_is_not_called_missing() -> None:
    run = RunInfo("r", "s", "a", "u", "running", "hi", 0.0, 0.0)
    rows: tuple[ChatMessage, ...] = (ASKS, RESULT, ANSWER)
    steps = [(step, encode_message(row)) for step, row in enumerate(rows)]
    assert interrupted_rows(run, steps) == ROWS


TURNS = st.lists(st.integers(0, 3), max_size=4)


@given(TURNS, st.randoms(use_true_random=False), st.booleans())
def test_any_part_of_a_journal_makes_a_valid_transcript(
    turns: list[int], random: Random, answered: bool
) -> None:
    """Law: whatever rows of a journal survived, the recovered transcript breaks no rule (G7)."""
    journal: list[ChatMessage] = []
    for turn, calls in enumerate(turns):
        asked = tuple(Call(f"c{turn}.{index}", CALL.name) for index in range(1, calls + 2))
        results = [ToolMessage(call.id, call.name, "ok") for call in asked]
        random.shuffle(results)
        journal += [AssistantMessage("", asked), *results]
    if answered:
        journal.append(ANSWER)
    steps = [
        (step, encode_message(row)) for step, row in enumerate(journal) if random.random() < 0.7
    ]
    run = RunInfo("r", "s", "a", "u", "running", "hi", 0.0, 0.0)
    transcript = interrupted_rows(run, steps)
    assert violations(transcript) == ()
    assert isinstance(transcript[-1], AssistantMessage)
    assert not transcript[-1].calls


def test_any_two_hosts_one_after_the_other_keep_every_input(tmp_path: Path) -> None:
    """A host that is cancelled anywhere leaves only inputs that the next one lists."""

    async def first(steps: int, acknowledged: list[str]) -> None:
        with Location.directory(tmp_path) as location, trio.CancelScope() as scope:
            async with open_store(location) as store, trio.open_nursery() as nursery:

                async def send(run_id: str) -> None:
                    await store.accept(run_id, session=run_id)
                    acknowledged.append(run_id)

                for index in range(4):
                    nursery.start_soon(send, f"{steps:02}-{index}")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    async def second() -> list[str]:
        with Location.directory(tmp_path) as location:
            async with open_store(location) as store:
                await store.ref.ask(RecoverRuns())
                return sorted(run.run_id for run in await store.ref.ask(ListRuns(limit=1000)))

    acknowledged: list[str] = []
    for steps in range(12):
        trio.run(first, steps, acknowledged)
        assert trio.run(second) == sorted(acknowledged)


async def test_a_stored_end_is_listed_until_it_is_in_the_event_journal(tmp_path: Path) -> None:
    end = RunCompleted(Usage(1, 2))
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            await store.ref.ask(FinishRun("r1", "completed", ROWS, event=end))
            assert await store.ref.ask(ListUnpublishedEnds()) == (
                UnpublishedEnd("s", "alice", "r1", end),
            )
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            # As after a kill: nothing has told it.
            (told,) = await store.ref.ask(ListUnpublishedEnds())
            record = EventRecord("session:s", told.event, 1.0, run_id=told.run_id)
            await store.database.ref.ask(append_events([storable(record)]))
            assert await store.ref.ask(ListUnpublishedEnds()) == ()
            assert await store.ref.ask(RecoverRuns()) == ()


async def test_an_interrupted_run_is_reported_once(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as store:
            await store.accept("r1")
            await store.ref.ask(RecoverRuns())
            (told,) = await store.ref.ask(ListUnpublishedEnds())
            assert isinstance(told.event, RunInterrupted)
            await store.ref.ask(RecoverRuns())
            assert await store.ref.ask(ListUnpublishedEnds()) == (told,)
