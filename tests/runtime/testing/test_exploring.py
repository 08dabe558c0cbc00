"""Reduced exploration: it sees all that the search of every schedule sees, in far fewer runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, handles, open_system
from motet.runtime.testing import Simulation, World, explore, run
from motet.runtime.testing.exploring import EVERYTHING, Search, Step
from motet.runtime.testing.policies import next_choices

Op: TypeAlias = tuple[str, int]
Plan: TypeAlias = list[list[Op]]
Seen: TypeAlias = tuple[object, ...]

ops = st.tuples(
    st.sampled_from(["add", "double", "own", "send", "take", "lock", "set", "await"]),
    st.integers(0, 1),
)
plans = st.lists(st.lists(ops, min_size=1, max_size=3), min_size=2, max_size=3).filter(
    lambda plan: sum(map(len, plan)) <= 6
)


class Cellar:
    """Two shared numbers, a lock, an event, and a channel."""

    def __init__(self) -> None:
        self.numbers = [[1], [1]]
        self.lock = trio.Lock()
        self.event = trio.Event()
        self.send, self.take = trio.open_memory_channel[int](2)


def world_of(plan: Plan, note: Callable[[Seen], None]) -> World[None]:
    """Tasks that do as planned; ``note`` gets what they have left behind."""

    async def world(_: Simulation) -> None:
        cellar = Cellar()
        results: list[list[object]] = [[] for _ in plan]
        async with trio.open_nursery() as nursery:
            for number, steps in enumerate(plan):
                nursery.start_soon(work, steps, number + 1, cellar, results[number])
        note((*(one[0] for one in cellar.numbers), *map(tuple, results)))

    return world


async def work(steps: list[Op], number: int, cellar: Cellar, results: list[object]) -> None:
    for op, which in steps:
        match op:
            case "add":
                before = cellar.numbers[which][0]
                await trio.lowlevel.checkpoint()
                cellar.numbers[which][0] = before + number
            case "double":
                cellar.numbers[which][0] *= 2
            case "own":
                results.append(number)
            case "send":
                with trio.move_on_after(1):
                    await cellar.send.send(number)
            case "take":
                with trio.move_on_after(1):
                    results.append(await cellar.take.receive())
            case "lock":
                async with cellar.lock:
                    cellar.numbers[which][0] += number
            case "set":
                cellar.event.set()
            case _:
                await trio.lowlevel.checkpoint()
                results.append(cellar.event.is_set())


def by_every_schedule(plan: Plan) -> set[Seen]:
    seen = set[Seen]()
    choices: tuple[int, ...] | None = ()
    while choices is not None:
        outcome = run(world_of(plan, seen.add), choices=choices, traced=False)
        outcome.check()
        choices = next_choices(outcome.choices, outcome.widths)
    return seen


def by_exploration(plan: Plan) -> set[Seen]:
    seen = set[Seen]()
    for outcome in explore(world_of(plan, seen.add)):
        outcome.check()
    return seen


SMALL: list[Plan] = [
    [[("add", 0)], [("add", 0)]],
    [[("add", 0)], [("double", 0)], [("add", 1)]],
    [[("send", 0), ("own", 0)], [("take", 0)], [("send", 0)]],
    [[("lock", 0)], [("double", 0), ("lock", 0)]],
    [[("set", 0)], [("await", 0)]],
]


@pytest.mark.parametrize("plan", SMALL)
def test_a_reduced_exploration_sees_all_ends_of_a_small_world(plan: Plan) -> None:
    assert by_exploration(plan) == by_every_schedule(plan)


@pytest.mark.sweep
@given(plans)
@settings(max_examples=300, deadline=None)
def test_a_reduced_exploration_sees_all_ends_of_any_world(plan: Plan) -> None:
    """Law: the ends of a world under explore() are those under every schedule."""
    assert by_exploration(plan) == by_every_schedule(plan)


def test_an_exploration_that_overlooks_races_sees_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def wants_nothing(*_: object) -> None:
        """Plans no run."""

    monkeypatch.setattr(Search, "_want", wants_nothing)
    assert any(by_exploration(plan) < by_every_schedule(plan) for plan in SMALL)


# ---------------------------------------------------------------- how many runs


def runs(world: World[None]) -> int:
    return sum(1 for _ in explore(world))


def test_independent_tasks_take_one_run() -> None:
    async def world(_: Simulation) -> None:
        async def two_steps(own: list[int]) -> None:
            for step in range(2):
                await trio.lowlevel.checkpoint()
                own.append(step)

        async with trio.open_nursery() as nursery:
            for _number in range(3):
                nursery.start_soon(two_steps, list[int]())

    assert runs(world) == 1


def test_tasks_that_share_something_take_their_orders_alone() -> None:
    """Of three tasks, two share a list: their six orders, whatever the third one does."""
    ends = set[tuple[int, ...]]()

    async def world(_: Simulation) -> None:
        shared: list[int] = []

        async def two_steps(number: int, into: list[int]) -> None:
            into.append(number)
            await trio.lowlevel.checkpoint()
            into.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(two_steps, 1, shared)
            nursery.start_soon(two_steps, 2, shared)
            nursery.start_soon(two_steps, 3, list[int]())
        ends.add(tuple(shared))

    assert runs(world) <= 12
    assert len(ends) == 6


class Add(Request[int], frozen=True, tag="exploring.add"):
    amount: int


class Sum(Actor[Add]):
    """Adds up, and forgets what came while it slept."""

    def __init__(self) -> None:
        self.total = 0

    @handles(Add, concurrent=2)
    async def add(self, request: Add) -> int:
        before = self.total
        await trio.lowlevel.checkpoint()
        self.total = before + request.amount
        return self.total


async def ask(ref: ActorRef[Add], amount: int) -> None:
    await ref.ask(Add(amount))


def test_a_lost_update_of_an_actor_is_found() -> None:
    totals = set[int]()

    async def world(_: Simulation) -> None:
        async with open_system() as system:
            actor = Sum()
            ref = await system.start(lambda: actor, name="sum")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, ref, 1)
                nursery.start_soon(ask, ref, 10)
        totals.add(actor.total)

    for number, outcome in enumerate(explore(world)):
        outcome.check()
        if len(totals) > 1 or number > 2_000:
            break
    assert len(totals) > 1


# ---------------------------------------------------------------- steps


def test_steps_depend_on_each_other_when_one_writes_what_the_other_touches() -> None:
    def step(reads: str = "", writes: str = "") -> Step:
        return Step(1, (1,), frozenset(reads), frozenset(writes))

    assert not step(reads="a").depends_on(step(reads="a"))
    assert step(reads="a").depends_on(step(writes="a"))
    assert step(writes="a").depends_on(step(writes="a"))
    assert not step(writes="a").depends_on(step(reads="b", writes="c"))
    assert Step(1, (1,), writes=frozenset({EVERYTHING})).depends_on(step())
