"""The base class of actors, for users: the methods that an actor calls on itself.

The callbacks and the declarations are in ``behaviour.py``. The kernel does not import this file,
so it may import all of the kernel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

from motet.protocols.messages import Message, Request
from motet.runtime.behaviour import Behaviour
from motet.runtime.cell import Cell
from motet.runtime.errors import ActorDead, MotetRuntimeError
from motet.runtime.handlers import check_protocol
from motet.runtime.incarnation import Incarnation
from motet.runtime.links import link, unlink
from motet.runtime.monitors import check_watches, unwatch, watch
from motet.runtime.ref import ActorRef, cell_of
from motet.runtime.reply import ReplyTo, reply_later
from motet.runtime.schedule import ActorTimers, ScheduledMessage
from motet.runtime.stopping import within
from motet.runtime.supervision import Restart
from motet.runtime.supervisor import bound
from motet.runtime.system import System
from motet.runtime.waits import current_work

__all__ = ["Actor"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Actor(Behaviour[P_contra], Generic[P_contra]):
    """An actor that accepts the messages of its type parameter, one at a time (G5).

    Subclasses mark methods with :func:`handles`. A crash (an exception from a told message's
    handler, or from a task of :meth:`start_soon`) ends this object; its supervisor makes a new one,
    while path, reference and queued mail stay (G4). An exception from a *request*'s handler
    is raised at the asker and crashes no actor.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        check_protocol(cls, Actor, cls.__motet_handlers__)

    @property
    def ref(self) -> ActorRef[P_contra]:
        """The reference to this actor; the same across restarts."""
        return ActorRef(self._cell)

    @property
    def name(self) -> str:
        return self._cell.name

    @property
    def path(self) -> str:
        return self._cell.path

    @property
    def system(self) -> System:
        system = self._cell.kernel
        assert isinstance(system, System)
        return system

    @property
    def restart_reason(self) -> Exception | None:
        """The error that ended the incarnation before this one, while ``on_start`` runs.

        None later on, in the first incarnation, and when the one before ended without an error: by
        itself, or because a sibling's crash restarted its group.
        """
        return self._cell.failed_before

    def start_soon(
        self,
        fn: Callable[[*Ts], Awaitable[object]],
        *args: *Ts,
        name: str | None = None,
    ) -> None:
        """Run ``fn(*args)`` as a task of this actor.

        Its crash is the actor's crash. It is cancelled and awaited when the actor stops, after
        the running handler and before ``on_stop``. From ``on_start`` on.
        """
        incarnation = self._incarnation
        if incarnation is None:
            raise MotetRuntimeError(f"{self.path} does not run: start tasks from on_start on")
        incarnation.start_soon(fn, *args, name=name)

    def stash(self) -> None:
        """Put the message that is being handled aside, when its handler has returned.

        From a handler in the turn. Stashed messages count against the mailbox's capacity, but the
        last place is left for others (:class:`MailboxFull` when the rest is used up). The asker
        of a stashed request continues to wait, and may withdraw it; the handler's return value is
        discarded. Stashed messages survive a restart (G4), until :meth:`unstash_all`. If the
        handler fails, the message is not stashed.
        """
        incarnation = self._incarnation
        in_turn = current_work.get() is self._cell.turn
        if incarnation is None or not incarnation.ready or not in_turn:
            raise MotetRuntimeError(
                f"{self.path} handles no message in its turn here: call stash() in a handler "
                "that is not concurrent"
            )
        self._cell.mailbox.reserve_place()

    def reply_later(self, request: Request[R]) -> ReplyTo[R]:
        """A token to answer ``request`` with, after its handler has returned that token.

        In the handler of ``request``, which is declared with ``later=True``. The actor goes on with
        other mail, and answers by :meth:`ReplyTo.send`; the asker waits. If this incarnation ends
        before, it gets ActorDead. A request that was told has a closed token.
        """
        incarnation = self._incarnation
        if incarnation is None or not incarnation.ready:
            raise MotetRuntimeError(f"{self.path} handles no request here")
        if not self._cell.handlers[type(request)].later:
            raise MotetRuntimeError(f"declare @handles({type(request).__name__}, later=True)")
        return reply_later(self._cell.path, request)

    def unstash_all(self) -> None:
        """Handle all stashed messages next, in the order they came, before queued ones."""
        self._cell.kernel.loop.check(self.path)
        self._cell.mailbox.unstash()

    def unstash(self, count: int = 1) -> None:
        """As :meth:`unstash_all`, but only the first ``count``, which were stashed longest ago."""
        if count < 0:
            raise ValueError(f"count is a number of messages, so >= 0, not {count}")
        self._cell.kernel.loop.check(self.path)
        self._cell.mailbox.unstash(count)

    @property
    def timers(self) -> ActorTimers[P_contra]:
        """Messages to itself: ``self.timers.once(delay, message)``, ``.every(period, message)``.

        From ``on_start`` on. They end when this incarnation ends, also by a crash.
        """
        incarnation = self._incarnation
        if incarnation is None or incarnation.finishing:
            raise MotetRuntimeError(f"{self.path} is ending or does not run, so it sets no timers")
        if incarnation.timers is None:
            incarnation.timers = ActorTimers[Any](self._cell)
        return incarnation.timers

    def send_after(
        self, delay: float, ref: ActorRef[Q], message: Q, *, key: str | None = None
    ) -> ScheduledMessage:
        """Tell another actor after ``delay`` seconds, unless this incarnation has ended by then.

        If that actor has ended, or has a full mailbox that drops nothing, it is a dead letter.
        """
        return self.timers.tell_after(cell_of(ref), delay, message, key=key)

    def watch(self, ref: ActorRef[Any]) -> None:
        """Get one :class:`Terminated` when the actor of ``ref`` ends for ever; now, if it has.

        It comes before all mail and takes no room. The watch survives a restart of this actor.
        Watching twice is the same as once. Raises NotInProtocol without a handler for Terminated.
        """
        check_watches(self._cell)
        watch(self._cell, cell_of(ref))

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Undo :meth:`watch`. No Terminated of it is handled after this."""
        unwatch(self._cell, cell_of(ref))

    def link(self, ref: ActorRef[Any]) -> None:
        """Fail when the actor of ``ref`` fails, and have it fail when this one does.

        The failure is a :class:`LinkBroken`, and a crash as any other: the running handler may end,
        within ``stop_grace``, and the supervisor decides. The link holds for these two incarnations
        and ends silently when one of them ends by itself or is stopped: link in ``on_start``.
        Linking twice is the same as once. Raises ActorDead if either is ending for ever.
        """
        cell = cell_of(ref)
        link(self._cell, self._cell.fail, cell, cell.fail)

    def unlink(self, ref: ActorRef[Any]) -> None:
        """Undo :meth:`link`."""
        unlink(self._cell, cell_of(ref))

    def stop_soon(self) -> None:
        """End normally after the running handler. A permanent actor is restarted."""
        self._cell.end_normally()

    async def start_child(
        self,
        factory: Callable[[*Ts], Actor[Q]],
        *args: *Ts,
        name: str | None = None,
        restart: Restart = "permanent",
        significant: bool = False,
    ) -> ActorRef[Q]:
        """Start a child that ``factory(*args)`` makes under this actor; wait for its ``on_start``.

        Without a name it gets that of its class, and a number. ``significant``: when it ends by
        itself, this actor may end too, as ``auto_shutdown`` of its ``supervision`` says. Raises
        NameTaken, TooManyChildren, StartFailed. Cancelled: the child is stopped, and its end
        awaited.
        """
        children = self._cell.children()
        name = children.numbered(factory) if name is None else name
        cell = await children.start(bound(factory, args), name, restart, significant=significant)
        return ActorRef(cell)

    def spawn_child(
        self,
        factory: Callable[[*Ts], Actor[Q]],
        *args: *Ts,
        name: str | None = None,
        restart: Restart = "permanent",
        significant: bool = False,
    ) -> ActorRef[Q]:
        """Start a child as :meth:`start_child` does, without waiting for its ``on_start``.

        The reference can be used at once: messages wait until the child has started. If
        ``on_start`` fails nothing is left, and those messages are settled with the reason. Any code
        in Trio's thread may call this, from ``on_start`` on; the child always has the context
        variables of this actor. Raises NameTaken, TooManyChildren, StartFailed if the factory
        fails, and ActorDead if this actor is ending.
        """
        if self._incarnation is None:
            raise ActorDead(self.path, "it does not run, so it starts no children")
        name = self._cell.children().numbered(factory) if name is None else name
        made = bound(factory, args)
        return ActorRef(self._cell.spawn(made, name, restart, significant=significant))

    async def stop_child(self, name: str, *, grace: float | None = None) -> None:
        """Stop a child as :meth:`ActorRef.stop` does. Does nothing without a child of that name."""
        child = self.child(name)
        if child is not None:
            await child.stop(grace=grace)

    def stop_child_soon(self, name: str, *, grace: float | None = None) -> None:
        """Order the stop of a child as :meth:`stop_child`, without waiting for its end.

        The child accepts no further mail, and keeps its name until it has ended.
        """
        supervisor = self._cell.supervisor
        cell = supervisor.cells.get(name) if supervisor is not None else None
        if supervisor is not None and cell is not None:
            cell.kernel.loop.check(cell.path)
            supervisor.stop(cell, within(cell.stop_grace if grace is None else grace))

    def child(self, name: str) -> ActorRef[Any] | None:
        """The child of that name, alive or waiting for its restart."""
        supervisor = self._cell.supervisor
        cell = supervisor.cells.get(name) if supervisor is not None else None
        return ActorRef(cell) if cell is not None else None

    @property
    def children(self) -> dict[str, ActorRef[Any]]:
        """The children by name, in start order."""
        supervisor = self._cell.supervisor
        cells = supervisor.cells if supervisor is not None else {}
        return {name: ActorRef(cell) for name, cell in cells.items()}

    @property
    def _cell(self) -> Cell:
        cell = self.__motet_owner__
        if cell is None:
            raise MotetRuntimeError(
                f"this {type(self).__name__} is not in a system yet: "
                "use `system.start` or `start_child`, and on_start instead of __init__"
            )
        assert isinstance(cell, Cell)
        return cell

    @property
    def _incarnation(self) -> Incarnation | None:
        """The incarnation of this very object; None once a restart has replaced it."""
        incarnation = self._cell.incarnation
        return incarnation if incarnation is not None and incarnation.actor is self else None

    def __repr__(self) -> str:
        where = "not started" if self.__motet_owner__ is None else self.__motet_owner__.path
        return f"<{type(self).__name__} {where}>"
