"""G11: a wait for an actor that would never end fails at once, and no other wait does."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from tests.guarantees.laws import holds, holds_on, is_found, mutants_of
from tests.guarantees.worlds.waits import NAME as EVERY_WAIT
from tests.guarantees.worlds.waits import Book, play


def test_every_circle_of_asks_is_refused_and_nothing_else_is() -> None:
    """Law: in all schedules an ask is refused if and only if whom it asks waits, directly or by
    others, for who asks; the chain it names is such a circle; so no world without time limits is
    ever stuck. Whoever was cancelled is waited for no more."""
    holds("G11", schedules=120)


def test_every_wait_for_an_actor_ends_or_is_refused_and_nothing_else_is() -> None:
    """Law: random programs of tells that wait for room, asks of turns and of a few places, ends of
    incarnations and suspended actors never hang; and of each program in which something is refused,
    a kernel that refuses nothing hangs on the same schedule."""
    holds(EVERY_WAIT, schedules=60)
    # The start of a sibling was taken for what a wait for an ending actor waits for.
    holds_on(EVERY_WAIT, 391, 1590, 2011, 2692, 4608)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(10))
def test_no_random_program_hangs_on_real_trio(block: int) -> None:
    """Law: 10,000 programs in all, on Trio's own scheduler."""
    for seed in range(1_000 * block, 1_000 * (block + 1)):
        assert trio.run(_ends, seed, clock=MockClock(autojump_threshold=0)), f"{seed} hangs"


async def _ends(seed: int) -> bool:
    with trio.move_on_after(60) as scope:
        await play(random.Random(seed), Book())
    return not scope.cancelled_caught


@pytest.mark.parametrize("mutant", [*mutants_of("G11"), *mutants_of(EVERY_WAIT)])
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)
