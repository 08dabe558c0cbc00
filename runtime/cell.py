"""What stays of an actor across its restarts: path, mailbox, reference, and its place in the tree.

Invariants: the state changes only by the table of ``lifecycle.py``; there is at most one living
incarnation; a cell that is dead has a closed mailbox and no task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from motet.protocols.messages import Message
from motet.runtime.actor import Actor
from motet.runtime.errors import ActorDead, NotInProtocol, StartFailed, unwrapped
from motet.runtime.incarnation import Incarnation
from motet.runtime.inspect import Leftover
from motet.runtime.lifecycle import LifeEvent, LifeState, next_state
from motet.runtime.mailbox import Mailbox
from motet.runtime.observe import Observer
from motet.runtime.portable import round_trip
from motet.runtime.stopping import StopPlan, at_once
from motet.runtime.supervision import Restart
from motet.runtime.supervisor import Supervisor
from motet.runtime.told import Told
from motet.runtime.waits import StartWait, Work, current_work, refuse_cycle

if TYPE_CHECKING:
    from motet.runtime.monitors import Monitors
    from motet.runtime.system import System

__all__ = ["Cell"]

M = TypeVar("M", bound=Message)

_log = logging.getLogger("motet.runtime")


class Cell:
    """See the module. One per reference; users hold it through :class:`ActorRef` only."""

    __slots__ = (
        "_actor",
        "_cleaning",
        "_cleanup",
        "_ended",
        "_factory",
        "_started",
        "cancel_at",
        "control",
        "failed_with",
        "generation",
        "handlers",
        "kind",
        "leaving",
        "life",
        "mailbox",
        "monitors",
        "name",
        "observer",
        "parent",
        "path",
        "paused",
        "plan",
        "restart",
        "restarts",
        "state",
        "supervisor",
        "system",
        "task",
        "turn",
        "was_ready",
    )

    def __init__(
        self,
        system: System,
        parent: Supervisor,
        name: str,
        factory: Callable[[], Actor[Any]],
        restart: Restart,
    ) -> None:
        self.system = system
        self.parent = parent
        self.name = name
        self.path = f"{parent.path}/{name}"
        self.restart: Restart = restart
        self.restarts = 0
        self.generation = 0  # counts incarnations, so that a stale exit can be told
        self.state: LifeState = "new"
        self.turn = Work(self.path)
        self.life: Incarnation | None = None
        self.supervisor: Supervisor | None = None
        self.control: list[Message] = []  # handled before all mail (G6)
        self.monitors: Monitors | None = None
        self.observer: Observer | None = None
        if system.observing:
            self.observe()
        self.paused = False
        self.leaving = False  # asked to stop for ever
        self.was_ready = False  # some incarnation has started
        self.failed_with: Exception | None = None  # how the last incarnation ended
        self.plan: StopPlan | None = None  # of this incarnation, once its end was ordered
        self.cancel_at = math.inf
        self._factory = factory
        self._started: trio.Event | None = None
        self._ended: trio.Event | None = None
        self.task: trio.lowlevel.Task | None = None
        self._cleaning: trio.CancelScope | None = None
        self._cleanup = 0.0  # declared by the last one: the next is like it
        self._actor: Actor[Any] | None = self._build()
        self.kind = type(self._actor).__name__
        self.handlers = self._actor.__motet_handlers__
        self.mailbox = Mailbox(
            self.path,
            self._actor.mailbox,
            system.dead_letters,
            self._actor.__motet_calls__.aside,
        )

    # ------------------------------------------------------------------ sending

    def admit(self, message: M) -> M:
        """The message to send: refused if foreign, copied if the system checks messages."""
        kind = type(message)
        if kind not in self.handlers:
            raise NotInProtocol(self.path, self.kind, kind, self.handlers)
        return round_trip(message) if self.system.check_messages else message

    def work_for(self, kind: type[Message]) -> Work:
        """What an ask of this kind waits for: the turn, or a concurrent handler of its own."""
        return Work(self.path) if kind in self.mailbox.stashes else self.turn

    def post(self, message: Message) -> None:
        """Send a control message: handled before all mail, nobody waits, nothing fills up (G6)."""
        if self.mailbox.closed is not None:
            return
        self.control.append(message)
        if self.life is not None:
            self.life.interrupt()

    def envelope(self, message: M) -> M | Told:
        """The item to send for a told message; see :meth:`admit`."""
        if self.system.plain and type(message) in self.handlers:
            return message
        checked = self.admit(message)
        tracer = self.system.tracer
        return checked if tracer is None else Told(checked, tracer.context())

    def observe(self) -> None:
        """Whether anybody looks at this actor may have changed."""
        seen = self.system.meter is not None or self.path in self.system.traces
        self.observer = Observer(self.system, self.path) if seen else None
        if self.life is not None:
            self.life.choose_ways()

    # ------------------------------------------------------------------ suspending

    def suspend(self, *, refuse: bool) -> None:
        """Begin no handler until resumed; ``refuse`` new requests, or let them wait (G3, G6)."""
        self.paused = True
        self.mailbox.refuse_requests(refuse)
        if self.life is not None:
            self.life.pause()

    def resume(self) -> None:
        """Undo :meth:`suspend`; no harm if it was not."""
        self.paused = False
        self.mailbox.refuse_requests(False)
        if self.life is not None and self.life.ready and not self.life.finishing:
            self.life.resume()

    # ------------------------------------------------------------------ life, for the supervisor

    def begin(self, nursery: trio.Nursery) -> None:
        """Start an incarnation in the supervisor's nursery."""
        self._change("begin")
        self.generation += 1
        self.restarts += self.was_ready
        if self.observer is not None and self.was_ready:
            self.observer.restarted()
        self.plan = None
        self.cancel_at = math.inf
        self.failed_with = None
        nursery.start_soon(self._run, name=self.path)

    async def wait_started(self) -> None:
        """Wait until ``on_start`` has returned or the incarnation has ended."""
        if not self.is_occupied or (self.life is not None and self.life.ready):
            return
        if self._started is None:
            self._started = trio.Event()
        work = current_work.get()
        if work is None:
            await self._started.wait()
            return
        refuse_cycle(work, self.turn)
        wait = StartWait(self.turn)
        work.waits.append(wait)
        try:
            await self._started.wait()
        finally:
            work.waits.remove(wait)

    def became_ready(self) -> None:
        """``on_start`` has returned."""
        self._change("ready")
        self.was_ready = True
        self._signal_started()

    def stop(self, plan: StopPlan, *, leave: bool) -> None:
        """Order the end of the incarnation; ``leave``: for ever, so intake closes (G2)."""
        if leave:
            self.leaving = True
            self.mailbox.close("it was stopped")
        if not self.is_occupied:
            return
        self._change("stop" if leave else "fail")
        self.plan = plan
        self.cancel_at = min(
            self.cancel_at, plan.cancel_at(self.cleanup_need(), trio.current_time())
        )
        if self.life is not None:
            self.life.cancel_at(self.cancel_at)
            self.life.finish()
        if self._cleaning is not None:
            self._cleaning.deadline = min(self._cleaning.deadline, plan.until)
        elif self.supervisor is not None and self.supervisor.closing:
            self.supervisor.close(plan.less(self._own_cleanup(), trio.current_time()))

    def finish(self) -> None:
        """End normally after this turn: what the actor itself may wish."""
        if self.state in ("starting", "running") and self.life is not None:
            self._change("fail")
            self.life.finish()

    def bury(self, reason: str) -> None:
        """No incarnation will follow: settle all mail and tell those who wait for the end."""
        if self.state != "dead":
            self._change("bury")
        self.mailbox.close(reason)
        if self.monitors is not None:
            self.monitors.end(self)

    async def wait_ended(self) -> None:
        """Wait until no incarnation lives."""
        while self.is_occupied:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()

    @property
    def is_occupied(self) -> bool:
        """An incarnation lives, or its clean-up does."""
        return self.state not in ("new", "suspended", "dead")

    def cleanup_need(self) -> float:
        """Seconds that the clean-ups of this actor and all below it have declared."""
        below = self.supervisor.cleanup_need() if self.supervisor is not None else 0.0
        return self._own_cleanup() + below

    # ------------------------------------------------------------------ children

    def children(self) -> Supervisor:
        """The supervisor of this actor's children, begun on first use."""
        if self.life is None or self.life.finishing:
            raise ActorDead(self.path, "it is ending, so it starts no children")
        if self.supervisor is None:
            spec = self.life.actor.supervision
            self.supervisor = Supervisor(
                self.system, self.path, spec, self.life.crash, self.finish, self.life.child_ended
            )
            self.parent.adopt(self.supervisor.run, name=f"{self.path} (supervisor)")
        return self.supervisor

    def spawn(
        self,
        factory: Callable[[], Actor[Any]],
        name: str,
        restart: Restart,
        *,
        significant: bool,
    ) -> Cell:
        """Begin a child, as :meth:`Supervisor.spawn`, whoever calls this.

        The child and its supervisor get the context variables of this actor, not the caller's.
        """
        assert self.task is not None, "an actor of this cell lives"
        context = self.task.context.copy()
        supervisor = context.run(self.children)
        return context.run(supervisor.spawn, factory, name, restart, significant=significant)

    # ------------------------------------------------------------------ looking

    def tree(self) -> Iterator[Cell]:
        """This cell and all below, parents first, siblings in start order."""
        yield self
        if self.supervisor is not None:
            yield from self.supervisor.tree()

    # ------------------------------------------------------------------ one incarnation

    def _build(self) -> Actor[Any]:
        try:
            actor = self._factory()
        except Exception as error:
            raise StartFailed(self.path, f"its factory raised {error!r}") from error
        if actor.__motet_cell__ is not None:
            raise StartFailed(
                self.path, "its factory returned an actor that was started before, not a new one"
            )
        actor.__motet_cell__ = self
        self._cleanup = actor.cleanup_budget if _cleans_up(actor) else 0.0
        return actor

    async def _run(self) -> None:
        """One incarnation from its factory to the end of its clean-up."""
        current_work.set(self.turn)
        self.task = trio.lowlevel.current_task()
        orderly = False
        try:
            self.life = self._next_life()
            if self.life is not None:
                await self.life.run()
                self.failed_with = self.life.failure
            orderly = True
        finally:
            if self.state != "stopping":
                self._change("fail" if orderly else "stop")
            try:
                await self._clean_up()
            finally:
                self._end(cancelled=not orderly)

    def _next_life(self) -> Incarnation | None:
        try:
            actor = self._actor or self._build()
        except StartFailed as error:
            self.failed_with = error
            return None
        self._actor = None
        life = Incarnation(self, actor)
        if self.state != "starting":
            life.finish()
        return life

    async def _clean_up(self) -> None:
        """End the children, then the actor. Shielded, so that it is done whoever cancels."""
        if self.supervisor is not None:
            self.supervisor.close(self._orders().less(self._own_cleanup(), trio.current_time()))
            # Without limit: it is the sum of what is limited.
            with trio.CancelScope(shield=True):
                await self.supervisor.ended.wait()
        if self.life is not None and self.life.ready and _cleans_up(self.life.actor):
            await self._stop_actor(self.life.actor)

    async def _stop_actor(self, actor: Actor[Any]) -> None:
        """Run its ``on_stop`` within its budget."""
        began = trio.current_time()
        # Looked up now: a stop may have been ordered while the children were ending.
        until = min(began + actor.cleanup_budget, self._orders().until)
        scope = self._cleaning = trio.CancelScope(deadline=until, shield=True)
        try:
            with scope:
                await actor.on_stop()
        except Exception as error:
            self._abandon(f"clean-up failed: {error!r}")
            self.failed_with = self.failed_with or unwrapped(error)
        if scope.cancelled_caught:
            self._abandon(f"clean-up cut after {trio.current_time() - began:g} s")
        self._cleaning = None

    def _end(self, *, cancelled: bool) -> None:
        error = self.failed_with
        if error is not None:
            _log.error("%s crashed: %r", self.path, error, exc_info=error)
        self.supervisor = None
        self._change("ended")
        if self.plan is not None:
            self.plan.ledger.ended.append(self.path)
        self.life = None
        self.task = None
        self._signal_started()
        self.parent.child_ended(self, cancelled=cancelled)
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _orders(self) -> StopPlan:
        """The plan of this end; nobody ordered one if the actor ends by itself."""
        if self.plan is None:
            self.plan = at_once()
        return self.plan

    def _abandon(self, what: str) -> None:
        self._orders().ledger.abandoned.append(Leftover(self.path, what))
        _log.warning("%s: %s", self.path, what)

    def _own_cleanup(self) -> float:
        """Seconds; also between two incarnations, since the next one has a clean-up again."""
        return 0.0 if self.state == "dead" else self._cleanup

    def _signal_started(self) -> None:
        if self._started is not None:
            self._started.set()
            self._started = None

    def _change(self, event: LifeEvent) -> None:
        self.state = next_state(self.state, event, self.path)


def _cleans_up(actor: Actor[Any]) -> bool:
    return type(actor).on_stop is not _INHERITED_ON_STOP


_INHERITED_ON_STOP: Final[Callable[[Any], Awaitable[None]]] = Actor[Any].on_stop
