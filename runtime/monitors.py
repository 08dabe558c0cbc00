"""Watching an actor: each watcher learns once that the actor has ended for ever, and why.

A restart is no end. Invariants: one watcher hears of one actor once for each time it began to
watch; a dead actor is reported at once; a dying actor stops watching. The data is in
:class:`~.kernel.Owner`, made for the first watch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, Literal

import trio

from motet.runtime.errors import MotetRuntimeError, NotInProtocol
from motet.runtime.foreign import shown
from motet.runtime.kernel import Owner
from motet.runtime.lifecycle import Exit, Terminated
from motet.runtime.waits import EndWait, Work, current_work, refuse_own_end

__all__ = ["check_watches", "ending", "on_end", "report_end", "unwatch", "wait_terminated", "watch"]


def check_watches(watcher: Owner) -> None:
    """Raise unless ``watcher`` handles Terminated in its turn."""
    handler = watcher.handlers.get(Terminated)
    if handler is None:
        raise NotInProtocol(watcher.path, watcher.kind, Terminated, watcher.handlers)
    if not handler.in_turn:
        raise MotetRuntimeError(
            f"{watcher.kind} at {watcher.path} handles Terminated concurrently: "
            "control messages are handled in the turn"
        )


def watch(watcher: Owner, target: Owner) -> None:
    """Post one Terminated to ``watcher`` when ``target`` ends; now, if it has."""
    target.kernel.loop.check(target.path)
    if target.state == "dead":
        watcher.post(_report(target))
        return
    on_end(target, watcher, watcher.post)
    if watcher.watching is None:
        watcher.watching = set()
    watcher.watching.add(target)


def unwatch(watcher: Owner, target: Owner) -> None:
    """Undo :func:`watch`, also if its Terminated waits already; nothing if there is no watch."""
    if target.state == "dead" and watcher.control:
        with suppress(ValueError):  # it is handled, or there was none
            watcher.control.remove(_report(target))
    if target.watchers is not None:
        target.watchers.pop(watcher, None)
    if watcher.watching is not None:
        watcher.watching.discard(target)


def on_end(target: Owner, key: object, call: Callable[[Terminated], None]) -> None:
    """Call ``call`` when ``target`` ends, in the kernel's step; it must not raise."""
    if target.state == "dead":
        call(_report(target))
        return
    if target.watchers is None:
        target.watchers = {}
    target.watchers[key] = call


async def wait_terminated(target: Owner) -> Terminated:
    """Wait for the end of ``target``. Cancelled: the watch is undone.

    Raises WaitCycle in a handler that has to end, or to be cancelled, before ``target`` can.
    """
    target.kernel.loop.check(target.path)
    work = current_work.get()
    if work is not None and target.state != "dead":
        refuse_own_end(work, target.path)
    ended = trio.Event()
    key = object()  # unique, since several tasks may wait
    on_end(target, key, lambda _: ended.set())
    with ending(target.path, "end"):
        try:
            await ended.wait()
        finally:
            if target.watchers is not None:
                target.watchers.pop(key, None)
    return _report(target)


def ending(path: str, what: Literal["stop", "end"]) -> AbstractContextManager[None]:
    """A block in which a handler waits for the end of the actor at ``path``; shown in dumps."""
    work = current_work.get()
    return _NO_HANDLER if work is None else _waiting(work, EndWait(what, path))


@contextmanager
def _waiting(work: Work, wait: EndWait) -> Generator[None]:
    work.waits.append(wait)
    try:
        yield
    finally:
        work.waits.remove(wait)


_NO_HANDLER: Final = nullcontext()


def report_end(dead: Owner) -> None:
    """Tell the watchers of ``dead``, and end all watches it takes part in."""
    watchers, dead.watchers = dead.watchers, None
    watching, dead.watching = dead.watching, None
    # Before any watcher is told: the call may look at these, and must find no dead watcher.
    for target in watching or ():
        if target.watchers is not None:
            target.watchers.pop(dead, None)
    for key, tell in (watchers or {}).items():
        if isinstance(key, Owner) and key.watching is not None:
            key.watching.discard(dead)
        tell(_report(dead))


def _report(dead: Owner) -> Terminated:
    assert dead.mailbox.closed is not None, "an actor that has ended has said why"
    failure = dead.failed_with
    error = None if failure is None else shown(failure)
    how: Exit = "crashed" if failure else "stopped" if dead.is_final else "ended"
    return Terminated(dead.path, dead.mailbox.closed, error, how, failure)
