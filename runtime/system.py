"""A system: the root of a tree of actors, and the block in which all of them live.

There are no globals: two systems in one process are independent of each other.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar, TypeVarTuple

import trio

from motet.protocols.messages import Message
from motet.runtime.behaviour import Behaviour
from motet.runtime.cell import Cell
from motet.runtime.errors import InjectedCrash
from motet.runtime.feed import FEED_BUFFER, Feed, FeedBlock, joined
from motet.runtime.kernel import Kernel
from motet.runtime.loops import refuse_in_asyncio
from motet.runtime.ref import ActorRef
from motet.runtime.registry import Registry
from motet.runtime.scopes import only_in_a_block, open_hidden_nursery
from motet.runtime.snapshot import ActorInfo, info_of, leftovers_of
from motet.runtime.stopping import StopPlan, StopReport, at_once, wait_bounded, within
from motet.runtime.supervision import Restart, Supervision
from motet.runtime.supervisor import Supervisor, bound
from motet.runtime.telemetry import Meter, TraceEvent
from motet.runtime.threads import Portal

__all__ = ["System", "open_system"]

Q = TypeVar("Q", bound=Message)
Ts = TypeVarTuple("Ts")


class System(Kernel):
    """The root of a tree of actors. Made by :func:`open_system`."""

    def __init__(
        self,
        name: str,
        supervision: Supervision,
        *,
        check_messages: bool,
        chance: Callable[[], float],
        telemetry: Meter | None,
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(name, check_messages=check_messages, chance=chance, telemetry=telemetry)
        self.failure: Exception | None = None
        self._cancel = cancel = nursery.cancel_scope.cancel
        self._portal = Portal(self, nursery)
        self._root: Supervisor[Cell] = Supervisor(
            self, f"/{name}", supervision, Cell, escalate=self._fail, shut_down=cancel
        )
        self.registry = Registry(self._root)

    async def start(
        self,
        factory: Callable[[*Ts], Behaviour[Q]],
        *args: *Ts,
        name: str | None = None,
        restart: Restart = "permanent",
        significant: bool = False,
    ) -> ActorRef[Q]:
        """Start a top-level actor that ``factory(*args)`` makes, and wait for its ``on_start``.

        A restart calls the factory again, with the same arguments. Without a name the actor gets
        that of its class, and a number: ``counter-1``. Raises NameTaken, TooManyChildren,
        StartFailed. Cancelled: the actor is stopped, and its end awaited. The end of a
        ``significant`` one may end the system, as declared: then the block of :func:`open_system`
        is cancelled, and left without an error.
        """
        name = self._root.numbered(factory) if name is None else name
        made = bound(factory, args)
        return ActorRef(await self._root.start(made, name, restart, significant=significant))

    async def stop(self, grace: float | None = None) -> StopReport:
        """Stop every actor in reverse start order; return within ``grace`` seconds (G2).

        None means five seconds, 0 cancels everything now. The report names all leftovers.
        Cancelled: the stop continues by itself.
        """
        return await self._stop(within(grace))

    def portal(self) -> Portal:
        """The way into this system for other threads and loops, to call any async function in it.

        For messages :meth:`ActorRef.threadsafe` is faster. Both may be kept, and used until the
        system has ended.
        """
        return self._portal

    def snapshot(self) -> tuple[ActorInfo, ...]:
        """Every actor that exists now, parents first, siblings in start order."""
        now = trio.current_time()
        return tuple(info_of(cell, now) for cell in self._root.tree())

    def find(self, path: str) -> ActorRef[Any] | None:
        """The actor at ``path``, or None. Takes as many steps as the path has names."""
        cell = self._root.below(path)
        return None if cell is None else ActorRef[Any](cell)

    def trace(
        self, path: str, *, buffer: int = FEED_BUFFER
    ) -> AbstractContextManager[Feed[TraceEvent]]:
        """Trace the actor at ``path``: ``with system.trace(path) as events``, to iterate over.

        The trace continues over restarts, and may begin before the actor exists. No actor waits for
        the reader: ``events.missed`` counts the events that found ``buffer`` full.
        """
        return FeedBlock(self._traced(path, buffer))

    @contextmanager
    def _traced(self, path: str, buffer: int) -> Generator[Feed[TraceEvent]]:
        feeds = self.traces.setdefault(path, [])
        try:
            with joined(feeds, buffer) as feed:
                self._observe(path)
                yield feed
        finally:
            # The last reader removes the entry, so that the actor goes back to the cheap path.
            if not feeds and self.traces.get(path) is feeds:
                del self.traces[path]
            self._observe(path)

    def _observe(self, path: str) -> None:
        self.observing = self.meter is not None or bool(self.traces)
        cell = self._root.below(path)
        if cell is not None:
            cell.observe()

    def inject(self, path: str, fault: Literal["crash", "kill"]) -> bool:
        """For tests: crash the actor at ``path``, or stop it for ever without grace, at once.

        A crash is an :class:`InjectedCrash` from outside of any handler. False if there is no such
        actor, or no incarnation that could crash.
        """
        self.loop.check(path)
        cell = self._root.below(path)
        if cell is None or cell.is_final:
            return False
        if fault == "kill":
            cell.parent.stop(cell, within(0))
            return True
        if cell.incarnation is None or cell.incarnation.is_over:
            return False
        cell.incarnation.crash(InjectedCrash(path))
        return True

    async def run(self) -> None:
        """The root's task. For :func:`open_system`.

        Shielded: a cancellation of the block reaches the actors through :meth:`end` only, which
        stops them in reverse start order, so that an actor outlives those that may use it in their
        clean-up.
        """
        with trio.CancelScope(shield=True):
            await self._root.run()

    async def end(self) -> None:
        """Cancel every handler, run every clean-up within its budget, then end the portal.

        For :func:`open_system`.
        """
        await self._stop(at_once())
        self._portal.close()

    async def _stop(self, plan: StopPlan) -> StopReport:
        root = self._root
        self.loop.check(root.path)
        # Counted before the stop: it bounds the steps that the actors may take after the deadline.
        tasks = sum(1 for _ in root.tree())
        root.close(plan)
        await wait_bounded(root.ended.wait, root.ended.is_set, plan, tasks)
        return plan.ledger.report(left for cell in root.tree() for left in leftovers_of(cell))

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._cancel()

    def __repr__(self) -> str:
        return f"<System /{self.name}, {sum(1 for _ in self._root.tree())} actors>"


@only_in_a_block
async def open_system(
    name: str = "system",
    *,
    supervision: Supervision | None = None,
    check_messages: bool = False,
    telemetry: Meter | None = None,
    chance: Callable[[], float] = random.random,
) -> AsyncGenerator[System]:
    """A block in which actors live; when it has been left, all have ended.

    Leaving it normally is ``system.stop()``. Leaving it by an exception or by cancellation also
    stops the actors in reverse start order, but without grace: the handlers of an actor are
    cancelled at once when its turn comes, and its ``on_stop`` runs within its budget. When the
    top-level actors fail more often than ``supervision`` allows, the block is cancelled and raises
    :class:`RestartLimitExceeded`. ``chance`` returns numbers in [0, 1) for the jitter of back-off.
    ``telemetry`` gets counts and times, and spans if it is a :class:`Telemetry`; without it they
    cost nothing.
    """
    refuse_in_asyncio("open_system()", "use trio.run() in a thread, and the system's portal()")
    system: System | None = None
    try:
        async with open_hidden_nursery() as nursery:
            spec = supervision or Supervision()
            system = System(
                name,
                spec,
                check_messages=check_messages,
                chance=chance,
                telemetry=telemetry,
                nursery=nursery,
            )
            nursery.start_soon(system.run, name=f"/{name} (supervisor)")
            nursery.start_soon(system.timers.run, name=f"/{name} (timers)")
            try:
                yield system
                await system.stop()
            finally:
                # Shielded, so that a cancellation of the block does not reach the clean-ups; each
                # has its budget. After a normal stop this finds nothing to do.
                with trio.CancelScope(shield=True):
                    await system.end()
                    system.timers.close()
    except BaseException:
        if system is not None and system.failure is not None:
            raise system.failure  # noqa: B904 (its cause is the child's error; this is its context)
        raise
    if system.failure is not None:
        raise system.failure
