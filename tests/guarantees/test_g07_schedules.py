"""G7 on any schedule: hosts die, runs are stopped, and what is stored is a valid transcript."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_each_transcript_is_valid_however_its_runs_end() -> None:
    """Law: however a run ends, each call has one result, in call order, which says what the call
    has done; what was done is in some transcript; a run that has ended has rows."""
    holds("G7", schedules=5)


@pytest.mark.parametrize("mutant", mutants_of("G7"))
def test_the_law_finds_a_host_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
