"""The data that the parts of the kernel share: :class:`Kernel` of a system with its
:class:`HomeLoop`, and :class:`Owner` of an actor.

Two are base classes: ``system.py`` adds the tree to the one, ``cell.py`` the life cycle to the
other. Asks, timers, watchers, workers and incarnations use only these two. So none of them imports
the cell or the system, which import all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import RLock, current_thread, get_ident
from typing import Any, Protocol, TypeVar, get_origin

import msgspec
import trio

from motet.protocols.messages import Message
from motet.runtime.envelope import Address, Deferred, Told
from motet.runtime.errors import (
    ActorDead,
    AskCycle,
    MessageNotPortable,
    NotInProtocol,
    WaitCycle,
    WrongLoop,
)
from motet.runtime.feed import DeadLetters, Feed, Restarts
from motet.runtime.foreign import shown
from motet.runtime.handlers import Handler
from motet.runtime.lifecycle import LifeEvent, LifeState, Terminated, next_state
from motet.runtime.loops import NO_THREAD, loop_here, mark_thread
from motet.runtime.mailbox import Mailbox
from motet.runtime.telemetry import GuardedTelemetry, Meter, Telemetry, TraceEvent
from motet.runtime.timers import Timers
from motet.runtime.waits import Groups, Work, refuse_cycle

__all__ = ["Beside", "HomeLoop", "Kernel", "Owner", "round_trip"]

M = TypeVar("M", bound=Message)

_ADDRESS = "motet address "  # before the number of one that goes through msgpack
_COMING_BACK = ("starting", "running", "failing", "suspended")
_INSTEAD = "use ref.threadsafe() for messages, and system.portal() for all else"


class HomeLoop:
    """The run of Trio that a system lives in, for callers that may be elsewhere.

    A system is used in its own thread only, since nothing in it has a lock. Two ways lead in from
    other threads and loops, both through Trio's token: :meth:`post` and what stands on it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.thread = get_ident()
        self.name = current_thread().name
        self.token = trio.lowlevel.current_trio_token()
        self.task = trio.lowlevel.current_task()

    def check(self, path: str) -> None:
        """Raise :class:`WrongLoop` in any other thread. Its loops are other loops, if it has any.

        The thread of the system may be in another loop too: in asyncio, with Trio as its guest or
        blocked by it. There all works that does not wait; :meth:`outside` is the error of a wait.
        """
        if get_ident() != self.thread:
            problem = f"lives in the thread {self.name!r} and was used in another"
            raise WrongLoop(path, problem, _INSTEAD)

    def outside(self, path: str) -> WrongLoop:
        """The error for a wait that is begun outside of Trio's tasks."""
        return WrongLoop(path, "was awaited outside of Trio's tasks", _INSTEAD)

    def in_task(self) -> bool:
        """Whether the caller is a task of this very run of Trio."""
        return get_ident() == self.thread and trio.lowlevel.in_trio_task()

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the loop soon, in the order of the posts; from any thread.

        It must not raise. Every call that was accepted runs before the loop ends. ActorDead: the
        loop has ended.
        """
        try:
            self.token.run_sync_soon(call)
        except trio.RunFinishedError:
            raise ActorDead(self.path, "its loop has ended") from None

    def refuse_to_block(self, path: str) -> None:
        """Raise :class:`WrongLoop` where a blocking wait would hold up a loop."""
        if get_ident() == self.thread:
            problem = "would wait for the thread that this call blocks"
            raise WrongLoop(path, problem, "await the reference's own methods, or take the future")
        here = loop_here()
        if here is not None:
            problem = f"would block the loop of {here} in this thread"
            raise WrongLoop(path, problem, "take the future, which asyncio.wrap_future awaits")


class Kernel:
    """The data of one system that its actors read: clock, dead letters, observers, settings."""

    def __init__(
        self,
        name: str,
        *,
        check_messages: bool,
        chance: Callable[[], float],
        telemetry: Meter | None,
    ) -> None:
        self.name = name
        self.check_messages = check_messages
        self.chance = chance  # returns numbers in [0, 1)
        self.meter = None if telemetry is None else GuardedTelemetry(telemetry)
        # None first, since the look at a protocol takes as long as a hundred messages.
        self.tracer = (
            self.meter if telemetry is not None and isinstance(telemetry, Telemetry) else None
        )
        self.traces: dict[str, list[Feed[TraceEvent]]] = {}  # by path
        # Two flags that spare the paths of tell and ask a longer look.
        self.observing = telemetry is not None  # there is a meter or a trace
        self.loop = HomeLoop(f"/{name}")
        # The thread in which messages are sent as they are, if there is one. One comparison serves
        # two checks, since a call of its own for the thread would be a twentieth of a tell.
        plain = self.tracer is None and not check_messages
        self.plain_in = mark_thread() if plain else NO_THREAD
        self.dead_letters = DeadLetters(self.meter)
        self.restarts = Restarts()
        self.timers = Timers()
        self.woken = 0  # idle actors, by tells since an actor last had nothing to do
        self.numbers = count(1)  # in the names of actors that were given none
        self.inboxes: dict[Owner, Any] = {}  # of `threads.py`, which imports this
        self.inboxes_change = RLock()  # held where one is made, and where an idle actor ends

    def is_observed(self, path: str) -> bool:
        """Whether the actor at ``path`` has a meter or a trace."""
        return self.meter is not None or path in self.traces


class Beside(Protocol):
    """The tasks of a living incarnation beside its turn, as far as the graph needs them."""

    def holding(self, kind: type[Message], /) -> Sequence[Work] | None:
        """The handlers that have all places of ``kind``; None: a place is free, or is taken by one
        that has not begun.
        """
        ...

    def handlers_at_work(self) -> Sequence[Work]:
        """All concurrent handlers that have begun and not ended."""
        ...


class Owner:
    """One actor, as its senders, watchers, timers and its incarnation know it.

    The first seven attributes never change: they are the address. The others are the state, the
    orders that the running incarnation reads, and the watches.
    """

    __slots__ = (
        "beside",
        "cancel_at",
        "control",
        "deferred",
        "ending",
        "failed_with",
        "halted",
        "handlers",
        "is_final",
        "kernel",
        "kind",
        "links",
        "mailbox",
        "name",
        "nursery",
        "path",
        "paused",
        "rested",
        "state",
        "turn",
        "watchers",
        "watching",
    )

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        path: str,
        kind: str,
        handlers: Mapping[type[Message], Handler],
        mailbox: Mailbox,
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.path = path
        self.kind = kind  # the name of the actor's class, for messages
        self.handlers = handlers
        self.mailbox = mailbox
        self.turn = Work(path)
        mailbox.holder = self

        self.state: LifeState = "new"
        self.nursery: trio.Nursery | None = None  # the supervisor's; all tasks of the actor in it
        self.control: list[Message] | None = None  # handled before all mail (G6)
        self.halted = True  # the turn must read its orders before it takes the next message
        self.paused = False
        self.ending = False  # the incarnation begins no further handler
        self.is_final = False  # ordered to end for ever
        self.beside: Beside | None = None  # the tasks of the incarnation beside its turn
        self.cancel_at = math.inf  # when the tasks of this incarnation are cancelled
        self.failed_with: Exception | None = None  # the error that ended the last incarnation
        self.deferred: Deferred | None = None  # asks that this incarnation answers later
        self.rested: trio.Event | None = None  # while somebody waits until there is no mail
        # Keys are the watching actors, or any object of a watcher that is no actor.
        self.watchers: dict[object, Callable[[Terminated], None]] | None = None
        self.watching: set[Owner] | None = None
        # Of this incarnation, with the call that fails the other; see `links.py`.
        self.links: dict[Owner, Callable[[Exception], None]] | None = None

    def admit(self, message: M) -> M:
        """The message to send: refused if foreign, copied if the system checks messages.

        Raises WrongLoop in another thread than the system's.
        """
        self.kernel.loop.check(self.path)
        return self.checked(message)

    def checked(self, message: M) -> M:
        """As :meth:`admit`, in any thread."""
        kind = type(message)
        if kind not in self.handlers:
            raise NotInProtocol(self.path, self.kind, kind, self.handlers)
        return round_trip(message) if self.kernel.check_messages else message

    def envelope(self, message: M) -> M | Told:
        """The item to put in the mailbox for a told message; see :meth:`admit`."""
        plain_in = self.kernel.plain_in
        if plain_in._is_owned() and type(message) in self.handlers:  # pyright: ignore[reportPrivateUsage]  # see `ThreadMark`
            return message
        return self.with_context(self.admit(message))

    def with_context(self, message: M) -> M | Told:
        """The item for a checked message: with the sender's trace context, if there is one."""
        tracer = self.kernel.tracer
        return message if tracer is None else Told(message, tracer.context())

    def work_for(self, kind: type[Message]) -> Work:
        """The work an ask of this kind waits for: the turn, or a concurrent handler of its own."""
        return Work(self.path) if kind in self.mailbox.concurrent else self.turn

    # ------------------------------------------------------------------ the wait-for graph

    def refuse_endless(self, work: Work, kind: type[Message]) -> None:
        """Raise :class:`AskCycle` if a request of ``kind``, sent by ``work`` now, would never be
        handled. Of an ask that would raise another error there is nothing to refuse.
        """
        box = self.mailbox
        waits = box.spec.overflow == "wait" and box.is_full
        if not (waits and box.refusing):
            groups = self.before_begin(kind)
            try:
                refuse_cycle(work, [*groups, *self.before_room()] if waits else groups)
            except AskCycle as cycle:
                raise self.refusal(cycle) from None

    def before_begin(self, kind: type[Message]) -> Groups:
        """What has to end before a queued message of ``kind`` is handled; see ``waits.py``."""
        if not self._handles_mail or self.ending:
            return self._before_next()
        if kind not in self.mailbox.concurrent or self.mailbox.places is None or not self.beside:
            return ((self.turn,),)  # of the turn, or `on_start` has not returned
        holding = self.beside.holding(kind)
        return () if holding is None else (holding,)

    def before_room(self) -> Groups:
        """What has to end before the full mailbox has room."""
        if not self._handles_mail or self.ending:
            return self._before_next()
        box = self.mailbox
        # The turn takes from its queue, and may handle what it has stashed. A concurrent handler
        # takes from the queue of its type only.
        group = [self.turn] if box.queue.items or box.stash.items or box.reserved else []
        for kind in [kind for kind, queue in box.concurrent.items() if queue.items]:
            (handlers,) = self.before_begin(kind) or ((),)
            if not handlers:
                return ()
            group += handlers
        return (group,) if group else ()

    @property
    def _handles_mail(self) -> bool:
        """Whether nobody outside of the graph has to act before mail is handled."""
        return not self.paused and self.state in ("starting", "running", "failing")

    def _before_next(self) -> Groups:
        """What has to end before another incarnation may handle mail."""
        if self.paused or self.state not in _COMING_BACK:
            return ()
        own = self.own_works() if self._handles_mail else ()
        return (*((work,) for work in own), *self.before_restart())

    def own_works(self) -> Sequence[Work]:
        """The turn and the concurrent handlers."""
        return (self.turn, *(() if self.beside is None else self.beside.handlers_at_work()))

    def before_restart(self) -> Groups:
        """What has to end before this actor, which has ended or ends, is started again."""
        return ()

    def refusal(self, cycle: WaitCycle) -> Exception:
        """The error for a wait for this actor that would never end: ActorDead if it leads through
        the restart of its group, for then it has failed, or ends with a sibling that has.
        """
        restart = self.before_restart()
        if not restart or cycle.chain[1] != restart[0][0].path:
            return cycle
        failed = "" if self.failed_with is None else f": {shown(self.failed_with)}"
        why = (
            f"it has ended{failed}, and starts again when {cycle.chain[0]} has, which waits for it"
        )
        return ActorDead(self.path, why)

    def rest(self) -> None:
        """The turn or the last concurrent handler has nothing more to do now."""
        # The hot paths look first, since nearly nobody waits.
        if self.rested is not None:
            self.rested.set()
            self.rested = None

    async def wait_idle(self) -> None:
        """Wait until there is no mail, no handler, and no answer due, or the actor has ended.

        What was stashed is no mail: nobody knows when it is put back.
        """
        box = self.mailbox
        while box.closed is None:
            settled = box.handled + box.withdrawn + box.dead_lettered + box.stash.items
            if box.accepted == settled and not box.waiting and not self.deferred:
                return
            if self.rested is None:
                self.rested = trio.Event()
            await self.rested.wait()

    def post(self, message: Message) -> None:
        """Send a control message: handled before all mail, never waits, takes no room (G6)."""
        # After a stop no handler begins, so there is none that could take it.
        if self.mailbox.closed is not None:
            return
        if self.control is None:  # an empty list would be a hundredth of an idle actor
            self.control = []
        self.control.append(message)
        self.interrupt()

    def interrupt(self) -> None:
        """Have the turn read its orders before it takes the next message (G6)."""
        self.halted = True
        self.mailbox.wake()

    def became_ready(self) -> None:
        """``on_start`` has returned."""
        self.change("ready")

    def change(self, event: LifeEvent) -> None:
        """Go to the next state of the life cycle; the only place that changes the state."""
        self.state = next_state(self.state, event, self.path)


def round_trip(message: M) -> M:
    """An equal copy of ``message`` that went through msgpack, or MessageNotPortable.

    So a message that could not cross a process border is found in a test. JSON takes the place of
    msgpack for integers of more than 64 bits, which a model may write. References are addresses,
    so they are portable: only their numbers go through, in fields that are declared to hold them.
    """
    kind = type(message)
    addresses: list[Address] = []

    def encoded(value: object) -> str:
        if not isinstance(value, Address):
            raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
        addresses.append(value)
        return f"{_ADDRESS}{len(addresses) - 1}"

    def decoded(declared: type, value: object) -> object:
        if isinstance(value, str) and issubclass(get_origin(declared) or declared, Address):
            return addresses[int(value.removeprefix(_ADDRESS))]
        return value

    try:
        try:
            data = msgspec.msgpack.encode(message, enc_hook=encoded)
            copy = msgspec.msgpack.decode(data, type=kind, dec_hook=decoded)
        except OverflowError:
            addresses.clear()
            data = msgspec.json.encode(message, enc_hook=encoded)
            copy = msgspec.json.decode(data, type=kind, dec_hook=decoded)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise MessageNotPortable(kind, str(error)) from error
    if copy != message:
        raise MessageNotPortable(kind, f"it comes back as {copy!r}")
    return copy
