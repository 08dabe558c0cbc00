"""The reference to an actor: tell, ask, stream, stop and watch, but no access to its object."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

import trio

from motet.protocols.messages import Asked, Message, Streamed, StreamRequest
from motet.runtime.ask import AbandoningAsk, ask, forward, observed_ask
from motet.runtime.cell import Cell
from motet.runtime.envelope import WOKEN, Address, reschedule
from motet.runtime.lifecycle import OVER, Terminated
from motet.runtime.monitors import ending, wait_terminated
from motet.runtime.order import DIRECT_UP_TO
from motet.runtime.outside import foreign_code
from motet.runtime.reply import ReplyTo
from motet.runtime.scopes import only_in_a_block
from motet.runtime.snapshot import Statistics, leftovers_of, statistics_of
from motet.runtime.stopping import StopReport, wait_bounded, within
from motet.runtime.stream import ReplyStream, observed_stream, open_stream
from motet.runtime.threads import ThreadsafeRef
from motet.runtime.waits import current_work, refuse_own_end

__all__ = ["ActorRef", "LookedUpRef", "cell_of", "check_timeout"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
R = TypeVar("R")
T = TypeVar("T")

# One less than the power of two that counts the idle actors that are woken between two pauses.
_UNTIL_PAUSE: Final = 63


class ActorRef(Address, Generic[P_contra]):
    """A reference to an actor, the same across its restarts; hashable, safe to keep.

    Every way to send raises :class:`NotInProtocol` for a foreign message and :class:`ActorDead`
    once the actor has stopped. Between a crash and the restart, mail is accepted and kept (G4).
    """

    __slots__ = ("_cell", "_mailbox")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._mailbox = cell.mailbox

    async def tell(self, message: P_contra) -> None:
        """Send without an answer; waits while the mailbox is full, if it is declared so.

        Order per sender is kept. Cancelled while waiting: nothing was sent. A checkpoint only if
        the mailbox is full, so that telling stays cheap. But it lets other tasks run, when the
        message has been sent, at every 64th idle actor that is told in a row, and at every 1,024th
        message of a mailbox with a larger capacity. Raises TellCycle in a handler that has to end
        before there can be room (G11).
        """
        mailbox = self._mailbox
        queue = mailbox.queue
        # `envelope` and `put` do the same, but each call would be a tenth of a tell.
        if (
            mailbox.direct_in._is_owned()  # pyright: ignore[reportPrivateUsage]  # see `ThreadMark`
            and type(message) in mailbox.direct
            and len(queue) < mailbox.limit
        ):
            mailbox.accepted += 1
            queue.append(message)
            task = mailbox.receiver
            if task is not None:
                mailbox.receiver = None
                reschedule(task, WOKEN)
                # Looked at here and not for each message, which would be a twentieth of a tell.
                kernel = self._cell.kernel
                kernel.woken = woken = kernel.woken + 1
                if not woken & _UNTIL_PAUSE:
                    await _let_others_run()
            return
        cell = self._cell
        item = cell.envelope(message)
        wakes = mailbox.receiver is not None
        if not mailbox.put(item):
            if not trio.lowlevel.in_trio_task():
                raise cell.kernel.loop.outside(cell.path)
            await mailbox.put_when_room(item)
            return
        cell.kernel.woken += wakes
        if not mailbox.accepted % DIRECT_UP_TO or (wakes and not cell.kernel.woken & _UNTIL_PAUSE):
            await _let_others_run()

    def tell_nowait(self, message: P_contra) -> None:
        """Send without an answer and without waiting; MailboxFull for ``wait`` and ``fail``."""
        checked = self._cell.envelope(message)
        if not self._mailbox.put(checked):
            self._mailbox.put_or_overflow(checked)

    def ask(
        self, request: Asked[P_contra, R], *, timeout: float | None = None, abandon: bool = False
    ) -> Coroutine[Any, Any, R]:
        """Send a request and return its answer, or raise the error of its handler (G3).

        Cancelled or out of time (:class:`AskTimeout`, ``timeout`` in seconds): a request that still
        waits is withdrawn; a running handler is cancelled, and this returns only when it and all
        its own asks have ended; if it finished nevertheless, its value is returned (G1).
        Raises MailboxFull as declared, and AskCycle instead of waiting for itself (G11).

        An ask in the handler of a request inherits the deadline of that request, or has an earlier
        one of its own. A handler can read it by :func:`current_deadline`.

        ``abandon=True`` gives up G1 for this ask: cancelled or out of time, it returns at once, and
        its handler, which is cancelled all the same, may work on after that.
        """
        if abandon:
            call = observed_ask if self._cell.kernel.observing else ask
            return call(self._cell, request, timeout, kind=AbandoningAsk)
        if self._cell.kernel.observing:
            return observed_ask(self._cell, request, timeout)
        return ask(self._cell, request, timeout)

    def forward(self, request: Asked[P_contra, R], reply_to: ReplyTo[R]) -> bool:
        """Send a request whose answer goes to the asker behind ``reply_to``.

        From here on it is as if that had asked this actor: it gets the answer, the handler's error,
        ActorDead, MailboxFull or AskCycle, and its cancellation reaches the handler (G1). Waits for
        nothing. False, and nothing is sent, if the token is closed.
        """
        return forward(self._cell, request, reply_to)

    def stream(
        self, request: Streamed[P_contra, T, R]
    ) -> AbstractAsyncContextManager[ReplyStream[T, R]]:
        """Send a request whose handler sends items first: ``async with ref.stream(r) as items``.

        Iterate over the items, then read ``items.result``. The handler's error is raised in the
        block. Leaving the block early, or being cancelled in it, cancels the handler and waits
        for its end (G1).
        """
        checked = self._cell.admit(cast("StreamRequest[T, R]", request))  # as in `ask`
        if self._cell.kernel.observing:
            return observed_stream(self._cell, checked)
        return open_stream(self._cell, checked)

    def stream_to(
        self,
        request: Streamed[P_contra, T, R],
        take: Callable[[T], object],
        *,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, R]:
        """Ask, and call ``take`` with each item that the handler sends before its answer.

        Otherwise as :meth:`ask`. The asker is resumed for the answer only, so an item costs a
        function call. ``take`` gets the items in order, each before the handler's ``send`` returns.
        It runs in the handler's task with that task's context variables, and must not wait. If it
        raises, the handler is cancelled as by the asker, its ``send`` raises
        ``trio.BrokenResourceError``, and the error is raised here (G3). It is not called again
        after that, nor after the asker was cancelled or its time ran out.
        """
        if self._cell.kernel.observing:
            return observed_ask(self._cell, request, timeout, take)
        return ask(self._cell, request, timeout, None, take)

    async def stop(self, *, grace: float | None = None) -> StopReport:
        """Stop the actor and all below it for ever; return within ``grace`` seconds (G2).

        Queued mail becomes dead letters at once. The running handler may finish, then children
        stop in reverse start order, then ``on_stop`` runs. None means the ``stop_grace`` of the
        actor, or five seconds; 0 cancels everything now. Cancelled: the stop continues by itself.
        """
        cell = self._cell
        cell.kernel.loop.check(cell.path)
        plan = within(cell.stop_grace if grace is None else grace)
        tasks = 1 if cell.supervisor is None else sum(1 for _ in cell.tree())
        cell.parent.stop(cell, plan)
        with ending(cell.path, "stop"):
            await wait_bounded(cell.wait_ended, lambda: not cell.is_occupied, plan, tasks)
        if not cell.is_occupied:
            return plan.ledger.report(iter(()))
        return plan.ledger.report(left for below in cell.tree() for left in leftovers_of(below))

    async def drain(self, *, timeout: float = math.inf, grace: float | None = None) -> StopReport:
        """Accept no further mail, handle what was accepted, then stop as :meth:`stop`.

        What is sent from now on gets ActorDead, and so do the senders that wait for room. Crashes
        are restarted as declared. Stashed messages, and what is left after ``timeout`` seconds, are
        dead letters. Cancelled: the actor is stopped at once; that continues by itself. Raises
        WaitCycle in a handler that has to end before the actor can (G11).
        """
        check_timeout(timeout)
        cell = self._cell
        cell.kernel.loop.check(cell.path)
        work = current_work.get()
        if work is not None and cell.state != "dead":
            refuse_own_end(work, cell.path)
        if self._mailbox.shut is None:
            self._mailbox.accept_no_more("it is being drained")
        try:
            with ending(cell.path, "stop"), trio.move_on_after(timeout):
                await cell.wait_idle()
        except BaseException:
            cell.parent.stop(cell, within(grace))
            raise
        return await self.stop(grace=grace)

    async def wait_terminated(self) -> Terminated:
        """Wait until the actor has ended for ever, and return the reason.

        Cancelled: the actor is not affected. Raises WaitCycle in a handler that has to end before
        the actor can (G11).
        """
        return await wait_terminated(self._cell)

    def threadsafe(self) -> ThreadsafeRef[P_contra]:
        """This reference for other threads and loops; may be called anywhere."""
        return ThreadsafeRef(self._cell)

    def suspend(self, *, refuse: bool = False) -> None:
        """Begin no handler until :meth:`resume`; a running one goes on (G6).

        Mail is accepted as before and waits, also over a restart; with ``refuse`` new requests
        get :class:`ActorPaused` instead (G3). Children and background tasks go on. Suspending again
        only changes ``refuse``.
        """
        self._cell.kernel.loop.check(self._cell.path)
        self._cell.suspend(refuse=refuse)

    def resume(self) -> None:
        """Handle mail again, in the order it came. Does nothing if the actor is not suspended."""
        self._cell.kernel.loop.check(self._cell.path)
        self._cell.resume()

    @property
    def is_alive(self) -> bool:
        """Whether mail is accepted; True also while the actor waits for its restart."""
        return self._cell.state not in OVER and self._mailbox.shut is None

    @property
    def path(self) -> str:
        """The place of the actor in the tree: ``/system/parent/name``."""
        return self._cell.path

    def get_state(self) -> object:
        """What the actor's :meth:`Behaviour.on_inspect` shows of its state, for people and tests.

        Read now, also in the middle of a handler. None while no incarnation lives. Raises what
        that raises.
        """
        cell = self._cell
        cell.kernel.loop.check(cell.path)
        if cell.incarnation is None:
            return None
        with foreign_code:
            return cell.incarnation.actor.on_inspect()

    def statistics(self) -> Statistics:
        """Counters over all incarnations; see :class:`Statistics`."""
        return statistics_of(self._cell)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorRef) and other._is_of(self._cell)

    def __hash__(self) -> int:
        return hash(self._cell)

    def _is_of(self, cell: Cell) -> bool:
        return self._cell is cell

    def __repr__(self) -> str:
        return f"<ActorRef {self._cell.path} {self._cell.state}>"


def check_timeout(timeout: float) -> None:
    """Raise ValueError for what is no number of seconds, before a drain refuses anything."""
    if not timeout >= 0:
        raise ValueError(f"timeout is a number of seconds, so >= 0, not {timeout}")


async def _let_others_run() -> None:
    # Without Cancelled, since the message is sent. A guest's asyncio, which tells too, cannot wait.
    if trio.lowlevel.in_trio_task():
        await trio.lowlevel.cancel_shielded_checkpoint()


class LookedUpRef(Address, ABC, Generic[P_contra]):
    """A reference whose actor is looked up for each message, in the step in which it is sent.

    Base of :class:`Pool` and :class:`IdentityRef`. While there is none that could be looked up,
    because a parent of it is being restarted, all but :meth:`tell_nowait` wait.
    """

    __slots__ = ()

    @abstractmethod
    def _look_up(self, message: Any) -> ActorRef[P_contra]:
        """The actor for ``message``, which takes mail until the next checkpoint; or ActorDead."""

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """Whether an actor can be looked up now."""

    @abstractmethod
    async def _opened(self) -> None:
        """Wait until one can be looked up. Raises ActorDead if it never can."""

    async def tell(self, message: P_contra) -> None:
        """As :meth:`ActorRef.tell`."""
        if not self._is_open:
            await self._opened()
        await self._look_up(message).tell(message)

    def tell_nowait(self, message: P_contra) -> None:
        """As :meth:`ActorRef.tell_nowait`; ActorDead also while a parent is being restarted."""
        self._look_up(message).tell_nowait(message)

    async def ask(
        self, request: Asked[P_contra, R], *, timeout: float | None = None, abandon: bool = False
    ) -> R:
        """As :meth:`ActorRef.ask`."""
        if not self._is_open:
            await self._opened()
        return await self._look_up(request).ask(request, timeout=timeout, abandon=abandon)

    @only_in_a_block
    async def stream(self, request: Streamed[P_contra, T, R]) -> AsyncGenerator[ReplyStream[T, R]]:
        """As :meth:`ActorRef.stream`."""
        if not self._is_open:
            await self._opened()
        async with self._look_up(request).stream(request) as items:
            yield items

    async def stream_to(
        self,
        request: Streamed[P_contra, T, R],
        take: Callable[[T], object],
        *,
        timeout: float | None = None,
    ) -> R:
        """As :meth:`ActorRef.stream_to`."""
        if not self._is_open:
            await self._opened()
        return await self._look_up(request).stream_to(request, take, timeout=timeout)

    def threadsafe(self) -> NoReturn:
        """Raises TypeError: other threads send to this through :meth:`System.portal`.

        The actor is looked up, and may be made, in the loop, in the step in which it gets the
        message. An inbox before that would belong to no actor, and would lose the order of a
        thread when the next message goes to another one.
        """
        raise TypeError(
            f"{self!r} has no threadsafe(), since its actor is found in the loop for each message: "
            "use system.portal().call(ref.tell, message), or .submit(ref.ask, request)"
        )


def cell_of(ref: ActorRef[Any]) -> Cell:
    """The cell of a reference; for the kernel. Raises TypeError for any other object."""
    try:
        return ref._cell  # pyright: ignore[reportPrivateUsage]  # not public: users need no cell
    except AttributeError:
        raise TypeError(
            f"{ref!r} is no reference to one actor, as watches, links and names need: use that of "
            "the actor itself, its self.ref"
        ) from None
