"""G11: an ask that would wait for itself fails at once, and no other ask does."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_every_circle_of_asks_is_refused_and_nothing_else_is() -> None:
    """Law: in all schedules an ask is refused if and only if whom it asks waits, directly or by
    others, for who asks; the chain it names is such a circle; so no world without time limits is
    ever stuck. Whoever was cancelled is waited for no more."""
    holds("G11", schedules=300)


@pytest.mark.parametrize("mutant", mutants_of("G11"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
