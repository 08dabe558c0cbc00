"""Resolves a session key to its actor: started on the first message, gone when idle."""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import quote, unquote

import trio

from motet.actors.services import Services
from motet.actors.sessions.session import Session, SessionMessage, drop
from motet.actors.sessions.watchdog import watch
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, Supervision, Terminated, handles

IDLE_AFTER = 900.0
SWEEP_EVERY = 60.0
CROWDED_SWEEP = 0.1
MOST = 500
"""Sessions that stay alive while they are idle. One takes some 20 KB, and is soon read again."""


class Resolve(Request[ActorRef[SessionMessage]], frozen=True, tag="router.resolve"):
    """The actor of a session, started if it is not alive.

    It may be passivated between the answer and its use: an ``ActorDead`` there means to resolve
    again, nothing was accepted.
    """

    session: str


class Discard(Message, frozen=True, tag="router.discard"):
    """A stop took this run out of its queue: put that on record."""

    run_id: str


class Retire(Request[None], frozen=True, tag="router.retire"):
    """End a session's actor now; the next message starts it anew, from what is stored."""

    session: str


RouterMessage: TypeAlias = Resolve | Discard | Retire | Terminated


class Router(Actor[RouterMessage]):
    """Parent of all session actors. One session's crash never touches another's."""

    supervision = Supervision(strategy="one_for_one", intensity=100, period=5.0)
    cleanup_budget = 15.0

    def __init__(self, services: Services, stalled: float = 0.0) -> None:
        self.services = services
        self.stalled = stalled
        self._crowded = trio.Event()

    async def on_start(self) -> None:
        self.start_soon(self._sweep)
        if self.stalled:
            self.start_soon(watch, self.services, self.stalled)
        self.services.table.opener = self._opened
        # After a crash: what was queued is still there, and perhaps nothing else will ever come.
        for key in tuple(self.services.table.slots):
            self._open(key)

    async def on_stop(self) -> None:
        self.services.table.opener = None

    @handles(Resolve)
    async def resolve(self, message: Resolve) -> ActorRef[SessionMessage]:
        return await self._started(message.session)

    @handles(Discard)
    async def discard(self, message: Discard) -> None:
        run = self.services.table.runs.get(message.run_id)
        if run is not None:
            self.start_soon(drop, run, self.services)

    @handles(Retire)
    async def retire(self, message: Retire) -> None:
        await self.stop_child(actor_name(message.session))

    @handles(Terminated)
    async def ended(self, message: Terminated) -> None:
        self._open(unquote(message.path.rpartition("/")[2]))

    def _open(self, key: str) -> None:
        """Begin the actor of a session if there is something for it to do."""
        slot = self.services.table.slots.get(key)
        if slot is not None and slot.waits:
            self._opened(key)

    async def _started(self, key: str) -> ActorRef[SessionMessage]:
        """The actor of a session, alive."""
        name = actor_name(key)
        session: ActorRef[SessionMessage] | None = self.child(name)
        if session is None or not session.is_alive:
            await self.stop_child(name)  # one that is ending has its name until it has ended
            session = await self.start_child(lambda: Session(key, self.services), name=name)
        self._note(key, session)
        return session

    def _opened(self, key: str) -> ActorRef[SessionMessage] | None:
        """What ``Resolve`` answers, if that takes no waiting: see ``RunTable.opened``."""
        name = actor_name(key)
        session: ActorRef[SessionMessage] | None = self.child(name)
        if session is None:
            try:
                session = self.spawn_child(lambda: Session(key, self.services), name=name)
            except ActorDead:  # the router is ending
                return None
        elif not session.is_alive:
            self.watch(session)  # so that the next one begins when it has ended
            return None
        self._note(key, session)
        return session

    def _note(self, key: str, session: ActorRef[SessionMessage]) -> None:
        table = self.services.table
        table.slot(key).actor = session
        if len(table.slots) > MOST:
            self._crowded.set()

    async def _sweep(self) -> None:
        """Passivate sessions that have been idle for a while, or are too many.

        Their transcript is on disk.
        """
        while True:
            with trio.move_on_after(SWEEP_EVERY):
                await self._crowded.wait()
                await trio.sleep(CROWDED_SWEEP)
            self._crowded = trio.Event()
            table = self.services.table
            for key in table.idle(trio.current_time() - IDLE_AFTER, MOST):
                del table.slots[key]
                # Not waited for: one after the other, they would be fewer than those that come.
                self.stop_child_soon(actor_name(key))


def actor_name(session: str) -> str:
    """A session key as a name in the tree, reversibly: names hold no slash."""
    return quote(session, safe=":@ ")
