"""G12: seed, script and faults determine the trace byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_a_plan_that_is_run_twice_leaves_the_same_trace() -> None:
    """Law: for every world, schedule and fault of the other laws, two runs have one hash."""
    holds("G12", schedules=72)


@pytest.mark.parametrize("mutant", mutants_of("G12"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


def _hashes_in_a_process(hash_seed: str, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "tests.guarantees.worlds.replays", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return run.stdout


def test_another_process_with_another_hash_seed_leaves_the_same_trace() -> None:
    """Law: the hash of a plan does not depend on the process, nor on its order of sets."""
    assert _hashes_in_a_process("1", "0", "24") == _hashes_in_a_process("2", "0", "24")


def test_another_process_finds_an_order_that_depends_on_hashes() -> None:
    """Children stopped in the order of a set of their names: one process alone sees no change."""
    planted = [_hashes_in_a_process(seed, "0", "24", "--planted") for seed in ("1", "2")]
    assert planted[0] != planted[1]
