"""G9: what a supervisor does is a pure function of the exits, and the running tree equals it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message
from motet.runtime import (
    Actor,
    RestartLimitExceeded,
    StartFailed,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.supervision import ChildTable, ExitKind
from tests.guarantees.exits import Case, difference, random_cases, shrunk
from tests.guarantees.laws import holds, holds_on, is_found, mutants_of
from tests.guarantees.worlds.linked import NAME as LINKS
from tests.guarantees.worlds.regroup import NAME as GROUPS


def test_the_table_equals_the_model_for_every_sequence_of_exits() -> None:
    """Law: starts, stops, delays and escalation of the table are those of the model."""
    _agree(random_cases(block=0, count=20_000))


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(20))
def test_the_table_equals_the_model_a_million_times(block: int) -> None:
    """Law: the same, for another 50,000 sequences in each block."""
    _agree(random_cases(block, count=50_000))


def _agree(cases: Iterable[Case]) -> None:
    for case in cases:
        if difference(case) is not None:
            smallest = shrunk(case)
            pytest.fail(f"{smallest}: {difference(smallest)}")


def test_a_difference_shrinks_to_the_exits_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_for_one(table: ChildTable, failed: str) -> tuple[str, ...]:
        return tuple(table.running) if failed == "c1" else (failed,)

    monkeypatch.setattr(ChildTable, "_group", two_for_one)
    exits: list[tuple[float, int, ExitKind]] = [(0.5, 0, "crashed"), (0.5, 1, "crashed")] * 4
    case = Case("one_for_one", 100, False, ("permanent",) * 2, tuple(exits))

    assert shrunk(case).exits == ((0.5, 1, "crashed"),)


def test_the_running_tree_does_what_the_model_does() -> None:
    """Law: the actors that run, and the order in which they come and go, are the model's, for every
    sequence of exits in virtual time and every schedule."""
    holds("G9", schedules=120)
    holds_on("G9", 695, 1719, 2211)  # children due at the same time did not start in their order


def test_a_group_restarts_at_once_though_its_members_wait_for_each_other() -> None:
    """Law: a restart of a group takes no time but that of handlers, since whoever waits for a
    member and has to end first learns of the failure at once; and only those do."""
    holds(GROUPS, schedules=120)
    holds_on(GROUPS, 13_372)  # a member ended by itself while others of the group were ending


@pytest.mark.sweep
def test_a_group_restarts_at_once_in_twenty_thousand_schedules() -> None:
    """Law: the same."""
    holds(GROUPS, schedules=20_000)


def test_whoever_is_linked_to_an_actor_that_fails_fails_with_it_and_nobody_else() -> None:
    """Law: the failures and restarts of linked actors are those of a model, and a link is on both
    sides or on none, however several failures meet."""
    holds(LINKS, schedules=60)


@pytest.mark.parametrize("mutant", [*mutants_of("G9"), *mutants_of(GROUPS), *mutants_of(LINKS)])
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


@given(
    st.floats(0.01, 10),
    st.floats(1, 4),
    st.floats(10, 100),
    st.floats(0, 1),
    st.integers(1, 5_000),
    st.floats(0, 1, exclude_max=True),
)
def test_back_off_lies_within_its_declared_bounds(
    backoff: float, factor: float, most: float, jitter: float, streak: int, chance: float
) -> None:
    """Law: (1 - jitter) * min(backoff * factor^(n-1), max) <= delay <= min(...)."""
    spec = Supervision(backoff=backoff, backoff_factor=factor, backoff_max=most, jitter=jitter)
    full = min(backoff * factor ** min(streak - 1, 64), most)

    delay = spec.delay(streak, chance)

    assert full * (1 - jitter) <= delay <= full
    assert delay <= spec.delay(streak + 1, 0.0)


def test_a_child_that_lived_long_begins_a_new_row_of_back_offs() -> None:
    table = ChildTable(Supervision(intensity=100, period=5, backoff=1, jitter=0))
    table.add("child", "permanent")
    delays: list[float] = []
    now = 0.0
    for lived in (1, 1, 1, 6, 1):
        table.starting("child", now)
        now += lived
        delays.append(table.exited("child", "crashed", now, 0).delay)

    assert delays == [1, 2, 4, 1, 2]


# ---------------------------------------------------------------- the running tree


class Exit(Message, frozen=True, tag="g9.exit"):
    kind: ExitKind


class Child(Actor[Exit]):
    """Does as it is told, and writes down when it starts and stops."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def on_start(self) -> None:
        self.log.append(f"+{self.name}")

    async def on_stop(self) -> None:
        self.log.append(f"-{self.name}")

    @handles(Exit)
    async def exit(self, message: Exit) -> None:
        if message.kind == "crashed":
            raise RuntimeError(f"{self.name} was told to crash")
        self.stop_soon()


async def test_more_failures_than_allowed_escalate_to_the_parent_and_then_to_the_block() -> None:
    log: list[str] = []

    class Parent(Actor[Exit]):
        supervision = Supervision(intensity=1, period=60)

        async def on_start(self) -> None:
            log.append("parent starts")
            await self.start_child(lambda: Child([]), name="child")

        async def on_stop(self) -> None:
            log.append("parent stops")

        @handles(Exit)
        async def exit(self, message: Exit) -> None:
            child = self.child("child")
            assert child is not None
            await child.tell(message)

    with pytest.raises(RestartLimitExceeded, match="/system gave up") as caught:  # noqa: PT012
        async with open_system(supervision=Supervision(intensity=1)) as system:
            parent = await system.start(Parent, name="parent")
            for _ in range(4):
                await parent.tell(Exit("crashed"))
                await wait_all_tasks_blocked()
            await trio.sleep_forever()

    assert log == ["parent starts", "parent stops"] * 2
    # The whole story is in the causes: the system, the parent, the child.
    parents = caught.value.__cause__
    assert isinstance(parents, RestartLimitExceeded)
    assert parents.path == "/system/parent"
    assert str(parents.__cause__) == "child was told to crash"


async def test_restarts_wait_for_their_back_off(autojump_clock: MockClock) -> None:
    spec = Supervision(intensity=100, backoff=1, backoff_max=4, jitter=0.5)
    starts: list[float] = []

    class Timed(Child):
        async def on_start(self) -> None:
            starts.append(trio.current_time())

    async with open_system(supervision=spec, chance=lambda: 0.5) as system:
        child = await system.start(lambda: Timed([]), name="child")
        for _ in range(4):
            child.tell_nowait(Exit("crashed"))
        await trio.sleep(100)

    waits = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert waits == pytest.approx([0.75, 1.5, 3, 3])


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    log: list[str] = []

    class Broken(Child):
        async def on_start(self) -> None:
            self.start_soon(trio.sleep_forever)
            await self.start_child(lambda: Child(log), name="below")
            raise OSError("no such device")

    async with open_system() as system:
        with pytest.raises(StartFailed, match="no such device") as caught:
            await system.start(lambda: Broken([]), name="broken")

        assert isinstance(caught.value.__cause__, OSError)
        assert system.snapshot() == ()
        # The children it had started have ended in order, and its name is free again.
        assert log == ["+below", "-below"]
        await system.start(lambda: Child([]), name="broken")


async def test_a_restart_whose_start_fails_counts_as_one_more_failure() -> None:
    starts: list[int] = []

    class Flaky(Child):
        async def on_start(self) -> None:
            starts.append(len(starts))
            if len(starts) in (2, 3):
                raise OSError("not yet")

    async with open_system() as system:
        ref = await system.start(lambda: Flaky([]), name="flaky")
        await ref.tell(Exit("crashed"))
        await wait_all_tasks_blocked()

        assert len(starts) == 4
        assert ref.statistics().restarts == 3
        assert ref.statistics().state == "running"


async def test_a_cancelled_start_is_unwound_before_its_caller_goes_on(
    autojump_clock: MockClock,
) -> None:
    class Slow(Child):
        async def on_start(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)
                self.log.append("unwound")

    log: list[str] = []
    async with open_system() as system:
        with trio.move_on_after(1):
            await system.start(lambda: Slow(log), name="slow")

        assert log == ["unwound"]
        assert trio.current_time() == 4
        assert system.snapshot() == ()
