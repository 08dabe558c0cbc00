"""G12: seed, script and faults determine the trace byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of
from tests.guarantees.worlds.replays import hash_of, plan, replay


def test_a_plan_that_is_run_twice_leaves_the_same_trace() -> None:
    """Law: for every world, schedule and fault of the other laws, two runs have one hash."""
    holds("G12", schedules=24)


@pytest.mark.parametrize("mutant", mutants_of("G12"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


def test_plans_are_different_schedules_of_the_other_laws_under_every_policy() -> None:
    """Law: no schedule is replayed twice, and no world is replayed under some policies only."""
    plans = [plan(number) for number in range(240)]
    assert len({(search.guarantee, schedule) for search, schedule in plans}) == len(plans)
    for world in {search.guarantee for search, _ in plans}:
        policies = {schedule % 3 for search, schedule in plans if search.guarantee == world}
        assert policies == {0, 1, 2}


def test_a_plan_whose_first_trace_was_another_is_told() -> None:
    first = hash_of(3)
    assert replay(3, first) is None
    assert "at first, then" in str(replay(4, first))


@pytest.fixture(scope="module")
def hashes() -> list[list[str]]:
    """Of two processes with other hash seeds: the hashes of 24 plans, as they are and planted."""
    command = [sys.executable, "-m", "tests.guarantees.worlds.replays", "0", "24", "--both"]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return [one.split("planted\n") for one in told]


@pytest.mark.extended
def test_another_process_with_another_hash_seed_leaves_the_same_trace(
    hashes: list[list[str]],
) -> None:
    """Law: the hash of a plan does not depend on the process, nor on its order of sets."""
    (first, _), (second, _) = hashes
    assert len(first.splitlines()) == 24
    assert first == second


def test_another_process_finds_an_order_that_depends_on_hashes(hashes: list[list[str]]) -> None:
    """Children stopped in the order of a set of their names: one process alone sees no change."""
    (_, first), (_, second) = hashes
    assert first != second
