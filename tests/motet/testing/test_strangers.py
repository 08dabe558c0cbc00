"""Faulty programs that nobody wrote the harness for are found soon, and corrected ones never.

Each kind has two shapes, see ``faulty/strangers.py`` and ``faulty/stranger_actors.py``. The tester
writes a property of a few lines, and changes nothing in the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from motet import testing as mt
from tests.motet.testing.faulty.stranger_actors import ACTORS
from tests.motet.testing.faulty.strangers import PROJECTS, Project

WITHIN = 200
"""Programs within which a fault is found."""
SEEDS = range(1, 6)


def searched(
    drawn: SearchStrategy[mt.BoundProgram] | SearchStrategy[mt.ActorProgram],
    attempt: Callable[[mt.BoundProgram | mt.ActorProgram], None],
    most: int,
    seed: int,
) -> int:
    """The number of the first program that fails; 0: none of ``most``."""
    tried = found = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(drawn)
    def search(program: mt.BoundProgram | mt.ActorProgram) -> None:
        nonlocal tried
        tried += 1
        attempt(program)

    try:
        search()
    except (AssertionError, mt.InvariantBroken):
        found = tried
    return found


def _played(project: Project, program: mt.BoundProgram | mt.ActorProgram) -> None:
    assert isinstance(program, mt.BoundProgram)
    project.reset()
    with mt.simulated_host(seed=program.seed, setup=project.setup, http=project.http) as host:
        program.execute(host)
        project.holds(host)


def _checked(program: mt.BoundProgram | mt.ActorProgram) -> None:
    assert isinstance(program, mt.ActorProgram)
    program.check()


def first_failure(name: str, *, fixed: bool, most: int, seed: int) -> int:
    """The number of the first program in which a project, or an actor, does wrong."""
    if name in ACTORS:
        subjects = ACTORS[name]
        actor, crashes = (subjects.fixed, 0) if fixed else (subjects.faulty, subjects.crashes)
        drawn = mt.actor_programs(actor, subjects.model, subjects.initial, crashes=crashes)
        return searched(drawn, _checked, most, seed)
    project = PROJECTS[name](fixed)
    programs = mt.programs(
        project.subject,
        receive=project.receive,
        model="own" if project.own_models else "script",
    )
    return searched(programs, partial(_played, project), most, seed)


@pytest.mark.parametrize("name", ["doubled: bot", "lost update: shelf", "lost state: queue"])
def test_a_fault_is_found(name: str) -> None:
    assert first_failure(name, fixed=False, most=WITHIN, seed=7) > 0


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*PROJECTS, *ACTORS])
def test_each_fault_is_found_within_200_programs(name: str) -> None:
    """With four of five seeds at least."""
    found = [first_failure(name, fixed=False, most=WITHIN, seed=seed) for seed in SEEDS]
    assert sum(number > 0 for number in found) >= len(SEEDS) - 1, found


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*PROJECTS, *ACTORS])
def test_the_corrected_one_raises_no_alarm_in_300_programs(name: str) -> None:
    assert first_failure(name, fixed=True, most=300, seed=1) == 0
