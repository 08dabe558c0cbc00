"""The wait-for graph, in which a wait that would never end is refused before it begins (G11).

A node is a :class:`Work`, which runs one thing at a time: the turn of an actor, or one concurrent
handler. What is done within it and waits for an actor is an edge while it lasts: an ask, a tell
that waits for room, the start of a child. A work cannot go on before *all* of its edges have ended.

An edge has groups of work, and ends only after *one of each* group has ended. An ask whose handler
runs has one group with that handler. An ask in a queue waits for the turn, or for any one of the
handlers that have the places of its type; one that waits for room, for the turn or for a handler
whose type has messages in the queue as well. An actor whose incarnation is ending handles nothing
before each of its handlers has ended: a group for each; nor, before the next one, what its
supervisor is busy with: the handlers of a group that is stopped, or the start of a sibling. An edge
without groups may be ended by somebody who is not in the graph: a supervisor after its back-off,
whoever resumes a suspended actor, a deadline.

So work is deadlocked if some edge of it has a group of which all are deadlocked. The largest set
for which that holds is searched for; in a graph without alternatives it is what leads to a cycle.
The search is exact: nothing is refused that could go on, and everything that could not is refused
in the step in which it becomes so. A timeout instead would find a deadlock late, and would take a
slow answer for one. (Knapp, Deadlock detection in distributed databases, 1987, has the models: this
is AND-OR.) One thread and no await in between, so no locks.

An edge is looked at when it begins, and again when less can end it: when a sender that waited gets
room, when the actor is resumed, and when its incarnation begins to end. Everything else that
happens is progress. The search starts at the target, so an ask of an actor that has room, takes
mail and waits for nothing costs a few comparisons.

Deadlines are inherited along the edges: an ask in the handler of a request has the deadline of the
request, or an earlier one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol, TypeAlias

import msgspec
import trio

from motet.runtime.errors import AskCycle, WaitCycle

__all__ = [
    "EndWait",
    "Groups",
    "RestartWait",
    "StartWait",
    "Wait",
    "Work",
    "current_deadline",
    "current_work",
    "cycle_of",
    "is_overdue",
    "refuse_cycle",
    "refuse_own_end",
]

Groups: TypeAlias = "Sequence[Sequence[Work]]"
"""One work of each has to end first. None at all: the graph does not know what has to happen."""


class Wait(Protocol):
    """An edge: what has to end before it, and its description for a dump."""

    def groups(self) -> Groups: ...
    def describe(self, now: float) -> str: ...


class Served(Protocol):
    """A request that is being handled: its deadline, its asker, and when it was cancelled.

    ``prompt``: a cancellation of the asker reaches the handler in the same step.
    """

    until: float
    cancelled_at: float | None

    @property
    def prompt(self) -> bool: ...
    @property
    def asked_from(self) -> Work | None: ...


class Work(msgspec.Struct, eq=False):
    """A node: the turn of an actor, or one execution of a concurrent handler.

    A Struct, which is cheaper to make, since each execution makes one.
    """

    path: str
    waits: list[Wait] = []  # not shared: a Struct copies the default
    serves: Served | None = None

    @property
    def deadline(self) -> float:
        """See :func:`current_deadline`."""
        # A cancelled handler only cleans up: its asks must not be refused because of the deadline
        # that has just passed.
        if self.serves is None or self.serves.cancelled_at is not None:
            return math.inf
        return self.serves.until


class StartWait:
    """The edge of a parent that waits for a child's ``on_start``, until ``started`` is set."""

    __slots__ = ("started", "target")

    def __init__(self, target: Work, started: trio.Event) -> None:
        self.target = target
        self.started = started

    def groups(self) -> Groups:
        return () if self.started.is_set() else ((self.target,),)

    def describe(self, now: float) -> str:  # noqa: ARG002 (the protocol's signature)
        return f"start of {self.target.path}"


class RestartWait:
    """The edge of the restart of a group, until all of ``works`` have ended."""

    __slots__ = ("path", "works")

    def __init__(self, path: str, works: Sequence[Work]) -> None:
        self.path = path  # of the parent of the group
        self.works = works

    def groups(self) -> Groups:
        return [(work,) for work in self.works]

    def describe(self, now: float) -> str:  # noqa: ARG002 (the protocol's signature)
        return f"restart of the children of {self.path}"


class EndWait:
    """The wait of a handler for the end of an actor; ``what`` is ``stop`` or ``end``.

    It has no groups. A stop ends by its own deadline, and those who may end the actor otherwise
    are not in the graph; :func:`refuse_own_end` is the rule for it.
    """

    __slots__ = ("path", "what")

    def __init__(self, what: str, path: str) -> None:
        self.what = what
        self.path = path

    def groups(self) -> Groups:
        return ()

    def describe(self, now: float) -> str:  # noqa: ARG002 (the protocol's signature)
        return f"{self.what} of {self.path}"


# A context variable, since the tasks that a handler opens in a nursery of its own inherit it: they
# are part of the turn. Tasks of `Actor.start_soon` are not, and reset it.
current_work: ContextVar[Work | None] = ContextVar("motet_current_work", default=None)


def current_deadline() -> float:
    """The deadline of the request that this handler serves, in Trio's clock.

    It is the earliest of the ask's ``timeout``, the deadline its asker had when it asked, and, if
    the asker was a handler itself, the result of this function there. ``math.inf``: there is none,
    or the handler was cancelled, so that asks of its clean-up have the clean-up's deadlines only.
    At the deadline the asker cancels the handler. Read it to know the time before that, such as in
    a client that tells a server how long it will wait.
    """
    work = current_work.get()
    return math.inf if work is None else work.deadline


def is_overdue(work: Work | None) -> bool:
    """Whether ``work`` serves an asker whose deadline has passed, noticed or not."""
    # Up the chain of askers. One that is parked in its ask (`prompt`) has no delay: when its
    # deadline passes, its handler is cancelled in that step, so it is not overdue here. The reader
    # of a stream, or an asker of many that is busy, notices only at its next checkpoint.
    now = trio.current_time()
    while work is not None and work.serves is not None and work.serves.cancelled_at is None:
        if not work.serves.prompt and work.serves.until <= now:
            return True
        work = work.serves.asked_from
    return False


def refuse_cycle(work: Work, groups: Groups, error: type[WaitCycle] = AskCycle) -> None:
    """Raise ``error`` if a wait for these ``groups``, begun by ``work`` now, would never end."""
    # The usual case first: most actors that are asked wait for nothing.
    if not any(all(one is work or one.waits for one in group) for group in groups):
        return
    chain = cycle_of(work, groups)
    if chain is not None:
        raise error(chain)


def cycle_of(work: Work, groups: Groups = ()) -> list[str] | None:
    """The cycle of deadlocked work that ``work`` is in, as paths; None: there is none.

    ``groups``: of a wait that it is about to begin.
    """
    # All that may matter, each node once. The nodes are kept beside their ids, which are only
    # valid while the objects live.
    nodes: dict[int, tuple[Work, list[Sequence[Work]]]] = {}
    found = [work]
    while found:
        one = found.pop()
        if id(one) not in nodes:
            needs = [group for wait in one.waits for group in wait.groups()]
            nodes[id(one)] = one, needs + list(groups) if one is work else needs
            found += [other for group in nodes[id(one)][1] for other in group]
    # From "all are deadlocked", take out what can go on, until nothing more can. The other
    # direction, from "none is", would call nothing deadlocked: a cycle holds itself up.
    dead, before = set(nodes), 0
    while len(dead) != before:
        before = len(dead)
        dead -= {
            key
            for key in dead
            if not any(all(id(other) in dead for other in group) for group in nodes[key][1])
        }
    if id(work) not in dead:
        return None
    return _path_back(work, {key: nodes[key] for key in nodes if key in dead})


def _path_back(work: Work, dead: dict[int, tuple[Work, list[Sequence[Work]]]]) -> list[str] | None:
    """The shortest way from ``work`` to itself through waits that do not end.

    None: it only waits for others that are deadlocked. One of those is refused, and it goes on.
    """
    ways: list[tuple[Work, list[str]]] = [(work, [work.path])]
    seen: set[int] = set()
    for one, way in ways:  # it grows meanwhile
        for group in dead[id(one)][1]:
            if all(id(other) in dead for other in group):
                for other in group:
                    if other is work:
                        return [*way, work.path]
                    if id(other) not in seen:
                        seen.add(id(other))
                        ways.append((other, [*way, other.path]))
    return None


def refuse_own_end(work: Work, path: str) -> None:
    """Raise :class:`WaitCycle` if the actor at ``path`` cannot end before ``work`` has.

    So it is if ``work``, or a work that is served by it through others, is a handler of this actor
    or of one below it: the end waits for that, or cancels it, and with it this wait.
    """
    chain, one = [work.path], work
    while one.path != path and not one.path.startswith(f"{path}/"):
        asker = one.serves.asked_from if one.serves is not None else None
        if asker is None:
            return
        one = asker
        chain.append(one.path)
    # The end waits for the last of them, and each of the others for the one before it.
    back = chain[::-1]
    raise WaitCycle([work.path, path, *(back[1:] if back[0] == path else back)])
