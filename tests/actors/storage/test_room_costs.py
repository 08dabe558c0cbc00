"""The stores keep the sums of rooms: each statement on ``runs``, in random orders, with kills."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio

from motet.actors.storage.approvals import ApprovalStore
from motet.actors.storage.connection import Connection
from motet.actors.storage.readers import Readers
from motet.actors.storage.run_access import RunJournal
from motet.actors.storage.schema import migrate
from motet.actors.storage.session_runs import RunTables
from motet.actors.storage.writer import commit_group
from motet.protocols.approvals import (
    ListSuspended,
    ResumeRun,
    SuspendedState,
    SuspendRun,
    TurnState,
)
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.limits import Limits
from motet.protocols.models import Usage
from motet.protocols.queueing import JoinInputs
from motet.protocols.recovery import InputOptions
from motet.protocols.room_costs import OF_ROOM
from motet.protocols.room_newcomers import KeepSummary, keep_summary, outdated
from motet.protocols.sessions import (
    AcceptInput,
    EnterRun,
    FinishRun,
    HandOver,
    MarkStopped,
    NewInput,
    RecordIntent,
    RecoverRuns,
)
from motet.protocols.storage import Row, Rows, SqlValue, StorageError, Transaction
from tests.room_sums import DIFFERENCES, WATCH

ROOT = Path(__file__).parents[3]
ON_RUNS = re.compile(r"\b(?:(?:INSERT|REPLACE)(?: OR \w+)? INTO|UPDATE(?: OR \w+)?)\s+runs\b", re.I)
PEOPLE = ("ann", "bo", "cy")
SAID = (UserMessage("hi"), AssistantMessage("ho"))
ENDS = ("completed", "failed", "cancelled", "limited", "dropped", "interrupted")


class Shelf(Readers):
    """Reads of the one connection that is written to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        return self._connection.run(sql, params)


class World:
    """One database under a series of hosts, and the requests that they make of it."""

    def __init__(self, seed: int, executed: set[str]) -> None:
        self.random = Random(seed)
        self.db = Connection(":memory:")
        migrate(self.db)
        self.db.run(WATCH)
        self.now = 1_000_000.0
        self.executed = executed
        self.live: dict[str, str] = {}  # by run, its session
        self.of_rooms = 0
        self.start()

    def start(self) -> None:
        """A host begins: it knows nothing but the rows."""
        shelf = Shelf(self.db)
        self.journal = RunJournal()
        self.runs = RunTables(self.commit, shelf, lambda: self.now, journal=self.journal)
        self.approvals = ApprovalStore(self.commit, shelf, self.journal, lambda: self.now)

    async def commit(self, statements: Transaction) -> Rows:
        (done,) = commit_group(self.db, [statements], "the test")
        if isinstance(done, StorageError):
            raise done
        self.executed.update(one.sql for one in statements if ON_RUNS.search(one.sql))
        return done

    async def accept(self, session: str = "", parent: str | None = None) -> None:
        number = len(self.db.run("SELECT 1 FROM runs"))
        kind = self.random.choice(("person", "turn", "turn", "thread", "chooser"))
        if parent is not None:
            ((user, given),) = self.db.run("SELECT user, given FROM runs WHERE run_id=?", (parent,))
            session = f"agent:helper:subagent:{number}"
        elif session:
            ((user, given),) = self.db.run(
                "SELECT user, given FROM runs WHERE session = ?1 LIMIT 1", (session,)
            )
        else:
            member = kind in ("turn", "thread")
            user = {"person": "ann", "thread": "room:dev/7"}.get(kind, "room:dev")
            session = f"agent:a:room:group:{number}" if member else f"agent:s:subagent:{number}"
            payers = tuple(self.random.sample(PEOPLE, self.random.randrange(4)))
            given = msgspec.json.encode(InputOptions("operator", payers=payers)).decode()
        new = NewInput(f"r{number}", session, "a", str(user), "hi", parent=parent, given=str(given))
        await self.runs.accept(AcceptInput(new))
        self.live[new.run_id] = session
        self.of_rooms += new.user.startswith(OF_ROOM)

    def usage(self) -> Usage:
        tokens, cents = self.random.randrange(999), self.random.randrange(999)
        return Usage(tokens, self.random.randrange(9), cost=cents / 7)

    async def step(self) -> None:
        """One request; those that a store refuses change nothing."""
        self.now += self.random.choice((0.5, 1.0, 5_000.0))
        act, one = self.random.choice(ACTS), self.random.choice((*self.live, ""))
        if not one or act == "accept":
            await self.accept()
            return
        session = self.live[one]
        others = tuple(
            other for other in self.live if self.live[other] == session and other != one
        )[: self.random.randrange(3)]
        with suppress(NotFound, StorageError):
            await getattr(self, f"do_{act}")(one, session, others)
        self.live = {
            str(run): str(session)
            for run, session in self.db.run(
                "SELECT run_id, session FROM runs WHERE status IN ('queued', 'running', 'waiting')"
            )
        }

    async def do_again(self, _: str, session: str, __: tuple[str, ...]) -> None:
        await self.accept(session)

    async def do_child(self, run: str, _: str, __: tuple[str, ...]) -> None:
        await self.accept(parent=run)

    async def do_begin(self, run: str, _: str, __: tuple[str, ...]) -> None:
        await self.journal.begin(run, self.now)
        if self.random.random() < 0.3:
            await self.journal.hand_over(run, "b")

    async def do_write(self, run: str, _: str, __: tuple[str, ...]) -> None:
        pending = self.journal.pending(run)
        await self.commit(pending)
        self.journal.written(run, pending)

    async def do_intent(self, run: str, _: str, others: tuple[str, ...]) -> None:
        usage = self.usage() if self.random.random() < 0.8 else None
        earlier = SAID[:1] if self.random.random() < 0.3 else ()
        agents = ("b",) if self.random.random() < 0.2 else ()
        await self.runs.record_intent(
            RecordIntent(run, len(earlier), SAID[1], usage, earlier, others, agents)
        )

    async def do_join(self, run: str, _: str, others: tuple[str, ...]) -> None:
        await self.runs.join_inputs(JoinInputs(run, "hi\nhi", others))

    async def do_enter(self, run: str, _: str, others: tuple[str, ...]) -> None:
        await self.runs.enter_run(EnterRun(run, 1, SAID[:1], others[:1], others[1:]))

    async def do_hand(self, run: str, _: str, __: tuple[str, ...]) -> None:
        await self.runs.hand_over(HandOver(run, ("b", "c")))

    async def do_stop(self, run: str, _: str, __: tuple[str, ...]) -> None:
        await self.runs.mark_stopped(MarkStopped(run, "enough"))

    async def do_suspend(self, run: str, _: str, __: tuple[str, ...]) -> None:
        turn = TurnState(spent=self.usage())
        state = SuspendedState(SAID, 1, 2, "operator", Limits(), turn)
        await self.approvals.suspend(SuspendRun(run, state))

    async def do_resume(self, run: str, _: str, __: tuple[str, ...]) -> None:
        await self.approvals.resume(ResumeRun(run))

    async def do_end(self, run: str, _: str, others: tuple[str, ...]) -> None:
        status = self.random.choice(ENDS)
        await self.runs.finish(FinishRun(run, status, SAID, self.usage(), inputs=others))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def do_summary(self, _: str, __: str, ___: tuple[str, ...]) -> None:
        """A message of a room is changed while a summary for newcomers is made."""
        kept = keep_summary(KeepSummary("dev", 1, "so far", 0), self.now)
        await self.commit((*kept, *outdated("dev", 1, "1")))

    async def do_kill(self, _: str, __: str, ___: tuple[str, ...]) -> None:
        """The host dies, and the next one takes up some runs and closes the others."""
        self.start()
        await self.approvals.list_suspended(ListSuspended())
        live, few = [*self.live], len(self.live) // 3
        kept, drop = (tuple(self.random.sample(live, few)) for _ in range(2))
        await self.runs.recover(RecoverRuns(keep=kept, drop=drop))


ACTS = [
    "accept",
    *(name.removeprefix("do_") for name in vars(World) if name.startswith("do_")),
    *("intent", "intent", "child", "end"),
]


def played(seeds: range, steps: int) -> set[str]:
    """Play this many worlds; the statements on ``runs`` that were executed."""
    executed: set[str] = set()

    async def play() -> None:
        for seed in seeds:
            world = World(seed, executed)
            with closing(world.db):
                for step in range(steps):
                    await world.step()
                    assert world.db.run(DIFFERENCES) == (), f"seed {seed}, step {step}"
                assert world.of_rooms > 0

    trio.run(play)
    return executed


def statements_on_runs() -> dict[str, str]:
    """The statements of the product that add or change runs, and where each stands."""
    found: dict[str, str] = {}
    files = sorted(ROOT.glob("actors/**/*.py")) + sorted(ROOT.glob("protocols/**/*.py"))
    for file in files:
        if file.name == "host_tables.py":  # a host has no runs while it takes steps of the schema
            continue
        count = len(ON_RUNS.findall(file.read_text("utf-8")))
        if count:
            path = file.relative_to(ROOT).with_suffix("")
            module = import_module(".".join(("motet", *path.parts)))
            texts = {one for one in vars(module).values() if isinstance(one, str)}
            named = {one for one in texts if ON_RUNS.search(one)}
            assert len(named) >= count, f"name each statement on runs of {path}, for this test"
            found |= dict.fromkeys(named, str(path))
    return found


def test_the_sums_are_those_of_all_rows_after_any_requests_and_kills() -> None:
    """Law: after each of random requests to the stores, by a series of hosts that die, the sums are
    those that triggers on the table of runs would keep. The worlds execute every statement of the
    product that adds or changes a run: a new one has to be drawn here, too.
    """
    executed = played(range(12), 120)
    missing = {where: sql for sql, where in statements_on_runs().items() if sql not in executed}
    assert missing == {}


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(10))
def test_in_many_worlds_the_sums_are_those_of_all_rows(part: int) -> None:
    played(range(1_000 + part * 200, 1_200 + part * 200), 200)


def test_a_run_outside_of_rooms_executes_no_statement_for_them() -> None:
    """Also not in a host that did not accept it, as far as that one knows whose run it is."""

    async def play() -> None:
        world = World(0, set())
        seen: list[str] = []

        async def commit(statements: Transaction) -> Rows:
            seen.extend(one.sql for one in statements)
            return await World.commit(world, statements)

        world.commit = commit  # type: ignore[method-assign]
        world.start()
        for run in ("r1", "r2", "r3"):
            new = NewInput(run, f"agent:a:room:group:{run}", "a", "ann", "hi", given="{}")
            await world.runs.accept(AcceptInput(new))
            await world.do_intent(run, "", ())
            await world.do_suspend(run, "", ())
            await world.do_resume(run, "", ())
        await world.runs.finish(FinishRun("r1", "completed", SAID))
        world.start()
        await world.runs.finish(FinishRun("r2", "completed", SAID))
        await world.runs.recover(RecoverRuns())
        assert not [sql for sql in seen if "room_costs" in sql]
        assert len(seen) > 20

    trio.run(play)
