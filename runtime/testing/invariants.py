"""The guarantees as laws over the statistics of a system, checked after every step.

For every actor of a watched system:

* G2  a dead actor has no mail, no running handler and no waiting sender; when the world is over,
      every actor is dead;
* G4  accepted = handled + withdrawn + dead-lettered + stashed + queued + running, none negative,
      and no counter decreases;
* G5  no more handlers run than the actor declared: one in the turn and the concurrent ones;
* G6  once an actor ends, no handler begins: only the running ones may still finish;
* G13 queued and stashed messages do not exceed the capacity.

With reports of the world (:class:`Asks`, :class:`Turns`), since the kernel has no request ids:

* G1  no handler works for a request whose asker has resumed;
* G3  every ask has exactly one outcome, and the answer is its own;
* G5  at most one handler of an actor is in the turn.

The laws are pure functions; :class:`Watch` applies them to the actors that have changed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import attrs
import msgspec

from motet.runtime.cell import Cell
from motet.runtime.snapshot import Statistics, statistics_of
from motet.runtime.system import System
from motet.runtime.testing.probe import Limits, cells, limits_of

__all__ = ["Asks", "Turns", "Violation", "Watch", "broken_laws", "changes"]

# Called for a broken law: the guarantee, the actor or request, and the numbers.
Found = Callable[[str, str, str], None]

_ENDING = ("stopping", "failing", "dead")
_COUNTED = ("accepted", "handled", "withdrawn", "dead_lettered", "restarts")
_LEFT = ("stashed", "queued", "running", "waiting")
_SHOWN = (*_COUNTED, *_LEFT)


class Violation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold: the step, the actor or request, and the numbers."""

    guarantee: str
    step: int
    actor: str
    detail: str

    def __str__(self) -> str:
        return f"{self.guarantee} broken at step {self.step} by {self.actor}: {self.detail}"


# ---------------------------------------------------------------------- pure


def broken_laws(
    before: Statistics | None, now: Statistics, limits: Limits, may_finish: int | None
) -> Iterator[tuple[str, str]]:
    """The guarantees that ``now`` breaks, with the numbers.

    ``may_finish`` is how many messages may have been handled in all, if the actor is ending.
    """
    placed = now.handled + now.withdrawn + now.dead_lettered
    there = now.stashed + now.queued + now.running
    if now.accepted != placed + there:
        terms = ("handled", "withdrawn", "dead_lettered", "stashed", "queued", "running")
        yield "G4", f"accepted {now.accepted}, but {_list(_numbers(now), terms)}"
    # Named only when one is wrong: this runs at every change of an actor.
    counts = _all(now)
    if min(counts) < 0:
        numbers = _numbers(now)
        negative = [name for name in _SHOWN if numbers[name] < 0]
        yield "G4", f"less than nothing: {_list(numbers, negative)}"
    if before is not None and any(map(operator.gt, _all(before)[: len(_COUNTED)], counts)):
        numbers, earlier = _numbers(now), _numbers(before)
        for name in _COUNTED:
            if numbers[name] < earlier[name]:
                yield "G4", f"{name} went from {earlier[name]} to {numbers[name]}"
    if now.running > limits.handlers:
        yield "G5", f"{now.running} handlers run, {limits.handlers} may"
    if may_finish is not None and now.handled + now.running > may_finish:
        yield (
            "G6",
            (
                f"{now.state}, but a handler began: handled {now.handled} + running {now.running}, "
                f"when the end began {may_finish}"
            ),
        )
    if now.queued + now.stashed > limits.capacity:
        yield "G13", f"queued {now.queued} + stashed {now.stashed} of {limits.capacity}"
    if now.state == "dead":
        numbers = _numbers(now)
        left = [name for name in _LEFT if numbers[name]]
        if left:
            yield "G2", f"dead, but {_list(numbers, left)}"


def changes(before: Statistics | None, now: Statistics) -> str:
    """The differences of ``now`` from ``before``, for a line of the trace."""
    earlier = _numbers(before) if before is not None else {}
    words = [f"{name} {n}" for name, n in _numbers(now).items() if n != earlier.get(name, 0)]
    if before is None or before.state != now.state:
        words.insert(0, now.state)
    return ", ".join(words)


def _all(seen: Statistics) -> tuple[int, ...]:
    """The numbers, those of ``_COUNTED`` first."""
    return (
        seen.accepted,
        seen.handled,
        seen.withdrawn,
        seen.dead_lettered,
        seen.restarts,
        seen.stashed,
        seen.queued,
        seen.running,
        seen.waiting,
    )


def _numbers(seen: Statistics) -> dict[str, int]:
    return {
        "accepted": seen.accepted,
        "handled": seen.handled,
        "withdrawn": seen.withdrawn,
        "dead_lettered": seen.dead_lettered,
        "stashed": seen.stashed,
        "queued": seen.queued,
        "running": seen.running,
        "waiting": seen.waiting,
        "restarts": seen.restarts,
    }


def _list(numbers: dict[str, int], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {numbers[name]}" for name in names)


# ---------------------------------------------------------------------- watched actors


@attrs.define
class _Watched:
    """The last statistics of an actor, and what they were made of."""

    limits: Limits
    seen: Statistics | None = None
    counted: tuple[object, ...] = ()
    may_finish: int | None = None  # in all, once it is ending


def _counted(cell: Cell) -> tuple[object, ...]:
    """All that statistics are made of. They take longer, and few actors change in a step."""
    box = cell.mailbox
    return (
        cell.state,
        cell.generation,
        box.accepted,
        box.taken,
        box.handled,
        box.lost,
        box.withdrawn,
        box.dead_lettered,
        box.stashed,
        len(box.queue) - box.queue.gaps,
        len(box.waiting),
        box.running_concurrently,
        box.retrying is None,
    )


class Watch:
    """Checks all actors of its systems. ``changed`` is called with each change, for the trace."""

    def __init__(self, found: Found, changed: Callable[[str, Statistics | None, Statistics], None]):
        self.systems: list[System] = []
        self._found = found
        self._changed = changed
        self._watched: dict[Cell, _Watched] = {}

    def look(self) -> None:
        """After a step: check every actor that has changed."""
        present = 0
        known = self._watched
        for system in self.systems:
            here = cells(system)
            present += len(here)
            for cell in here:
                watched = known.get(cell)
                counted = _counted(cell)
                if watched is None or watched.counted != counted:
                    self._look_at(cell, counted)
        if present != len(self._watched):
            self._look_at_the_gone()

    def end(self) -> None:
        """The world is over: every actor must be dead (G2)."""
        self.look()
        for cell, watched in self._watched.items():
            if watched.seen is not None and watched.seen.state != "dead":
                self._found("G2", cell.path, f"the world is over, and it is {watched.seen.state}")

    def _look_at_the_gone(self) -> None:
        here = {cell for system in self.systems for cell in cells(system)}
        for cell in [cell for cell in self._watched if cell not in here]:
            self._look_at(cell, _counted(cell))
            if cell.state == "dead":
                del self._watched[cell]

    def _look_at(self, cell: Cell, counted: tuple[object, ...]) -> None:
        watched = self._watched.get(cell)
        if watched is None:
            watched = self._watched[cell] = _Watched(limits_of(cell))
        elif watched.counted == counted:
            return
        watched.counted = counted
        before, now = watched.seen, statistics_of(cell)
        if now == before:
            return
        if now.state not in _ENDING:
            watched.may_finish = None
        elif watched.may_finish is None:
            watched.may_finish = now.handled + now.running
        watched.seen = now
        self._changed(cell.path, before, now)
        for guarantee, detail in broken_laws(before, now, watched.limits, watched.may_finish):
            self._found(guarantee, cell.path, detail)


# ---------------------------------------------------------------------- reports of the world


class Asks:
    """G1 and G3 by request id: ``asking`` around each ask, ``working`` in each handler."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._outcomes: dict[object, list[str]] = {}
        self._working: Counter[object] = Counter()

    @contextmanager
    def asking(self, request: object) -> Generator[None]:
        """Around the whole of an ask and its outcome, once per request id."""
        self.asked(request)
        outcome = "value"
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self.resumed(request, outcome)

    def asked(self, request: object) -> None:
        """The ask of ``request`` begins."""
        if request in self._outcomes:
            raise ValueError(f"request {request!r} is asked twice; ids name one ask each")
        self._outcomes[request] = []

    def resumed(self, request: object, outcome: str) -> None:
        """The asker resumes with ``outcome``, which must be its only one, and no handler runs."""
        outcomes = self._outcomes[request]
        outcomes.append(outcome)
        if len(outcomes) > 1:
            self._found("G3", f"request {request}", f"several outcomes: {', '.join(outcomes)}")
        if self._working[request]:
            detail = f"its asker resumed while {self._working[request]} handlers worked for it"
            self._found("G1", f"request {request}", detail)

    def answered(self, request: object, answer_of: object) -> None:
        """The answer to ``request`` names the request it belongs to."""
        if request != answer_of:
            self._found("G3", f"request {request}", f"it got the answer of {answer_of}")

    @contextmanager
    def working(self, request: object) -> Generator[None]:
        """In a handler, around all work for ``request``, clean-up included."""
        if self._outcomes.get(request):
            self._found("G1", f"request {request}", "a handler began after its asker had resumed")
        self._working[request] += 1
        try:
            yield
        finally:
            self._working[request] -= 1

    def end(self) -> None:
        """The world is over: every ask has its outcome (G3)."""
        for request, outcomes in self._outcomes.items():
            if not outcomes:
                self._found("G3", f"request {request}", "no outcome")


class Turns:
    """G5 by name: ``taking`` in each handler that must run alone."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._inside: Counter[str] = Counter()

    @contextmanager
    def taking(self, actor: str) -> Generator[None]:
        """In a handler of ``actor``, around all of it."""
        self._inside[actor] += 1
        if self._inside[actor] > 1:
            self._found("G5", actor, f"{self._inside[actor]} handlers are in the turn")
        try:
            yield
        finally:
            self._inside[actor] -= 1
