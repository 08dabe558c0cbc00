"""G10 on any schedule: gates that fail in every way, asked by actors that crash."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_no_gated_action_runs_without_the_leave_of_its_gates() -> None:
    """Law: what is done was allowed by every gate, for that very call, or the gate was declared to
    be let pass, has failed, and left its mark; where nothing else goes wrong, all that is done."""
    holds("G10", schedules=30)


@pytest.mark.parametrize("mutant", mutants_of("G10"))
def test_the_law_finds_gates_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
