"""Access to the cells behind System and ActorRef; the only file of the simulator that has it.

The simulator reads every actor after every step, and its orders take effect at once. The public
methods are awaited, or search for a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from motet.runtime.cell import Cell
from motet.runtime.snapshot import statistics_of
from motet.runtime.stopping import within
from motet.runtime.system import System

__all__ = ["Limits", "cell_at", "cells", "crash", "limits_of", "stop"]


class Limits(msgspec.Struct, frozen=True):
    """The declared limits of an actor: waiting messages, and handlers at once."""

    capacity: int
    handlers: int


def cells(system: System) -> list[Cell]:
    """Every actor that exists now: parents first, siblings in start order."""
    found: list[Cell] = []
    _collect(system._root.cells, found)  # pyright: ignore[reportPrivateUsage]  # see the module
    return found


def _collect(children: Mapping[str, Cell], into: list[Cell]) -> None:
    # At every step, where the generator of the tree takes thrice as long.
    for cell in children.values():
        into.append(cell)
        if cell.supervisor is not None:
            _collect(cell.supervisor.cells, into)


def cell_at(systems: Iterable[System], path: str) -> Cell | None:
    """The actor at ``path`` in one of the systems."""
    found = (cell for system in systems for cell in cells(system) if cell.path == path)
    return next(found, None)


def limits_of(cell: Cell) -> Limits:
    """The limits that an actor has declared."""
    declared = statistics_of(cell)
    return Limits(declared.capacity, declared.concurrency)


def crash(cell: Cell, error: Exception) -> bool:
    """End the incarnation by ``error``; False if there is none to crash."""
    if cell.incarnation is None or cell.incarnation.is_over:
        return False
    cell.incarnation.crash(error)
    return True


def stop(cell: Cell, grace: float) -> bool:
    """Order the end for ever, as ``ActorRef.stop``. False if it was ordered before."""
    if cell.is_final:
        return False
    cell.parent.stop(cell, within(grace))
    return True
