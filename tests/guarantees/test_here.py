"""All guarantees: an ask that its asker handles is as one that a mailbox took."""

from __future__ import annotations

import pytest

from tests.guarantees.law import ANY
from tests.guarantees.laws import holds, is_found, mutants_of


def test_whatever_way_requests_take_no_guarantee_is_broken() -> None:
    """Law: in all schedules, with each way chosen by chance, every ask has one outcome that the
    mailbox allows; handlers of a type begin in the order of their asks, in the places declared;
    none begins while its actor is suspended or ends; a stop ends them, and the books are right."""
    holds(ANY, schedules=120)


@pytest.mark.parametrize("mutant", mutants_of(ANY))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
