"""Branches of a world: a child has all of it, the original notices nothing; errors are found."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from tests.guarantees.branches import MOST, Branches

AGENT = motet.Agent("a", model=mt.FunctionModel(lambda _: mt.say("done")))


async def answered(host: Host) -> int:
    return len(await host.runs())


@pytest.mark.parametrize("end", ["none", "crash", "restart"])
def test_a_child_goes_on_with_the_world_and_the_original_as_if_nothing_was(end: str) -> None:
    with mt.simulated_host(1) as host, Branches(host) as branches:
        host.run(AGENT, "one")
        for _ in range(2):
            if branches.branch(end):
                if end == "crash":
                    host.crash()
                elif end == "restart":
                    host.restart()
                host.run(AGENT, "two")
                host.run(AGENT, "three")
                assert host.call(answered) == 3
                return
        now = host.now()
        host.run(AGENT, "two")
        assert host.call(answered) == 2
        host.restart()
        assert host.call(answered) == 2
        assert host.now() >= now
    assert branches.count == 2


def raises() -> None:
    raise RuntimeError("it is odd")


def dies() -> None:
    os._exit(3)


def failing(times: int, act: Callable[[], None]) -> None:
    with mt.simulated_host(1) as host, Branches(host) as branches:
        for number in range(times):
            if branches.branch(f"number {number}"):
                act()


def test_what_is_wrong_in_a_child_is_told_by_the_original() -> None:
    with pytest.raises(AssertionError, match=r"5 findings, first number 0: (.|\n)*it is odd"):
        failing(2 * MOST, raises)


def test_a_child_that_dies_is_told_of() -> None:
    with pytest.raises(AssertionError, match="1 findings, first number 0: ended with status"):
        failing(1, dies)
