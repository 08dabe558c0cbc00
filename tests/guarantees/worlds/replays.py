"""All other worlds once more: each plan is run twice, and the traces are the same byte for byte.

As a program it prints the hash of each plan in a range of numbers, for another process to compare:
``python -m tests.guarantees.worlds.replays FIRST END``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from motet.runtime.testing import World
from tests.guarantees.law import Faults, Law, no_faults, planted, simulated
from tests.guarantees.mutants.waits import HASH_ORDER
from tests.guarantees.worlds import (
    call_graph,
    control,
    crowd,
    cycles,
    fan_out,
    mail,
    stopping,
    turns,
)
from tests.guarantees.worlds.supervision import supervised

__all__ = ["REPLAY", "hash_of"]

PLANS: tuple[tuple[World[object], Faults], ...] = (
    (call_graph.call_graph, call_graph.hit_one),
    (crowd.crowd, no_faults),
    (stopping.stopping, stopping.crash_one),
    (mail.mail, mail.crash_it),
    (turns.turns, turns.crash_it),
    (control.control, no_faults),
    (fan_out.fan_out, fan_out.cancel_one_call),
    (supervised, no_faults),
    (cycles.cycles, cycles.cancel_one),
)


def hash_of(number: int) -> str:
    """The hash of the trace of plan ``number``; a violation is in the trace, and no error here."""
    world, faults = PLANS[number % len(PLANS)]
    return simulated(world, number, faults).hash


def _differs(number: int) -> str | None:
    first, second = hash_of(number), hash_of(number)
    return None if first == second else f"the trace is {first} at first, then {second}"


REPLAY = Law("G12", _differs)


def _print_hashes(numbers: Iterable[int]) -> None:
    for number in numbers:
        print(number, hash_of(number))


if __name__ == "__main__":
    numbers = range(int(sys.argv[1]), int(sys.argv[2]))
    if sys.argv[3:] == ["--planted"]:
        with planted(HASH_ORDER):
            _print_hashes(numbers)
    else:
        _print_hashes(numbers)
