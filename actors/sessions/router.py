"""Resolves a session key to its actor: started on the first message, passivated when idle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import quote, unquote

import trio

from motet.actors.errors.log import Logger
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable, SessionActors
from motet.actors.sessions.session import Session, drop
from motet.protocols.events import AnyEvent, RunStalled
from motet.protocols.messages import Message, Request
from motet.protocols.sessions import MarkStopped, SessionMessage
from motet.runtime import Actor, ActorDead, ActorRef, Supervision, handles

IDLE_AFTER = 900.0
SWEEP_EVERY = 60.0
"""The shortest time between two looks for idle sessions, so that one look finds several."""
CROWDED_SWEEP = 0.1
MOST = 500
"""Idle sessions that stay alive. One takes some 20 KB, and is quickly loaded again."""

Announce: TypeAlias = Callable[[Run, AnyEvent], Awaitable[None]]
"""Publishes an event of a run."""

CHECK_EVERY = 0.5
"""The shortest time between two checks of the runs."""


class Resolve(Request[ActorRef[SessionMessage]], frozen=True, tag="router.resolve"):
    """The actor of a session, started if it is not alive.

    It may be passivated before the reference is used: on ``ActorDead`` nothing was accepted, and
    the asker resolves again.
    """

    session: str


class Discard(Message, frozen=True, tag="router.discard"):
    """Record that a stop has taken this run out of its queue, or has it end."""

    run_id: str


class Retire(Request[None], frozen=True, tag="router.retire"):
    """End a session's actor now; the next message starts a new one from the stored state.

    Nothing ends if the session was deleted meanwhile, and runs for another user than ``owner``.
    """

    session: str
    owner: str


RouterMessage: TypeAlias = Resolve | Discard | Retire


class Router(Actor[RouterMessage]):
    """Parent of all session actors. One session's crash never touches another's."""

    supervision = Supervision(strategy="one_for_one", intensity=100, period=5.0)
    cleanup_budget = 15.0

    def __init__(self, services: Services, actors: SessionActors, stalled: float = 0.0) -> None:
        self.services = services
        self.actors = actors
        self.stalled = stalled

    async def on_start(self) -> None:
        self.start_soon(self._sweep)
        self.start_soon(self._end_alone)
        if self.stalled:
            services = self.services
            self.start_soon(
                watch, services.table, self.stalled, services.events.emit, services.events.log
            )
        self.actors.begin(self._opened, MOST)
        # After a crash: the queues are still there, and perhaps no other input will ever come.
        for key, queue in tuple(self.services.table.queues.items()):
            if queue.has_work:
                self._opened(key)

    async def _end_alone(self) -> None:
        """End the runs in their callers' tasks with this actor, as those of its children end."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.actors.end_alone()

    async def on_stop(self) -> None:
        table = self.services.table
        self.actors.close()
        if self.ref.is_alive:
            return  # it restarts: the next router has the same queues
        for queue in tuple(table.queues.values()):
            for run in queue.give_up(gone := "no session is run any more"):
                table.finish(run, run.ends_as("cancelled", gone))

    @handles(Resolve)
    async def resolve(self, message: Resolve) -> ActorRef[SessionMessage]:
        while (session := self._open(message.session)) is None:
            await self.stop_child(actor_name(message.session))
        return session

    @handles(Discard)
    async def discard(self, message: Discard) -> None:
        run = self.services.table.runs.get(message.run_id)
        if run is not None:
            self.start_soon(self._mark if run.is_stopping else self._drop, run)

    async def _mark(self, run: Run) -> None:
        """Store a stop that its run outlasts, as soon as the storage takes it. A kill before that
        takes the stop back, as it does its end."""
        while run.is_stopping:
            with suppress(Exception):
                await self.services.store.ask(MarkStopped(run.id, run.stop_reason))
                return
            await self.services.health.retry()

    async def _drop(self, run: Run) -> None:
        await drop(run, self.services)
        if self.services.table.queue(run.session).unsaved:
            self.actors.wake(run.session)  # it stores that when it can

    @handles(Retire)
    async def retire(self, message: Retire) -> None:
        queue = self.services.table.queues.get(message.session)
        running = () if queue is None else queue.running
        if all(run.input.principal.user == message.owner for run in running):
            await self.stop_child(actor_name(message.session))

    def on_child_end(self, name: str, error: Exception | None) -> None:
        """Inputs and unsaved ends that came too late for a session's actor are for its next one."""
        queue = self.services.table.queues.get(unquote(name))
        if queue is None or not queue.has_work:
            return
        if error is None:
            self._opened(queue.session)
            return
        for run in queue.give_up(f"its session did not start: {error!r}"):
            self.start_soon(self._drop, run)

    def _opened(self, key: str) -> ActorRef[SessionMessage] | None:
        """The session's actor for :class:`SessionActors`; None: it is ending, or the router is."""
        try:
            return self._open(key)
        except ActorDead:  # the router is ending
            return None

    def _open(self, key: str) -> ActorRef[SessionMessage] | None:
        """The actor of a session, started if there is none; None while one is ending."""
        name = actor_name(key)
        session: ActorRef[SessionMessage] | None = self.child(name)
        if session is None:
            session = self.spawn_child(lambda: Session(key, self.services), name=name)
        elif not session.is_alive:
            return None
        table = self.services.table
        table.queue(key)  # from now on a sweep finds the session
        self.actors.add(key, session)
        self.actors.count(len(table.queues))
        return session

    async def _sweep(self) -> None:
        """Passivate sessions that have been idle for a while, and the longest idle of too many.

        Their transcripts are on disk.
        """
        table = self.services.table
        while True:
            with trio.move_on_at(max(table.idle_at(IDLE_AFTER), table.now() + SWEEP_EVERY)):
                await self.actors.crowded.wait()
                await trio.sleep(CROWDED_SWEEP)
            self.actors.crowded = trio.Event()
            for key in table.idle(IDLE_AFTER, MOST):
                del table.queues[key]
                self.actors.remove(key)
                # Not awaited: one after the other, they would end more slowly than new ones start.
                self.stop_child_soon(actor_name(key))


def actor_name(session: str) -> str:
    """A session key as an actor name, reversibly: names hold no slash."""
    return quote(session, safe=":@ ")


async def watch(table: RunTable, limit: float, announce: Announce, log: Logger) -> None:
    """The watchdog: announce each run that has made no progress for ``limit`` seconds.

    It runs for ever, ends nothing, and delays no run. It sleeps until the first of them can be
    stalled: a sign of any run after now counts from then on.
    """
    while True:
        now = trio.current_time()
        dues = [run.progress.due(limit) for run in table.runs.values() if run.is_running]
        await trio.sleep_until(max(min([*dues, now + limit]), now + CHECK_EVERY))
        now = trio.current_time()
        for run in list(table.runs.values()):
            seconds = run.progress.stalled(now, limit) if run.is_running else None
            if seconds is not None:
                run.progress.announced = True
                waits_on = run.progress.waits_on(stopping=run.is_stopping)
                log.warning("stalled", run=run.id, session=run.session, on=waits_on)
                await announce(run, RunStalled(round(seconds, 1), waits_on))
