"""Pools: workers of one class that share the messages sent to the pool.

A pool chooses a worker in the sender's task and sends to it directly. So a tell, an ask and a
stream have the guarantees of one to that worker: cancellation (G1), one outcome (G3), cycles (G11).
The invariants:

* every worker has a mailbox of its own, which survives its restarts, so a crash loses the message
  whose handler failed and no other (G4);
* a worker that leaves the pool gets no further message from it, and handles all it has before it
  is stopped;
* with ``consistent_hash``, messages with equal keys go to one worker while the workers are the
  same; a worker that comes or goes moves only the keys that it gets or had.

The workers are the children of one actor, the pool's own, which starts them and watches them end.
No message passes through it. Akka's routers and ractor's factories are actors that forward: that
is one more queue and one more task switch for each message, and an ask would need another asker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Literal, TypeVar, TypeVarTuple, get_args

import trio

from motet.protocols.messages import Asked, Message, Request
from motet.runtime.actor import Actor
from motet.runtime.asks import Asks
from motet.runtime.cell import Cell
from motet.runtime.errors import ActorDead, AskTimeout, MailboxFull
from motet.runtime.gather import Done, Failed, Settled
from motet.runtime.handlers import handles
from motet.runtime.monitors import on_end
from motet.runtime.ref import ActorRef, LookedUpRef, cell_of, check_timeout
from motet.runtime.stopping import StopReport
from motet.runtime.supervision import Supervision
from motet.runtime.supervisor import bound
from motet.runtime.system import System

__all__ = ["Pool", "Route", "start_pool"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

Route = Literal["round_robin", "least_loaded", "random", "consistent_hash"]

# Of all workers together. More than an actor's default, as for identities: each crash is a message
# that was lost, and some bad ones in a row are no reason to end the others.
_SUPERVISION = Supervision(intensity=10, period=5.0)


async def start_pool(
    under: System | Actor[Any],
    factory: Callable[[*Ts], Actor[Q]],
    *args: *Ts,
    size: int,
    name: str | None = None,
    route: Route = "round_robin",
    key: Callable[[Q], str] | None = None,
    supervision: Supervision = _SUPERVISION,
) -> Pool[Q]:
    """Start ``size`` workers that ``factory(*args)`` makes, and wait for their ``on_start``.

    ``under``: the system, or the actor whose child the pool is, and with whose incarnation it ends.
    ``route`` chooses the worker for each message; all but ``consistent_hash``, which needs ``key``,
    prefer workers that are running to those that wait for their restart. ``supervision`` is of the
    workers. When they fail more often than it allows, the pool fails, and begins anew with ``size``
    workers if its own supervisor restarts it; the mail of the workers becomes dead letters then.

    Raises NameTaken, TooManyChildren, StartFailed. Cancelled: all is stopped, and its end awaited.
    """
    if size < 1:
        raise ValueError(f"a pool needs at least 1 worker, not {size}")
    if route not in get_args(Route):
        raise ValueError(f"route is one of {', '.join(get_args(Route))}, not {route!r}")
    if (route == "consistent_hash") != (key is not None):
        raise ValueError(
            "consistent_hash needs a key=, a function of the message; no other has one"
        )

    # `supervision` is declared by a class, so each pool has a class of its own.
    class Parent(_Parent):
        pass

    Parent.supervision = supervision
    pool = Pool[Q](bound(factory, args), size, route, key)

    def parent() -> _Parent:
        return Parent(pool)

    parent.__name__ = "pool"  # for its name, if it gets none
    start = under.start_child if isinstance(under, Actor) else under.start
    pool.started(cell_of(await start(parent, name=name)))
    return pool


class Pool(LookedUpRef[P_contra]):
    """The reference to a pool, made by :func:`start_pool`; safe to keep and to share.

    A message goes to the worker that is chosen for it. While the pool itself is being restarted,
    :meth:`tell` and the like wait for it; after its end, and while it is drained, they raise
    ActorDead.
    """

    def __init__(
        self,
        factory: Callable[[], Actor[Any]],
        size: int,
        route: Route,
        key: Callable[[Any], str] | None,
    ) -> None:
        self._factory = factory
        self._wanted = size
        self._route = route
        self._key = key
        self._next = 0  # of round robin
        self._numbers = count()
        self._workers: dict[str, tuple[ActorRef[Any], int]] = {}  # by name, with their hash
        self._leaving: list[ActorRef[Any]] = []
        self._parent: Cell | None = None
        self._draining = False
        self._changed = trio.Event()  # the parent has started, or has ended for ever

    # ------------------------------------------------------------------ messages

    async def broadcast(self, message: P_contra) -> int:
        """Tell every worker, those with a full mailbox last; returns their number.

        Cancelled while it waits for room: the workers that had room have the message.
        """
        if not self._is_open:
            await self._opened()
        full: list[ActorRef[Any]] = []
        told = 0
        for ref in self.workers:
            try:
                ref.tell_nowait(message)
                told += 1
            except MailboxFull:
                full.append(ref)
        for ref in full:
            await ref.tell(message)
        return told + len(full)

    async def ask_all(
        self, request: Asked[P_contra, R], *, timeout: float = math.inf
    ) -> list[Settled[R]]:
        """Ask every worker at once; the outcomes in the order of :attr:`workers`, as of `ask_each`.

        After ``timeout`` seconds the running handlers are cancelled, and theirs is :class:`Cut`.
        """
        if not self._is_open:
            await self._opened()
        asks = Asks[R](deadline=trio.current_time() + timeout)
        async with asks:
            for ref in self.workers:
                asks.begin(ref, request)
            async for _ in asks:
                pass
        return asks.results

    async def ask_first(self, request: Asked[P_contra, R], *, timeout: float | None = None) -> R:
        """Ask every worker at once, and return the first answer.

        The other handlers are cancelled, and have ended when this returns (G1). Raises the last
        error if all fail, and AskTimeout.
        """
        if not self._is_open:
            await self._opened()
        seconds = math.inf if timeout is None else timeout
        failure: Exception = AskTimeout(self.path, type(request), seconds)
        async with Asks[R](deadline=trio.current_time() + seconds) as asks:
            for ref in self.workers:
                asks.begin(ref, request)
            async for _, entry in asks:
                if isinstance(entry, Done):
                    return entry.value
                if isinstance(entry, Failed):
                    failure = entry.error
        raise failure

    # ------------------------------------------------------------------ size and end

    @property
    def workers(self) -> tuple[ActorRef[P_contra], ...]:
        """The workers that get messages now, in start order."""
        return tuple(ref for ref, _ in self._workers.values())

    def __len__(self) -> int:
        """The number of workers that get messages now.

        One that has ended for ever is missing: it was stopped, or :attr:`Supervision.decide` said
        so. With the last of them the pool ends, and begins anew.
        """
        return len(self._workers)

    async def resize(self, size: int) -> None:
        """Have ``size`` workers.

        New ones have started when this returns. The youngest leave: each handles what it has, and
        is stopped then, before this returns. Cancelled: they leave all the same.
        Raises StartFailed; the workers that have started stay. Raises WaitCycle in a handler of a
        worker that leaves; it leaves all the same.
        """
        if size < 1:
            raise ValueError(f"a pool needs at least 1 worker, not {size}")
        await self._opened()
        await ActorRef[_Resize](self._living()).ask(_Resize(size))
        for ref in self._leaving.copy():
            await ref.wait_terminated()

    async def drain(self, *, timeout: float = math.inf, grace: float | None = None) -> StopReport:
        """Take no further message, let the workers handle what they have, then stop.

        After ``timeout`` seconds the rest becomes dead letters; ``grace`` is that of the stop.
        Cancelled: no message is taken any more, and the pool is not stopped.
        """
        check_timeout(timeout)
        self._draining = True
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            for ref in (*self.workers, *self._leaving):
                await cell_of(ref).wait_idle()
        return await self.stop(grace=grace)

    async def stop(self, *, grace: float | None = None) -> StopReport:
        """Stop the pool and its workers for ever, as :meth:`ActorRef.stop`."""
        return await ActorRef[Any](self._living()).stop(grace=grace)

    @property
    def path(self) -> str:
        """The path of the pool's own actor; the workers are below it."""
        return self._living().path

    @property
    def is_alive(self) -> bool:
        """Whether it takes messages, or will when it has been restarted."""
        return not self._draining and self._living().mailbox.closed is None

    # ------------------------------------------------------------------ within

    def started(self, parent: Cell) -> None:
        """The pool's actor has started for the first time; for :func:`start_pool`."""
        self._parent = parent
        on_end(parent, self, lambda _: self._changed.set())

    @property
    def _is_open(self) -> bool:
        parent = self._parent
        return parent is not None and parent.state == "running" and not self._draining

    def _living(self) -> Cell:
        assert self._parent is not None, "start_pool has returned"
        return self._parent

    async def _opened(self) -> None:
        while not self._is_open:
            if self._draining or self._living().mailbox.closed is not None:
                raise self._dead()
            self._changed = trio.Event()
            await self._changed.wait()

    def _dead(self) -> ActorDead:
        parent = self._living()
        why = "it is being drained" if self._draining else "it is being restarted"
        return ActorDead(parent.path, parent.mailbox.closed or why)

    def _look_up(self, message: Any) -> ActorRef[Any]:
        """The worker for ``message``, in the step in which it is sent."""
        if not (self._is_open and self._workers):
            raise self._dead()
        if self._key is not None:
            hashed = _hash(self._key(message))
            return max(self._workers.values(), key=lambda one: _mixed(hashed, one[1]))[0]
        workers = self.workers
        running = [ref for ref in workers if cell_of(ref).state == "running"] or workers
        if self._route == "random":
            return running[int(self._living().kernel.chance() * len(running))]
        first = self._next % len(running)
        if self._route == "least_loaded":
            # From the one after the last choice on, so that equal ones take turns.
            running = [*running[first:], *running[:first]]
            self._next += 1
            return min(running, key=_load)
        self._next = first + 1
        return running[first]

    # ------------------------------------------------------------------ for its actor

    async def fill(self, parent: Actor[Any], size: int) -> None:
        """Start workers until there are ``size``."""
        self._wanted = size
        while len(self._workers) < self._wanted:
            name = str(next(self._numbers))
            ref = await parent.start_child(self._factory, name=name)
            self._workers[name] = ref, _hash(name)

    def begin_anew(self) -> int:
        """The actor was started: forget the workers of its incarnation before; their number now."""
        self._workers.clear()
        self._leaving.clear()
        self._numbers = count()
        return self._wanted

    def open(self) -> None:
        """The workers have started."""
        self._changed.set()

    def shrink(self) -> Sequence[ActorRef[Any]]:
        """Take workers out until there are no more than were asked for; those that leave."""
        leaving = [*self._workers][self._wanted :]
        refs = [self._workers.pop(name)[0] for name in leaving]
        self._leaving += refs
        return refs

    def ended(self, name: str) -> bool:
        """A worker has ended for ever; whether it was the last one."""
        self._leaving = [ref for ref in self._leaving if cell_of(ref).name != name]
        return self._workers.pop(name, None) is not None and not self._workers

    def __repr__(self) -> str:
        return f"<Pool {self.path}: {len(self)} workers>"


class _Resize(Request[None], frozen=True, tag="motet.pool.resize"):
    """Have so many workers."""

    size: int


class _Parent(Actor[_Resize]):
    """The parent of the workers."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool

    async def on_start(self) -> None:
        await self._pool.fill(self, self._pool.begin_anew())
        self._pool.open()

    @handles(_Resize)
    async def resize(self, request: _Resize) -> None:
        await self._pool.fill(self, request.size)
        for ref in self._pool.shrink():
            self.start_soon(self._retire, ref, name=f"retires {ref.path}")

    async def _retire(self, ref: ActorRef[Any]) -> None:
        await cell_of(ref).wait_idle()
        await ref.stop()

    def on_child_end(self, name: str, error: Exception | None) -> None:  # noqa: ARG002
        if self._pool.ended(name):
            self.stop_soon()


def _load(ref: ActorRef[Any]) -> int:
    """The messages that a worker has, and the senders that wait for room in its mailbox."""
    box = cell_of(ref).mailbox
    return box.accepted - box.handled - box.withdrawn - box.dead_lettered + len(box.waiting)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _mixed(key: int, worker: int) -> int:
    """The weight of a worker for a key (rendezvous hashing): the heaviest gets the message.

    The finalizer of SplitMix64 instead of another hash, since it is computed for each worker. A
    ring with virtual nodes needs one search instead, but shares the keys less evenly.
    """
    mixed = key ^ worker
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64_BITS
    return mixed ^ mixed >> 31


_64_BITS = (1 << 64) - 1
