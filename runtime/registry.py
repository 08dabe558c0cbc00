"""Actors by name, and virtual actors by identity (as the grains of Orleans).

A name stands for one living actor. An identity is a kind and a key. Its actor is made on the first
message and passivated when it has been idle for a while; the next message makes it again. The
invariants:

* an identity has one incarnation at a time: the successor begins after the clean-up of the
  incarnation before it;
* no message is lost by passivation: it happens only in a step in which the actor is idle and has no
  mail, and later messages wait for the successor;
* an identity that crashes ends no other: its restarts are counted for it alone. When it has spent
  them, only it is given up, and messages to it are refused for a while, each time for longer;
* an identity without an actor costs nothing but the references to it.

Each kind has a parent actor at the top level. So an identity is supervised, stopped and dumped
like any child, and the registry itself has neither a task nor a nursery.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import trio

from motet.protocols.messages import Message
from motet.runtime.behaviour import Behaviour
from motet.runtime.cell import Cell
from motet.runtime.errors import (
    ActorDead,
    MotetRuntimeError,
    NameTaken,
    RestartLimitExceeded,
    TooManyChildren,
)
from motet.runtime.foreign import shown
from motet.runtime.handlers import handles
from motet.runtime.monitors import on_end
from motet.runtime.ref import ActorRef, LookedUpRef, cell_of
from motet.runtime.schedule import ActorTimers
from motet.runtime.stopping import StopReport, at_once
from motet.runtime.supervision import Refusals, Supervision
from motet.runtime.supervisor import Supervisor
from motet.runtime.threads import end_unused

__all__ = ["IdentityRef", "Kind", "Registry"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R")
T = TypeVar("T")

IDLE_AFTER = 900.0  # seconds
_SWEEPS = 4  # per idle time, so that an actor is passivated at most a quarter of it too late

# More than the default: each crash of an identity is a message that was lost, and a client that
# sends some bad ones in a row is no reason to refuse the others.
_SUPERVISION = Supervision(intensity=10, period=5.0)


class Registry:
    """The names and identities of one system: ``system.registry``."""

    def __init__(self, root: Supervisor[Cell]) -> None:
        self._root = root  # of the system: the parents of kinds are top-level actors
        self._names: dict[str, ActorRef[Any]] = {}
        self._kinds: dict[str, Kind[Any]] = {}

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Give an actor a name until it has ended for ever. Raises NameTaken."""
        if name in self._names:
            raise NameTaken(name)
        self._names[name] = ref
        on_end(cell_of(ref), (self, name), lambda _: self._forget(name, ref))

    def unregister(self, name: str) -> None:
        """Free a name. Does nothing if it is free."""
        self._names.pop(name, None)

    def find(self, name: str) -> ActorRef[Any] | None:
        """The actor of that name, or None."""
        return self._names.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """All names in use, in the order they were registered."""
        return tuple(self._names)

    async def kind(
        self,
        name: str,
        factory: Callable[[str], Behaviour[Q]],
        *,
        idle_after: float = IDLE_AFTER,
        limit: int | None = None,
        supervision: Supervision = _SUPERVISION,
    ) -> Kind[Q]:
        """Declare a kind of identities, whose actors ``factory(key)`` makes.

        They live under the actor ``/system/name``. An actor that has been idle for ``idle_after``
        seconds is passivated; idle means no mail, no handler, no background task, no child and no
        timer. At most ``limit`` actors are live at once: a further one passivates an idle one, and
        raises TooManyChildren if there is none.

        ``supervision`` is of each identity alone: more than ``intensity`` restarts within
        ``period`` seconds end it, and no other. Its mail is settled with the reason. After that,
        messages to it raise ActorDead for ``period`` seconds, then the next one makes it again; the
        time grows by ``backoff_factor`` each time in a row, as :class:`Refusals` says. It is
        ``one_for_one``, or ValueError is raised. Raises NameTaken.
        """
        each = msgspec.structs.replace(supervision, give_up="child")
        if not idle_after > 0:
            raise ValueError(f"idle_after is a number of seconds, so > 0, not {idle_after}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1 or None, not {limit}")
        kind = Kind(name, factory, idle_after, limit, each)
        parent = await self._root.start(lambda: _parent(kind, each), name, "permanent")
        kind.started(parent)
        self._kinds[name] = kind
        return kind

    def ref(self, kind: str, key: str) -> IdentityRef[Any]:
        """The identity ``key`` of a kind. ``Kind.ref`` does the same with the type."""
        found = self._kinds.get(kind)
        if found is None:
            known = ", ".join(self._kinds) or "none"
            raise MotetRuntimeError(f"there is no kind {kind!r}; declared are: {known}")
        return found.ref(key)

    def _forget(self, name: str, ref: ActorRef[Any]) -> None:
        if self._names.get(name) is ref:
            del self._names[name]


class Kind(Generic[Q]):
    """A kind of identities; made by :meth:`Registry.kind`."""

    def __init__(
        self,
        name: str,
        factory: Callable[[str], Behaviour[Q]],
        idle_after: float,
        limit: int | None,
        supervision: Supervision,
    ) -> None:
        self.name = name
        self.idle_after = idle_after
        self._factory = factory
        self._limit = limit
        self._parent: Cell | None = None
        self._supervisor: Supervisor[Cell] | None = None
        self._changed = trio.Event()  # the parent is open again, or has ended for ever
        # Of actors that were idle at the last sweep: messages so far, idle since. By name, the next
        # actor of an identity would have the idle time of the one before it.
        self._idle: dict[Cell, tuple[int, float]] = {}
        self._refusals = Refusals(supervision)

    def ref(self, key: str) -> IdentityRef[Q]:
        """The identity of that key. Makes no actor."""
        return IdentityRef[Q](self, key)

    @property
    def live(self) -> int:
        """The number of actors of the kind, ending ones included."""
        return 0 if self._supervisor is None else len(self._supervisor.cells)

    # ------------------------------------------------------------------ for its references

    def find(self, name: str) -> Cell | None:
        """The live actor of that name that still takes mail."""
        cell = None if self._supervisor is None else self._supervisor.find(name)
        return cell if cell is not None and cell.mailbox.closed is None else None

    @property
    def is_open(self) -> bool:
        """Whether the parent actor takes children now."""
        return self._supervisor is not None and not self._supervisor.closing

    async def opened(self, name: str) -> None:
        """Wait while the parent actor is being restarted."""
        while not self.is_open:
            parent = self._parent
            if parent is None or parent.state == "dead":
                raise ActorDead(f"{self.name}/{name}", "its kind has ended")
            self._changed = trio.Event()
            await self._changed.wait()

    def present(self, name: str, key: str) -> ActorRef[Q]:
        """The actor of an identity, made if there is none.

        It takes mail at once, until the caller's next checkpoint. ActorDead while the parent actor
        is being restarted.
        """
        supervisor = self._supervisor
        if supervisor is None or not self.is_open:
            raise ActorDead(f"{self.name}/{name}", "its kind is being restarted, or has ended")
        cell = supervisor.find(name)
        if cell is None:
            if len(self._refusals):
                reason = self._refusals.reason(name, trio.current_time())
                if reason is not None:
                    raise ActorDead(f"{supervisor.path}/{name}", reason)
            self._make_room(supervisor)
            cell = supervisor.spawn(lambda: self._factory(key), name, "transient")
        elif cell.mailbox.closed is not None:
            # It is being passivated or stopped: its on_stop may be writing the state that the
            # successor reads, in its factory or in on_start, so the successor is made after it.
            cell = supervisor.spawn_next(lambda: self._factory(key), name, "transient")
        return ActorRef[Q](cell)

    # ------------------------------------------------------------------ for its parent actor

    def started(self, parent: Cell) -> None:
        """The parent actor has started for the first time."""
        self._parent = parent
        on_end(parent, self, lambda _: self._changed.set())

    def open(self, supervisor: Supervisor[Cell]) -> None:
        """An incarnation of the parent actor has begun."""
        self._supervisor = supervisor
        self._idle.clear()
        self._changed.set()

    def given_up(self, name: str, error: Exception, chance: float) -> None:
        """An identity has spent its restarts."""
        now = trio.current_time()
        self._refusals.given_up(name, f"{error}: {shown(error.__cause__)}", now, chance)

    def sweep(self) -> None:
        """Passivate the actors that have been idle for long enough, in one synchronous step."""
        assert self._supervisor is not None
        now = trio.current_time()
        # Only actors that are idle now are looked at, so a message costs no bookkeeping here. The
        # count of messages tells whether an actor was busy between two sweeps.
        before, self._idle = self._idle, {}
        for cell in self._supervisor.cells.copy().values():
            if not _is_idle(cell):
                continue
            accepted = cell.mailbox.accepted
            seen, since = before.get(cell, (accepted, now))
            if seen == accepted and now - since >= self.idle_after:
                _passivate(self._supervisor, cell)
            else:
                self._idle[cell] = (accepted, since if seen == accepted else now)

    # ------------------------------------------------------------------ within

    def _make_room(self, supervisor: Supervisor[Cell]) -> None:
        if self._limit is None or len(supervisor.cells) < self._limit:
            return
        staying = [cell for cell in supervisor.cells.values() if not cell.is_final]
        if len(staying) < self._limit:
            return
        if not any(_passivate(supervisor, cell) for cell in staying if _is_idle(cell)):
            raise TooManyChildren(supervisor.path, self._limit)


class IdentityRef(LookedUpRef[P_contra]):
    """A reference to an identity: a message makes its actor, if there is none.

    All else is as with :class:`ActorRef`. The factory runs in the sender's task, and its error is
    raised there, as StartFailed; while an earlier actor is ending, it runs after that. If it fails
    then, or ``on_start`` does, the mail is settled as by an actor that ended, and the next message
    tries again.
    """

    __slots__ = ("_key", "_kind", "_name")

    def __init__(self, kind: Kind[Any], key: str) -> None:
        if not key:
            raise ValueError("the key of an identity is not empty")
        self._kind = kind
        self._key = key
        self._name = quote(key, safe=":@ ")  # names in the tree hold no slash

    async def stop(self, *, grace: float | None = None) -> StopReport:
        """Stop the actor as :meth:`ActorRef.stop`, if it is live. A message makes a new one."""
        cell = self._kind.find(self._name)
        if cell is None:
            await trio.lowlevel.checkpoint()
            return StopReport()
        return await ActorRef[P_contra](cell).stop(grace=grace)

    @property
    def key(self) -> str:
        return self._key

    @property
    def kind(self) -> str:
        return self._kind.name

    @property
    def is_live(self) -> bool:
        """Whether an actor takes its mail now."""
        return self._kind.find(self._name) is not None

    def _look_up(self, message: Any) -> ActorRef[P_contra]:  # noqa: ARG002 (each goes to the same)
        return self._kind.present(self._name, self._key)

    @property
    def _is_open(self) -> bool:
        return self._kind.is_open

    async def _opened(self) -> None:
        await self._kind.opened(self._name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityRef):
            return NotImplemented
        return other._kind is self._kind and other._key == self._key

    def __hash__(self) -> int:
        return hash((id(self._kind), self._key))

    def __repr__(self) -> str:
        return f"<IdentityRef {self._kind.name}/{self._key}{' live' if self.is_live else ''}>"


class _Sweep(Message, frozen=True, tag="motet.registry.sweep"):
    """Passivate the actors that have been idle for long enough."""


class _Parent(Behaviour[_Sweep]):
    """The parent of all actors of a kind.

    A bare Behaviour, since ``actor.py`` imports the system, which imports this file.
    """

    def __init__(self, kind: Kind[Any]) -> None:
        self._kind = kind

    async def on_start(self) -> None:
        cell = self.__motet_owner__
        assert isinstance(cell, Cell)
        assert cell.incarnation is not None
        supervisor = cell.children()
        await supervisor.opened.wait()
        self._kind.open(supervisor)
        if self._kind.idle_after < math.inf:
            timers = cell.incarnation.timers = ActorTimers[Any](cell)
            timers.every(self._kind.idle_after / _SWEEPS, _Sweep())

    def on_child_end(self, name: str, error: Exception | None) -> None:
        # Any other error is of a start that failed: the next message tries again at once, since the
        # sender of each gets the error.
        if isinstance(error, RestartLimitExceeded):
            owner = self.__motet_owner__
            assert owner is not None
            self._kind.given_up(name, error, owner.kernel.chance())

    @handles(_Sweep)
    async def sweep(self, _: _Sweep) -> None:
        self._kind.sweep()


def _parent(kind: Kind[Any], declared: Supervision) -> _Parent:
    # `supervision` is declared by a class, so each kind has a class of its own.
    class Parent(_Parent):
        supervision = declared

    return Parent(kind)


def _is_idle(cell: Cell) -> bool:
    """No mail, no handler, no task, no child, no timer, and no sender that waits."""
    box, incarnation = cell.mailbox, cell.incarnation
    if cell.state != "running" or incarnation is None or incarnation.finishing:
        return False
    if cell.paused or cell.control or cell.deferred:
        return False
    if len(box.queue) > box.queue.gaps or box.waiting or box.stashed or box.running:
        return False
    below = cell.supervisor is not None and cell.supervisor.cells
    tasks = incarnation.workers is not None and incarnation.workers.at_work
    timers = incarnation.timers is not None and len(incarnation.timers)
    return not (below or tasks or timers)


def _passivate(supervisor: Supervisor[Cell], cell: Cell) -> bool:
    """End an idle actor, unless a message of another thread is on its way to it."""
    # No common deadline as in a stop: the clean-up has its whole budget.
    return end_unused(cell, lambda: supervisor.stop(cell, at_once()))
