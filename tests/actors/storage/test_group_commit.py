"""Group commit, without SQLite: who leads, who waits, and what a cancellation does to each."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.writer import CommitStatistics, GroupCommit
from motet.protocols.storage import StorageError


@attrs.define
class Disk:
    """Commits when told to, as a disk does: not when it is asked, and deaf to cancellation."""

    groups: list[list[str]] = attrs.field(factory=list[list[str]])
    gate: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(0))
    failure: Exception | None = None

    async def commit(self, group: list[str]) -> Sequence[str | StorageError]:
        with trio.CancelScope(shield=True):
            await self.gate.acquire()
        if self.failure is not None:
            raise self.failure
        self.groups.append(group)
        return [StorageError(item) if item.startswith("bad") else item.upper() for item in group]

    @property
    def stored(self) -> list[str]:
        return [item for group in self.groups for item in group]


@attrs.define
class Asker:
    outcome: str = "waiting"
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def submit(self, group: GroupCommit[str, str], item: str) -> None:
        with self.scope:
            try:
                self.outcome = await group.submit(item)
            except trio.Cancelled:
                self.outcome = "cancelled"
                raise
            except Exception as error:
                self.outcome = f"{type(error).__name__}: {error}"


async def ask(nursery: trio.Nursery, group: GroupCommit[str, str], *items: str) -> list[Asker]:
    askers: list[Asker] = []
    for item in items:
        askers.append(Asker())
        nursery.start_soon(askers[-1].submit, group, item)
        await wait_all_tasks_blocked()
    return askers


async def test_those_who_come_during_a_commit_share_the_next_one() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c", "d")
        assert group.statistics() == CommitStatistics(commits=1, items=1, waiting=3)
        disk.gate.release()
        disk.gate.release()
    assert disk.groups == [["a"], ["b", "c", "d"]]
    assert [asker.outcome for asker in askers] == ["A", "B", "C", "D"]
    assert group.statistics() == CommitStatistics(commits=2, items=4, waiting=0)


async def test_one_that_waits_is_withdrawn_by_its_cancellation() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        askers[1].scope.cancel()
        await wait_all_tasks_blocked()
        assert askers[1].outcome == "cancelled"
        disk.gate.release()
        disk.gate.release()
    assert disk.groups == [["a"], ["c"]]


async def test_one_that_was_taken_gets_its_outcome_however_often_it_is_cancelled() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "bad c")
        disk.gate.release()
        await wait_all_tasks_blocked()
        for asker in askers:
            asker.scope.cancel()
        await wait_all_tasks_blocked()
        assert [asker.outcome for asker in askers] == ["A", "waiting", "waiting"]
        disk.gate.release()
    assert [asker.outcome for asker in askers] == ["A", "B", "StorageError: bad c"]


async def test_the_chosen_leader_leads_although_it_is_cancelled_at_that_moment() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        disk.gate.release()
        disk.gate.release()
        # The first asker settles and chooses the second before this scope is looked at.
        await trio.lowlevel.checkpoint()
        askers[1].scope.cancel()
    assert askers[0].outcome == "A"
    assert askers[2].outcome == "C"
    assert (askers[1].outcome == "B") == ("b" in disk.stored)


async def test_a_commit_that_breaks_off_leaves_nobody_waiting() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        disk.gate.release()
        await wait_all_tasks_blocked()
        disk.failure = RuntimeError("no thread")
        disk.gate.release()
    assert [asker.outcome for asker in askers] == [
        "A",
        "RuntimeError: no thread",
        "StorageError: the commit broke off: outcome unknown",
    ]


async def test_an_asker_that_is_cancelled_already_writes_nothing() -> None:
    disk = Disk()
    with trio.CancelScope() as scope:
        scope.cancel()
        await GroupCommit(disk.commit).submit("a")
        pytest.fail("a cancelled asker was answered")
    assert disk.groups == []


STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 0)),
    st.tuples(st.just("cancel"), st.integers(0, 11)),
    st.tuples(st.just("commit"), st.integers(0, 0)),
    st.tuples(st.just("step"), st.integers(0, 0)),
)


@given(st.lists(STEP, max_size=24))
def test_an_item_is_stored_exactly_if_its_asker_was_answered(steps: list[tuple[str, int]]) -> None:
    """Law: for every order of asking, cancelling and committing, stored <=> answered, once each."""
    disk = Disk()
    group = GroupCommit(disk.commit)
    askers: list[Asker] = []

    async def world() -> None:
        async with trio.open_nursery() as nursery:
            for kind, index in steps:
                if kind == "ask":
                    askers.append(Asker())
                    nursery.start_soon(askers[-1].submit, group, f"i{len(askers) - 1}")
                elif kind == "cancel" and index < len(askers):
                    askers[index].scope.cancel()
                elif kind == "commit":
                    disk.gate.release()
                else:
                    await trio.lowlevel.checkpoint()
            for _ in askers:
                disk.gate.release()

    trio.run(world)
    answered = [f"i{i}" for i, asker in enumerate(askers) if asker.outcome == f"I{i}"]
    assert sorted(disk.stored) == sorted(answered)
    assert {asker.outcome for asker in askers} <= {"cancelled", *(f"I{i}" for i in range(24))}
