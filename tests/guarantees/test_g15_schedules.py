"""G15 on any schedule: people who send inputs to hosts that die."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_no_acknowledged_input_is_missing_or_answered_twice() -> None:
    """Law: what was acknowledged is answered once, or is listed as interrupted; one key never
    starts two runs; the end of a run is told once."""
    holds("G15", schedules=8)


@pytest.mark.parametrize("mutant", mutants_of("G15"))
def test_the_law_finds_a_host_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
