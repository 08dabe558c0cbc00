"""Defects of the search for circles of asks, and sources of chance that no seed controls."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

from motet.runtime.cell import Cell
from motet.runtime.errors import AskCycle
from motet.runtime.mailbox import Mailbox
from motet.runtime.supervisor import Supervisor
from motet.runtime.testing.scheduler import Patch
from motet.runtime.timers import Timers
from motet.runtime.waits import Work, refuse_cycle
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _everywhere(mutated: object) -> list[Patch]:
    """In place of ``refuse_cycle``, wherever it was imported to."""
    kernel = [module for name, module in sys.modules.items() if name.startswith("motet.runtime.")]
    return [
        (module, "refuse_cycle", mutated)
        for module in kernel
        if getattr(module, "refuse_cycle", None) is refuse_cycle
    ]


def _look_for_none() -> list[Patch]:
    def refuse_none(work: Work, target: Work) -> None:
        """Let them wait."""

    return _everywhere(refuse_none)


def _look_at_oneself_only() -> list[Patch]:
    """Calling itself is found, calling itself through another is not."""

    def refuse_self(work: Work, target: Work) -> None:
        if target is work:
            raise AskCycle([work.path, target.path])

    return _everywhere(refuse_self)


def _refuse_all_who_wait() -> list[Patch]:
    """Whoever waits for anybody is taken for a part of a circle."""

    def refuse_waiting(work: Work, target: Work) -> None:
        if target is work or target.waits:
            raise AskCycle([work.path, target.path, work.path])

    return _everywhere(refuse_waiting)


def _never_forget() -> list[Patch]:
    """An ask that is over still counts as waiting."""
    asked: dict[Work, set[Work]] = defaultdict(set)

    def reaches(start: Work, goal: Work, seen: set[Work]) -> bool:
        if start is goal:
            return True
        seen.add(start)
        return any(reaches(to, goal, seen) for to in asked[start] if to not in seen)

    def refuse(work: Work, target: Work) -> None:
        if reaches(target, work, set()):
            raise AskCycle([work.path, target.path, work.path])
        asked[work].add(target)

    return _everywhere(refuse)


# ---------------------------------------------------------------------- replay


def _admit_by_chance() -> list[Patch]:
    """Which of the waiting senders comes in is drawn from the machine's own chance."""
    admit = Mailbox.admit
    chance = random.SystemRandom()

    def admit_any(box: Mailbox) -> None:
        chance.shuffle(box.waiting)
        admit(box)

    return [(Mailbox, "admit", admit_any)]


def _time_by_chance() -> list[Patch]:
    """Time limits are rounded by what the real clock happens to say."""
    start = Timers.start
    chance = random.SystemRandom()

    def start_later(timers: Timers, when: float, *args: object) -> object:
        return start(timers, when + chance.choice((0.0, 0.25)), *args)  # type: ignore[arg-type]  # pyright: ignore

    return [(Timers, "start", start_later)]


def _stop_by_hash() -> list[Patch]:
    """Children are stopped in the order of a set of strings: another one in every process."""
    close = Supervisor[Cell].close

    def close_shuffled(supervisor: Supervisor[Cell], *args: object) -> None:
        cells = supervisor.cells
        for name in set(cells):
            cells[name] = cells.pop(name)
        close(supervisor, *args)  # type: ignore[arg-type]  # pyright: ignore

    return [(Supervisor, "close", close_shuffled)]


MUTANTS = (
    Mutant("G11", "looks for no circles", _look_for_none),
    Mutant("G11", "finds only asks to oneself", _look_at_oneself_only),
    Mutant("G11", "refuses whoever waits", _refuse_all_who_wait),
    Mutant("G11", "never forgets an ask", _never_forget),
    Mutant("G12", "lets chance choose the sender", _admit_by_chance),
    Mutant("G12", "lets chance move time limits", _time_by_chance),
)

# Only another process can tell.
HASH_ORDER = Mutant("G12", "stops in the order of a set", _stop_by_hash)
