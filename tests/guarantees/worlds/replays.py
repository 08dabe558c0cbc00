"""All other worlds once more: each plan is run twice, and the traces are the same byte for byte.

As a program it prints the hash of each plan in a range of numbers, for another process to compare:
``python -m tests.guarantees.worlds.replays FIRST END [--both]``; ``--both``: once more, with a
planted defect.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from motet.runtime.testing import Policy, World
from tests.guarantees.law import (
    HOST_POLICIES,
    POLICIES,
    Faults,
    Law,
    no_faults,
    planted,
    simulated,
)
from tests.guarantees.mutants.waits import HASH_ORDER
from tests.guarantees.worlds import (
    call_graph,
    control,
    crowd,
    cycles,
    fan_out,
    gates,
    inputs,
    mail,
    poison,
    principals,
    stopping,
    transcripts,
    turns,
)
from tests.guarantees.worlds.supervision import supervised

__all__ = ["REPLAY", "hash_of"]

Plan: TypeAlias = tuple[World[object], Faults, Sequence[Policy]]

KERNEL: tuple[Plan, ...] = (
    (call_graph.call_graph, call_graph.hit_one, POLICIES),
    (crowd.crowd, no_faults, POLICIES),
    (stopping.stopping, stopping.crash_one, POLICIES),
    (mail.mail, mail.crash_it, POLICIES),
    (turns.turns, turns.crash_it, POLICIES),
    (control.control, no_faults, POLICIES),
    (fan_out.fan_out, fan_out.cancel_one_call, POLICIES),
    (supervised, no_faults, POLICIES),
    (cycles.cycles, cycles.cancel_one, POLICIES),
    (gates.gates, gates.hit_one, POLICIES),
)
HOSTS: tuple[Plan, ...] = (
    (transcripts.transcripts, no_faults, HOST_POLICIES),
    (poison.poison, no_faults, HOST_POLICIES),
    (inputs.inputs, no_faults, HOST_POLICIES),
    (principals.principals, no_faults, HOST_POLICIES),
)
PLANS = (*KERNEL, *KERNEL, *HOSTS)  # a host takes ten times as long


def hash_of(number: int) -> str:
    """The hash of the trace of plan ``number``; a violation is in the trace, and no error here."""
    world, faults, policies = PLANS[number % len(PLANS)]
    return simulated(world, number, faults, policies).hash


def _differs(number: int) -> str | None:
    first, second = hash_of(number), hash_of(number)
    return None if first == second else f"the trace is {first} at first, then {second}"


REPLAY = Law("G12", _differs)


def _print_hashes(numbers: Iterable[int]) -> None:
    for number in numbers:
        print(number, hash_of(number))


if __name__ == "__main__":
    numbers = range(int(sys.argv[1]), int(sys.argv[2]))
    _print_hashes(numbers)
    if sys.argv[3:] == ["--both"]:
        print("planted")
        with planted(HASH_ORDER):
            _print_hashes(numbers)
