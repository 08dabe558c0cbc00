"""Watching an actor: whoever watches learns once that it has ended for ever, and why.

A restart is no end. Invariants: one watcher hears of one actor once for each time it began to
watch; an actor that is dead already is reported at once; who dies watches nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from motet.protocols.messages import Message
from motet.runtime.errors import MotetRuntimeError, NotInProtocol

if TYPE_CHECKING:
    from motet.runtime.cell import Cell

__all__ = [
    "Monitors",
    "Terminated",
    "check_watches",
    "monitors_of",
    "on_end",
    "unwatch",
    "wait_terminated",
    "watch",
]


class Terminated(Message, frozen=True, tag="motet.terminated"):
    """The actor at ``path`` has ended for ever. ``error``: of its last life, if that failed."""

    path: str
    reason: str
    error: str | None = None


class Monitors:
    """Who watches an actor, and whom it watches. Made when there is somebody."""

    __slots__ = ("watchers", "watching")

    def __init__(self) -> None:
        self.watchers: dict[object, Callable[[Terminated], None]] = {}
        self.watching: set[Cell] = set()

    def end(self, cell: Cell) -> None:
        """``cell``, whose monitors these are, has ended."""
        watchers, self.watchers = self.watchers, {}
        for target in self.watching:
            monitors_of(target).watchers.pop(cell, None)
        self.watching.clear()
        for key, tell in watchers.items():
            _forget(key, cell)
            tell(_report(cell))


def check_watches(watcher: Cell) -> None:
    """Raise unless ``watcher`` handles Terminated in its turn."""
    handler = watcher.handlers.get(Terminated)
    if handler is None:
        raise NotInProtocol(watcher.path, watcher.kind, Terminated, watcher.handlers)
    if not handler.in_turn:
        raise MotetRuntimeError(
            f"{watcher.kind} at {watcher.path} handles Terminated concurrently: "
            "control messages are handled in the turn"
        )


def watch(watcher: Cell, target: Cell) -> None:
    """Post one Terminated to ``watcher`` when ``target`` ends; now, if it has."""
    if target.state == "dead":
        watcher.post(_report(target))
        return
    monitors_of(target).watchers[watcher] = watcher.post
    monitors_of(watcher).watching.add(target)


def unwatch(watcher: Cell, target: Cell) -> None:
    """Undo :func:`watch`; no harm if it was not."""
    monitors_of(target).watchers.pop(watcher, None)
    monitors_of(watcher).watching.discard(target)


def on_end(target: Cell, key: object, call: Callable[[Terminated], None]) -> None:
    """Call ``call`` when ``target`` ends, in the kernel's step; it must not raise."""
    if target.state == "dead":
        call(_report(target))
    else:
        monitors_of(target).watchers[key] = call


async def wait_terminated(target: Cell) -> Terminated:
    """Wait for the end of ``target``. Cancelled: nothing is left of it."""
    ended = trio.Event()
    key = object()
    on_end(target, key, lambda _: ended.set())
    try:
        await ended.wait()
    finally:
        if target.monitors is not None:
            target.monitors.watchers.pop(key, None)
    return _report(target)


def monitors_of(cell: Cell) -> Monitors:
    """Those of ``cell``, made on first use."""
    if cell.monitors is None:
        cell.monitors = Monitors()
    return cell.monitors


def _forget(watcher: object, target: Cell) -> None:
    monitors = getattr(watcher, "monitors", None)
    if isinstance(monitors, Monitors):
        monitors.watching.discard(target)


def _report(cell: Cell) -> Terminated:
    assert cell.mailbox.closed is not None, "an actor that has ended has said why"
    error = None if cell.failed_with is None else repr(cell.failed_with)
    return Terminated(cell.path, cell.mailbox.closed, error)
