"""The block of a system: the errors that it lets through."""

from __future__ import annotations

import gc
from collections.abc import Callable
from weakref import ref

import pytest
import trio

from motet.runtime import open_system
from tests.raised import RAISERS, State, caught, state_of


@pytest.mark.parametrize("raiser", RAISERS, ids=lambda raiser: raiser.__name__)
async def test_an_error_of_the_block_leaves_it_as_it_was_raised(
    raiser: Callable[[], None],
) -> None:
    """Law: it is the same object, with the same context, cause and parts, whatever its kind."""
    before: list[State] = []

    async def block() -> None:
        async with open_system():
            with caught(before):
                raiser()

    with pytest.raises(BaseException) as error:  # noqa: PT011 (of any kind)
        await block()
    assert before == [state_of(error.value)]


async def test_a_group_of_a_nursery_in_the_block_stays_a_group() -> None:
    async def fail() -> None:
        raise ValueError("in a task of the block")

    with pytest.raises(ExceptionGroup) as error:
        async with open_system(), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    assert [type(one) for one in error.value.exceptions] == [ValueError]


async def test_an_error_that_has_left_the_block_is_freed_without_the_garbage_collector() -> None:
    class Weak(Exception):
        pass

    async def block() -> ref[Weak]:
        try:
            async with open_system():
                raise Weak
        except Weak as error:
            return ref(error)

    gc.collect()
    gc.disable()
    try:
        error = await block()
        await trio.lowlevel.checkpoint()
        assert error() is None
    finally:
        gc.enable()
