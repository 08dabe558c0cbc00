"""G16 on any schedule: two users, one of whom tries everything on what is the other's."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_no_user_gets_at_what_is_anothers() -> None:
    """Law: what is another's is not found; nothing of it is in an answer, a model request or an
    event; and nothing that was tried on it has changed it."""
    holds("G16", schedules=8)


@pytest.mark.parametrize("mutant", mutants_of("G16"))
def test_the_law_finds_a_host_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
