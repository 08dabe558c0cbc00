"""Schedules of programs: they reach a race of one await, shrink to one task, and say what waits."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

import motet
from motet import testing as mt
from motet.testing import call
from motet.testing.stories.program import BoundProgram, latest
from motet.testing.stories.schedule import as_holds, held

AWAITS = 16
"""Of the tool that must come in between: with the other tool's, a race of 32 choices."""


class Bank:
    """Two tools: what the one has read must not change before its next await is over."""

    def __init__(self) -> None:
        self.entries = 0
        self.surprised = False


bank = Bank()
teller = motet.Agent("teller", model=mt.ScriptedModel([]))


@teller.tool
async def read() -> str:
    """Read the entries, and look again after one await."""
    before = bank.entries
    await trio.lowlevel.checkpoint()
    bank.surprised = bank.surprised or bank.entries != before
    return "read"


@teller.tool
async def write() -> str:
    """Add an entry, after all its awaits."""
    for _ in range(AWAITS):
        await trio.lowlevel.checkpoint()
    bank.entries += 1
    return "written"


def surprises(programs: int, seed: int, most: int = 1_000) -> list[BoundProgram]:
    """The drawn programs in which the tool is surprised, ``most`` at most."""
    found: list[BoundProgram] = []

    @seeded(seed)
    @settings(
        max_examples=programs,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(mt.programs(teller, users=1, max_steps=20))
    def search(program: BoundProgram) -> None:
        if len(found) < most and surprised(program):
            found.append(program)

    search()
    return found


def surprised(program: BoundProgram | mt.Program) -> bool:
    bound = program.bind(teller) if isinstance(program, mt.Program) else program
    bank.entries, bank.surprised = 0, False
    with mt.simulated_host(seed=bound.seed) as host:
        bound.execute(host)
    return bank.surprised


def story(schedule: mt.Schedule | None) -> mt.Program:
    """Both tools in one answer."""
    answers = {"teller": [call("read") + call("write")]}
    return mt.Program([mt.Send("ann", "go")], answers, schedule=schedule)


# ---------------------------------------------------------------- the search


def test_a_race_of_one_await_is_found() -> None:
    """In one of thirty programs; so several searches are tried, from one that has found it."""
    assert any(surprises(66, seed, most=1) for seed in (12, 10, 2, 1, 3, 8, 0, *range(9, 24)))


@pytest.mark.sweep
def test_a_race_of_one_await_is_found_in_three_of_a_hundred_programs() -> None:
    assert sum(len(surprises(300, seed)) for seed in range(4)) >= 36


def test_no_order_of_starts_finds_the_race() -> None:
    assert not surprised(story(None))
    assert not surprised(story(mt.Schedule("holds", holds=((0, 0),))))


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    "schedule",
    [
        mt.Schedule("places", places=((0, 0, 0),)),
        mt.Schedule("places", places=((0, 1, 64),)),
    ],
)
def test_a_task_that_is_held_at_its_await_is_surprised(schedule: mt.Schedule) -> None:
    assert surprised(story(schedule))


def test_the_choices_of_a_program_repeat_it_without_its_schedule() -> None:
    """Law: the recorded choices of a schedule give its trace, whatever its kind."""
    schedules = [
        mt.Schedule("places", places=((0, 1, 0), (1, 3, 8))),
        mt.Schedule("holds", holds=((3, 0), (20, 16))),
        *(mt.Schedule("pct", seed=seed, depth=seed % 3 + 1) for seed in range(4)),
        *(mt.Schedule("speeds", seed=seed, first=10, end=40) for seed in range(3)),
        *(mt.Schedule("uniform", seed=seed) for seed in range(3)),
    ]
    for schedule in schedules:
        program = story(schedule).bind(teller)
        surprised(program)
        play = latest(program)
        assert play is not None
        assert play.observed is not None
        written = mt.Program(program.steps, program.script, choices=play.observed.taken)
        lines = play.lines()
        surprised(written)
        again = latest(written.bind(teller))
        assert again is not None
        assert again.lines() == lines


def test_outside_of_its_part_a_policy_changes_nothing() -> None:
    """Law: a policy with an empty part is first in, first out."""
    for kind in ("pct", "speeds", "uniform"):
        program = story(mt.Schedule(kind, seed=5, depth=3, first=7, end=7)).bind(teller)
        surprised(program)
        play = latest(program)
        assert play is not None
        assert play.observed is not None
        assert not any(play.observed.taken)


def test_all_kinds_of_schedules_are_drawn() -> None:
    kinds = Counter[str]()

    @seeded(3)
    @settings(max_examples=150, database=None, phases=(Phase.generate,), deadline=None)
    @given(mt.programs(teller, max_steps=3))
    def search(program: BoundProgram) -> None:
        kinds[
            program.program.schedule.kind if program.program.schedule is not None else "in order"
        ] += 1

    search()
    assert set(kinds) == {"in order", "holds", "places", "pct", "speeds", "uniform"}
    assert kinds["in order"] < 75


# ---------------------------------------------------------------- what a person reads


def test_a_schedule_is_printed_as_python_and_in_words() -> None:
    schedule = mt.Schedule("places", places=((0, 0, 0),))

    def never_surprised(_: mt.Snapshot) -> list[str]:
        return ["it was"] if bank.surprised else []

    bank.surprised = False
    with mt.simulated_host() as host:
        story(schedule).execute(host, teller)
        with pytest.raises(mt.InvariantBroken) as caught:
            mt.check(host, never_surprised)
    assert "schedule=mt.Schedule(kind='places', places=((0, 0, 0),))," in caught.value.test
    assert "`read` (/host/tools execute) waits until `write` (/host/tools execute #2) has" in (
        caught.value.test
    )
    assert eval(repr(schedule), {"mt": mt}) == schedule


@pytest.mark.slow
def test_a_dense_schedule_becomes_the_few_tasks_that_must_wait() -> None:
    def fails(schedule: mt.Schedule) -> bool:
        return surprised(story(schedule))

    drawn = (mt.Schedule("pct", seed=seed, depth=3) for seed in range(45, 60))
    dense = next(schedule for schedule in drawn if fails(schedule))
    play = latest(story(dense).bind(teller))
    assert play is not None
    assert play.observed is not None
    assert len(play.observed.deviations) > 10
    fewest = held(play.observed, fails)
    assert fewest is not None
    assert len(fewest.holds) <= 3 < len(as_holds(play.observed))
    assert fails(fewest)
