"""G14 on any schedule: a session that ends its hosts."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_no_session_ends_more_hosts_than_it_may() -> None:
    """Law: so many hosts die of it as is declared, and no more; then it is put aside, and its user
    is told; every other session is answered."""
    holds("G14", schedules=5)


@pytest.mark.parametrize("mutant", mutants_of("G14"))
def test_the_law_finds_a_host_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
