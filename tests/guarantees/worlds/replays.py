"""All other worlds once more: each plan is run twice, and the traces are the same byte for byte.

A plan is a schedule of another law's search, which may have run it the first time already.

As a program it prints the hash of each plan in a range of numbers, for another process to compare:
``python -m tests.guarantees.worlds.replays FIRST END [--both]``; ``--both``: once more, with a
planted defect.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.guarantees.law import Law, Search, planted
from tests.guarantees.mutants.waits import HASH_ORDER
from tests.guarantees.worlds.call_graph import ONE_OUTCOME
from tests.guarantees.worlds.control import CONTROL_OVERTAKES
from tests.guarantees.worlds.crowd import BOUNDED_MEMORY
from tests.guarantees.worlds.cycles import NO_SILENT_DEADLOCK
from tests.guarantees.worlds.fan_out import ORDERED_FAN_OUT
from tests.guarantees.worlds.gates import GATES
from tests.guarantees.worlds.inputs import DURABLE_INPUT
from tests.guarantees.worlds.mail import CONSERVATION
from tests.guarantees.worlds.poison import CONTAINMENT
from tests.guarantees.worlds.principals import ISOLATION
from tests.guarantees.worlds.stopping import STOP_IS_BOUNDED
from tests.guarantees.worlds.supervision import SUPERVISION
from tests.guarantees.worlds.transcripts import VALID_TRANSCRIPT
from tests.guarantees.worlds.turns import TURN_ISOLATION

__all__ = ["REPLAY", "hash_of", "plan", "replay"]

KERNEL = (
    ONE_OUTCOME,
    BOUNDED_MEMORY,
    STOP_IS_BOUNDED,
    CONSERVATION,
    TURN_ISOLATION,
    CONTROL_OVERTAKES,
    ORDERED_FAN_OUT,
    SUPERVISION,
    NO_SILENT_DEADLOCK,
    GATES,
)
HOSTS = (VALID_TRANSCRIPT, CONTAINMENT, DURABLE_INPUT, ISOLATION)
ROUND = (*KERNEL, *KERNEL, *HOSTS)  # a host takes ten times as long


def plan(number: int) -> tuple[Search, int]:
    """The search of which plan ``number`` is a schedule, and the number of that schedule."""
    turn, place = divmod(number, len(ROUND))
    search = ROUND[place].broken
    assert isinstance(search, Search)
    # Without gaps, so that each world meets every policy.
    schedule = 2 * turn + place // len(KERNEL) if place < 2 * len(KERNEL) else turn
    return search, schedule


def hash_of(number: int) -> str:
    """The hash of the trace of plan ``number``; a violation is in the trace, and no error here."""
    search, schedule = plan(number)
    return search.run(schedule).hash


def replay(number: int, first: str) -> str | None:
    """Run plan ``number`` again, whose trace had the hash ``first``."""
    second = hash_of(number)
    return None if first == second else f"the trace is {first} at first, then {second}"


REPLAY = Law("G12", lambda number: replay(number, hash_of(number)))


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
