"""G9: what a supervisor does is a pure function of the exits, and the running tree equals it."""

from __future__ import annotations

import itertools

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message
from motet.runtime import (
    Actor,
    ActorRef,
    Restart,
    RestartLimitExceeded,
    StartFailed,
    Strategy,
    Supervision,
    handles,
    open_system,
)
from motet.runtime.supervision import ChildTable, Decision, ExitKind

RESTARTS: tuple[Restart, ...] = ("permanent", "transient", "temporary")
STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")


@attrs.define
class Model:
    """OTP's rules, written down once more in the plainest way: lists, and nothing clever."""

    strategy: Strategy
    intensity: int
    period: float
    order: list[str]
    restart: dict[str, Restart]
    up: set[str]
    spent: list[float] = attrs.field(factory=list[float])
    log: list[str] = attrs.field(factory=list[str])
    given_up: bool = False

    def exit(self, name: str, kind: ExitKind, now: float) -> None:
        if self.given_up or name not in self.up:
            return
        self.up.discard(name)
        if self.restart[name] == "temporary" or (
            self.restart[name] == "transient" and kind == "normal"
        ):
            self.order.remove(name)
            return
        self.spent.append(now)
        if sum(1 for at in self.spent if at >= now - self.period) > self.intensity:
            self.given_up = True
            self.log += [f"-{other}" for other in self.order[::-1] if other in self.up]
            self.up.clear()
            return
        first = self.order.index(name)
        group = {
            "one_for_one": self.order[first : first + 1],
            "rest_for_one": self.order[first:],
            "one_for_all": self.order[:],
        }[self.strategy]
        for other in reversed(group):
            if other in self.up:
                self.log.append(f"-{other}")
                self.up.discard(other)
        for other in group:
            if self.restart[other] == "temporary":
                self.order.remove(other)
            else:
                self.log.append(f"+{other}")
                self.up.add(other)


def execute(table: ChildTable, decision: Decision, now: float, log: list[str]) -> None:
    """What the shell does with a decision, without a shell."""
    log += [f"-{name}" for name in decision.stops]
    for name in decision.starts:
        log.append(f"+{name}")
        table.starting(name, now)


exits = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(("normal", "crashed")),
        st.sampled_from((0.0, 0.5, 1.0, 3.0)),
    ),
    max_size=25,
)


@given(
    st.sampled_from(STRATEGIES),
    st.integers(0, 4),
    st.lists(st.sampled_from(RESTARTS), min_size=1, max_size=5),
    exits,
)
def test_the_table_equals_the_model_for_every_sequence_of_exits(
    strategy: Strategy,
    intensity: int,
    restarts: list[Restart],
    sequence: list[tuple[int, ExitKind, float]],
) -> None:
    """Law: starts, stops and escalation of the table are those of the model."""
    table = ChildTable(Supervision(strategy=strategy, intensity=intensity, period=2.0))
    names = [f"c{index}" for index in range(len(restarts))]
    model = Model(
        strategy, intensity, 2.0, names.copy(), dict(zip(names, restarts, strict=True)), set(names)
    )
    for name, restart in model.restart.items():
        table.add(name, restart)
        table.starting(name, 0.0)
    log: list[str] = []
    now = 0.0
    for index, kind, later in sequence:
        now += later
        name = names[index % len(names)]
        decision = table.exited(name, kind, now, 0.5)
        execute(table, decision, now, log)
        model.exit(name, kind, now)

        assert log == model.log
        assert set(table.running) == model.up
        assert decision.escalate <= model.given_up
        if model.given_up:
            return


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


@given(
    st.sampled_from(STRATEGIES),
    st.integers(0, 3),
    st.lists(st.sampled_from(RESTARTS), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("normal", "crashed"))), max_size=8),
)
def test_the_running_tree_equals_the_decisions(
    strategy: Strategy,
    intensity: int,
    restarts: list[Restart],
    sequence: list[tuple[int, ExitKind]],
) -> None:
    """Law: the actors that run, and the order in which they came and went, are the model's."""
    names = [f"c{index}" for index in range(len(restarts))]
    spec = Supervision(strategy=strategy, intensity=intensity, period=1000.0)
    model = Model(
        strategy,
        intensity,
        1000.0,
        names.copy(),
        dict(zip(names, restarts, strict=True)),
        set(names),
        log=[f"+{name}" for name in names],
    )
    log: list[str] = []

    async def main() -> None:
        async with open_system(supervision=spec) as system:
            refs: dict[str, ActorRef[Exit]] = {}
            for name, restart in model.restart.items():
                refs[name] = await system.start(lambda: Child(log), name=name, restart=restart)
            for index, kind in sequence:
                name = names[index % len(names)]
                if name not in model.up:
                    assert not refs[name].is_alive
                    continue
                # The failing child writes its own end down; the table speaks of the others.
                model.log.append(f"-{name}")
                model.exit(name, kind, 0)
                refs[name].tell_nowait(Exit(kind))
                await wait_all_tasks_blocked()
                alive = {info.path.rpartition("/")[2] for info in system.snapshot()}
                assert alive == model.up
                assert log == model.log

    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    except RestartLimitExceeded:
        assert model.given_up
        assert log == model.log
    else:
        assert not model.given_up


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
