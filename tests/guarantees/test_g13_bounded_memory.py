"""G13: what is queued never exceeds what was declared, and overflow is as declared."""

from __future__ import annotations

import pytest

from tests.guarantees.laws import holds, is_found, mutants_of


def test_no_mailbox_holds_more_than_it_declares() -> None:
    """Law: after every step of all schedules queued + stashed <= capacity; a full mailbox makes the
    sender wait, refuses it, drops the oldest or the newest, as declared; a mailbox with room
    accepts at once."""
    holds("G13", schedules=120)


@pytest.mark.parametrize("mutant", mutants_of("G13"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
