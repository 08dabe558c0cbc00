"""The journal of runs writes behind: together, a little later, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.storage.run_access import LIMIT, PATIENCE, RunJournal
from motet.protocols.chat import UserMessage
from motet.protocols.storage import Statement, StorageError


@attrs.define
class Disk:
    fails: Callable[[Statement], bool] = lambda _: False
    written: list[tuple[str, ...]] = attrs.field(factory=list[tuple[str, ...]])

    async def write(self, statements: tuple[Statement, ...]) -> None:
        await trio.lowlevel.checkpoint()
        if any(map(self.fails, statements)):
            raise StorageError("too large")
        self.written.append(tuple(statement.sql for statement in statements))


async def test_statements_that_come_together_share_a_transaction(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    journal = RunJournal()
    nursery.start_soon(journal.run, disk.write)
    for name in ("a", "b", "c"):
        await journal.add(f"run_{name}", Statement(name))
        await wait_all_tasks_blocked()
    assert disk.written == []
    await trio.sleep(2 * PATIENCE)
    assert disk.written == [("a", "b", "c")]
    assert journal.pending("run_a") == ()
    nursery.cancel_scope.cancel()


async def test_statements_written_with_an_intent_are_not_written_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    journal = RunJournal()
    nursery.start_soon(journal.run, disk.write)
    await journal.add("r1", Statement("a"))
    taken = journal.pending("r1")
    await journal.add("r1", Statement("b"))
    journal.written("r1", taken)
    await trio.sleep(2 * PATIENCE)
    assert disk.written == [("b",)]
    nursery.cancel_scope.cancel()


async def test_runs_that_end_young_one_after_the_other_are_never_written(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk, journal = Disk(), RunJournal()
    nursery.start_soon(journal.run, disk.write)
    for number in range(20):
        await journal.add(f"r{number}", Statement("begin"))
        await trio.sleep(PATIENCE / 3)
        journal.discard(f"r{number}")
    await journal.add("long", Statement("begin long"))
    await trio.sleep(1.1 * PATIENCE)
    assert disk.written == [("begin long",)]
    nursery.cancel_scope.cancel()


async def test_one_that_cannot_be_written_takes_no_other_with_it(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk(lambda statement: statement.sql == "bad")
    journal = RunJournal()
    nursery.start_soon(journal.run, disk.write)
    for name in ("a", "bad", "b"):
        await journal.add(name, Statement(name))
    await trio.sleep(2 * PATIENCE)
    assert disk.written == [("a",), ("b",)]
    assert journal.lost == 1
    nursery.cancel_scope.cancel()


async def test_more_than_the_limit_wait_for_room(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    journal = RunJournal()
    for n in range(LIMIT):
        await journal.add("r1", Statement(str(n)))
    nursery.start_soon(journal.add, "r1", Statement("late"))
    await wait_all_tasks_blocked()
    assert len(journal.pending("r1")) == LIMIT
    nursery.start_soon(journal.run, disk.write)
    await trio.sleep(4 * PATIENCE)
    assert [len(one) for one in disk.written] == [LIMIT, 1]
    nursery.cancel_scope.cancel()


async def test_all_runs_that_wait_for_room_get_it(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk, journal = Disk(), RunJournal()
    for n in range(LIMIT):
        await journal.add("r1", Statement(str(n)))
    for n in range(3):
        nursery.start_soon(journal.add, f"late_{n}", Statement("late"))
        await wait_all_tasks_blocked()
    nursery.start_soon(journal.run, disk.write)
    await trio.sleep(4 * PATIENCE)
    assert [len(one) for one in disk.written] == [LIMIT, 3]
    nursery.cancel_scope.cancel()


async def test_the_next_writer_writes_waiting_statements_and_no_run_waits_without_one(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk, journal = Disk(), RunJournal()
    for n in range(LIMIT):
        await journal.add("r1", Statement(str(n)))
    with trio.move_on_after(PATIENCE / 2):
        await journal.run(disk.write)
    assert journal.closed
    await journal.add("r1", Statement("too many"))
    assert journal.lost == 1
    nursery.start_soon(journal.run, disk.write)
    await trio.sleep(2 * PATIENCE)
    assert [len(one) for one in disk.written] == [LIMIT]
    assert not journal.closed
    nursery.cancel_scope.cancel()


async def test_a_run_that_waits_for_room_is_released_when_the_writer_ends(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk, journal = Disk(lambda _: True), RunJournal()
    for n in range(LIMIT):
        await journal.add("r1", Statement(str(n)))
    nursery.start_soon(journal.add, "late", Statement("late"))
    await wait_all_tasks_blocked()
    with trio.move_on_after(PATIENCE / 2):
        await journal.run(disk.write)
    await wait_all_tasks_blocked()
    assert (journal.lost, nursery.child_tasks) == (1, frozenset())


async def test_rows_that_follow_each_other_share_a_statement_and_leave_all_of_their_room(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk, journal = Disk(), RunJournal()
    nursery.start_soon(journal.run, disk.write)
    for _ in range(2):  # with less room than it has left, the second time would never end
        for step in range(LIMIT - 2):
            await journal.note("r", step, UserMessage(str(step)))
        await journal.add("r", Statement("hand over"))
        await journal.note("r", LIMIT, UserMessage("last"))
        steps, handed, last = journal.pending("r")
        assert (len(steps.each), steps.each[-1][1], handed.sql) == (
            LIMIT - 2,
            LIMIT - 3,
            "hand over",
        )
        assert (last.params[1], last.sql) == (LIMIT, steps.sql)
        await trio.sleep(2 * PATIENCE)
        assert journal.pending("r") == ()
    assert [len(group) for group in disk.written] == [3, 3]
    nursery.cancel_scope.cancel()
