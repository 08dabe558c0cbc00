"""The only file of the simulator that looks behind System and ActorRef.

It looks at every actor after every step, and gives orders as of now, where the public ones are
awaited or name a path.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from motet.runtime.cell import Cell
from motet.runtime.snapshot import statistics_of
from motet.runtime.stopping import within
from motet.runtime.system import System

__all__ = ["Limits", "cell_at", "cells", "crash", "limits_of", "stop"]


class Limits(msgspec.Struct, frozen=True):
    """What an actor declared: messages that may wait, and handlers that may run at once."""

    capacity: int
    handlers: int


def cells(system: System) -> Iterable[Cell]:
    """Every actor that is there now."""
    return system._root.tree()  # pyright: ignore[reportPrivateUsage]  # see the module


def cell_at(systems: Iterable[System], path: str) -> Cell | None:
    """The actor at ``path`` in one of the systems."""
    found = (cell for system in systems for cell in cells(system) if cell.path == path)
    return next(found, None)


def limits_of(cell: Cell) -> Limits:
    """One handler in the turn, if there is any such, and the concurrent ones."""
    declared = statistics_of(cell)
    return Limits(declared.capacity, declared.concurrency)


def crash(cell: Cell, error: Exception) -> bool:
    """End the incarnation by ``error``; False if there is none to crash."""
    if cell.incarnation is None or cell.incarnation.is_over:
        return False
    cell.incarnation.crash(error)
    return True


def stop(cell: Cell, grace: float) -> bool:
    """Order the end for ever, as ``ActorRef.stop``; False if that was ordered before."""
    if cell.is_final:
        return False
    cell.parent.stop(cell, within(grace))
    return True
